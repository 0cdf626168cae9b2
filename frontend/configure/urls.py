from django.urls import path

from . import holds, policy_form, rows, setup, transfer

urlpatterns = [
    path("configure/", rows.index, name="configure"),
    path("configure/services/<int:pk>/policy/", policy_form.edit, name="configure-policy"),
    path("configure/<slug:kind>/", rows.rows, name="configure"),
    path("configure/<slug:kind>/new/", rows.create, name="configure-new"),
    path("configure/<slug:kind>/consequences/", rows.told, name="configure-consequences"),
    path("configure/<slug:kind>/bulk/", rows.bulk, name="configure-bulk"),
    path("configure/<slug:kind>/import/", transfer.bring_in, name="configure-import"),
    path("configure/<slug:kind>/export.<slug:format>", transfer.export, name="configure-export"),
    path("configure/<slug:kind>/<int:pk>/", rows.edit, name="configure-edit"),
    path("configure/<slug:kind>/<int:pk>/delete/", rows.delete, name="configure-delete"),
    path("holds/", holds.page, name="holds"),
    path("holds/pause/", holds.pause, name="holds-pause"),
    path("holds/resume/<int:pk>/", holds.resume, name="holds-resume"),
    path("holds/mode/", holds.mode, name="holds-mode"),
    path("holds/approvals/<int:pk>/<slug:answer>/", holds.answer, name="holds-answer"),
    path("holds/overrides/", holds.override, name="holds-override"),
    path("holds/overrides/<int:pk>/end/", holds.end, name="holds-end"),
    path("holds/undo/<int:pk>/", holds.undo, name="holds-undo"),
    path("setup/", setup.page, name="setup"),
]

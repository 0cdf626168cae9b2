from django.urls import path

from . import operations, policy_form, rows, setup, transfer

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
    path("holds/", operations.page, name="holds"),
    path("holds/pause/", operations.pause, name="holds-pause"),
    path("holds/resume/<int:pk>/", operations.resume, name="holds-resume"),
    path("holds/mode/", operations.mode, name="holds-mode"),
    path("holds/approvals/<int:pk>/<slug:answer>/", operations.answer, name="holds-answer"),
    path("holds/overrides/", operations.override, name="holds-override"),
    path("holds/overrides/<int:pk>/end/", operations.end, name="holds-end"),
    path("holds/undo/<int:pk>/", operations.undo, name="holds-undo"),
    path("setup/", setup.page, name="setup"),
]

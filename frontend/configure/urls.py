from django.urls import path
from django.views.generic import RedirectView

from . import advice, offer, operations, policy_form, rows, setup, transfer

MOVED = RedirectView.as_view(
    pattern_name="overrides", permanent=True, query_string=True, http_method_names=["get", "head", "options"]
)

urlpatterns = [
    path("configure/", rows.index, name="configure"),
    path("configure/services/<int:pk>/policy/", policy_form.edit, name="configure-policy"),
    path("configure/<slug:kind>/", rows.rows, name="configure"),
    path("configure/<slug:kind>/new/", rows.create, name="configure-new"),
    path("configure/<slug:kind>/consequences/", rows.show_consequences, name="configure-consequences"),
    path("configure/<slug:kind>/bulk/", rows.bulk, name="configure-bulk"),
    path("configure/<slug:kind>/import/", transfer.bring_in, name="configure-import"),
    path("configure/<slug:kind>/export.<slug:format>", transfer.export, name="configure-export"),
    path("configure/<slug:kind>/<int:pk>/", rows.edit, name="configure-edit"),
    path("configure/<slug:kind>/<int:pk>/delete/", rows.delete, name="configure-delete"),
    path("overrides/", operations.page, name="overrides"),
    path("overrides/new/", operations.override, name="overrides-new"),
    path("overrides/<int:pk>/end/", operations.end, name="overrides-end"),
    path("overrides/pause/", operations.pause, name="overrides-pause"),
    path("overrides/resume/<int:pk>/", operations.resume, name="overrides-resume"),
    path("overrides/control-mode/", operations.control_mode, name="overrides-control-mode"),
    path("overrides/approvals/<int:pk>/<slug:answer>/", operations.answer, name="overrides-answer"),
    path("overrides/advice/<path:name>/", advice.page, name="advice"),
    path("overrides/undo/<int:pk>/", operations.undo, name="overrides-undo"),
    path("offer/", offer.page, name="offer"),
    path("setup/", setup.page, name="setup"),
]

# Version 0.2 keeps the addresses of 0.1: bookmarks find the page, and a page that is still open can post its forms.
urlpatterns += [
    path("holds/", MOVED),
    path("holds/pause/", operations.pause),
    path("holds/resume/<int:pk>/", operations.resume),
    path("holds/mode/", operations.control_mode),
    path("holds/approvals/<int:pk>/<slug:answer>/", operations.answer),
    path("holds/overrides/", operations.override),
    path("holds/overrides/<int:pk>/end/", operations.end),
    path("holds/undo/<int:pk>/", operations.undo),
]

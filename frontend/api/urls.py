"""Addresses under /api/v1/."""

from django.urls import path, re_path
from rest_framework.routers import Route, SimpleRouter

from .resources import (
    advice,
    alerts,
    configure,
    documents,
    experiments,
    history,
    jobs,
    keys,
    nodes,
    operations,
    overheads,
    reports,
    series,
    studies,
    tenant_use,
    trials,
    webhooks,
)


class Router(SimpleRouter):
    """DRF's router, with PATCH on lists as well."""

    routes = [
        route._replace(mapping={**route.mapping, "patch": "bulk_update"})
        if isinstance(route, Route) and not route.detail
        else route
        for route in SimpleRouter.routes
    ]


router = Router()
for kind, viewset in configure.VIEWSETS.items():
    router.register(kind, viewset, basename=kind)
router.register("instances", history.InstanceViewSet)
router.register("epochs", history.EpochViewSet)
router.register("decisions", history.DecisionViewSet)
router.register("requests", history.RequestViewSet)
router.register("audit", history.AuditViewSet)
router.register("keys", keys.ApiKeyViewSet)
router.register("jobs", jobs.JobViewSet)
router.register("reports", reports.ReportViewSet)
router.register("alerts", alerts.AlertViewSet)
router.register("alert-silences", alerts.SilenceViewSet)
router.register("pauses", operations.PauseViewSet)
router.register("overrides", operations.OverrideViewSet)
router.register("approvals", operations.ApprovalViewSet)
router.register("studies", studies.StudyViewSet)
router.register("trials", trials.TrialViewSet)
router.register("webhooks", webhooks.SubscriptionViewSet)
router.register("webhook-deliveries", webhooks.DeliveryViewSet)

app_name = "api"
urlpatterns = [
    path("nodes/join/", nodes.JoinView.as_view(), name="nodes-join"),  # before the node that is called so
    *router.urls,
    path("modes/<str:service>/advice/", advice.AdviceView.as_view(), name="advice"),
    path("previews/", advice.PreviewView.as_view(), name="previews"),
    path("modes/<str:service>/", operations.ControlModeView.as_view(), name="mode"),
    path("experiments/", experiments.ExperimentsView.as_view(), name="experiments"),
    path("experiments/<str:name>/", experiments.ExperimentView.as_view(), name="experiment"),
    path("tenants/<str:name>/use/", tenant_use.TenantUseView.as_view(), name="tenant-use"),
    path("overheads/", overheads.OverheadsView.as_view(), name="overheads"),
    path("series/<str:name>/", series.SeriesView.as_view(), name="series"),
    path("schema/", documents.SchemaView.as_view(), name="schema"),
    path("docs/", documents.DocsView.as_view(), name="docs"),
    re_path(r"^.*$", documents.Nothing.as_view(), name="nothing"),
]

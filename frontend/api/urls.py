"""Addresses under /api/v1/."""

from django.urls import path, re_path
from rest_framework.routers import Route, SimpleRouter

from .resources import (
    advice,
    alerts,
    configure,
    documents,
    engine_profiles,
    engine_residuals,
    experiments,
    gpu_types,
    history,
    jobs,
    keys,
    nodes,
    offers,
    operations,
    overheads,
    past_periods,
    reports,
    series,
    studies,
    tenant_bill,
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


RESOURCES = {
    **configure.VIEWSETS,
    "instances": history.InstanceViewSet,
    "epochs": history.EpochViewSet,
    "decisions": history.DecisionViewSet,
    "requests": history.RequestViewSet,
    "audit": history.AuditViewSet,
    "synthetic-history": history.SyntheticHistoryViewSet,
    "engine-profiles": engine_profiles.EngineProfileViewSet,
    "engine-residuals": engine_residuals.EngineResidualViewSet,
    "keys": keys.ApiKeyViewSet,
    "jobs": jobs.JobViewSet,
    "reports": reports.ReportViewSet,
    "alerts": alerts.AlertViewSet,
    "alert-silences": alerts.SilenceViewSet,
    "pauses": operations.PauseViewSet,
    "overrides": operations.OverrideViewSet,
    "approvals": operations.ApprovalViewSet,
    "studies": studies.StudyViewSet,
    "trials": trials.TrialViewSet,
    "webhooks": webhooks.SubscriptionViewSet,
    "webhook-deliveries": webhooks.DeliveryViewSet,
}
router = Router()
for kind, viewset in RESOURCES.items():
    router.register(kind, viewset, basename=kind)

app_name = "api"
urlpatterns = [
    path("nodes/authority/", nodes.AuthorityView.as_view(), name="nodes-authority"),
    path("nodes/<slug:name>/revoke/", nodes.RevokeView.as_view(), name="nodes-revoke"),
    path("nodes/join/", nodes.JoinView.as_view(), name="nodes-join"),  # before the node that is called so
    path("nodes/<str:name>/state/", nodes.NodeStateView.as_view(), name="state-of-node"),
    *router.urls,
    path("modes/<str:service>/advice/", advice.AdviceView.as_view(), name="advice"),
    path("previews/", advice.PreviewView.as_view(), name="previews"),
    path("modes/<str:service>/", operations.ControlModeView.as_view(), name="mode"),
    path("experiments/", experiments.ExperimentsView.as_view(), name="experiments"),
    path("experiments/<str:name>/", experiments.ExperimentView.as_view(), name="experiment"),
    path("tenants/<str:name>/use/", tenant_use.TenantUseView.as_view(), name="tenant-use"),
    path("tenants/<str:name>/bill/", tenant_bill.TenantBillView.as_view(), name="tenant-bill"),
    path("offers/", offers.OffersView.as_view(), name="offers"),
    path("overheads/", overheads.OverheadsView.as_view(), name="overheads"),
    path("shipped-gpu-types/", gpu_types.ShippedGpuTypesView.as_view(), name="shipped-gpu-types"),
    path("period-figures/", past_periods.PeriodFiguresView.as_view(), name="period-figures"),
    path("scenario/", past_periods.ScenarioView.as_view(), name="scenario"),
    path("series/<str:name>/", series.SeriesView.as_view(), name="series"),
    path("schema/", documents.SchemaView.as_view(), name="schema"),
    path("docs/", documents.DocsView.as_view(), name="docs"),
    re_path(r"^[\s\S]*$", documents.Nothing.as_view(), name="nothing"),
]

from rest_framework.routers import SimpleRouter

from . import alerts, reports, views

router = SimpleRouter()
router.register("sites", views.SiteViewSet)
router.register("nodes", views.NodeViewSet)
router.register("services", views.ServiceViewSet)
router.register("pools", views.PoolViewSet)
router.register("instances", views.InstanceViewSet)
router.register("epochs", views.EpochViewSet)
router.register("decisions", views.DecisionViewSet)
router.register("requests", views.RequestViewSet)
router.register("reports", reports.ReportViewSet)
router.register("alerts", alerts.AlertViewSet)
router.register("alert-silences", alerts.SilenceViewSet)

app_name = "api"
urlpatterns = router.urls

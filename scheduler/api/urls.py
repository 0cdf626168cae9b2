from rest_framework.routers import SimpleRouter

from . import views

router = SimpleRouter()
router.register("sites", views.SiteViewSet)
router.register("nodes", views.NodeViewSet)
router.register("services", views.ServiceViewSet)
router.register("pools", views.PoolViewSet)
router.register("instances", views.InstanceViewSet)
router.register("epochs", views.EpochViewSet)
router.register("decisions", views.DecisionViewSet)
router.register("requests", views.RequestViewSet)

app_name = "api"
urlpatterns = router.urls

from django.urls import include, path

from frontend.metrics import views as metrics

handler500 = "frontend.unavailable.page"

urlpatterns = [
    path("api/v1/", include("frontend.api.urls")),
    path("v1/", include("frontend.api.openai.urls")),
    path("metrics", metrics.metrics, name="metrics"),
    path("metrics/targets", metrics.targets, name="metrics-targets"),
    path("", include("frontend.urls")),
]

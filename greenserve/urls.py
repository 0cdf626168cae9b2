from django.urls import include, path

from frontend.metrics import views as metrics

handler400 = "frontend.error_pages.bad_request"
handler403 = "frontend.error_pages.forbidden"
handler404 = "frontend.error_pages.not_found"
handler500 = "frontend.error_pages.server_error"

urlpatterns = [
    path("api/v1/", include("frontend.api.urls")),
    path("v1/", include("frontend.api.openai.urls")),
    path("metrics", metrics.metrics, name="metrics"),
    path("metrics/targets", metrics.targets, name="metrics-targets"),
    path("", include("frontend.urls")),
]

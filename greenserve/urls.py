from django.urls import include, path

urlpatterns = [
    path("api/v1/", include("scheduler.api.urls")),
    path("v1/", include("scheduler.api.openai_urls")),
    path("", include("frontend.urls")),
]

from django.urls import include, path

urlpatterns = [
    path("api/v1/", include("scheduler.api.urls")),
    path("", include("frontend.urls")),
]

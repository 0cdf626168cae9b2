"""What the OpenAPI document is of."""

from django.urls import include, path

urlpatterns = [path("api/v1/", include("frontend.api.urls"))]

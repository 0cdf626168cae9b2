"""The addresses that the OpenAPI document describes."""

from django.urls import include, path

urlpatterns = [path("api/v1/", include("frontend.api.urls"))]

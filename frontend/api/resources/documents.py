"""The API's description of itself, and what it says where there is nothing."""

from __future__ import annotations

import functools
from typing import Any

from django.http import Http404
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.settings import spectacular_settings
from drf_spectacular.utils import extend_schema
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerSplitView
from rest_framework.request import Request
from rest_framework.response import Response

from ..rest.base import Api, View


@functools.cache
def document() -> dict[str, Any]:
    """It is the same for all, and takes seconds to make: once in a process."""
    generator: Any = SchemaGenerator  # without types
    found: dict[str, Any] = generator(urlconf=spectacular_settings.SERVE_URLCONF).get_schema(request=None, public=True)
    return found


class SchemaView(Api, SpectacularAPIView):
    """The OpenAPI document."""

    @extend_schema(exclude=True)
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        return Response(document(), headers={"Content-Disposition": 'inline; filename="greenserve-openapi"'})


class DocsView(Api, SpectacularSwaggerSplitView):
    """The document for people, served with its scripts by the product itself: nothing is fetched from elsewhere."""

    url_name = "api:schema"


class Nothing(View):
    @extend_schema(exclude=True)
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Any:
        raise Http404

    post = put = patch = delete = get

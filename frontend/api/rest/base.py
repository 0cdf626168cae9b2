"""Base classes of all views under /api/v1/: rights, limits, ids of requests, pages, field selection, ETags.

JSON only: DRF's browsable pages need inline scripts, which our policy forbids.
"""

from __future__ import annotations

import re
import uuid
from typing import Any, ClassVar

from django.db.models import QuerySet
from django.http import Http404
from rest_framework import status
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView
from rest_framework.viewsets import GenericViewSet

from pools.access.rights import Right

from .permissions import Allowed, within
from .representation import chosen, etag, only, unchanged

REQUEST_ID = re.compile(r"[\w.:-]{1,64}")


class Api:
    """Mixed into every view: its rights, and headers of its answers. `named_in_body`: what it may not find (404)."""

    permission_classes: ClassVar[list[Any]] = [Allowed]
    reads: ClassVar[Right] = Right.VIEW
    writes: ClassVar[Right] = Right.OPERATE
    named_in_body: ClassVar[bool] = False

    def initialize_request(self, request: Any, *args: Any, **kwargs: Any) -> Request:
        brought = request.headers.get("X-Request-ID", "")
        if REQUEST_ID.fullmatch(brought) is None:
            # The trail's middleware reads the same header: one id for the answer, the audit entry and the log.
            brought = request.META["HTTP_X_REQUEST_ID"] = uuid.uuid4().hex
        request.request_id = brought
        found: Request = super().initialize_request(request, *args, **kwargs)  # type: ignore[misc]
        return found

    def perform_content_negotiation(self, request: Request, force: bool = False) -> Any:
        """DRF answers a `format` that it does not know as if the address were wrong."""
        try:
            return super().perform_content_negotiation(request, force)  # type: ignore[misc]
        except Http404:
            known = ", ".join(renderer.format for renderer in self.get_renderers())  # type: ignore[attr-defined]
            raise ValidationError({"format": f"give one of: {known}"}) from None

    def finalize_response(self, request: Request, response: Any, *args: Any, **kwargs: Any) -> Any:
        found = super().finalize_response(request, response, *args, **kwargs)  # type: ignore[misc]
        for name, value in getattr(request, "rate_headers", {}).items():
            found.headers[name] = value
        found.headers["X-Request-ID"] = getattr(request, "request_id", "")
        found.headers.setdefault("Cache-Control", "private, no-cache")
        return found


class View(Api, APIView):
    """A view that is no resource."""


class Lists(Api, GenericViewSet):
    """A list. `site_path` leads from a row to its site: people whose role is for some sites see only those rows."""

    ordering: ClassVar[tuple[str, ...]] = ("-pk",)
    ordering_fields: ClassVar[tuple[str, ...]] = ()
    site_path: ClassVar[str | None] = None

    def get_queryset(self) -> QuerySet[Any]:
        return within(self.request.user, super().get_queryset(), self.site_path)

    def names(self) -> list[str]:
        """Returns the fields of this view's answers."""
        return list(self.get_serializer().fields)

    def list(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        names = chosen(request, self.names())
        rows = self.paginate_queryset(self.filter_queryset(self.get_queryset()))
        data = self.get_serializer(rows, many=True).data
        answer: Response = self.get_paginated_response([only(row, names) for row in data])
        return answer


class ReadOnly(Lists):
    """A list, and each of its rows by its key."""

    lookup_value_regex = "[0-9]{1,18}"

    def get_object(self) -> Any:
        try:
            return super().get_object()
        except Http404:
            kind, key = self.queryset.model._meta.verbose_name, self.kwargs[self.lookup_url_kwarg or self.lookup_field]
            raise Http404(f"There is no {kind} {key} that you may see.") from None

    def retrieve(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        names = chosen(request, self.names())
        return shown(request, self.get_serializer(self.get_object()).data, names)


def shown(request: Request, data: Any, names: Any = None) -> Response:
    """Answers with a resource and its ETag (its own, where it carries one), or with 304 where the client has it."""
    tag = data.get("etag") or etag(data)
    if request.method == "GET" and unchanged(request, tag):
        return Response(status=status.HTTP_304_NOT_MODIFIED, headers={"ETag": tag})
    return Response(only(data, names), headers={"ETag": tag})

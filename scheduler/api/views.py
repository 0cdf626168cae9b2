"""Read-only lists and details under /api/v1/, for those who are signed in.

What grows with time (decisions, epochs, requests) is paged by cursor, newest first: counting millions of rows to
number the pages would cost more than the page. The rest is paged by limit and offset.
"""

# mypy: allow-subclassing-any
# DRF brings no types of its own.

from __future__ import annotations

from typing import Any, ClassVar

from django.db.models import QuerySet
from rest_framework.exceptions import ValidationError
from rest_framework.mixins import ListModelMixin, RetrieveModelMixin
from rest_framework.pagination import CursorPagination, LimitOffsetPagination
from rest_framework.renderers import JSONRenderer
from rest_framework.viewsets import GenericViewSet

from pools.models import Instance, Node, Pool, Service, Site
from scheduler.models import Decision, Epoch
from telemetry.models import RequestRecord

from . import serializers

PAGE_SIZE, MAX_PAGE_SIZE = 50, 500


class Pages(LimitOffsetPagination):
    default_limit = PAGE_SIZE
    max_limit = MAX_PAGE_SIZE


class NewestFirst(CursorPagination):
    page_size = PAGE_SIZE
    max_page_size = MAX_PAGE_SIZE
    page_size_query_param = "limit"


class ReadOnlyList(ListModelMixin, GenericViewSet):
    """JSON only: DRF's browsable pages need inline scripts, which our policy forbids.

    `filters` maps a query parameter to the column it must equal, and to the values it may have (None: any text).
    """

    renderer_classes: ClassVar = [JSONRenderer]
    pagination_class: ClassVar[Any] = Pages
    filters: ClassVar[dict[str, tuple[str, list[str] | None]]] = {}

    def filter_queryset(self, queryset: QuerySet[Any]) -> QuerySet[Any]:
        found: QuerySet[Any] = super().filter_queryset(queryset)
        for name, (column, allowed) in self.filters.items():
            value = self.request.query_params.get(name)
            if value is None:
                continue
            if "\0" in value or (allowed is not None and value not in allowed):
                raise ValidationError({name: f"give one of: {', '.join(allowed)}" if allowed else "not a text"})
            found = found.filter(**{column: value})
        return found


class ReadOnly(RetrieveModelMixin, ReadOnlyList):
    """A list, and each of its rows by its key."""


class SiteViewSet(ReadOnly):
    queryset = Site.objects.order_by("rank", "name")
    serializer_class = serializers.SiteSerializer
    lookup_field = "name"


class NodeViewSet(ReadOnly):
    queryset = Node.objects.select_related("cluster__site").prefetch_related("gpus").order_by("name")
    serializer_class = serializers.NodeSerializer
    lookup_field = "name"
    filters = {"site": ("cluster__site__name", None)}


class ServiceViewSet(ReadOnly):
    queryset = Service.objects.select_related("model_card", "partition").order_by("name")
    serializer_class = serializers.ServiceSerializer
    lookup_field = "name"
    lookup_value_regex = "[^/]+"


class PoolViewSet(ReadOnly):
    queryset = Pool.objects.select_related("service", "site", "request_class__partition").order_by("pk")
    serializer_class = serializers.PoolSerializer
    filters = {"site": ("site__name", None), "service": ("service__name", None)}


class InstanceViewSet(ReadOnly):
    queryset = Instance.objects.select_related("node", "model_card").order_by("-created_at", "-pk")
    serializer_class = serializers.InstanceSerializer
    lookup_field = "uid"
    lookup_value_regex = "[0-9a-f-]{36}"
    filters = {"state": ("state", list(Instance.State.values)), "node": ("node__name", None)}


class EpochViewSet(ReadOnly):
    queryset = Epoch.objects.select_related("service")
    serializer_class = serializers.EpochSerializer
    filters = {"kind": ("kind", list(Epoch.Kind.values)), "status": ("status", list(Epoch.Status.values))}

    class pagination_class(NewestFirst):
        ordering = ("-due_at", "-id")


class DecisionViewSet(ReadOnly):
    queryset = Decision.objects.select_related("service")
    filters = {"kind": ("kind", list(Decision.Kind.values))}

    class pagination_class(NewestFirst):
        ordering = ("-at", "-id")

    def get_serializer_class(self) -> type:
        return serializers.DecisionSerializer if self.action == "list" else serializers.DecisionDetailSerializer

    def get_queryset(self) -> QuerySet[Any]:
        found: QuerySet[Any] = super().get_queryset()
        if self.action == "list":
            return found.defer("inputs", "alternatives", "commands", "predicted", "realised")
        return found


class RequestViewSet(ReadOnlyList):
    """A list only: records are kept by time, and to find one by its id alone every day would have to be read."""

    queryset = RequestRecord.objects.select_related("tenant")
    serializer_class = serializers.RequestSerializer
    filters = {"status": ("status", list(RequestRecord.Status.values)), "tenant": ("tenant__name", None)}

    class pagination_class(NewestFirst):
        ordering = ("-started_at", "-request_id")

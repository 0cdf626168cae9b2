"""Measured overheads of changes of the fleet: /api/v1/overheads/, DynamoLLM's Overhead Table."""

from __future__ import annotations

from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from scheduler.control.snapshot import measured_overheads
from scheduler.operations import visibility

from ..rest.base import View


class OverheadSerializer(serializers.Serializer):
    """A kind of change, as it went in the last seven days."""

    change = serializers.CharField()
    mean_s = serializers.FloatField(help_text="The mean that plans use: the newest counts most.")
    least_s = serializers.FloatField()
    most_s = serializers.FloatField()
    count = serializers.IntegerField()
    newest = serializers.DateTimeField()
    published_s = serializers.FloatField(allow_null=True, help_text="What plans use where nothing is measured.")


class OverheadsSerializer(serializers.Serializer):
    """All of them: `next` and `previous`, as lists have them, are null."""

    next = serializers.CharField(allow_null=True)
    previous = serializers.CharField(allow_null=True)
    results = OverheadSerializer(many=True)


class OverheadsView(View):
    @extend_schema(
        operation_id="overheads_list",
        parameters=[OpenApiParameter("model", str, description="Only of the model card of this name.")],
        responses=OverheadsSerializer,
        tags=["overheads"],
    )
    def get(self, request: Request) -> Response:
        """Returns how long starts and re-shards took, of the services all of whose sites you may see."""
        services = visibility.whole_services(request.user).select_related("model_card")
        if model := request.query_params.get("model"):
            services = services.filter(model_card__name=model)
        rows = measured_overheads.rows(list(services), timezone.now())
        return Response({"next": None, "previous": None, "results": OverheadSerializer(rows, many=True).data})

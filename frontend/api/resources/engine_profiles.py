"""Measured profiles of engines under /api/v1/engine-profiles/: versions, brought in, published and withdrawn."""

from __future__ import annotations

from typing import Any, ClassVar

from django.http import HttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.status import HTTP_200_OK, HTTP_201_CREATED

from pools.access import audit
from pools.models import EngineProfile
from scheduler.operations import engine_profiles as operations

from ..rest.base import ReadOnly
from ..rest.bodies import Body
from ..rest.filters import filterset
from ..rest.idempotency import idempotent

FIELDS = (
    *("id", "model", "shape", "gpu_type", "tp", "engine", "version", "source", "origin", "points"),
    *("measured_at", "created_at", "published_at"),
)


class EngineProfileSerializer(serializers.ModelSerializer):
    """A version of a configuration's profile; decisions go by the one whose `published_at` is not null."""

    model = serializers.CharField(source="model_name", help_text="The model that was measured.")
    points = serializers.IntegerField(source="point_count", help_text="How many it has; the CSV has them.")

    class Meta:
        model = EngineProfile
        fields: tuple[str, ...] = FIELDS


class EngineProfileDetailSerializer(EngineProfileSerializer):
    """Also, of all points, the ratios to the closed form that are furthest from 1; null where it knows no such
    engine."""

    time_ratio = serializers.SerializerMethodField()
    power_ratio = serializers.SerializerMethodField()

    class Meta(EngineProfileSerializer.Meta):
        fields = (*FIELDS, "time_ratio", "power_ratio")

    def get_time_ratio(self, row: EngineProfile) -> float | None:
        found = operations.difference(row)
        return None if found is None else found.time

    def get_power_ratio(self, row: EngineProfile) -> float | None:
        found = operations.difference(row)
        return None if found is None else found.power


class NewEngineProfiles(Body):
    """Profiles: `rows`, objects with the columns of docs/fidelity.md, or `csv`, the text of such a table."""

    rows = serializers.ListField(child=serializers.DictField(), required=False)
    csv = serializers.CharField(required=False, trim_whitespace=False, max_length=operations.MOST_BYTES)
    publish = serializers.BooleanField(default=False, help_text="Also publish each of them.")

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if ("rows" in attrs) == ("csv" in attrs):
            raise ValidationError({"rows": "give either rows or csv"})
        return attrs


class BroughtInSerializer(serializers.Serializer):
    """The versions that an import has. `created`: how many versions were not there before."""

    created = serializers.IntegerField()
    profiles = EngineProfileSerializer(many=True)


class EngineProfileViewSet(ReadOnly):
    """Measured profiles of engines, the newest first. Of a configuration at most one version is published."""

    queryset = EngineProfile.objects.defer("points")
    ordering = ("-created_at", "-id")
    ordering_fields: ClassVar[tuple[str, ...]] = ("created_at", "measured_at")
    filterset_class = filterset(
        EngineProfile,
        model="model_name",
        gpu_type="gpu_type",
        tp="tp",
        engine="engine",
        source="source",
        version="version",
        published_after="published_at__gt",
    )

    def get_serializer_class(self) -> type:
        return EngineProfileSerializer if self.action == "list" else EngineProfileDetailSerializer

    @extend_schema(request=NewEngineProfiles, responses={200: BroughtInSerializer, 201: BroughtInSerializer})
    @idempotent
    def create(self, request: Request) -> Response:
        """Stores a version for each configuration among the rows, all or none. What is there already stays so (200)."""
        asked = NewEngineProfiles(data=request.data)
        asked.is_valid(raise_exception=True)
        given, actor = asked.validated_data, audit.actor_of(request, "api")
        if "csv" in given:
            found = operations.bring_in_csv(actor, given["csv"], publish=given["publish"])
        else:
            found = operations.bring_in(actor, given["rows"], publish=given["publish"])
        created = sum(one.created for one in found)
        body = BroughtInSerializer({"created": created, "profiles": [one.row for one in found]})
        return Response(body.data, status=HTTP_201_CREATED if created else HTTP_200_OK)

    @extend_schema(request=None)
    @action(detail=True, methods=["post"])
    @idempotent
    def publish(self, request: Request, pk: str) -> Response:
        """Decisions go by it within seconds, in place of another of its configuration."""
        row = operations.publish(audit.actor_of(request, "api"), self.get_object())
        return Response(EngineProfileDetailSerializer(row).data)

    @extend_schema(request=None)
    @action(detail=True, methods=["post"])
    @idempotent
    def withdraw(self, request: Request, pk: str) -> Response:
        """No decision goes by it any more; one that is not published is left as it is."""
        row = operations.withdraw(audit.actor_of(request, "api"), self.get_object())
        return Response(EngineProfileDetailSerializer(row).data)

    @extend_schema(responses={(200, "application/octet-stream"): OpenApiTypes.BINARY})
    @action(detail=True, methods=["get"], pagination_class=None)
    def csv(self, request: Request, pk: str) -> HttpResponse:
        """Returns its points as the bytes of a CSV in UTF-8, as an import reads them."""
        row = self.get_object()
        return HttpResponse(
            operations.csv_of(row),
            content_type="application/octet-stream",
            headers={"Content-Disposition": f'attachment; filename="{operations.file_name(row)}"'},
        )

"""Trials: /api/v1/trials/. Two policies take turns on a service, compared by what was metered; docs/trials.md."""

from __future__ import annotations

import dataclasses
from typing import Any

from django.core.exceptions import ValidationError as BadFields
from django.db.models import QuerySet
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema, extend_schema_field
from rest_framework import serializers, status
from rest_framework.decorators import action
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from pools.access import audit
from pools.models import Service
from scheduler.models import Trial, TrialBlock
from scheduler.operations import visibility
from scheduler.trials import outcome, turns

from ..rest.base import ReadOnly
from ..rest.bodies import Body
from ..rest.filters import filterset
from ..rest.idempotency import idempotent
from ..rest.references import KeyField, named


class TrialBlockSerializer(serializers.ModelSerializer):
    """A turn of policy A or B; `switched_at` is null until the service got it."""

    class Meta:
        model = TrialBlock
        fields = ("index", "pair", "arm", "starts_at", "ends_at", "switched_at")


class TrialSerializer(serializers.ModelSerializer):
    """A trial of policies A and B. `state`: planned, running, done or cancelled (`ended_why`)."""

    service = serializers.CharField(source="service.name", read_only=True)
    created_by = named("created_by.username")

    class Meta:
        model = Trial
        fields: tuple[str, ...] = (
            *("id", "service", "policy_a", "knobs_a", "policy_b", "knobs_b", "block_h", "pairs", "warm_up_s"),
            *("begins_at", "state", "ended_why", "reason", "created_at", "created_by"),
        )


class TrialDetailSerializer(TrialSerializer):
    """A trial with its blocks and its `outcome`: figures of each block, and differences of B to A with 95 % intervals
    (`difference`: of `share` rows a share of A's, of others in the unit)."""

    blocks = TrialBlockSerializer(many=True, read_only=True)
    outcome = serializers.SerializerMethodField()

    class Meta(TrialSerializer.Meta):
        fields = (*TrialSerializer.Meta.fields, "blocks", "outcome")

    @extend_schema_field(OpenApiTypes.OBJECT)
    def get_outcome(self, trial: Trial) -> dict[str, Any]:
        return dataclasses.asdict(outcome.of(trial))


class NewTrial(Body):
    """The trial to plan; blocks of `block_h` hours, a pair for each of `pairs`, from `begins_at` on."""

    service = KeyField(queryset=Service.objects.all())
    policy_a = serializers.CharField(max_length=40)
    knobs_a = serializers.DictField(default=dict)
    policy_b = serializers.CharField(max_length=40)
    knobs_b = serializers.DictField(default=dict)
    block_h = serializers.IntegerField(default=24, min_value=1, max_value=168)
    pairs = serializers.IntegerField(default=7, min_value=2, max_value=100)
    warm_up_s = serializers.IntegerField(default=1800, min_value=0, max_value=600_000)
    begins_at = serializers.DateTimeField()
    reason = serializers.CharField(max_length=300)


class CancelTrial(Body):
    reason = serializers.CharField(max_length=300)


class TrialViewSet(ReadOnly):
    """Trials, the newest first. They are for who may see all sites of their service."""

    queryset = Trial.objects.select_related("service", "created_by")
    ordering = ("-id",)
    filterset_class = filterset(Trial, service="service__name", state="state", created_after="created_at__gt")

    def get_serializer_class(self) -> type:
        return TrialSerializer if self.action == "list" else TrialDetailSerializer

    def get_queryset(self) -> QuerySet[Any]:
        return visibility.of_services(self.request.user, super().get_queryset())

    @extend_schema(request=NewTrial, responses={201: TrialDetailSerializer})
    @idempotent
    def create(self, request: Request) -> Response:
        """Plans a trial: beat begins it, switches the policies and ends it."""
        asked = NewTrial(data=request.data)
        asked.is_valid(raise_exception=True)
        try:
            made = turns.plan(audit.actor_of(request, "api"), Trial(**asked.validated_data))
        except BadFields as error:
            raise ValidationError(error.message_dict) from None
        headers = {"Location": f"{request.path}{made.pk}/"}
        return Response(TrialDetailSerializer(made).data, status=status.HTTP_201_CREATED, headers=headers)

    @extend_schema(request=CancelTrial, responses=TrialDetailSerializer)
    @action(detail=True, methods=["post"])
    @idempotent
    def cancel(self, request: Request, pk: str) -> Response:
        """Ends it early: the service gets its policy of before. One that is over is left as it is."""
        asked = CancelTrial(data=request.data)
        asked.is_valid(raise_exception=True)
        found = turns.cancel(audit.actor_of(request, "api"), self.get_object(), asked.validated_data["reason"])
        return Response(TrialDetailSerializer(found).data)

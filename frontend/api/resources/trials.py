"""Trials: /api/v1/trials/. Two policies take turns on a service, compared by what was metered; docs/trials.md."""

from __future__ import annotations

import dataclasses
from typing import Any

from django.contrib.auth.models import User
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
from pools.models import JobState, Service
from scheduler.models import Trial, TrialBlock
from scheduler.operations import visibility
from scheduler.trials import modelled, outcome, tasks, turns
from scheduler.trials.outcome import Outcome

from ..rest.base import ReadOnly
from ..rest.bodies import Body
from ..rest.filters import filterset
from ..rest.idempotency import idempotent
from ..rest.references import KeyField, named


class TrialBlockSerializer(serializers.ModelSerializer):
    """A turn of policy A or B at a service; `switched_at` is null until the service got it."""

    service = serializers.CharField(source="service.name", read_only=True)

    class Meta:
        model = TrialBlock
        fields = ("index", "pair", "service", "arm", "starts_at", "ends_at", "switched_at")


class TrialSerializer(serializers.ModelSerializer):
    """A trial of policies A and B. `state`: planned, running, done or cancelled (`ended_why`). `other`: the second
    service of a trial by sites, which has the policy that `service` has not."""

    service = serializers.CharField(source="service.name", read_only=True)
    other = named("other.name")
    created_by = named("created_by.username")

    class Meta:
        model = Trial
        fields: tuple[str, ...] = (
            *("id", "service", "other", "policy_a", "knobs_a", "policy_b", "knobs_b", "block_h", "pairs", "warm_up_s"),
            *("begins_at", "state", "ended_why", "reason", "created_at", "created_by"),
        )


class ModelledBlockSerializer(serializers.Serializer):
    """The requests of one block under the baseline's policy. Null: not known, for the reason in `why`."""

    index = serializers.IntegerField()
    energy_j = serializers.FloatField(allow_null=True)
    carbon_g = serializers.FloatField(allow_null=True)
    requests = serializers.IntegerField(allow_null=True)
    why = serializers.CharField()


class SavingSerializer(serializers.Serializer):
    """An arm's blocks that count and of which both are known: `blocks` of `of`. Shares are of the baseline."""

    arm = serializers.CharField()
    blocks = serializers.IntegerField()
    of = serializers.IntegerField()
    metered_j = serializers.FloatField(allow_null=True)
    modelled_j = serializers.FloatField(allow_null=True)
    saved_energy_modelled = serializers.FloatField(source="saved_energy", allow_null=True)
    metered_g = serializers.FloatField(allow_null=True)
    modelled_g = serializers.FloatField(allow_null=True)
    saved_carbon_modelled = serializers.FloatField(source="saved_carbon", allow_null=True)


class TrialBaseline(serializers.Serializer):
    """The energy and carbon of the same requests under `policy`: modelled. `state` is the newest job's."""

    policy = serializers.SerializerMethodField()
    job = serializers.UUIDField(source="job.uid")
    state = serializers.ChoiceField(source="job.state", choices=JobState.choices)
    progress = serializers.FloatField(source="job.progress", help_text="Share done, 0 to 1.")
    error = serializers.CharField(source="job.error")
    missing = serializers.IntegerField(help_text="Blocks that count and are not in it yet.")
    savings = SavingSerializer(many=True)
    blocks = ModelledBlockSerializer(many=True)

    def get_policy(self, _: Any) -> str:
        return modelled.POLICY


class TrialDetailSerializer(TrialSerializer):
    """A trial with its blocks, its `outcome`: figures of each block, and differences of B to A with 95 % intervals
    (`difference`: of `share` rows a share of A's, of others in the unit), and its modelled `baseline` (null: nobody has
    asked for it)."""

    blocks = serializers.SerializerMethodField()
    outcome = serializers.SerializerMethodField()
    baseline = serializers.SerializerMethodField()

    class Meta(TrialSerializer.Meta):
        fields = (*TrialSerializer.Meta.fields, "blocks", "outcome", "baseline")

    @extend_schema_field(TrialBlockSerializer(many=True))
    def get_blocks(self, trial: Trial) -> Any:
        return TrialBlockSerializer(trial.blocks.select_related("service"), many=True).data

    def _outcome(self, trial: Trial) -> Outcome:
        found: Outcome | None = self.context.get("outcome")
        if found is None:
            found = self.context["outcome"] = outcome.of(trial)
        return found

    @extend_schema_field(OpenApiTypes.OBJECT)
    def get_outcome(self, trial: Trial) -> dict[str, Any]:
        return dataclasses.asdict(self._outcome(trial))

    @extend_schema_field(TrialBaseline(allow_null=True))
    def get_baseline(self, trial: Trial) -> Any:
        found = modelled.modelled(trial, self._outcome(trial))
        return None if found.job is None else TrialBaseline(found).data


class NewTrial(Body):
    """The trial to plan; blocks of `block_h` hours, a pair for each of `pairs`, from `begins_at` on. With `other` it is
    one by sites: the two services swap the policies at each turn."""

    service = KeyField(queryset=Service.objects.all())
    other = KeyField(queryset=Service.objects.all(), required=False, allow_null=True)
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
    """Trials, the newest first. They are for who may see all sites of their services."""

    queryset = Trial.objects.select_related("service", "other", "created_by")
    ordering = ("-id",)
    filterset_class = filterset(Trial, service="service__name", state="state", created_after="created_at__gt")

    def get_serializer_class(self) -> type:
        return TrialSerializer if self.action == "list" else TrialDetailSerializer

    def get_queryset(self) -> QuerySet[Any]:
        return visibility.trials(self.request.user, super().get_queryset())

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

    @extend_schema(request=None, responses={202: TrialDetailSerializer})
    @action(detail=True, methods=["post"])
    @idempotent
    def baseline(self, request: Request, pk: str) -> Response:
        """Asks what single_pool would have used for the same requests. 202: a worker models it; see `baseline.job`."""
        trial = self.get_object()
        job = modelled.ask(trial, request.user if isinstance(request.user, User) else None)
        tasks.send(job)
        headers = {"Link": f'</api/v1/jobs/{job.uid}/>; rel="monitor"'}
        return Response(TrialDetailSerializer(trial).data, status=status.HTTP_202_ACCEPTED, headers=headers)

"""A policy that advises beside the one in force, and previews of switches, over REST."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, ClassVar

from django.shortcuts import get_object_or_404
from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from pools.access import audit
from pools.models import Service
from scheduler.control import advising
from scheduler.models import ControlMode, LoopPause, Override
from scheduler.operations import overrides, pauses, previews, visibility
from scheduler.operations.configure import changes

from ..rest.base import View
from ..rest.bodies import Body
from ..rest.owned import ChoiceField
from ..rest.references import KeyField, of_key

TURNS = 100


class FleetPredictionSerializer(serializers.Serializer):
    """A fleet under a policy, predicted by the engine model at the mean demand of the last minutes.

    Null figures are not known; `unknown` says why. Carbon and cost include the sites' PUE.
    """

    policy = serializers.CharField()
    partition = serializers.CharField()
    workers = serializers.DictField(child=serializers.DictField(child=serializers.IntegerField()))
    gpus = serializers.IntegerField()
    demand_rps = serializers.FloatField()
    feasible = serializers.BooleanField()
    power_w = serializers.FloatField(allow_null=True)
    carbon_g_per_h = serializers.FloatField(allow_null=True)
    cost_per_h = serializers.FloatField(allow_null=True)
    currency = serializers.CharField(allow_blank=True)
    unknown = serializers.ListField(child=serializers.CharField())


class AdviceTurnSerializer(serializers.Serializer):
    """One turn of a loop of a policy that advised, with both fleets as they were predicted then."""

    epoch = serializers.IntegerField()
    loop = serializers.CharField()
    at = serializers.DateTimeField()
    in_force = FleetPredictionSerializer()
    advised = FleetPredictionSerializer()


class AdviceSerializer(serializers.Serializer):
    """The policy in force and the one that advises, side by side; `advised` is null where none does."""

    service = serializers.CharField()
    in_force = FleetPredictionSerializer(allow_null=True)
    advised = FleetPredictionSerializer(allow_null=True)
    turns = AdviceTurnSerializer(many=True)


class AdviceView(View):
    """The policy in force and the one that advises beside it."""

    @extend_schema(operation_id="advice_retrieve", responses=AdviceSerializer, tags=["modes"])
    def get(self, request: Request, service: str) -> Response:
        """Returns both fleets now, and the turns in which the policy advised, the newest first."""
        found = get_object_or_404(visibility.whole_services(request.user), **of_key(service))
        sides = advising.side_by_side(found, timezone.now()) if advising.advises(found) else None
        turns = [
            {"epoch": row.pk, "loop": row.kind, "at": row.started_at, **(row.comparison or {})}
            for row in advising.turns(found)[:TURNS]
        ]
        both = {"in_force": None, "advised": None} if sides is None else asdict(sides)
        return Response(AdviceSerializer({"service": found.name, **both, "turns": turns}).data)


class SwitchSerializer(Body):
    """A switch to preview: what is given of it is done in this order, and taken back. `knobs` go with `policy`."""

    service = KeyField(queryset=Service.objects.all())
    mode = ChoiceField(choices=ControlMode.choices, required=False)
    policy = serializers.CharField(required=False, max_length=20)
    knobs = serializers.DictField(required=False)
    pause = ChoiceField(choices=LoopPause.Loop.choices, required=False)
    resume = ChoiceField(choices=LoopPause.Loop.choices, required=False)
    end_override = serializers.IntegerField(required=False, min_value=1, max_value=2**31 - 1)

    def validate(self, given: dict[str, Any]) -> dict[str, Any]:
        if len(given) == 1:
            raise ValidationError({"mode": "Give a mode, a policy, or a loop to pause or to resume, or an override."})
        if "knobs" in given and "policy" not in given:
            raise ValidationError({"policy": "Name the policy that the knobs are of."})
        return given


class PreviewSerializer(serializers.Serializer):
    """It says what acts now and what would act then. `metered_w`: of the GPUs of its instances, by their meters.

    `change_w`: the difference of the two predictions; null where one of them is not known.
    """

    metered_w = serializers.FloatField(allow_null=True)
    now = FleetPredictionSerializer()
    then = FleetPredictionSerializer()
    change_w = serializers.FloatField(allow_null=True)
    notes = serializers.ListField(child=serializers.CharField())


class PreviewView(View):
    """Previews a switch of a service: it is carried out in a transaction that is taken back."""

    named_in_body: ClassVar[bool] = True

    @extend_schema(operation_id="preview_create", request=SwitchSerializer, responses=PreviewSerializer, tags=["modes"])
    def post(self, request: Request) -> Response:
        """Returns the power, carbon and cost now and after the switch. Nothing is changed."""
        asked = SwitchSerializer(data=request.data)
        asked.is_valid(raise_exception=True)
        given = asked.validated_data
        service = get_object_or_404(visibility.whole_services(request.user), pk=given["service"].pk)
        actor = audit.actor_of(request, "api")

        def switch() -> None:
            if "mode" in given:
                pauses.set_control_mode(actor, service, given["mode"])
            if "policy" in given:
                row = Service.objects.get(pk=service.pk)
                row.policy, row.knobs = given["policy"], given.get("knobs", {})
                changes.update(actor, row)
            if "pause" in given:
                pauses.pause(actor, service, given["pause"], "a preview")
            if "resume" in given:
                paused = LoopPause.objects.filter(service=service, loop=given["resume"], ended_at=None).first()
                if paused is None:
                    raise ValidationError({"resume": f"The {given['resume']} loop is not paused."})
                pauses.resume(actor, paused)
            if "end_override" in given:
                rows = visibility.overrides(request.user, Override.objects.filter(service=service))
                overrides.end(actor, get_object_or_404(rows, pk=given["end_override"]))

        found = previews.of(service, switch)
        return Response(PreviewSerializer({**asdict(found), "change_w": found.change_w}).data)

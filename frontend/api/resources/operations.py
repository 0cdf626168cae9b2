"""Operations over REST: pauses of loops, control modes of services, approvals of plans, and overrides with an end."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from django.shortcuts import get_object_or_404
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.status import HTTP_201_CREATED

from pools.access import audit
from pools.models import Instance, Partition, Pool, Service, Site
from scheduler.control import active_operations
from scheduler.models import Approval, ControlMode, LoopPause, Override, OverrideKind, ServiceMode
from scheduler.operations import approvals, overrides, pauses, visibility

from ..rest.base import ReadOnly, View
from ..rest.bodies import Body
from ..rest.filters import filterset
from ..rest.idempotency import idempotent
from ..rest.owned import ChoiceField, NumberField
from ..rest.references import KeyField, PoolField, PoolName, key_of, named, of_key, pool_relations


class PauseSerializer(serializers.ModelSerializer):
    """A pause, in force until `ended_at` or `expires_at`; if both are null, until somebody resumes the loop."""

    service = named("service.name")
    created_by = named("created_by.username")
    ended_by = named("ended_by.username")

    class Meta:
        model = LoopPause
        fields = (
            *("id", "service", "loop", "reason", "created_at", "created_by", "expires_at", "ended_at", "ended_by"),
        )


class NewPause(Body):
    service = KeyField(queryset=Service.objects.all())
    loop = ChoiceField(choices=LoopPause.Loop.choices)
    reason = serializers.CharField(max_length=300)
    expires_at = serializers.DateTimeField(default=None, allow_null=True)


class OverrideSerializer(serializers.ModelSerializer):
    """`value` by kind: workers of a pool by mode; `{"mhz": ...}` or `{"floor_mhz": ...}`; `{"partition": ...}`; or
    nothing for a drain."""

    service = named("service.name")
    site = named("site.name")
    pool = serializers.IntegerField(source="pool_id", allow_null=True, read_only=True)
    pool_name = PoolName()
    created_by = named("created_by.username")
    ended_by = named("ended_by.username")
    decision = serializers.IntegerField(source="decision_id", allow_null=True, read_only=True)

    class Meta:
        model = Override
        fields = (
            *("id", "kind", "service", "site", "pool", "pool_name", "instance_uid", "value", "decision", "reason"),
            *("created_at", "created_by", "expires_at", "ended_at", "ended_by"),
        )


class NewOverride(Body):
    """`workers` (mode -> instances) for a `pool`; of kind clock `mhz`, or `floor_mhz`: how far down its rule may go;
    `partition` for a `service`; or a `site` to drain."""

    kind = ChoiceField(choices=OverrideKind.choices)
    pool = PoolField(
        queryset=Pool.objects.select_related("service__partition", "site", "request_class__partition"), required=False
    )
    service = KeyField(queryset=Service.objects.all(), required=False)
    site = KeyField(queryset=Site.objects.all(), required=False)
    instance_uid = serializers.UUIDField(required=False)
    workers = serializers.DictField(child=serializers.IntegerField(min_value=0, max_value=10_000), required=False)
    mhz = NumberField(required=False, min_value=1)
    floor_mhz = NumberField(required=False, min_value=1)
    partition = KeyField(queryset=Partition.objects.all(), required=False)
    expires_at = serializers.DateTimeField()
    reason = serializers.CharField(max_length=300)


NEEDED = {
    OverrideKind.WORKERS: ("pool", "workers"),
    OverrideKind.CLOCK: ("pool",),
    OverrideKind.PARTITION: ("service", "partition"),
    OverrideKind.DRAIN: ("site",),
}


class ApprovalSerializer(serializers.ModelSerializer):
    service = named("service.name")
    decided_by = named("decided_by.username")

    class Meta:
        model = Approval
        fields = (
            *("id", "epoch", "service", "loop", "commands", "status", "created_at", "expires_at"),
            *("decided_at", "decided_by", "note"),
        )


class Rejection(Body):
    note = serializers.CharField(max_length=300, default="", allow_blank=True)


class PauseViewSet(ReadOnly):
    """Pauses of loops, the newest first. A paused loop decides nothing; what it set last stays."""

    queryset = LoopPause.objects.select_related("service", "created_by", "ended_by")
    serializer_class = PauseSerializer
    ordering = ("-created_at", "-id")
    filterset_class = filterset(LoopPause, service="service__name", loop="loop", created_after="created_at__gt")

    @extend_schema(request=NewPause, responses={201: PauseSerializer})
    @idempotent
    def create(self, request: Request) -> Response:
        """Pauses a loop of a service."""
        asked = NewPause(data=request.data)
        asked.is_valid(raise_exception=True)
        made = pauses.pause(audit.actor_of(request, "api"), **asked.validated_data)
        location = f"{request.path}{made.pk}/"
        return Response(PauseSerializer(made).data, status=HTTP_201_CREATED, headers={"Location": location})

    @extend_schema(request=None)
    @action(detail=True, methods=["post"])
    @idempotent
    def resume(self, request: Request, pk: str) -> Response:
        """The loop takes its next turn. One that has ended is left as it is."""
        return Response(PauseSerializer(pauses.resume(audit.actor_of(request, "api"), self.get_object())).data)


class OverrideViewSet(ReadOnly):
    """A person's word against the controllers', for a while; the newest first."""

    queryset = Override.objects.select_related("service", "site", *pool_relations(), "created_by", "ended_by")
    serializer_class = OverrideSerializer
    ordering = ("-created_at", "-id")
    filterset_class = filterset(
        Override, kind="kind", service="service__name", site="site__name", pool="pool", created_after="created_at__gt"
    )

    def get_queryset(self) -> QuerySet[Any]:
        return visibility.overrides(self.request.user, super().get_queryset())

    @extend_schema(request=NewOverride, responses={201: OverrideSerializer})
    @idempotent
    def create(self, request: Request) -> Response:
        """Pins a pool's workers, a clock or a partition, or drains a site, until it ends."""
        asked = NewOverride(data=request.data, context={"request": request})
        asked.is_valid(raise_exception=True)
        made = _override(request, asked.validated_data)
        location = f"{request.path}{made.pk}/"
        return Response(OverrideSerializer(made).data, status=HTTP_201_CREATED, headers={"Location": location})

    @extend_schema(request=None)
    @action(detail=True, methods=["post"])
    @idempotent
    def end(self, request: Request, pk: str) -> Response:
        """Ends it now; the loops decide anew within seconds."""
        return Response(OverrideSerializer(overrides.end(audit.actor_of(request, "api"), self.get_object())).data)


def _override(request: Request, given: dict[str, Any]) -> Override:
    """Raises ValidationError naming what the kind needs."""
    kind = OverrideKind(given["kind"])
    if missing := [name for name in NEEDED[kind] if name not in given]:
        raise ValidationError(dict.fromkeys(missing, f"an override of kind {kind} needs it"))
    actor, until = audit.actor_of(request, "api"), (given["expires_at"], given["reason"])
    match kind:
        case OverrideKind.WORKERS:
            return overrides.pin_workers(actor, given["pool"], given["workers"], *until)
        case OverrideKind.CLOCK if ("mhz" in given) == ("floor_mhz" in given):
            raise ValidationError({"mhz": "give either mhz, to fix it there, or floor_mhz, to let it go down so far"})
        case OverrideKind.CLOCK if "floor_mhz" in given:
            return overrides.let_clocks_down(actor, given["pool"], given["floor_mhz"], *until)
        case OverrideKind.CLOCK:
            return overrides.fix_clock(actor, given["pool"], given["mhz"], *until, instance=_instance(given))
        case OverrideKind.PARTITION:
            return overrides.pin_partition(actor, given["service"], given["partition"], *until)
    return overrides.drain_site(actor, given["site"], *until)


def _instance(given: dict[str, Any]) -> Instance | None:
    if "instance_uid" not in given:
        return None
    found = Instance.objects.filter(uid=given["instance_uid"], pool=given["pool"]).first()
    if found is None:
        raise ValidationError({"instance_uid": "there is no such instance in this pool"})
    return found


class ApprovalViewSet(ReadOnly):
    """Plans that wait for a person, and what became of them; the newest first.

    They name sites: of a service they are for who may see all of its sites.
    """

    queryset = Approval.objects.select_related("service", "decided_by").defer("state")
    serializer_class = ApprovalSerializer
    ordering = ("-created_at", "-id")
    filterset_class = filterset(Approval, status="status", service="service__name", loop="loop")

    def get_queryset(self) -> QuerySet[Any]:
        return visibility.of_services(self.request.user, super().get_queryset())

    @extend_schema(request=None)
    @action(detail=True, methods=["post"])
    @idempotent
    def approve(self, request: Request, pk: str) -> Response:
        """Carries out exactly what was planned. Look at `status`: it may be too late, or out of date."""
        return Response(ApprovalSerializer(approvals.approve(audit.actor_of(request, "api"), self.get_object())).data)

    @extend_schema(request=Rejection)
    @action(detail=True, methods=["post"])
    @idempotent
    def reject(self, request: Request, pk: str) -> Response:
        """It is not carried out; the loop decides again at its next turn."""
        asked = Rejection(data=request.data)
        asked.is_valid(raise_exception=True)
        done = approvals.reject(audit.actor_of(request, "api"), self.get_object(), asked.validated_data["note"])
        return Response(ApprovalSerializer(done).data)


class ControlModeSerializer(serializers.Serializer):
    """What becomes of the decisions of the policy that is configured: they act, are only shown, or wait for approval.

    `in_force`: the policy that acts meanwhile. `gateways_only`: none of its loops has acted yet, so that clocks stay at
    the top.
    """

    service = KeyField(read_only=True)
    policy = serializers.CharField(read_only=True)
    in_force = serializers.CharField(read_only=True)
    gateways_only = serializers.BooleanField(read_only=True)
    mode = ChoiceField(choices=ControlMode.choices)
    approve_within_s = NumberField(help_text="A plan that waits longer for approval is out of date.")


class NewControlMode(Body):
    mode = ChoiceField(choices=ControlMode.choices)
    approve_within_s = NumberField(required=False, min_value=1)


class ControlModeView(View):
    """A service's control mode. A service is named by its name, or by `~` and its id."""

    @extend_schema(operation_id="mode_retrieve", responses=ControlModeSerializer, tags=["modes"])
    def get(self, request: Request, service: str) -> Response:
        """Returns the control mode of a service's slow loops."""
        return _mode(active_operations.control_mode_of(self._service(service)))

    @extend_schema(operation_id="mode_set", request=NewControlMode, responses=ControlModeSerializer, tags=["modes"])
    @idempotent
    def post(self, request: Request, service: str) -> Response:
        """Sets it. What waits for approval is out of date where nothing is to be approved any more."""
        asked = NewControlMode(data=request.data)
        asked.is_valid(raise_exception=True)
        given = asked.validated_data
        actor = audit.actor_of(request, "api")
        made = pauses.set_control_mode(actor, self._service(service), given["mode"], given.get("approve_within_s"))
        made.service.refresh_from_db()
        return _mode(made)

    def _service(self, key: str) -> Service:
        return get_object_or_404(Service, **of_key(key))


def _mode(found: ServiceMode) -> Response:
    service = found.service
    return Response(
        {
            "service": key_of(service),
            "policy": service.policy,
            "in_force": service.own_policy().name,
            "gateways_only": found.gateways_only,
            "mode": found.mode,
            "approve_within_s": found.approve_within_s,
        }
    )

"""Tells the agents what their nodes are to run, and the gateways what there is. Writes Redis only."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import msgspec
import redis
from celery import current_app
from django.conf import settings
from django.db.models import Q
from kombu.exceptions import OperationalError

from core.engine.engine_launch import EngineLaunch
from core.ports import EngineLimits
from core.types import Loop
from pools import wire
from pools.models import Instance, Node, Pool, RequestClass, Service, Site
from scheduler.batches import batch_keys
from scheduler.control import active_operations, service_policy
from scheduler.models import ControllerState, ControlMode
from telemetry.carbon.site_signals import intensity_at, marginal_at

log = logging.getLogger(__name__)

NUDGE_EXPIRES_S = 10


def publish(client: redis.Redis, now: datetime) -> None:
    """Writes every node's desired state and the fleet snapshot, and announces the latter."""
    version = time.time_ns() // 1_000_000  # grows from publishing to publishing, restarts included
    fleet = fleet_snapshot(now, version)
    with client.pipeline(transaction=True) as pipe:
        for desired in desired_nodes(now, version):
            pipe.set(wire.desired_key(desired.node), wire.encode(desired))
        data = wire.encode(fleet)
        pipe.set(wire.FLEET_KEY, data)
        pipe.publish(wire.FLEET_CHANNEL, data)
        pipe.execute()


def nudge(nodes: Iterable[str], decision_id: int | None = None) -> None:
    """Wakes the agents at once. Only a hint: they read their desired state each second anyway."""
    for node in sorted(nodes):
        try:
            current_app.send_task(
                "pools.agent.tasks.reconcile",
                kwargs={"decision_id": decision_id},
                queue=wire.node_queue(node),
                expires=NUDGE_EXPIRES_S,
                retry=False,
            )
        except OperationalError as error:
            log.warning("node %s was not nudged: %s", node, error)


def clock_policy() -> wire.ClockPolicy:
    loop = settings.GREENSERVE_LOOPS["clock"]
    return wire.ClockPolicy(**loop)


def desired_nodes(now: datetime, version: int) -> list[wire.DesiredNode]:
    """One message a node, nodes without instances included: an empty list means stop what runs."""
    clock = clock_policy()
    by_node: dict[int | None, list[wire.DesiredInstance]] = defaultdict(list)
    live = (
        Instance.objects.filter(node__isnull=False)
        .exclude(state=Instance.State.STOPPED)
        .exclude(desired=Instance.Desired.STOPPED)
        .select_related("pool__request_class", "model_card")
        .prefetch_related("gpu_holds__gpu")
        .order_by("pk")
    )
    services = {service.pk: _ServiceSettings.of(service) for service in Service.objects.prefetch_related("slos")}
    uids = {str(instance.uid) for instance in live}
    of_instance, of_pool = active_operations.fixed_clocks()
    floors = active_operations.clock_floors()
    for instance in live:
        own = services[instance.pool.service_id]
        fixed_mhz = of_instance.get(str(instance.uid), of_pool.get(instance.pool_id))
        if fixed_mhz is not None:
            own = replace(own, clock=msgspec.structs.replace(own.clock, fixed_mhz=fixed_mhz))
        elif (floor_mhz := floors.get(instance.pool_id)) is not None:
            own = own.down_to(floor_mhz)
        by_node[instance.node_id].append(_desired(instance, own, uids))
    launches = _launches()
    return [
        wire.DesiredNode(
            *(node.name, version, now.timestamp(), by_node[node.pk], clock),
            launches=launches[node.cluster.site_id] if node.schedulable else [],
        )
        for node in Node.objects.select_related("cluster")
    ]


def _launches() -> dict[int, list[EngineLaunch]]:
    """Returns, by site, how engines of its pools are started, each model once."""
    found: dict[int, dict[int, EngineLaunch]] = defaultdict(dict)
    for pool in Pool.objects.select_related("service__model_card").order_by("service__pk"):
        card = pool.service.model_card
        found[pool.site_id].setdefault(card.pk, card.launch())
    return defaultdict(list, {site: list(launches.values()) for site, launches in found.items()})


@dataclass(frozen=True, slots=True)
class _ServiceSettings:
    """The settings that all instances of a service have in common."""

    clock: wire.ClockPolicy
    engine_limits: EngineLimits
    objectives: wire.LatencyLimits
    control_mode: str

    @classmethod
    def of(cls, service: Service) -> _ServiceSettings:
        knobs, control_mode = service_policy.of(service), active_operations.control_mode_of(service).mode
        paused, advise = active_operations.is_paused(service, Loop.CLOCK), control_mode != ControlMode.ACT
        rule = service_policy.clock_rule(knobs, paused, advise)
        return cls(rule, service_policy.engine_limits(knobs), _objectives(service), control_mode)

    def down_to(self, floor_mhz: float) -> _ServiceSettings:
        """Where clocks wait for approval, a floor is what has been approved; where they only advise it changes
        nothing."""
        advise = self.control_mode == ControlMode.ADVISE
        return replace(self, clock=msgspec.structs.replace(self.clock, advise=advise, floor_mhz=floor_mhz))


def _objectives(service: Service) -> wire.LatencyLimits:
    found = {slo.kind: slo.objective_s for slo in service.slos.all()}
    return wire.LatencyLimits(found.get("ttft"), found.get("tpot"), found.get("e2e"))


def _desired(instance: Instance, own: _ServiceSettings, uids: set[str]) -> wire.DesiredInstance:
    """Makes the message of one instance.

    `uids`: of all that live. A class without a threshold of its own has the service's objective.
    """
    request_class, slo = instance.pool.request_class, own.objectives
    allocations = sorted(instance.gpu_holds.all(), key=lambda one: one.gpu.index)
    return wire.DesiredInstance(
        uid=str(instance.uid),
        pool_id=instance.pool_id,
        model=instance.model_card.name,
        engine=instance.model_card.engine,
        gpu_uuids=[one.gpu.uuid for one in allocations],
        max_model_len=instance.model_card.max_model_len,
        state=instance.desired,
        limits=wire.LatencyLimits(
            slo.ttft_s if request_class.ttft_threshold_s is None else request_class.ttft_threshold_s,
            slo.tpot_s if request_class.tpot_threshold_s is None else request_class.tpot_threshold_s,
            slo.e2e_s if request_class.e2e_threshold_s is None else request_class.e2e_threshold_s,
        ),
        decision_id=instance.decision_id,
        options=service_policy.ENGINE_OPTIONS,
        engine_limits=own.engine_limits,
        shadow_of=next((uid for uid in instance.replaces if uid in uids), ""),
        clock=own.clock,
        launch=instance.model_card.launch(),
    )


def fleet_snapshot(now: datetime, version: int) -> wire.Fleet:
    intensity = {site.pk: intensity_at(site, now) for site in Site.objects.all()}
    marginal = marginal_at(now)
    services = Service.objects.select_related("model_card", "partition").prefetch_related("slos")
    live_keys = batch_keys.live_keys(now)
    return wire.Fleet(
        version=version,
        at_s=now.timestamp(),
        services=[_service(service, intensity, marginal) for service in services],
        keys=[
            wire.FleetKey(
                key_hash=key.key_hash,
                key_id=key.pk,
                tenant=key.tenant.name,
                tenant_id=key.tenant_id,
                expires_at_s=key.expires_at.timestamp() if key.expires_at else None,
            )
            for key in live_keys.select_related("tenant")
        ]
        + batch_keys.fleet_keys(now),
        nodes=list(Node.objects.values_list("name", flat=True)),
    )


def _service(
    service: Service, intensity: dict[int, float | None], marginal: dict[int, float | None]
) -> wire.FleetService:
    """Makes the message of one service.

    `intensity` (average) and `marginal` are by site; a service has the latter where all of its sites do.
    """
    in_force = Q(request_class__partition=service.partition_id)
    # An instance of the partition before may still be serving until its replacement is ready.
    still_serving = Q(instances__state=Instance.State.READY)
    pools = Pool.objects.filter(in_force | still_serving, service=service).distinct()
    pools = pools.select_related("site", "request_class")
    compared = all(marginal.get(pool.site_id) is not None for pool in pools)
    shares = {(row["site"], row["request_class"]): row["share"] for row in carbon_state(service).get("shares", ())}
    partition = service.partition_id
    return wire.FleetService(
        name=service.name,
        model=service.model_card.name,
        engine=service.model_card.engine,
        max_model_len=service.model_card.max_model_len,
        objectives=_objectives(service),
        partition=service.partition.name,
        classes=[_class(request_class) for request_class in service.partition.classes.all()],
        pools=[
            wire.FleetPool(
                id=pool.pk,
                site=pool.site.name,
                request_class=pool.request_class.name,
                pue=pool.site.pue,
                intensity_g_per_kwh=intensity.get(pool.site_id),
                share=shares.get((pool.site.name, pool.request_class.name))
                if pool.request_class.partition_id == partition
                else None,
                marginal_g_per_kwh=max(0.0, marginal[pool.site_id] or 0.0) if compared else None,
            )
            for pool in pools
        ],
        policy=service_policy.request_policy(service_policy.of(service)),
        expected_prompt_tokens=service.expected_prompt_tokens,
        expected_output_tokens=service.expected_output_tokens,
        hugging_face_id=service.model_card.hugging_face_id,
        tokenizer=service.model_card.tokenizer,
    )


def carbon_state(service: Service) -> dict[str, Any]:
    state = ControllerState.objects.filter(kind=Loop.CARBON, service=service).first()
    return {} if state is None else dict(state.value)


def _class(request_class: RequestClass) -> wire.FleetClass:
    return wire.FleetClass(
        request_class.name,
        request_class.rank,
        request_class.input_min,
        request_class.input_max,
        request_class.output_min,
        request_class.output_max,
    )

"""Makes the messages that say what each node is to run. Reads rows only."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime

import msgspec
from django.conf import settings

from core.engine.engine_launch import EngineLaunch
from core.engine.gpu_slices import sliced
from core.observations.clock_given import clock_limits
from core.observations.limits import class_limits, present_limits
from core.policy.knobs import Knobs
from core.ports import EngineLimits
from core.types import Limits, Loop
from pools import engine_knowledge, wire
from pools.models import Gpu, Instance, InstanceGpu, Node, Pool, Service, Slicing, simulated_gpus
from scheduler.control import active_operations, service_policy
from scheduler.control.apply import fleet_messages, measured_messages


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
        .select_related("pool__request_class", "model_card", "node")
        .order_by("pk")
    )
    gpu_uuids: dict[int, list[str]] = defaultdict(list)
    held = InstanceGpu.objects.filter(instance__in=live, released_at__isnull=True).order_by("gpu__index")
    for instance_id, gpu_uuid in held.values_list("instance_id", "gpu__uuid"):
        gpu_uuids[instance_id].append(gpu_uuid)
    services = {
        service.pk: _ServiceSettings.of(service) for service in Service.objects.prefetch_related("slos", "adapters")
    }
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
        by_node[instance.node_id].append(_desired(instance, own, gpu_uuids[instance.pk], uids))
    launches, simulated, kinds = _launches(), simulated_gpus(), _kinds()
    measured = measured_messages.measured_engines()
    return [
        wire.DesiredNode(
            *(node.name, version, now.timestamp(), by_node[node.pk], clock),
            launches=launches[node.cluster.site_id] if node.schedulable else [],
            simulated_gpus=simulated.get(node.name, []),
            gpu_types=engine_knowledge.named(kinds[node.pk]),
            measured=measured_messages.of_gpus(measured, {sliced(kind, node.gpu_slices) for kind in kinds[node.pk]}),
        )
        for node in Node.objects.select_related("cluster")
    ]


def _kinds() -> dict[int, set[str]]:
    """Returns the types of each node's GPUs."""
    found: dict[int, set[str]] = defaultdict(set)
    for node_id, gpu_type in Gpu.objects.order_by().values_list("node", "gpu_type").distinct():
        found[node_id].add(gpu_type)
    return found


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
    knobs: Knobs
    objectives: Limits
    pool_limits: Mapping[int, Limits]  # by class, where others' requests come to its pools
    max_lora_rank: int
    max_loras: int

    @classmethod
    def of(cls, service: Service) -> _ServiceSettings:
        knobs, advise = service_policy.of(service), active_operations.control_mode_of(service).gateways_only
        paused = active_operations.is_paused(service, Loop.CLOCK)
        tuning = service.own_policy().tuning
        rule = service_policy.clock_rule(knobs, tuning, paused, advise)
        slo = fleet_messages.objectives(service)
        objectives = Limits(slo.ttft_s, slo.tpot_s, slo.e2e_s)
        limits = _pool_limits(service, objectives, knobs, service_policy.hands_on(service, knobs))
        classes = service.partition.classes.all()
        of_classes = (class_limits(objectives, own.thresholds, knobs) for own in classes)
        engine_limits = service_policy.engine_limits(knobs, tuning, of_classes)
        rank = service.max_lora_rank()
        return cls(rule, engine_limits, knobs, objectives, limits, rank, service.max_loras)

    def down_to(self, floor_mhz: float) -> _ServiceSettings:
        """Where clocks stay at the top, a floor is a person's word that they may go down as far as that."""
        return replace(self, clock=msgspec.structs.replace(self.clock, advise=False, floor_mhz=floor_mhz))


def _pool_limits(service: Service, slo: Limits, knobs: Knobs, hands_on: Mapping[str, float]) -> dict[int, Limits]:
    """Returns the limits of pools by class, where pools hand requests on: the strictest of the classes that come."""
    if not any(hands_on.values()):
        return {}
    own = {cell: clock_limits(slo, cell.thresholds, knobs) for cell in service.partition.classes.order_by("rank")}
    present = present_limits([(request_class.name, limits) for request_class, limits in own.items()], hands_on)
    return {cell.pk: replace(present[cell.name], e2e_s=limits.e2e_s) for cell, limits in own.items()}


def _desired(instance: Instance, own: _ServiceSettings, gpu_uuids: list[str], uids: set[str]) -> wire.DesiredInstance:
    """Makes the message of one instance.

    `gpu_uuids`: of those that it holds, by index. `uids`: of all instances that live.
    """
    assert instance.node is not None
    request_class, slices = instance.pool.request_class, instance.node.gpu_slices
    limits = own.pool_limits.get(request_class.pk)
    if limits is None:
        limits = clock_limits(own.objectives, request_class.thresholds, own.knobs)
    return wire.DesiredInstance(
        uid=str(instance.uid),
        pool_id=instance.pool_id,
        model=instance.model_card.name,
        engine=instance.model_card.engine,
        gpu_uuids=gpu_uuids,
        max_model_len=instance.model_card.max_model_len,
        state=instance.desired,
        limits=wire.LatencyLimits(limits.ttft_s, limits.tpot_s, limits.e2e_s),
        decision_id=instance.decision_id,
        options=service_policy.ENGINE_OPTIONS,
        engine_limits=own.engine_limits,
        shadow_of=next((uid for uid in instance.replaces if uid in uids), ""),
        clock=own.clock,
        launch=replace(instance.model_card.launch(), max_lora_rank=own.max_lora_rank, max_loras=own.max_loras),
        shape=instance.model_card.shape,
        gpu_slices=slices,
        mps=slices > 1 and instance.node.slicing == Slicing.MPS,
    )

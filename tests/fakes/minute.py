"""One minute of a service, written down once: as rows and agents' reports, and as what the simulator sees of it.

Both worlds count seconds from the same moment, 1 January 1970.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import redis

from core.engine.engine_model import engine_model, gpu
from core.policy.dynamo_classes import request_classes
from core.policy.knobs import DYNAMO
from core.simulator.kernel.commands import (
    OFF,
    SERVING,
    STRETCH_S,
    Drain,
    FleetView,
    Reshard,
    SetWeight,
    SimCommand,
    Start,
)
from core.simulator.kernel.simulated import InstanceSpec
from core.simulator.policies import CellLoad, ClassInfo, Member, PartitionInfo, Plan, ServiceInfo, SiteInfo, World
from core.simulator.scenario.class_cells import Cells, ClassSpec
from core.simulator.scenario.class_cells import Partition as PartitionSpec
from core.types import Limits
from pools.models import Cluster, Gpu, Instance, ModelCard, Node, Partition, RequestClass, Service, Site
from telemetry.ingest import request_records
from telemetry.models import CarbonFeed, CarbonPoint, InstanceSample
from telemetry.storage import time_partitions

from .house import moment, report, request_row

A100 = "A100-80GB"
TPS = (1, 2, 4, 8)
POINT_S = 900.0  # between two values of a feed


@dataclass(frozen=True)
class Place:
    """A site. `nodes`: GPUs of each node, of the minute's type; `others`: of other types. `g_per_kwh`, `usd_per_kwh`:
    by POINT_S from 0 on; beyond them nothing is known."""

    name: str
    pue: float
    nodes: tuple[int, ...]
    g_per_kwh: tuple[float, ...]
    usd_per_kwh: tuple[float, ...] = ()
    power_cap_w: float | None = None
    others: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def sizes(self, gpu_name: str) -> dict[str, tuple[int, ...]]:
        """Returns the GPUs of each node by type. `gpu_name`: the minute's."""
        return {gpu_name: self.nodes, **self.others}


@dataclass(frozen=True)
class Came:
    """A request of this minute, or of the time before it. It is predicted as long as it is, and has ended in the
    stretch in which it came."""

    at_s: float
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True)
class Minute:
    """What is known of a service at `now_s`. `declared`: requests/s, prompt and output tokens. The partitions are in
    the order of their names. `thresholds`: of classes that have any. `running`, `waiting`: requests in the batch and in
    the queue of each instance that there is."""

    now_s: float
    objective: Limits
    partitions: Mapping[str, tuple[ClassSpec, ...]]
    places: tuple[Place, ...]
    thresholds: Mapping[str, Limits] = field(default_factory=dict)
    came: tuple[Came, ...] = ()
    declared: tuple[float, int, int] | None = None
    running: int = 0
    waiting: int = 0
    model: str = "Llama3-70B"
    engine: str = "vllm-v1"
    gpu: str = A100

    def before_anything(self) -> Minute:
        """Returns the moment 0, at which only the declared load is known."""
        return replace(self, now_s=0.0, came=(), running=0, waiting=0)


FOUR = (
    ClassSpec("SS", 0, 0, 256, 0, 100),
    ClassSpec("SL", 1, 0, 256, 100, None),
    ClassSpec("LS", 2, 256, None, 0, 100),
    ClassSpec("LL", 3, 256, None, 100, None),
)
WHOLE = (ClassSpec("ALL", 0),)
MINUTE = Minute(
    now_s=7_503.5,
    objective=Limits(2.0, 0.15, 60.0),
    partitions={"four": FOUR, "whole": WHOLE},
    places=(
        Place(
            "east",
            1.2,
            (8, 8),
            (410.0, 380.0, 350.0, 330.0, 300.0, 290.0, 280.0, 300.0, 450.0, 300.0, 280.0),
            (0.2,) * 8 + (0.05, 0.3),
        ),
        Place(
            "west",
            1.4,
            (8, 4),
            (280.0, 290.0, 310.0, 330.0, 400.0, 420.0, 480.0, 500.0, 250.0, 420.0, 390.0),
            (0.1, 0.15) * 5,
        ),
    ),
    thresholds={"LL": Limits(1.5, 0.1, None)},
    came=(
        Came(0.5, 40, 30),
        *(Came(7_300.0 + 0.4 * n, 60 + 13 * (n % 40), 20 + 11 * (n % 25)) for n in range(500)),
    ),
    declared=(3.0, 900, 150),
)


_TABLE_IV = request_classes()
# Classes and servers of DynamoLLM's cluster: one site, whose nodes are alike.
SERVERS = Minute(
    now_s=MINUTE.now_s,
    objective=Limits(3.0, 0.15, 60.0),
    partitions={
        DYNAMO: tuple(
            ClassSpec(own.name, own.rank, own.input_min, own.input_max, own.output_min, own.output_max)
            for own in _TABLE_IV
        )
    },
    places=(Place("east", 1.2, (8,) * 12, ()),),
    thresholds={own.name: own.limits for own in _TABLE_IV},
    came=(
        Came(0.5, 40, 30),
        *(Came(7_300.0 + 0.25 * n, 60 + 37 * (n % 90), 20 + 29 * (n % 25)) for n in range(800)),
    ),
    declared=(30.0, 900, 150),
    gpu="H100-SXM-80GB",
)
# The same with a load of the largest class declared, whose servers carry the minute's too: shard leaves out those that
# still start in the simulator alone.
LARGE = replace(SERVERS, declared=(12.0, 1_500, 400))
# The same with traffic in the class that is declared and in the largest alone, so that a plan which rests on what is
# declared stays: the simulator, where the load of each class is declared, makes it once.
STEADY = replace(
    SERVERS,
    came=(
        Came(0.5, 500, 200),
        *(Came(7_300.0 + 0.25 * n, 256 + 13 * (n % 50), 100 + 9 * (n % 25)) for n in range(800)),
        *(Came(7_300.0 + 2.0 * n, 1_100 + 40 * (n % 20), 400) for n in range(100)),
    ),
)
# The same minutes on two sites with two types of GPU. The nodes of the type of which there is most are not alike, so
# that servers are smaller than some.
MIXED = replace(
    MINUTE,
    places=tuple(
        replace(own, others={SERVERS.gpu: sizes}) for own, sizes in zip(MINUTE.places, ((4,), (8, 2)), strict=True)
    ),
)
_TWO_SITES = (
    Place("east", 1.2, (8, 4), (), others={A100: (8, 8, 4, 4)}),
    Place("west", 1.4, (8,), (), others={A100: (4, 8, 8)}),
)
MIXED_LARGE = replace(LARGE, places=_TWO_SITES, came=LARGE.came[::20])
MIXED_STEADY = replace(STEADY, places=_TWO_SITES)


# -- as rows ---------------------------------------------------------------------------------------


def rows(minute: Minute, policy: str, knobs: Mapping[str, Any]) -> Service:
    """Writes the service and its sites. The first partition is in force."""
    card = ModelCard.objects.create(name=minute.model, engine=minute.engine, max_model_len=16_384)
    partitions = [_partition(minute, name, classes) for name, classes in minute.partitions.items()]
    service = Service.objects.create(name="chat", model_card=card, partition=partitions[0], policy=policy, knobs=knobs)
    service.partitions.set(partitions)
    if minute.declared:
        service.expected_rps, service.expected_prompt_tokens, service.expected_output_tokens = minute.declared
        service.save()
    for kind in ("ttft", "tpot", "e2e"):
        if limit_s := getattr(minute.objective, f"{kind}_s"):
            service.slos.create(kind=kind, objective_s=limit_s)
    for rank, place in enumerate(minute.places):
        site = Site.objects.create(
            name=place.name, grid_zone=place.name, pue=place.pue, rank=rank, power_cap_w=place.power_cap_w
        )
        _nodes(minute, site, place)
        _feed(site, CarbonFeed.Signal.AVERAGE, "value_g_per_kwh", place.g_per_kwh)
        _feed(site, CarbonFeed.Signal.PRICE, "price_per_kwh", place.usd_per_kwh, currency="USD")
        for request_class in RequestClass.objects.all():
            service.pools.create(site=site, request_class=request_class)
    return service


def _partition(minute: Minute, name: str, classes: tuple[ClassSpec, ...]) -> Partition:
    partition = Partition.objects.create(name=name)
    for own in classes:
        limits = minute.thresholds.get(own.name, Limits())
        RequestClass.objects.create(
            partition=partition,
            name=own.name,
            rank=own.rank,
            input_min=own.input_min,
            input_max=own.input_max,
            output_min=own.output_min,
            output_max=own.output_max,
            ttft_threshold_s=limits.ttft_s,
            tpot_threshold_s=limits.tpot_s,
            e2e_threshold_s=limits.e2e_s,
        )
    return partition


def _nodes(minute: Minute, site: Site, place: Place) -> None:
    cluster = Cluster.objects.create(site=site, name="main")
    nodes = [(name, count) for name, sizes in place.sizes(minute.gpu).items() for count in sizes]
    for n, (name, count) in enumerate(nodes):
        kind, node = gpu(name), Node.objects.create(cluster=cluster, name=f"{place.name}-n{n}", simulated=True)
        Gpu.objects.bulk_create(
            Gpu(
                node=node,
                uuid=f"{node.name}-{index}",
                index=index,
                gpu_type=name,
                memory_gb=80.0,
                min_mhz=kind.f_min,
                max_mhz=kind.f_max,
                tdp_w=400.0,
            )
            for index in range(count)
        )


def _feed(site: Site, signal: str, column: str, values: tuple[float, ...], **more: str) -> None:
    if not values:
        return
    feed = CarbonFeed.objects.create(site=site, provider="replay", signal=signal)
    CarbonPoint.objects.bulk_create(
        CarbonPoint(
            feed=feed,
            start_at=moment(n * POINT_S),
            end_at=moment((n + 1) * POINT_S),
            issued_at=moment(0.0),
            forecast=True,
            **{column: value},
            **more,
        )
        for n, value in enumerate(values)
    )


def write_requests(minute: Minute) -> None:
    """Puts the requests on record, as gateways do."""
    made = [
        request_row(
            own.at_s,
            service="chat",
            prompt_tokens=own.prompt_tokens,
            output_tokens=own.output_tokens,
            predicted_output_tokens=own.output_tokens,
            e2e_s=0.1,
        )
        for own in minute.came
    ]
    time_partitions.ensure({moment(own.at_s).date() for own in minute.came})
    request_records.insert(made, request_records.Objectives())


def write_samples(minute: Minute) -> None:
    """Puts on record what the instances do, as their agents report it."""
    at = moment(minute.now_s - 1.0)
    for instance in Instance.objects.all():
        InstanceSample.objects.create(at=at, instance=instance, state="ready", running=minute.running, kv_usage=0.0)


def report_nodes(client: redis.Redis, minute: Minute) -> None:
    """Every agent reports, with instances only where requests wait at them."""
    for node in Node.objects.all():
        own = node.instances.all() if minute.waiting else ()
        report(client, node.name, own, at=moment(minute.now_s), running=minute.running, waiting=minute.waiting)


# -- as the simulator sees it ----------------------------------------------------------------------


def world(minute: Minute) -> World:
    """Returns what a policy starts from. A cell is where classes of all partitions overlap."""
    cells, infos = _cells(minute), []
    for name, classes in minute.partitions.items():
        own = dict(enumerate(cells.classes(PartitionSpec(name, classes))))
        infos.append(PartitionInfo(name, tuple(_class_info(minute, spec) for spec in classes), own))
    return World(
        sites=tuple(_site_info(minute, place) for place in minute.places),
        services=(ServiceInfo("chat", minute.model, tuple(infos), minute.engine),),
        templates=tuple(
            InstanceSpec(
                f"{place.name}-tp{tp}", minute.model, name, tp, gpu(name).f_max, engine=minute.engine, site=place.name
            )
            for place in minute.places
            for name, sizes in place.sizes(minute.gpu).items()
            for tp in TPS
            if tp <= max(sizes) and engine_model(minute.model, name, tp, minute.engine).kv_capacity_tokens > 0
        ),
        cells=len(cells),
        declared=_declared(minute, cells),
        intensity=lambda site, from_s, to_s, step_s: _steps(_place(minute, site).g_per_kwh, from_s, to_s, step_s),
        prices=lambda site, from_s, to_s, step_s: _steps(_place(minute, site).usd_per_kwh, from_s, to_s, step_s),
    )


def view(minute: Minute, plan: Plan | None = None, commands: Iterable[SimCommand] = ()) -> FleetView:
    """Returns the fleet at that moment: the instances of the plan, and of commands since then, idle; and what came."""
    cells = _cells(minute)
    arrived = np.zeros((len(cells), math.ceil(minute.now_s / STRETCH_S), 3), np.int64)
    for own in minute.came:
        cell = int(cells.of_lengths(own.prompt_tokens, own.output_tokens))
        arrived[cell, int(own.at_s // STRETCH_S)] += (1, own.prompt_tokens, own.output_tokens)
    members, off = _carried_out(plan.members if plan else (), commands)
    names = [pool.name for pool in plan.pools] if plan else []
    n, nan = len(members), np.full(len(members), math.nan)
    none = np.zeros(n, np.int64)
    return FleetView(
        minute.now_s,
        tuple(member.spec for member in members),
        np.array([OFF if member.spec.name in off else SERVING for member in members], np.int64),
        np.array([-1 if member.spec.name in off else names.index(member.pool) for member in members], np.int64),
        np.array([member.spec.mhz for member in members]),
        np.full(n, minute.running, np.int64),
        np.full(n, minute.waiting, np.int64),
        none,
        nan,
        nan,
        nan,
        tuple(names.index(name) for name in plan.cell_pool) if plan else (),
        np.zeros(len(names), np.int64),
        arrived,
    )


def _carried_out(members: Sequence[Member], commands: Iterable[SimCommand]) -> tuple[list[Member], set[str]]:
    """Returns the instances there are and have been, and the names of those that are off."""
    found, off = list(members), set[str]()
    for command in commands:
        if isinstance(command, SetWeight):
            continue  # a view does not show them
        new: list[Member] = []
        if isinstance(command, Start):
            new, ended = [Member(command.spec, command.pool)], command.replaces
        elif isinstance(command, Reshard):
            pool = next(own.pool for own in found if own.spec.name == command.instances[0])
            new, ended = [Member(spec, pool) for spec in command.into], command.instances
        else:
            assert isinstance(command, Drain)
            ended = (command.instance,)
        off.update(ended)
        found += [
            replace(own, spec=replace(own.spec, name=f"{own.spec.name}+{len(found) + n}")) for n, own in enumerate(new)
        ]
    return found, off


def _cells(minute: Minute) -> Cells:
    return Cells.of([PartitionSpec(*own) for own in minute.partitions.items()])


def _class_info(minute: Minute, own: ClassSpec) -> ClassInfo:
    bounds, thresholds = (own.input_min, own.input_max, own.output_min, own.output_max), minute.thresholds.get(own.name)
    return ClassInfo(own.name, minute.objective, *bounds, thresholds or Limits())


def _site_info(minute: Minute, place: Place) -> SiteInfo:
    sizes = place.sizes(minute.gpu)
    gpus, listed = {name: sum(own) for name, own in sizes.items()}, sizes if place.others else {}
    most = max(count for own in sizes.values() for count in own)
    return SiteInfo(place.name, gpus, place.pue, most, place.power_cap_w, listed)


def _declared(minute: Minute, cells: Cells) -> tuple[CellLoad | None, ...]:
    if minute.declared is None:
        return ()
    rps, prompt, output = minute.declared
    own = int(cells.of_lengths(prompt, output))
    return tuple(CellLoad(rps, prompt, output) if cell == own else None for cell in range(len(cells)))


def _place(minute: Minute, name: str) -> Place:
    return next(place for place in minute.places if place.name == name)


def _steps(values: tuple[float, ...], from_s: float, to_s: float, step_s: float) -> tuple[float | None, ...]:
    """Returns the mean of each step, of those values that are known; None where less than half of the step is."""
    count = round((to_s - from_s) / step_s)
    return tuple(_mean(values, from_s + n * step_s, from_s + (n + 1) * step_s) for n in range(count)) if values else ()


def _mean(values: tuple[float, ...], from_s: float, to_s: float) -> float | None:
    total = known_s = 0.0
    for n, value in enumerate(values):
        overlap_s = min(to_s, (n + 1) * POINT_S) - max(from_s, n * POINT_S)
        if overlap_s > 0.0:
            total, known_s = total + overlap_s * value, known_s + overlap_s
    return total / known_s if known_s >= 0.5 * (to_s - from_s) else None

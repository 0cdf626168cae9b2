"""Enters the demo's made-up past: a modelled day, repeated, as the sums and settled lines that live figures leave.

There are no records of single requests, no samples and no decisions. Only counters are absent of what the ledger goes
by: a GPU's watermark opens below nothing by what the past used, as after a reset, so that its entries and its meter
balance and the live counter begins at 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
from django.conf import settings
from django.db import transaction

from core.accounting.allocation import RequestSpans
from core.engine.engine_model import engine_model
from core.engine.engine_params import gpu as gpu_params
from core.policy.knobs import WHOLE
from core.units import US_PER_S
from pools.models import Gpu, Instance, InstanceGpu, Node, Pool, RequestClass, Service, Site, Tenant
from telemetry.ledger import served_requests, settlement
from telemetry.ledger.energy_entries import INTERVAL_S
from telemetry.ledger.served_requests import Served, Whose
from telemetry.ledger.window_sources import WINDOW_S
from telemetry.models import MeterMark, SyntheticHistory
from telemetry.seeding import carbon_days, energy_rows, modelled_day, request_sums
from telemetry.seeding.energy_rows import GpuGroup
from telemetry.seeding.modelled_day import TENANTS, WINDOWS, ClassRange, Day, Engine, Use
from telemetry.seeding.modelled_engine import Floats

SOURCE = "Synthetic: one modelled day, repeated (engine model, the demo's own load), nothing measured"


@dataclass(frozen=True, slots=True)
class _Planned:
    """An instance of the plan, on `tp` GPUs of a node. `mhz`: about the mean of live clocks."""

    node: str
    tp: int
    mhz: float


# About what the live loops plan for this load: one pool, where it emits least.
PLAN = (_Planned("loc1-h100", 4, 1_200.0), _Planned("loc2-a100-8", 8, 900.0))


@dataclass(frozen=True, slots=True)
class _Place:
    instance: Instance
    site: Site
    mhz: float
    gpu_ids: tuple[int, ...]


def seed(now: datetime) -> SyntheticHistory:
    """Enters the past up to the last whole minute before `now`, from today's midnight (UTC) less DEMO_DAYS on.

    Raises:
        ValueError: The fleet is not the demo's, or something is on record already.
    """
    end = now.astimezone(UTC).replace(second=0, microsecond=0)
    start = end.replace(hour=0, minute=0) - timedelta(days=settings.DEMO_DAYS)
    _check()
    service = Service.objects.select_related("model_card").get()
    with transaction.atomic():
        curves = carbon_days.seed(start, end)
        places = _places(service, start, end)
        tenants = list(Tenant.objects.order_by("name").values_list("pk", flat=True)[:TENANTS])
        day = _day(service, places, curves)
        energy_rows.write(_gpu_groups(day, places), curves, start, end)
        request_sums.write(service, tenants, day, start, end)
        whose = [Whose("", None), *(Whose(service.name, tenant) for tenant in tenants)]
        for site in Site.objects.all():
            mine = [
                (place.instance, each.use)
                for place, each in zip(places, day.engines, strict=True)
                if place.site == site
            ]
            _settle(site, mine, whose, start, end)
        return SyntheticHistory.objects.create(start_at=start, end_at=end, source=SOURCE)


def _check() -> None:
    nodes = {planned.node for planned in PLAN}
    demo = Node.objects.filter(name__in=nodes, simulated=True).count() == len(nodes)
    if not settings.DEMO or not demo or Node.objects.exclude(simulated=True).exists() or Service.objects.count() != 1:
        raise ValueError(
            "a synthetic past is for the demo fleet alone: start with GREENSERVE_DEMO=1 and a new database"
        )
    if MeterMark.objects.exists() or Instance.objects.exists():
        raise ValueError("this fleet has a past of its own already")


def _places(service: Service, start: datetime, end: datetime) -> list[_Place]:
    """Makes the instances of the plan. They are stopped, and nobody measured how long their starts took."""
    found = []
    for planned in PLAN:
        node = Node.objects.select_related("cluster__site").get(name=planned.node)
        gpus = list(Gpu.objects.filter(node=node).order_by("index")[: planned.tp])
        pool = Pool.objects.select_related("request_class").get(
            service=service,
            site=node.cluster.site,
            request_class__partition__name=WHOLE,
        )
        instance = Instance.objects.create(
            pool=pool,
            node=node,
            model_card=service.model_card,
            gpu_type=gpus[0].gpu_type,
            tp=planned.tp,
            desired=Instance.Desired.STOPPED,
            state=Instance.State.STOPPED,
            stopped_at=end,
            detail="synthetic",
        )
        Instance.objects.filter(pk=instance.pk).update(created_at=start)
        InstanceGpu.objects.bulk_create([InstanceGpu(instance=instance, gpu=gpu, released_at=end) for gpu in gpus])
        found.append(_Place(instance, node.cluster.site, planned.mhz, tuple(gpu.pk for gpu in gpus)))
    return found


def _day(service: Service, places: Sequence[_Place], curves: Mapping[int, Floats]) -> Day:
    card = service.model_card
    engines = [
        Engine(
            place.instance.pool.request_class.name,
            engine_model(card.engine_model_name, place.instance.gpu_type, place.instance.tp, card.engine),
            place.mhz,
            served_requests.token_time(place.instance),
            curves[place.site.pk],
        )
        for place in places
    ]
    classes = [
        ClassRange(c.name, c.input_min, c.input_max, c.output_min, c.output_max)
        for c in RequestClass.objects.filter(partition__name=WHOLE)
    ]
    return modelled_day.make(classes, engines, dict(service.slos.values_list("kind", "objective_s")))


def _gpu_groups(day: Day, places: Sequence[_Place]) -> list[GpuGroup]:
    """Returns the GPUs of each instance, and each that none has."""
    found = []
    for place, each in zip(places, day.engines, strict=True):
        empty_w = gpu_params(place.instance.gpu_type).idle_w
        found.append(GpuGroup.of_engine(place.site, place.instance, place.gpu_ids, each, empty_w))
    used = {gpu for place in places for gpu in place.gpu_ids}
    unused = Gpu.objects.exclude(pk__in=used).select_related("node__cluster__site").order_by("pk")
    alone = (GpuGroup.empty(gpu.node.cluster.site, (gpu.pk,), gpu_params(gpu.gpu_type).idle_w) for gpu in unused)
    return [*found, *alone]


def _settle(
    site: Site,
    engines: Sequence[tuple[Instance, Use]],
    whose: Sequence[Whose],
    start: datetime,
    end: datetime,
) -> None:
    """Settles the past by days, as far as its windows are whole."""
    while end - start >= timedelta(seconds=WINDOW_S):
        count = min(WINDOWS, int((end - start).total_seconds() // WINDOW_S))
        until = start + timedelta(seconds=WINDOW_S * count)
        settlement.settle_sums(site, start, until, _served(engines, whose, start, count))
        start = until


def _served(engines: Sequence[tuple[Instance, Use]], whose: Sequence[Whose], start: datetime, count: int) -> Served:
    """Returns what the tenants used of the first `count` windows of a day, each as if it were one request of them: it
    lies in the window's first interval, where the window's entry counts."""
    windows, tenant = (axis.ravel() for axis in np.indices((count, TENANTS)))
    start_us = (round(start.timestamp()) + windows * round(WINDOW_S)) * US_PER_S
    end_us = start_us + round(INTERVAL_S * US_PER_S)
    n = len(engines)

    def joined(name: str) -> Any:
        parts = [getattr(use, name)[:count].ravel() for _, use in engines]
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)

    instance = np.repeat([one.pk for one, _ in engines], count * TENANTS).astype(np.int64)
    since, until = np.tile(start_us, n), np.tile(end_us, n)
    return Served(
        spans=RequestSpans(instance, since, until, since, until, joined("prefill_s"), joined("decode_s")),
        request_id=(),
        started_us=since,
        pool=np.repeat([one.pool_id for one, _ in engines], count * TENANTS).astype(np.int64),
        who=np.tile(tenant + 1, n),
        whose=whose,
        requests=joined("requests"),
        prompt_tokens=joined("prompt_tokens"),
        output_tokens=joined("output_tokens"),
    )

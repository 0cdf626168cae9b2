"""Reads what people have set, for the loops: pauses, control modes, and overrides that are in force now.

Overrides are part of the policy's signature: when one begins or ends, by hand or by its expiry, all loops of the
services concerned decide anew within seconds, as after a change of policy. `scheduler.operations` makes them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from django.db.models import Q, QuerySet
from django.utils import timezone

from core.controllers.fleet.explain import gpus_of
from core.types import CarbonPlan, Loop, Mode, PartitionOption, PoolKey, SiteView
from pools.models import Pool, Service
from scheduler.json_values import workers_from_json
from scheduler.models import LoopPause, Override, OverrideKind, ServiceMode


@dataclass(frozen=True, slots=True)
class Pin:
    """A pool whose workers a person has set. Plans are made around it: its GPUs and what it carries are not theirs."""

    pool_id: int
    site_id: int
    key: PoolKey
    partition: str
    workers: Mapping[Mode, int]

    @property
    def gpus(self) -> dict[str, int]:
        return gpus_of(self.workers)


def open_pauses() -> QuerySet[LoopPause]:
    return LoopPause.objects.filter(Q(expires_at__isnull=True) | Q(expires_at__gt=timezone.now()), ended_at=None)


def open_overrides(now: datetime | None = None) -> QuerySet[Override]:
    """Returns the overrides in force at `now`; None: at this moment."""
    return Override.objects.filter(ended_at=None, expires_at__gt=timezone.now() if now is None else now)


def is_paused(service: Service, loop: Loop) -> bool:
    return open_pauses().filter(service=service, loop=loop.value).exists()


def control_mode_of(service: Service) -> ServiceMode:
    """Returns the service's control mode; where nobody has set one, decisions act."""
    return ServiceMode.objects.filter(service=service).first() or ServiceMode(service=service)


def acts(service: Service) -> bool:
    """Says whether the loops of the policy in force carry out what they decide without a person's approval."""
    return control_mode_of(service).acts


def loops_run(service: Service) -> bool:
    """Says whether the service's slow loops take turns for the fleet: their plans act, or wait for approval."""
    return not service.acting_policy or control_mode_of(service).decides  # without: the configured one acts


def planned_around(service: Service, now: datetime | None = None) -> tuple[Override, ...]:
    """Overrides that plans of this service are made around, at `now` or at this moment."""
    own = Q(service=service, kind__in=(OverrideKind.WORKERS, OverrideKind.PARTITION))
    drains = Q(kind=OverrideKind.DRAIN, site__pools__service=service)
    rows = open_overrides(now).filter(own | drains).select_related("pool__site", "pool__request_class__partition")
    return tuple(rows.distinct().order_by("pk"))


def partition_of(overrides: Iterable[Override]) -> str | None:
    """Returns the partition that is pinned, or that a pinned pool is of; the newest override counts."""
    found = None
    for item in overrides:
        if item.kind == OverrideKind.PARTITION:
            found = str(item.value["partition"])
        elif item.kind == OverrideKind.WORKERS and item.pool is not None:
            found = item.pool.request_class.partition.name
    return found


def pins_of(overrides: Iterable[Override]) -> tuple[Pin, ...]:
    pinning = (item for item in overrides if item.kind == OverrideKind.WORKERS)
    return tuple(pin_of(item.pool, item.value) for item in pinning if item.pool is not None)


def pins(service: Service, now: datetime | None = None) -> tuple[Pin, ...]:
    return pins_of(planned_around(service, now))


def pin_of(pool: Pool, workers: Mapping[str, int]) -> Pin:
    request_class = pool.request_class
    key = PoolKey(pool.site.name, request_class.name)
    return Pin(pool.pk, pool.site_id, key, request_class.partition.name, workers_from_json(workers))


def drained_of(overrides: Iterable[Override]) -> frozenset[int]:
    """Returns the ids of the sites that people drain."""
    draining = (item.site_id for item in overrides if item.kind == OverrideKind.DRAIN)
    return frozenset(site_id for site_id in draining if site_id is not None)


def drained_sites() -> frozenset[int]:
    rows = open_overrides().filter(kind=OverrideKind.DRAIN)
    return frozenset(site_id for site_id in rows.values_list("site_id", flat=True) if site_id is not None)


def pinned_gpus(pinned: Iterable[Pin]) -> Counter[tuple[int, str]]:
    """Counts the GPUs of pinned pools, by (site, GPU type)."""
    found: Counter[tuple[int, str]] = Counter()
    for pin in pinned:
        for gpu, count in pin.gpus.items():
            found[pin.site_id, gpu] += count
    return found


def fixed_clocks() -> tuple[dict[str, float], dict[int, float]]:
    """Returns the MHz that a person has fixed, by instance and by pool."""
    by_instance: dict[str, float] = {}
    by_pool: dict[int, float] = {}
    for row in open_overrides().filter(kind=OverrideKind.CLOCK).order_by("pk"):
        if "mhz" not in row.value:
            continue
        if row.instance_uid is not None:
            by_instance[str(row.instance_uid)] = float(row.value["mhz"])
        elif row.pool_id is not None:
            by_pool[row.pool_id] = float(row.value["mhz"])
    return by_instance, by_pool


def clock_floors() -> dict[int, float]:
    """Returns the MHz, by pool, below which a person lets no clock go."""
    rows = open_overrides().filter(kind=OverrideKind.CLOCK, value__has_key="floor_mhz").order_by("pk")
    return {row.pool_id: float(row.value["floor_mhz"]) for row in rows if row.pool_id is not None}


# -- plans around pins -----------------------------------------------------------------------------


def closed(sites: tuple[SiteView, ...], pinned: Collection[Pin]) -> tuple[SiteView, ...]:
    """Closes the sites to plans that would put workers into a pinned pool."""
    return tuple(
        replace(site, closed=tuple(sorted(pin.key.request_class for pin in pinned if pin.key.site == site.name)))
        for site in sites
    )


def without_pinned_load(option: PartitionOption, pinned: Collection[Pin]) -> PartitionOption:
    """Returns the partition with its demand less what its pinned pools carry."""
    own = [pin for pin in pinned if pin.partition == option.name]
    if not own:
        return option
    carried: dict[str, float] = {}
    for pin in own:
        name = pin.key.request_class
        for mode, count in pin.workers.items():
            profile = option.profiles.get((name, mode))
            carried[name] = carried.get(name, 0.0) + (count * profile.max_rps if profile else 0.0)
    classes = tuple(
        replace(one, demand_rps=tuple(max(0.0, rps - carried.get(one.name, 0.0)) for rps in one.demand_rps))
        for one in option.classes
    )
    return replace(option, classes=classes)


def with_pins(plan: CarbonPlan | None, pinned: Collection[Pin]) -> CarbonPlan | None:
    if plan is None or not pinned:
        return plan
    bare = without_pins(plan, pinned)
    assert bare is not None
    own = {
        (pin.key.site, pin.key.request_class, mode): count
        for pin in pinned
        if pin.partition == plan.partition
        for mode, count in pin.workers.items()
    }
    return replace(bare, workers={**bare.workers, **own})


def without_pins(plan: CarbonPlan | None, pinned: Collection[Pin]) -> CarbonPlan | None:
    """Returns the part of a plan that the loops may decide on."""
    if plan is None or not pinned:
        return plan
    keys = {pin.key for pin in pinned if pin.partition == plan.partition}
    workers = {worker: count for worker, count in plan.workers.items() if PoolKey(*worker[:2]) not in keys}
    return replace(plan, workers=workers)

"""Rows -> observations: everything a controller is told, read at one moment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.conf import settings

from pools.models import Gpu, Pool, RequestClass, Service, Site
from scheduler.core.types import (
    CarbonObservation,
    CarbonPlan,
    ClassDemand,
    Limits,
    Mode,
    ModeProfile,
    PartitionOption,
    PoolKey,
    PoolView,
    ScaleObservation,
    ShardObservation,
    SiteView,
)
from scheduler.live.demand import Arrivals, arrivals
from scheduler.live.profiles import mode_profiles
from telemetry.carbon import intensity_steps

# Old and new instance both draw power while the new one sets up its engine (18 s) and loads weights from the host's
# memory (15 s): DynamoLLM (arXiv 2408.00741), table V.
TRANSITION_S = 33.0


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of one epoch: FREESH plans 30 minutes in six steps of five."""

    period_s: float
    count: int

    @property
    def step_s(self) -> float:
        return self.period_s / self.count


def steps_of(kind: str) -> Steps:
    loop: Any = settings.GREENSERVE_LOOPS[kind]
    return Steps(float(loop["period_s"]), int(loop.get("steps", 1)))


def limits_of(service: Service) -> Limits:
    """The service's objectives as the limits that plans must keep."""
    by_kind = {slo.kind: slo.objective_s for slo in service.slos.all()}
    return Limits(by_kind.get("ttft"), by_kind.get("tpot"), by_kind.get("e2e"))


def carbon(service: Service, now: datetime, reporting: set[str]) -> CarbonObservation:
    """Every site and every partition the service may use, over the carbon loop's steps."""
    steps = steps_of("carbon")
    seen = arrivals(service, now, steps.period_s)
    limits = limits_of(service)
    offered = _offered_gpus(service, reporting)
    sites = tuple(
        SiteView(
            name=site.name,
            gpus=dict(offered.get(site.pk, {})),
            pue=site.pue,
            intensity_g_per_kwh=intensity_steps(site, now, steps.step_s, steps.count),
        )
        for site in Site.objects.filter(pools__service=service).distinct()
    )
    options = []
    for partition in service.partitions.order_by("name"):
        cells = {cell.pk: cell for cell in partition.classes.all()}
        demands = seen.demands(list(cells.values()), limits, steps.count)
        profiles = mode_profiles(service, cells, {pk: lengths for pk, (_, lengths) in demands.items()}, limits)
        options.append(
            PartitionOption(
                name=partition.name,
                classes=tuple(demand for demand, _ in demands.values()),
                profiles={(cells[pk].name, mode): profile for (pk, mode), profile in profiles.items()},
            )
        )
    return CarbonObservation(now.timestamp(), steps.step_s, sites, tuple(options))


def scale(service: Service, now: datetime, plan: CarbonPlan | None) -> ScaleObservation:
    steps = steps_of("scale")
    return ScaleObservation(now.timestamp(), steps.step_s, _pool_views(service, now, plan, steps))


def shard(service: Service, now: datetime, plan: CarbonPlan | None) -> ShardObservation:
    steps = steps_of("shard")
    return ShardObservation(
        now_s=now.timestamp(),
        epoch_s=steps.period_s,
        pools=_pool_views(service, now, plan, steps),
        transition_s=TRANSITION_S / settings.GREENSERVE_TRANSITION_SPEEDUP,
    )


def _offered_gpus(service: Service, reporting: set[str]) -> Mapping[int, Counter[str]]:
    """Site -> GPU type -> GPUs of reporting, schedulable nodes, less what other services' plans may use."""
    found: dict[int, Counter[str]] = {}
    rows = Gpu.objects.filter(node__schedulable=True, node__name__in=reporting)
    for site_id, gpu_type in rows.values_list("node__cluster__site_id", "gpu_type"):
        found.setdefault(site_id, Counter())[gpu_type] += 1
    for pool in Pool.objects.exclude(service=service).exclude(gpu_budget={}):
        free = found.get(pool.site_id, Counter())
        for gpu_type, count in pool.gpu_budget.items():
            free[gpu_type] = max(0, free[gpu_type] - count)
    return found


def _pool_views(service: Service, now: datetime, plan: CarbonPlan | None, steps: Steps) -> tuple[PoolView, ...]:
    """The pools of the partition in force that have a budget, each with its share of its class's demand."""
    cells = {cell.pk: cell for cell in RequestClass.objects.filter(partition=service.partition_id)}
    limits = limits_of(service)
    seen: Arrivals = arrivals(service, now, steps.period_s)
    demands = seen.demands(list(cells.values()), limits, steps.count)
    profiles = mode_profiles(service, cells, {pk: lengths for pk, (_, lengths) in demands.items()}, limits)
    pools = [p for p in service.pools.filter(request_class__in=cells).select_related("site") if p.gpu_budget]
    weights = {pool.pk: _capacity_rps(pool, cells[pool.request_class_id].name, plan, profiles) for pool in pools}
    totals: Counter[int] = Counter()
    for pool in pools:
        totals[pool.request_class_id] += weights[pool.pk]  # type: ignore[assignment]
    views = []
    for pool in pools:
        cell = cells[pool.request_class_id]
        share = weights[pool.pk] / totals[cell.pk] if totals[cell.pk] else 0.0
        views.append(
            PoolView(
                key=PoolKey(pool.site.name, cell.name),
                gpu_budget=dict(pool.gpu_budget),
                workers={Mode.parse(name): count for name, count in pool.workers.items() if count},
                demand=_scaled(demands[cell.pk][0], share),
                profiles={mode: profile for (pk, mode), profile in profiles.items() if pk == cell.pk},
            )
        )
    return tuple(views)


def _capacity_rps(
    pool: Pool, class_name: str, plan: CarbonPlan | None, profiles: Mapping[tuple[int, Mode], ModeProfile]
) -> float:
    """What the carbon plan expects this pool to carry; without a plan for it, in proportion to its GPUs."""
    planned = 0.0
    for (site, request_class, mode), count in (plan.workers if plan else {}).items():
        profile = profiles.get((pool.request_class_id, mode))
        if (site, request_class) == (pool.site.name, class_name) and profile:
            planned += count * profile.max_rps
    return planned or 1e-6 * sum(pool.gpu_budget.values())


def _scaled(demand: ClassDemand, share: float) -> ClassDemand:
    return ClassDemand(
        name=demand.name,
        demand_rps=tuple(rate * share for rate in demand.demand_rps),
        limits=demand.limits,
        mean_prompt_tokens=demand.mean_prompt_tokens,
        mean_output_tokens=demand.mean_output_tokens,
    )

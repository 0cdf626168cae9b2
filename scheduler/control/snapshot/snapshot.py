"""Makes observations of rows: everything that a controller is given, read at one moment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from core.controllers.fleet.shared_out import NodeView, SharedOutObservation
from core.observations.demand.carbon_ahead import SiteAhead
from core.observations.demand.class_arrivals import counted
from core.observations.demand.class_view import ClassFacts, ClassView, observed, partition_option
from core.observations.fleet.autoscale_given import profiled
from core.observations.fleet.pool_views import PoolFacts
from core.observations.fleet.pool_views import pool_views as build_pool_views
from core.observations.fleet.right_size_given import AHEAD_STEPS
from core.observations.fleet.shared_out_given import shared_out_observation
from core.observations.limits import batch_limits, class_limits, planned
from core.policy.knobs import degrees
from core.types import (
    CarbonObservation,
    CarbonPlan,
    Limits,
    Mode,
    PartitionOption,
    PoolKey,
    PoolView,
    ScaleObservation,
    ShardObservation,
    SiteView,
)
from pools.models import Partition, RequestClass, Service, Site
from scheduler.control import active_operations
from scheduler.control.snapshot import change_kinds, measured_overheads, published_profiles
from scheduler.control.snapshot.published_profiles import typical
from scheduler.control.snapshot.recorded_demand import DemandWindow, arrivals, foreseen
from scheduler.control.snapshot.sites_ahead import sites_ahead
from scheduler.control.turn_context import TurnContext


@dataclass(frozen=True, slots=True)
class ClassNow(ClassView):
    """A class as it is observed, and its row."""

    request_class: RequestClass


def classes_now(context: TurnContext, partition: Partition, seen: DemandWindow, steps: int) -> list[ClassNow]:
    """Returns the classes of a partition, smallest first."""
    service, knobs, slo = context.service, context.knobs, context.service.limits()
    rows = list(partition.classes.order_by("rank"))
    came, published = seen.by_class(rows), published_profiles.published(service, [own.pk for own in rows])
    engines, declared = published_profiles.engine_choice(service, published), seen.declared
    declared_name = declared.class_name(rows) if declared else None
    found = []
    for own in rows:
        facts = ClassFacts(
            name=own.name,
            limits=_plan_limits(context, class_limits(slo, own.thresholds, knobs)),
            typical=typical(service, own),
            seen=counted(came[own.name]),
            declared=declared if own.name == declared_name else None,
            published=published[own.pk],
        )
        view = observed(facts, engines, steps, seen.rise)
        found.append(ClassNow(view.demand, view.lengths, view.profiles, view.failed, own))
    return found


def _plan_limits(context: TurnContext, limits: Limits) -> Limits:
    """Returns what plans keep of a class's limits."""
    if context.family == "throttle":
        return batch_limits(context.tuning.throttle.tbt_s, [limits])
    return planned(limits, context.knobs.plan_ttft_share, context.knobs.plan_tpot_share)


def _bounds_faults(partition: Partition, classes: Sequence[ClassNow], seen: DemandWindow) -> list[str]:
    """Returns a sentence where what was seen cannot be divided exactly into the classes."""
    if not seen.is_older_than([own.request_class for own in classes]):
        return []
    return [f"{partition.name} has new bounds: what came before them counts as the longest that it may have been."]


def _room_faults(service: Service, classes: Sequence[ClassNow]) -> list[str]:
    """Returns a sentence where nothing can serve a class because no node has room for the model."""
    if all(own.profiles for own in classes):
        return []
    reason = published_profiles.no_room(service)
    return [reason] if reason else []


def carbon(context: TurnContext, nodes: Sequence[NodeView]) -> tuple[CarbonObservation, tuple[str, ...]]:
    """Reads what the carbon loop observes: every site and partition that the service may use, over its steps.

    Returns the observation, and the faults of its inputs as sentences.
    """
    service, knobs, now = context.service, context.knobs, context.now
    step_s, steps = context.times.step_s, context.times.steps
    seen = foreseen(arrivals(service, now, context.times.carbon_s), service, now, step_s, steps)
    offered: Counter[tuple[str, str]] = Counter()
    for node in nodes:
        offered[node.site, node.gpu] += node.gpus
    places = list(Site.objects.filter(pools__service=service).distinct())
    ahead, signal = sites_ahead(places, now, step_s, steps)
    sites = tuple(
        SiteView(
            name=own.name,
            gpus={gpu: count for (name, gpu), count in sorted(offered.items()) if name == own.name},
            pue=own.pue,
            intensity_g_per_kwh=own.g_per_kwh,
            price_usd_per_kwh=own.usd_per_kwh,
        )
        for own in ahead
    )
    named = Partition.objects.filter(name=knobs.partition) if knobs.partition else service.partitions.order_by("name")
    options, faults = [], []
    for partition in named:
        classes = classes_now(context, partition, seen, steps)
        options.append(active_operations.without_pinned_load(partition_option(partition.name, classes), context.pins))
        faults += [f"{partition.name} {own.input_faults}" for own in classes if own.input_faults]
        faults += _room_faults(service, classes)
        faults += _bounds_faults(partition, classes, seen)
    sites = active_operations.closed(sites, context.pins)
    return CarbonObservation(now.timestamp(), step_s, sites, tuple(options), signal), tuple(dict.fromkeys(faults))


def shared_out(context: TurnContext, nodes: tuple[NodeView, ...]) -> tuple[SharedOutObservation, tuple[str, ...]]:
    """Reads what plans without a carbon loop observe: the nodes that are there, and the one partition of the policy.

    Returns the observation, and the faults of its inputs as sentences.
    """
    partition, period_s = Partition.objects.get(name=context.knobs.partition), context.times.carbon_s
    seen = arrivals(context.service, context.now, period_s)
    classes = classes_now(context, partition, seen, 1)
    option = active_operations.without_pinned_load(partition_option(partition.name, classes), context.pins)
    option = profiled(option, degrees(context.knobs.max_rps or {}))
    carbon: dict[str, float | None] = {}
    if context.knobs.in_envelope:
        places = list(Site.objects.filter(pools__service=context.service).distinct())
        carbon = {site.name: site.mean_g_per_kwh for site in an_epoch_ahead(context, places)}
    observation = shared_out_observation(context.now.timestamp(), period_s, nodes, option, carbon)
    faults = [own.input_faults for own in classes if own.input_faults] + _room_faults(context.service, classes)
    return observation, (*faults, *_bounds_faults(partition, classes, seen))


def an_epoch_ahead(context: TurnContext, sites: Sequence[Site], *, prices: bool = False) -> tuple[SiteAhead, ...]:
    """Returns what energy emits, and costs, at sites over the coming carbon epoch."""
    found, _ = sites_ahead(sites, context.now, context.times.carbon_s / AHEAD_STEPS, AHEAD_STEPS, prices=prices)
    return found


def scale(context: TurnContext) -> ScaleObservation:
    times = context.times
    return ScaleObservation(context.now.timestamp(), times.step_s, pool_views(context, times.scale_steps))


def shard(context: TurnContext) -> ShardObservation:
    pools = pool_views(context, 1)
    return ShardObservation(
        now_s=context.now.timestamp(),
        epoch_s=context.times.shard_s,
        pools=pools,
        transition_s=measured_overheads.published_start_s(context.service.model_card.engine_model_name, warm=True),
        starts_s=measured_overheads.starts_s(context, {mode for pool in pools for mode in pool.profiles}),
        changes=change_kinds.kinds(context, {pool.key: pool.workers for pool in pools}),
    )


def pool_views(context: TurnContext, steps: int) -> tuple[PoolView, ...]:
    """Returns the pools of the partition in force that have a budget, each with its share of its class's demand."""
    service, now, times = context.service, context.now, context.times
    seen = foreseen(arrivals(service, now, times.look_back_s), service, now, times.step_s, steps)
    classes = {own.demand.name: own for own in classes_now(context, service.partition, seen, steps)}
    planned: dict[PoolKey, dict[Mode, int]] = {}
    for (site, name, mode), count in context.plan.workers.items() if context.plan else ():
        planned.setdefault(PoolKey(site, name), {})[mode] = count
    largest, pools = published_profiles.largest_nodes(service), []
    for pool in context.pools:
        if not pool.gpu_budget:
            continue
        key = PoolKey(pool.site.name, pool.request_class.name)
        there: Mapping[str, int] = largest.get(key.site, {})
        modes = [mode for mode in classes[key.request_class].profiles if mode.tp <= there.get(mode.gpu, 0)]
        workers = {Mode.parse(name): count for name, count in pool.workers.items() if count}
        pools.append(PoolFacts(key, pool.gpu_budget, workers, planned.get(key, {}), modes))
    pinned = {pin.key for pin in context.pins}
    deciding = {pool.key for pool in pools} - pinned
    return build_pool_views(pools, classes, deciding, freeze_tp=context.knobs.freeze_tp)


def shares(plan: CarbonPlan, option: PartitionOption) -> dict[PoolKey, float]:
    """Returns the share of its class that each pool of the plan is to get: in proportion to what its workers carry."""
    carries: dict[PoolKey, float] = {}
    totals: dict[str, float] = {}
    for (site, name, mode), count in plan.workers.items():
        profile = option.profiles.get((name, mode))
        rps = count * profile.max_rps if profile else 0.0
        carries[PoolKey(site, name)] = carries.get(PoolKey(site, name), 0.0) + rps
        totals[name] = totals.get(name, 0.0) + rps
    return {key: rps / totals[key.request_class] for key, rps in carries.items() if totals[key.request_class] > 0.0}

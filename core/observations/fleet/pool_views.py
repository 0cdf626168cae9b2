"""Pools as the scale and the shard epoch see them: each with its share of its class's demand."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from core.controllers.fleet.explain import capacity_rps
from core.observations.demand.class_view import ClassView
from core.observations.fleet.standing_degrees import with_standing_degrees
from core.types import Mode, PoolKey, PoolView


@dataclass(frozen=True, slots=True)
class PoolFacts:
    """A pool of the partition in force. `modes`: those that some node of its site has room for.

    `planned`: the workers by which the pools of a class share its demand: the carbon plan's.
    """

    key: PoolKey
    gpu_budget: Mapping[str, int]
    workers: Mapping[Mode, int]
    planned: Mapping[Mode, int]
    modes: Collection[Mode]


def carried_rps(pool: PoolFacts, own: ClassView) -> float:
    """Returns the rps that a pool's planned workers carry; without any, a figure in proportion to its GPUs."""
    return capacity_rps(pool.planned, own.profiles) or 1e-6 * sum(pool.gpu_budget.values())


def pool_views(
    pools: Sequence[PoolFacts], classes: Mapping[str, ClassView], deciding: Collection[PoolKey], *, freeze_tp: bool
) -> tuple[PoolView, ...]:
    """Returns the pools that are to be decided for and have GPUs, by site and class.

    A class without a pool that has GPUs is served by another's, whose pools share its demand too.

    Args:
        pools: All of the service's, since they share its demand.
        classes: By name, smallest first.
        deciding: Of which of them: what a person has set by hand is not decided for.
        freeze_tp: The TP degrees that stand are to stay.
    """
    carried = {pool.key: carried_rps(pool, classes[pool.key.request_class]) for pool in pools}
    totals: defaultdict[str, float] = defaultdict(float)
    for key, rps in carried.items():
        totals[key.request_class] += rps
    rates_rps = _served_rps(classes, {pool.key.request_class for pool in pools if any(pool.gpu_budget.values())})
    found = []
    for pool in sorted(pools, key=lambda pool: pool.key):
        if pool.key not in deciding or not any(pool.gpu_budget.values()):
            continue
        own, total = classes[pool.key.request_class], totals[pool.key.request_class]
        share = carried[pool.key] / total if total else 0.0
        demand = replace(own.demand, demand_rps=tuple(rps * share for rps in rates_rps[pool.key.request_class]))
        able = {mode: own.profiles[mode] for mode in own.profiles if mode in pool.modes or mode in pool.workers}
        profiles = with_standing_degrees(able, pool.workers) if freeze_tp else able
        found.append(PoolView(pool.key, dict(pool.gpu_budget), dict(pool.workers), demand, profiles))
    return tuple(found)


def serving_class(names: Sequence[str], there: Collection[str]) -> dict[str, str]:
    """Returns the class whose instances serve each: its own, or where it has none the next larger one's, or else the
    next smaller one's, as load spills (`routing.class_order`).

    Args:
        names: Classes, smallest first.
        there: Those that have instances.
    """
    found = {}
    for n, name in enumerate(names):
        larger = [other for other in names[n:] if other in there]
        smaller = [other for other in names[:n] if other in there]
        found[name] = (larger or smaller[-1:] or [name])[0]
    return found


def _served_rps(classes: Mapping[str, ClassView], there: Collection[str]) -> dict[str, tuple[float, ...]]:
    """Returns the requests/s that the instances of each class serve: its own, and those of classes without any."""
    found = {name: own.demand.demand_rps for name, own in classes.items()}
    for name, by in serving_class(list(classes), there).items():
        if by != name:
            own = classes[name].demand.demand_rps
            found[by] = tuple(rps + more for rps, more in zip(found[by], own, strict=True))
    return found

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

    Args:
        pools: All of the service's, since they share its demand.
        deciding: Of which of them: what a person has set by hand is not decided for.
        freeze_tp: The TP degrees that stand are to stay.
    """
    carried = {pool.key: carried_rps(pool, classes[pool.key.request_class]) for pool in pools}
    totals: defaultdict[str, float] = defaultdict(float)
    for key, rps in carried.items():
        totals[key.request_class] += rps
    found = []
    for pool in sorted(pools, key=lambda pool: pool.key):
        if pool.key not in deciding or not any(pool.gpu_budget.values()):
            continue
        own, total = classes[pool.key.request_class], totals[pool.key.request_class]
        share = carried[pool.key] / total if total else 0.0
        demand = replace(own.demand, demand_rps=tuple(rps * share for rps in own.demand.demand_rps))
        able = {mode: own.profiles[mode] for mode in own.profiles if mode in pool.modes or mode in pool.workers}
        profiles = with_standing_degrees(able, pool.workers) if freeze_tp else able
        found.append(PoolView(pool.key, dict(pool.gpu_budget), dict(pool.workers), demand, profiles))
    return tuple(found)

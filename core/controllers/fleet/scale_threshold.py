"""Scale by thresholds: capacity for the peak, more while the pools are busy. The policy that others are measured
against.

A class has capacity for alpha x its peak 5-second rate; more while the busiest resource of its instances is above
`kv_high`, and no less than there is unless it is below `kv_low`. All instances at a site are alike. GPUs are given out
one instance at a time, sites in order, to services by weight and within their floors and ceilings.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from core.algorithms.fleet.energy_mix import mix_mode, power_w
from core.algorithms.fleet.gpu_parts import EQUAL, Share
from core.controllers.fleet.explain import demand_json, gravest, profile_json, workers_json, workers_text
from core.controllers.fleet.pool_loop import pool_name
from core.types import ClassDemand, Effects, Mode, ModeProfile, PoolDecision, PoolKey, Rationale, Reason, ScaleTo

_EPS = 1e-9
Modes = Mapping[str, Mode]  # by site
Given = dict[str, int]  # instances by site


@dataclass(frozen=True, slots=True)
class ThresholdPool:
    """A class over all its sites, smallest class first.

    Attributes:
        demand: Of the loop's window; its rates are peaks of 5 seconds.
        profiles: At the lengths of requests now seen.
        offered: The modes that may run at each site. Sites are used in this order.
        workers: What each site is to have now.
        use: Mean share of the busiest resource, KV cache or places in the batch, since the last turn; None: not known.
        failed: Why no mode keeps the limits; then demand and profiles are without them. Empty: some does.
        service: Whose pool it is; all pools of one step are one service's where they have no name.
        share: What the service's operator says of its part beside others.
    """

    name: str
    demand: ClassDemand
    profiles: Mapping[Mode, ModeProfile]
    offered: Mapping[str, tuple[Mode, ...]]
    workers: Mapping[str, Mapping[Mode, int]] = field(default_factory=dict)
    use: float | None = None
    failed: str = ""
    service: str = ""
    share: Share = EQUAL

    @property
    def count(self) -> int:
        return sum(sum(own.values()) for own in self.workers.values())

    @property
    def carries_rps(self) -> float:
        """The rate that what it has carries; a mode without a profile carries nothing."""
        return sum(
            count * self.profiles[mode].max_rps
            for own in self.workers.values()
            for mode, count in own.items()
            if mode in self.profiles
        )


@dataclass(frozen=True, slots=True)
class ScaleThresholdObservation:
    """`observed`: the load is known, of a whole window or as declared. `gpus`: that the pools may have, by (site,
    type)."""

    now_s: float
    observed: bool
    gpus: Mapping[tuple[str, str], int]
    pools: tuple[ThresholdPool, ...]


@dataclass(frozen=True, slots=True)
class ScaleThresholdConfig:
    """A class without traffic has capacity for `floor_rps`."""

    period_s: float = 1800.0
    alpha: float = 1.1
    floor_rps: float = 0.05
    kv_high: float = 0.7
    kv_low: float = 0.4

    def __post_init__(self) -> None:
        if self.alpha < 1.0 or self.period_s <= 0.0 or not 0.0 < self.kv_low < self.kv_high:
            raise ValueError("alpha is at least 1, the period above 0, and kv_low above 0 and below kv_high")


@dataclass(frozen=True, slots=True)
class ScaleThresholdState:
    """The mode in which each class runs at each site, whether it has instances there or not."""

    modes: Mapping[str, Modes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Allocation:
    """Instances by site of each pool, and in words what a pool lacks, by its name."""

    given: tuple[Given, ...]
    short: Mapping[str, str]


def step(
    state: ScaleThresholdState | None, obs: ScaleThresholdObservation, config: ScaleThresholdConfig
) -> tuple[ScaleThresholdState, Effects]:
    """Decides one epoch: the instances of each class at each site.

    Where no load is known, what stands stays; where nothing stands either, all GPUs are used.
    """
    modes = [modes_of(pool, {} if state is None else state.modes, config.alpha) for pool in obs.pools]
    after = ScaleThresholdState({pool.name: own for pool, own in zip(obs.pools, modes, strict=True)})
    next_s = obs.now_s + config.period_s
    if not obs.observed and any(pool.count for pool in obs.pools):
        return after, Effects((), next_s, Rationale(Reason.NO_DATA, "No whole window has been seen yet."))
    need_rps = [_bounded_rps(pool, config) if obs.observed else math.inf for pool in obs.pools]
    found = allocate(obs.gpus, obs.pools, modes, need_rps)
    inputs = {pool.name: _inputs(pool, config) for pool in obs.pools}
    decisions = decided(obs.pools, modes, found, need_rps, inputs)
    commands = tuple(ScaleTo(own.pool, own.workers) for own in decisions if own.changed)
    parts = [
        f"{pool.name} {pool.count} -> {sum(given.values())} {_use_text(pool)}"
        for pool, given in zip(obs.pools, found.given, strict=True)
    ]
    failed = [f"{pool.name}: no mode keeps its limits ({pool.failed})" for pool in obs.pools if pool.failed]
    reason = Reason.HEURISTIC if commands else Reason.NO_CHANGE
    reason = Reason.INFEASIBLE if failed or (found.short and obs.observed) else reason
    rationale = Rationale(reason, "; ".join([*parts, *found.short.values(), *failed]), inputs)
    return after, Effects(commands, next_s, rationale, decisions)


def modes_of(pool: ThresholdPool, known: Mapping[str, Modes], alpha: float) -> dict[str, Mode]:
    """Returns the mode of a pool at each site that offers any: what most of its GPUs there run, else what is known,
    else the mode that draws least."""
    found: dict[str, Mode] = {}
    for site, offered in pool.offered.items():
        if not offered:
            continue
        stands = {mode: n * mode.tp for mode, n in pool.workers.get(site, {}).items() if n and mode in offered}
        if stands:
            found[site] = max(sorted(stands), key=lambda mode: stands[mode])
        elif (own := known.get(pool.name, {}).get(site)) in offered and own is not None:
            found[site] = own
        else:
            found[site] = min(offered, key=lambda mode: (watts(pool, mode, alpha), mode))
    return found


def watts(pool: ThresholdPool, mode: Mode, alpha: float) -> float:
    """Returns the power of as many instances of a mode as the demand needs; infinite where it cannot be served."""
    profile = pool.profiles[mode]
    if profile.max_rps <= 0.0:
        return math.inf
    load_rps = max(pool.demand.demand_rps)
    count = max(1, math.ceil(alpha * load_rps / profile.max_rps - _EPS))
    drawn = power_w({mode: count}, {mode: mix_mode(mode, profile)}, load_rps)
    return math.inf if drawn is None else drawn


def needed_rps(rps: float, alpha: float, floor_rps: float) -> float:
    """Returns the rate to have capacity for when that rate is the peak."""
    return alpha * max(floor_rps, rps)


def allocate(
    gpus: Mapping[tuple[str, str], int],
    pools: Sequence[ThresholdPool],
    modes: Sequence[Modes],
    need_rps: Sequence[float],
) -> Allocation:
    """Gives GPUs out one instance at a time, sites in order: to a pool that has none, then to one of a service below
    its floor, then to that of which the smallest share is carried for its weight; never above a service's ceiling.
    """
    free, had = dict(gpus), Counter[str]()  # GPUs by service
    given: list[Given] = [{} for _ in pools]
    waiting, short = set(range(len(pools))), {}

    def carried_rps(n: int) -> float:
        return sum(count * pools[n].profiles[modes[n][site]].max_rps for site, count in given[n].items())

    def lack(n: int) -> tuple[bool, bool, float, float, int]:
        carried, own, count = math.inf, pools[n].share, sum(given[n].values())
        if need_rps[n] > 0.0:
            carried = carried_rps(n) / need_rps[n]
        floor_met = had[pools[n].service] >= own.min_gpus
        return count > 0, floor_met, carried / own.weight, count / own.weight, n

    def may_have(n: int, tp: int) -> bool:
        more = had[pools[n].service] + tp
        return pools[n].share.most(more) == more

    while waiting:
        n = min(waiting, key=lack)
        fitting = [site for site, mode in modes[n].items() if free.get((site, mode.gpu), 0) >= mode.tp]
        room = [site for site in fitting if may_have(n, modes[n][site].tp)]
        if room:
            mode = modes[n][room[0]]
            had[pools[n].service] += mode.tp
            free[room[0], mode.gpu] -= mode.tp
            given[n][room[0]] = given[n].get(room[0], 0) + 1
        rps = carried_rps(n)
        if rps >= need_rps[n] - _EPS or (room and not rps):
            waiting.discard(n)
        elif not room:
            waiting.discard(n)
            why = f": its service's ceiling is {pools[n].share.max_gpus} GPUs" if fitting else ""
            short[pools[n].name] = f"{pools[n].name} needs {need_rps[n]:.3g} requests/s and gets {rps:.3g}{why}"
    return Allocation(tuple(given), short)


def decided(
    pools: Sequence[ThresholdPool],
    modes: Sequence[Modes],
    found: Allocation,
    need_rps: Sequence[float],
    inputs: Mapping[str, Mapping[str, Any]],
) -> tuple[PoolDecision, ...]:
    """Returns what each class is to have at each site, changed or not, and why. `inputs`: by the pool's name."""
    decisions = []
    for n, pool in enumerate(pools):
        for site in {**pool.offered, **pool.workers}:
            before = {mode: count for mode, count in pool.workers.get(site, {}).items() if count}
            count = found.given[n].get(site, 0)
            after = {modes[n][site]: count} if count else {}
            key, changed = PoolKey(site, pool.name), before != after
            move = f"{workers_text(before)} -> {workers_text(after)}" if changed else workers_text(after)
            load = f"{need_rps[n]:.3g} requests/s" if math.isfinite(need_rps[n]) else "a load that is not known"
            text = f"{pool_name(key)}: {move}, for {load} of the class {_use_text(pool)}."
            whys = [Reason.INFEASIBLE] if pool.failed or pool.name in found.short else [Reason.NO_CHANGE]
            reason = gravest([*whys, Reason.HEURISTIC] if changed else whys)
            decisions.append(PoolDecision(key, after, changed, Rationale(reason, text, inputs[pool.name])))
    return tuple(decisions)


def _bounded_rps(pool: ThresholdPool, config: ScaleThresholdConfig) -> float:
    """Returns the rate to have capacity for: the need, and no less than the use of what runs tells."""
    need_rps = needed_rps(max(pool.demand.demand_rps), config.alpha, config.floor_rps)
    has_rps = pool.carries_rps
    if pool.use is None:
        return max(need_rps, has_rps)
    if pool.use > config.kv_high:
        return max(need_rps, has_rps * pool.use / config.kv_high)
    return max(need_rps, has_rps) if pool.use > config.kv_low else need_rps


def _use_text(pool: ThresholdPool) -> str:
    return "at a use that is not known" if pool.use is None else f"at {pool.use:.0%} use"


def _inputs(pool: ThresholdPool, config: ScaleThresholdConfig) -> dict[str, Any]:
    return {
        "alpha": config.alpha,
        "floor_rps": config.floor_rps,
        "kv_high": config.kv_high,
        "kv_low": config.kv_low,
        "use": pool.use,
        "workers": {site: workers_json(own) for site, own in pool.workers.items()},
        "demand": demand_json(pool.demand),
        "profiles": {mode.name: profile_json(profile) for mode, profile in sorted(pool.profiles.items())},
    }

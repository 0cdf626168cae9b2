"""The shard epoch: the mix of TP degrees in each pool, on the GPUs that its workers hold now (DynamoLLM IV-B).

A new mix is taken only when what it saves until the next epoch pays for the transition. Changed in place, old and new
instances both draw power meanwhile. Else new ones take theirs of a start, in which they serve nobody, and nothing is
saved before they do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from core.algorithms.fleet.energy_mix import Mix, mix_mode, power_w, solve
from core.algorithms.fleet.highs import SolverStatus
from core.controllers.fleet.explain import (
    capacity_rps,
    demand_json,
    gpus_of,
    least_trusted,
    profile_json,
    workers_json,
    workers_text,
)
from core.controllers.fleet.pool_loop import PoolLoopConfig, PoolLoopState, pool_name, summarise
from core.controllers.fleet.scale import serving_modes
from core.types import (
    Alternative,
    ChangeKind,
    Effects,
    Mode,
    PoolDecision,
    PoolView,
    Rationale,
    Reason,
    SetTpDegrees,
    ShardObservation,
)


@dataclass(frozen=True, slots=True)
class _Weighed:
    """The best mix of a pool against the present one, over the epoch."""

    best: Mix | None
    present_w: float | None  # None: the present mix cannot carry the need
    saving_j: float | None
    transition_j: float
    need_rps: float
    load_rps: float


def step(state: PoolLoopState | None, obs: ShardObservation, config: PoolLoopConfig) -> tuple[PoolLoopState, Effects]:
    """Decides one epoch: a decision for every pool, and a SetTpDegrees for each that changes.

    The pools are independent; see `step_pool` for one of them.
    """
    decisions = tuple(step_pool(pool, obs, config) for pool in obs.pools)
    commands = tuple(SetTpDegrees(d.pool, d.workers) for d in decisions if d.changed)
    rationale = summarise(decisions, "No pool has another mix of TP degrees that pays off; none changes.")
    effects = Effects(commands, obs.now_s + obs.epoch_s, rationale, decisions)
    return PoolLoopState({d.pool: d.workers for d in decisions}), effects


def step_pool(pool: PoolView, obs: ShardObservation, config: PoolLoopConfig) -> PoolDecision:
    """Chooses the mix of one pool: the best one if it pays off, or if the present one cannot carry the need."""
    present = {mode: count for mode, count in pool.workers.items() if count}
    weighed = _weigh(pool, present, obs, config)
    workers, reason, text = _decide(present, weighed)
    name = pool_name(pool.key)
    rationale = Rationale(
        reason,
        f"{name}: {text}.",
        _inputs(pool, weighed, obs, config),
        _alternatives(name, pool, present, workers, weighed, obs.epoch_s),
    )
    return PoolDecision(pool.key, workers, workers != present, rationale)


def _weigh(pool: PoolView, present: Mapping[Mode, int], obs: ShardObservation, config: PoolLoopConfig) -> _Weighed:
    modes = {mode: mix_mode(mode, profile) for mode, profile in serving_modes(pool).items()}
    demand = pool.demand.demand_rps
    need_rps = config.alpha * max(config.floor_rps, max(demand, default=0.0))
    load_rps = sum(demand) / len(demand) if demand else 0.0
    best = solve(gpus_of(present), modes, load_rps, need_rps, config.time_limit_s, config.gap) if present else None
    able = all(mode in modes for mode in present)
    enough = able and sum(modes[mode].max_rps * count for mode, count in present.items()) >= need_rps - 1e-6
    present_w = power_w(present, modes, load_rps) if enough else None
    if best is None:
        return _Weighed(None, present_w, None, 0.0, need_rps, load_rps)
    added = {mode: n for mode, count in best.workers.items() if (n := count - present.get(mode, 0)) > 0}
    starts_s = {mode: obs.starts_s.get(mode, obs.transition_s) for mode in added}
    in_place = _kind(pool, obs) is ChangeKind.IN_PLACE
    watts = {mode: modes[mode].busy_w if in_place else modes[mode].idle_w for mode in added}
    transition_j = sum(starts_s[mode] * watts[mode] * count for mode, count in added.items())
    left_s = obs.epoch_s if in_place else max(0.0, obs.epoch_s - max(starts_s.values(), default=0.0))
    saving_j = None if present_w is None else (present_w - best.power_w) * left_s
    return _Weighed(best, present_w, saving_j, transition_j, need_rps, load_rps)


def _kind(pool: PoolView, obs: ShardObservation) -> ChangeKind:
    return obs.changes.get(pool.key, ChangeKind.IN_PLACE)


def _decide(present: Mapping[Mode, int], weighed: _Weighed) -> tuple[Mapping[Mode, int], Reason, str]:
    best = weighed.best
    if not present:
        return present, Reason.NO_CHANGE, "has no workers"
    if best is None:
        if weighed.present_w is not None:
            return present, Reason.NO_CHANGE, f"{workers_text(present)} stays, the solver found nothing better in time"
        text = f"no mix on its GPUs carries {weighed.need_rps:.2f} requests/s; {workers_text(present)} stays"
        return present, Reason.INFEASIBLE, text
    if best.workers == present:
        return present, Reason.NO_CHANGE, f"{workers_text(present)} is already the best mix"
    move = f"{workers_text(present)} -> {workers_text(best.workers)}"
    reason = Reason.OPTIMAL if best.status is SolverStatus.OPTIMAL else Reason.FEASIBLE
    if weighed.saving_j is None:
        return best.workers, reason, f"{move}, since what runs cannot carry {weighed.need_rps:.2f} requests/s"
    if weighed.saving_j <= 0.0:
        return present, Reason.NO_CHANGE, f"{workers_text(present)} stays, no mix draws less"
    if weighed.saving_j <= weighed.transition_j:
        text = f"{move} would save {weighed.saving_j:.0f} J in an epoch and cost {weighed.transition_j:.0f} J"
        return present, Reason.NOT_WORTH_IT, text
    return best.workers, reason, f"{move}, saves {weighed.saving_j - weighed.transition_j:.0f} J in an epoch"


def _alternatives(
    name: str,
    pool: PoolView,
    present: Mapping[Mode, int],
    workers: Mapping[Mode, int],
    weighed: _Weighed,
    epoch_s: float,
) -> tuple[Alternative, ...]:
    rows: list[tuple[Mapping[Mode, int], float | None, float]] = []
    if weighed.best is not None and weighed.best.workers != present:
        rows.append((weighed.best.workers, weighed.best.power_w, weighed.transition_j))
    if present:
        rows.append((present, weighed.present_w, 0.0))
    carried = capacity_rps(present, pool.profiles)
    return tuple(
        Alternative(
            f"{name}: {workers_text(mix)}",
            chosen=mix == workers,
            feasible=watts is not None,
            failed=None if watts is not None else f"carries {carried:.2f} of {weighed.need_rps:.2f} requests/s",
            power_w=watts,
            energy_j=None if watts is None else watts * epoch_s + extra_j,
            source=least_trusted(pool.profiles[mode].source for mode in mix if mode in pool.profiles),
        )
        for mix, watts, extra_j in rows
    )


def _inputs(pool: PoolView, weighed: _Weighed, obs: ShardObservation, config: PoolLoopConfig) -> dict[str, Any]:
    return {
        "alpha": config.alpha,
        "floor_rps": config.floor_rps,
        "epoch_s": obs.epoch_s,
        "transition_s": obs.transition_s,
        "starts_s": {mode.name: obs.starts_s[mode] for mode in sorted(pool.profiles) if mode in obs.starts_s},
        "change": _kind(pool, obs).value,
        "workers": workers_json(pool.workers),
        "demand": demand_json(pool.demand),
        "need_rps": weighed.need_rps,
        "load_rps": weighed.load_rps,
        "saving_j": weighed.saving_j,
        "transition_j": weighed.transition_j,
        "profiles": {
            mode.name: {**profile_json(profile), "idle_w": mix_mode(mode, profile).idle_w}
            for mode, profile in sorted(pool.profiles.items())
        },
    }

"""Shard by thresholds: another TP degree once it has drawn less by a margin in several epochs in a row.

Between two scale epochs it also helps a class that the last minutes found too small, with more instances.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from core.controllers.fleet.explain import demand_json, least_trusted, profile_json, workers_json
from core.controllers.fleet.scale_threshold import (
    Modes,
    ThresholdPool,
    allocate,
    decided,
    modes_of,
    needed_rps,
    watts,
)
from core.types import Alternative, Effects, Mode, PoolDecision, Rationale, Reason, SetTpDegrees


@dataclass(frozen=True, slots=True)
class ShardThresholdObservation:
    """The pools with the demand of scale's window. `recent_rps`: each one's peak rate in the shard loop's own."""

    now_s: float
    gpus: Mapping[tuple[str, str], int]
    pools: tuple[ThresholdPool, ...]
    recent_rps: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class ShardThresholdConfig:
    """`gain`: share of its power that another TP degree must save. `streak`: epochs in a row that must find so."""

    period_s: float = 300.0
    alpha: float = 1.1
    floor_rps: float = 0.05
    gain: float = 0.1
    streak: int = 3

    def __post_init__(self) -> None:
        if self.alpha < 1.0 or self.period_s <= 0.0 or not 0.0 <= self.gain < 1.0 or self.streak < 1:
            raise ValueError("alpha and streak are at least 1, the period above 0, and gain from 0 to below 1")


@dataclass(frozen=True, slots=True)
class BetterMode:
    """A mode that would have drawn less, and how many epochs in a row it was the best."""

    mode: Mode
    epochs: int


@dataclass(frozen=True, slots=True)
class ShardThresholdState:
    """The mode of each class at each site, and by class the mode that may replace it."""

    modes: Mapping[str, Modes] = field(default_factory=dict)
    better: Mapping[str, BetterMode] = field(default_factory=dict)


def step(
    state: ShardThresholdState | None, obs: ShardThresholdObservation, config: ShardThresholdConfig
) -> tuple[ShardThresholdState, Effects]:
    """Decides one epoch: other TP degrees, and instances for the classes that need more."""
    known = ShardThresholdState() if state is None else state
    before = [modes_of(pool, known.modes, config.alpha) for pool in obs.pools]
    after: list[Modes] = []
    better: dict[str, BetterMode] = {}
    need_rps: list[float] = []
    parts: list[str] = []
    reason = Reason.NO_CHANGE
    for pool, modes in zip(obs.pools, before, strict=True):
        need_rps.append(pool.carries_rps)
        recent_rps = needed_rps(obs.recent_rps[pool.name], config.alpha, config.floor_rps)
        if recent_rps > need_rps[-1]:
            parts.append(f"{pool.name} needs {recent_rps:.3g} requests/s before scale comes round")
            reason, need_rps[-1] = Reason.HEURISTIC, recent_rps
        found = _better(pool, modes, known.better.get(pool.name), config)
        if found is not None and found.epochs >= config.streak:
            modes = {site: found.mode if found.mode in pool.offered[site] else mode for site, mode in modes.items()}
            parts.append(f"{pool.name} -> {', '.join(sorted({mode.name for mode in modes.values()}))}")
            now_rps = needed_rps(max(pool.demand.demand_rps), config.alpha, config.floor_rps)
            reason, need_rps[-1] = Reason.HEURISTIC, max(recent_rps, now_rps)
        elif found is not None:
            better[pool.name] = found
            parts.append(f"{pool.name} may change")
            reason = Reason.NOT_WORTH_IT if reason is Reason.NO_CHANGE else reason
        after.append(modes)
    decisions: tuple[PoolDecision, ...] = ()
    inputs = {pool.name: _inputs(pool, obs, config) for pool in obs.pools}
    if reason is Reason.HEURISTIC:
        given = allocate(obs.gpus, obs.pools, after, need_rps)
        parts += given.short.values()
        decisions = tuple(
            replace(own, rationale=replace(own.rationale, alternatives=_alternatives(pool, own.workers, config)))
            for own in decided(obs.pools, after, given, need_rps, inputs)
            for pool in obs.pools
            if pool.name == own.pool.request_class
        )
    commands = tuple(SetTpDegrees(own.pool, own.workers) for own in decisions if own.changed)
    rationale = Rationale(reason, "; ".join(parts) or "No other TP degree draws less.", inputs)
    named = {pool.name: modes for pool, modes in zip(obs.pools, after, strict=True)}
    return ShardThresholdState(named, better), Effects(commands, obs.now_s + config.period_s, rationale, decisions)


def _better(
    pool: ThresholdPool, modes: Modes, before: BetterMode | None, config: ShardThresholdConfig
) -> BetterMode | None:
    """Returns the mode of the same GPU type that draws least, where that is less by far; None: no other one is."""
    if not modes:
        return None
    now = next(iter(modes.values()))
    offered = {mode for own in pool.offered.values() for mode in own if mode.gpu == now.gpu}
    best = min(offered, key=lambda mode: (watts(pool, mode, config.alpha), mode))
    if watts(pool, best, config.alpha) > (1.0 - config.gain) * watts(pool, now, config.alpha):
        return None
    return BetterMode(best, before.epochs + 1 if before is not None and before.mode == best else 1)


def _alternatives(
    pool: ThresholdPool, workers: Mapping[Mode, int], config: ShardThresholdConfig
) -> tuple[Alternative, ...]:
    found = []
    for mode in sorted({mode for own in pool.offered.values() for mode in own}):
        drawn_w = watts(pool, mode, config.alpha)
        able = math.isfinite(drawn_w)
        found.append(
            Alternative(
                f"{pool.name}: {mode.name}",
                chosen=mode in workers,
                feasible=able,
                failed=None if able else "cannot serve the class",
                power_w=drawn_w if able else None,
                source=least_trusted([pool.profiles[mode].source]),
            )
        )
    return tuple(found)


def _inputs(pool: ThresholdPool, obs: ShardThresholdObservation, config: ShardThresholdConfig) -> dict[str, Any]:
    return {
        "alpha": config.alpha,
        "floor_rps": config.floor_rps,
        "gain": config.gain,
        "streak": config.streak,
        "recent_rps": obs.recent_rps[pool.name],
        "workers": {site: workers_json(own) for site, own in pool.workers.items()},
        "demand": demand_json(pool.demand),
        "profiles": {mode.name: profile_json(profile) for mode, profile in sorted(pool.profiles.items())},
    }

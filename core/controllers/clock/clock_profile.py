"""DynamoLLM's clock epoch (section IV-B, "scale-up/down"): by profile, every 5 s, for many instances at once.

Of the profiled clocks those stay that keep TTFT and TBT under the present load; of these the one of least energy is
taken. At a given load energy a request and power are the same order, so that is the clock of least power, idle time
included. The load is what arrives and what waits, to be served within a period: a queue asks for more.

A profile is a mean and can be wrong: a latency seen beyond its limit rules out the present clock and all below. Between
clocks that draw nearly the same it stays where it is, since a switch costs 50 to 80 ms of calls (III-C).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from core.controllers.basis import basis_json
from core.engine.load_profile import Floats, LoadProfile
from core.types import Effects, Limits, Rationale, Reason, SetSmClock

_SAME_MHZ = 0.5


@dataclass(frozen=True, slots=True)
class InstanceLoad:
    """One instance over its last period. `profile` names one in the observation; latencies None: nothing ended.

    `limits`: the strictest of those that share its pool, or the share of them that predicted means may take: then the
    latencies are the same share of those seen. `load_rps` None: unknown, the clock stays.
    """

    instance: str
    profile: str
    load_rps: float | None
    waiting: int
    min_mhz: float
    max_mhz: float
    limits: Limits
    ttft_s: float | None = None
    tpot_s: float | None = None


@dataclass(frozen=True, slots=True)
class ProfileClockObservation:
    now_s: float
    instances: tuple[InstanceLoad, ...]
    profiles: Mapping[str, LoadProfile]


@dataclass(frozen=True, slots=True)
class ProfileClockConfig:
    """`min_saving`: share of the watts that another clock must save."""

    period_s: float = 5.0
    min_saving: float = 0.02

    def __post_init__(self) -> None:
        if self.period_s <= 0.0 or not 0.0 <= self.min_saving < 1.0:
            raise ValueError("period_s > 0 and min_saving in [0, 1)")


@dataclass(frozen=True, slots=True)
class ProfileClockState:
    """The clock last asked for, by instance; one not named runs at its top clock."""

    asked_mhz: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Decided:
    mhz: float
    reason: Reason
    watts: float | None  # predicted at the new clock; None: no clock carries the load


def step(
    state: ProfileClockState | None, obs: ProfileClockObservation, config: ProfileClockConfig
) -> tuple[ProfileClockState, Effects]:
    """Decides one period: a SetSmClock for each instance whose clock changes, or that never got one."""
    asked = state.asked_mhz if state is not None else {}
    groups: dict[str, list[InstanceLoad]] = {}
    for item in obs.instances:
        groups.setdefault(item.profile, []).append(item)
    decided: dict[str, _Decided] = {}
    for name, items in groups.items():
        profile = obs.profiles.get(name)
        known = [item for item in items if item.load_rps is not None] if profile is not None else []
        for item in items:
            if item not in known:
                now = _within(asked.get(item.instance, item.max_mhz), item)
                decided[item.instance] = _Decided(now, Reason.NO_DATA, None)
        if profile is not None and known:
            decided |= _choose(profile, known, asked, config)
    commands = tuple(
        SetSmClock(item.instance, decided[item.instance].mhz)
        for item in obs.instances
        if item.instance not in asked or abs(decided[item.instance].mhz - asked[item.instance]) > _SAME_MHZ
    )
    after = ProfileClockState({item.instance: decided[item.instance].mhz for item in obs.instances})
    return after, Effects(commands, obs.now_s + config.period_s, _rationale(obs, decided, len(commands)))


def _choose(
    profile: LoadProfile, items: Sequence[InstanceLoad], asked: Mapping[str, float], config: ProfileClockConfig
) -> dict[str, _Decided]:
    """Decides for the instances of one profile, with arrays of (clocks, instances)."""
    loads = np.array([(item.load_rps or 0.0) + item.waiting / config.period_s for item in items])
    ttft_s, tpot_s, watts = profile.at(loads)
    now = np.array([_within(asked.get(item.instance, item.max_mhz), item) for item in items])
    late = np.array([_late(item) for item in items])
    mhz = profile.mhz[:, None]
    in_range = (mhz >= _column(items, "min_mhz") - _SAME_MHZ) & (mhz <= _column(items, "max_mhz") + _SAME_MHZ)
    allowed = in_range & ~(late & (mhz <= now + _SAME_MHZ))
    keeps = allowed & np.isfinite(watts) & (ttft_s <= _limit(items, "ttft_s")) & (tpot_s <= _limit(items, "tpot_s"))
    cost = np.where(keeps, watts, np.inf)
    best = np.argmin(cost, axis=0)
    found: dict[str, _Decided] = {}
    for i, item in enumerate(items):
        if not keeps[:, i].any():
            found[item.instance] = _Decided(item.max_mhz, Reason.CONGESTED, None)
            continue
        row = int(best[i])
        same = np.flatnonzero(keeps[:, i] & (np.abs(profile.mhz - now[i]) <= _SAME_MHZ))
        if same.size and cost[same[0], i] * (1.0 - config.min_saving) <= cost[row, i]:
            row = int(same[0])
        to = _within(float(profile.mhz[row]), item)
        if abs(to - now[i]) <= _SAME_MHZ:
            reason = Reason.NO_CHANGE
        else:
            reason = Reason.CONGESTED if to > now[i] else Reason.SLACK
        found[item.instance] = _Decided(to, reason, float(watts[row, i]))
    return found


def _within(mhz: float, item: InstanceLoad) -> float:
    return min(max(mhz, item.min_mhz), item.max_mhz)


def _late(item: InstanceLoad) -> bool:
    pairs = ((item.ttft_s, item.limits.ttft_s), (item.tpot_s, item.limits.tpot_s))
    return any(value is not None and limit is not None and value > limit for value, limit in pairs)


def _column(items: Sequence[InstanceLoad], name: str) -> Floats:
    return np.array([getattr(item, name) for item in items], dtype=np.float64)


def _limit(items: Sequence[InstanceLoad], name: str) -> Floats:
    limits = [getattr(item.limits, name) for item in items]
    return np.array([np.inf if limit is None else limit for limit in limits], dtype=np.float64)


def _rationale(obs: ProfileClockObservation, decided: Mapping[str, _Decided], commands: int) -> Rationale:
    count = Counter(own.reason for own in decided.values())
    order = (Reason.CONGESTED, Reason.NO_DATA, Reason.SLACK)
    reason = next((one for one in order if count[one]), Reason.NO_CHANGE)
    words = {Reason.CONGESTED: "up or at the top", Reason.SLACK: "down", Reason.NO_DATA: "without figures"}
    summary = ", ".join(f"{count[one]} {words[one]}" for one in order if count[one])
    inputs: dict[str, Any] = {
        item.instance: {
            "load_rps": item.load_rps,
            "waiting": item.waiting,
            "ttft_s": item.ttft_s,
            "tpot_s": item.tpot_s,
            "ttft_limit_s": item.limits.ttft_s,
            "tpot_limit_s": item.limits.tpot_s,
            "to_mhz": decided[item.instance].mhz,
            "power_w": decided[item.instance].watts,
            "reason": decided[item.instance].reason.value,
            **(basis_json(obs.profiles[item.profile]) if item.profile in obs.profiles else {"source": None}),
        }
        for item in obs.instances
    }
    return Rationale(reason, f"{commands} clocks set: {summary or 'none needs another'}.", inputs)

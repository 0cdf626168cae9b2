"""DynamoLLM's emergency ladder (section IV-D, "handling mis-predictions"), one instance at a time.

When its queue builds up so that requests will miss their deadlines, an instance climbs, a rung only when the one below
is not enough:

1. reorder: requests that are about to miss their deadline, and can still be saved, go first;
2. ramp: some miss it all the same: the top clock;
3. re-steer: the backlog persists for `patience_s`, or worsens: requests that have not started go to instances of
   the pool that serve them in time;
4. squash: that was not enough either, for `patience_s` more: requests that have waited beyond `squash_after_s` are
   given back, so that clients try again elsewhere or later.

The rungs below stay in force. After `calm_s` without anyone late the ladder is left, and the clock loop has its knob
back: while `ramped`, it must leave the clock at the top.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

from core.algorithms.queue.deadlines import fewest_late, late_in_order
from core.types import Command, Effects, Rationale, Reason, ReorderQueue, ResteerRequests, SetSmClock, SquashRequests

_EPS_S = 1e-9


class Rung(IntEnum):
    CALM = 0
    REORDER = 1
    RAMP = 2
    RESTEER = 3
    SQUASH = 4


# What was done, the most drastic first.
_REASONS: tuple[tuple[type[Command], Reason], ...] = (
    (SquashRequests, Reason.SQUASHED),
    (ResteerRequests, Reason.RESTEERED),
    (SetSmClock, Reason.RAMPED),
    (ReorderQueue, Reason.REORDERED),
)


@dataclass(frozen=True, slots=True)
class Waiting:
    """A request that has not started. `deadline_s`: its own, whatever pool it is in; for its first token.

    It takes `service_s` of the instance at the present clock and `service_top_s` at the top one.
    """

    request: str
    arrival_s: float
    deadline_s: float
    service_s: float
    service_top_s: float


@dataclass(frozen=True, slots=True)
class Mate:
    """Another instance of the pool: when it has served what waits there now, at its present clock."""

    instance: str
    free_at_s: float


@dataclass(frozen=True, slots=True)
class EmergencyObservation:
    """`queue` in the order of service. `free_at_s`: when the instance can begin with the first of them."""

    now_s: float
    instance: str
    queue: tuple[Waiting, ...]
    free_at_s: float
    mhz: float
    top_mhz: float
    mates: tuple[Mate, ...] = ()


@dataclass(frozen=True, slots=True)
class EmergencyConfig:
    """`highest`: no rung above it is climbed; that it is not enough is then reported as AT_LIMIT."""

    period_s: float = 1.0
    patience_s: float = 2.0
    calm_s: float = 5.0
    squash_after_s: float = 10.0
    most_moves: int = 64
    highest: Rung = Rung.SQUASH

    def __post_init__(self) -> None:
        if min(self.period_s, self.patience_s, self.calm_s, self.squash_after_s) <= 0.0 or self.most_moves < 1:
            raise ValueError("every time is longer than nothing, and at least one request may move")
        if self.highest is Rung.CALM:
            raise ValueError("a ladder has at least one rung: highest is above CALM")


@dataclass(frozen=True, slots=True)
class EmergencyState:
    """The rung, since when, how many were late when it was climbed, and since when nobody is (None: somebody is)."""

    rung: Rung = Rung.CALM
    since_s: float = 0.0
    late: int = 0
    calm_since_s: float | None = None

    @property
    def ramped(self) -> bool:
        """True where the clock is to stay at the top."""
        return self.rung >= Rung.RAMP


def step(
    state: EmergencyState | None, obs: EmergencyObservation, config: EmergencyConfig
) -> tuple[EmergencyState, Effects]:
    """Decides one period of one instance."""
    state = state or EmergencyState(since_s=obs.now_s)
    late = late_in_order(
        [own.deadline_s for own in obs.queue], [own.service_s for own in obs.queue], max(obs.now_s, obs.free_at_s)
    )
    if late:
        state, commands = _climb(replace(state, calm_since_s=None), obs, config)
    else:
        state, commands = _come_down(state, obs, config), []
    summary = _summary(obs, state, len(late), commands)
    rationale = Rationale(_reason(commands, bool(late)), summary, _inputs(obs, state, len(late)))
    return state, Effects(tuple(commands), obs.now_s + config.period_s, rationale)


def _reason(commands: Sequence[Command], late: bool) -> Reason:
    """Returns the reason of the most drastic command; AT_LIMIT when requests are late and this rung has nothing more to
    give."""
    for kind, reason in _REASONS:
        if any(isinstance(command, kind) for command in commands):
            return reason
    return Reason.AT_LIMIT if late else Reason.NO_CHANGE


def _come_down(state: EmergencyState, obs: EmergencyObservation, config: EmergencyConfig) -> EmergencyState:
    if state.rung is Rung.CALM:
        return state
    since_s = obs.now_s if state.calm_since_s is None else state.calm_since_s
    if obs.now_s - since_s >= config.calm_s - _EPS_S:
        return EmergencyState(Rung.CALM, obs.now_s)
    return replace(state, calm_since_s=since_s)


def _climb(
    state: EmergencyState, obs: EmergencyObservation, config: EmergencyConfig
) -> tuple[EmergencyState, list[Command]]:
    commands: list[Command] = []
    in_time, late = _order(obs, top=False)
    if config.highest is Rung.REORDER or (not late and state.rung < Rung.RAMP):
        return _at(state, Rung.REORDER, obs, 0), _reorder(obs, in_time + late)
    if obs.mhz < obs.top_mhz:
        commands.append(SetSmClock(obs.instance, obs.top_mhz))
    in_time, late = _order(obs, top=True)
    if state.rung < Rung.RAMP or not late or config.highest is Rung.RAMP:
        return _at(state, max(state.rung, Rung.RAMP), obs, len(late)), commands + _reorder(obs, in_time + late)
    waited = obs.now_s - state.since_s >= config.patience_s - _EPS_S
    if state.rung is Rung.RAMP and not waited and len(late) <= state.late:
        return state, commands + _reorder(obs, in_time + late)
    moves = _resteer(obs, late, config.most_moves)
    if moves:
        commands.append(ResteerRequests(obs.instance, tuple(moves)))
    gone = {request for request, _ in moves}
    stuck = [own for own in late if own.request not in gone]
    rung = max(state.rung, Rung.RESTEER)
    if (
        stuck
        and config.highest is Rung.SQUASH
        and (state.rung is Rung.SQUASH or (state.rung is Rung.RESTEER and waited))
    ):
        squashed = [own for own in stuck if obs.now_s - own.arrival_s > config.squash_after_s]
        if squashed:
            rung = Rung.SQUASH
            gone |= {own.request for own in squashed}
            stays = [own for own in obs.queue if own.request not in gone]
            retry_after_s = max(config.period_s, sum(own.service_top_s for own in stays))
            names = tuple(own.request for own in squashed)
            commands.append(SquashRequests(obs.instance, names, retry_after_s))
    left = [own for own in in_time + late if own.request not in gone]
    return _at(state, rung, obs, len(stuck)), commands + _reorder(obs, left)


def _at(state: EmergencyState, rung: Rung, obs: EmergencyObservation, late: int) -> EmergencyState:
    """Returns the state on a rung; its time and count are those of when it was climbed."""
    if rung is state.rung:
        return state
    return EmergencyState(rung, obs.now_s, late)


def _order(obs: EmergencyObservation, *, top: bool) -> tuple[list[Waiting], list[Waiting]]:
    """Returns the requests that can be in time, and those that cannot, each by deadline."""
    service_s = [own.service_top_s if top else own.service_s for own in obs.queue]
    in_time, late = fewest_late([own.deadline_s for own in obs.queue], service_s, max(obs.now_s, obs.free_at_s))
    return [obs.queue[i] for i in in_time], [obs.queue[i] for i in late]


def _reorder(obs: EmergencyObservation, order: Sequence[Waiting]) -> list[Command]:
    """Returns the order as a command, unless the requests that stay are in it already."""
    names = tuple(own.request for own in order)
    stays = set(names)
    if names == tuple(own.request for own in obs.queue if own.request in stays):
        return []
    return [ReorderQueue(obs.instance, names)]


def _resteer(obs: EmergencyObservation, late: Sequence[Waiting], most: int) -> list[tuple[str, str]]:
    """Finds the late requests that another instance serves in time: each to the one that is free first, behind what is
    there."""
    free_at_s = {mate.instance: max(obs.now_s, mate.free_at_s) for mate in obs.mates}
    moves: list[tuple[str, str]] = []
    for own in late:
        if len(moves) >= most or not free_at_s:
            break
        to = min(free_at_s, key=lambda name: (free_at_s[name], name))
        done_s = free_at_s[to] + own.service_s
        if done_s <= own.deadline_s:
            free_at_s[to] = done_s
            moves.append((own.request, to))
    return moves


def _summary(obs: EmergencyObservation, state: EmergencyState, late: int, commands: Sequence[Command]) -> str:
    if not late:
        calm = "nobody waits too long" if state.rung is Rung.CALM else "nobody is late, watching"
        return f"{obs.instance}: {calm}."
    parts = [f"{late} of {len(obs.queue)} that wait would miss their deadline"]
    for command in commands:
        if isinstance(command, SetSmClock):
            parts.append(f"{command.mhz:.0f} MHz")
        elif isinstance(command, ResteerRequests):
            parts.append(f"{len(command.moves)} go to other instances")
        elif isinstance(command, SquashRequests):
            parts.append(f"{len(command.requests)} are to try again in {command.retry_after_s:.1f} s")
        elif isinstance(command, ReorderQueue):
            parts.append("reordered")
    return f"{obs.instance}: {', '.join(parts)}."


def _inputs(obs: EmergencyObservation, state: EmergencyState, late: int) -> dict[str, Any]:
    return {
        "waiting": len(obs.queue),
        "late": late,
        "rung": state.rung.name.lower(),
        "rung_since_s": state.since_s,
        "free_at_s": obs.free_at_s,
        "mhz": obs.mhz,
        "top_mhz": obs.top_mhz,
        "mates": len(obs.mates),
    }

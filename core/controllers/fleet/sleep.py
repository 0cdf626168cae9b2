"""Sleep: a service without traffic gives its GPUs up, and requests that wait for it wake it. Pure.

When to sleep is the ski-rental problem: nobody knows when the next request comes. A service stays awake until idling
has cost as much as waking does, and sleeps then. That costs at most twice what somebody would spend who knew (Karlin,
Manasse, Rudolph, Sleator: Competitive Snoopy Caching, Algorithmica 3, 1988).

A service that requests wait for wakes at once where its GPUs are free, the one that waits longest first. Else idle ones
go to sleep for it, of which those first that are cheap to wake and that nobody has asked for in a long time. Services
with requests keep their GPUs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from core.types import Command, Effects, PutToSleep, Rationale, Reason, WakeUp

Place = tuple[str, str]  # (site, GPU type)


@dataclass(frozen=True, slots=True)
class Sleeper:
    """A service that may sleep.

    Attributes:
        open: Requests that have come and not ended; None: not known.
        quiet_s: Since its last request ended, or since it could serve.
        waited_s: The longest that one of its requests has waited for it to wake.
        wake_s: From the command to the first iteration.
        wake_j: What its GPUs draw meanwhile.
        saved_w: What they draw less while it sleeps than while it is awake and idle.
        gpus: The GPUs that others may have while it sleeps, and that it needs to wake.
        idle_s: The time without requests after which it sleeps; None: when idling has cost what waking does.
        measured: `wake_s` is of its own starts; else of published ones.
    """

    name: str
    awake: bool
    open: int | None
    quiet_s: float
    waited_s: float
    wake_s: float
    wake_j: float
    saved_w: float
    gpus: Mapping[Place, int]
    idle_s: float | None = None
    measured: bool = False

    @property
    def patience_s(self) -> float:
        """The time without requests after which it sleeps; infinite: it saves nothing."""
        if self.idle_s is not None:
            return self.idle_s
        return self.wake_j / self.saved_w if self.saved_w > 0.0 else float("inf")

    @property
    def idle(self) -> bool:
        return self.awake and self.open == 0


@dataclass(frozen=True, slots=True)
class SleepObservation:
    """`free`: GPUs that no service has."""

    now_s: float
    services: tuple[Sleeper, ...]
    free: Mapping[Place, int]


@dataclass(frozen=True, slots=True)
class SleepConfig:
    """Each service brings its own: services of one fleet have policies of their own."""


def step(state: None, observation: SleepObservation, config: SleepConfig) -> tuple[None, Effects]:
    """Decides who wakes, who makes room for it, and who has been idle for long enough."""
    free: Counter[Place] = Counter(observation.free)
    idle = {own.name: own for own in observation.services if own.idle}
    commands: list[Command] = []
    why: dict[str, str] = {}
    reason = Reason.NO_CHANGE
    wishes = [own for own in observation.services if not own.awake and own.open]
    for own in sorted(wishes, key=lambda own: (-own.waited_s, own.name)):
        going = _makes_room(own, idle, free)
        if going is None:
            why[own.name] = f"{own.name} cannot wake: others have requests on its GPUs."
            reason = Reason.AT_LIMIT
            continue
        for other in going:
            del idle[other.name]
            free.update(other.gpus)
            commands.append(PutToSleep(other.name))
            why[other.name] = f"{other.name} sleeps, idle for {other.quiet_s:.0f} s, so that {own.name} can wake."
        free.subtract(own.gpus)
        commands.append(WakeUp(own.name))
        took = f"{own.wake_s:.1f} s{' as measured' if own.measured else ''}"
        why[own.name] = f"{own.name} wakes, which takes {took}: {own.open} requests wait."
    for own in idle.values():
        if own.quiet_s >= own.patience_s:
            commands.append(PutToSleep(own.name))
            why[own.name] = _why_asleep(own)
    if commands:
        reason = Reason.CONGESTED if any(isinstance(own, WakeUp) for own in commands) else Reason.SLACK
    summary = " ".join(why.values()) or "Nobody sleeps or wakes."
    return None, Effects(tuple(commands), None, Rationale(reason, summary, _inputs(observation, why)))


def _makes_room(own: Sleeper, idle: Mapping[str, Sleeper], free: Counter[Place]) -> list[Sleeper] | None:
    """Returns the idle services that sleep so that this one has its GPUs; None: they do not suffice."""
    lacking = Counter({place: count - free[place] for place, count in own.gpus.items() if count > free[place]})
    found: list[Sleeper] = []
    for other in sorted(idle.values(), key=lambda other: (other.wake_s / (1.0 + other.quiet_s), other.name)):
        if not lacking:
            break
        if any(place in lacking for place in other.gpus):
            found.append(other)
            lacking = lacking - Counter(other.gpus)
    return None if lacking else found


def _why_asleep(own: Sleeper) -> str:
    text = f"{own.name} sleeps: no request for {own.quiet_s:.0f} s"
    if own.idle_s is not None:
        return f"{text}, as long as its policy has it wait."
    return f"{text}, in which idling cost the {own.wake_j:.0f} J of waking; it saves {own.saved_w:.0f} W."


def _inputs(observation: SleepObservation, why: Mapping[str, str]) -> dict[str, object]:
    return {
        own.name: {
            **{"awake": own.awake, "open": own.open, "quiet_s": own.quiet_s, "wake_s": own.wake_s},
            **{"wake_j": own.wake_j, "saved_w": own.saved_w, "why": why.get(own.name, "")},
            "wake_source": "measured" if own.measured else "published",
        }
        for own in observation.services
    }


def of_service(effects: Effects, name: str) -> Effects:
    """Returns what of an answer is a service's own."""
    commands = tuple(own for own in effects.commands if isinstance(own, (PutToSleep, WakeUp)) and own.service == name)
    given = effects.rationale.inputs.get(name, {})
    wakes = any(isinstance(own, WakeUp) for own in commands)
    reason = Reason.CONGESTED if wakes else Reason.SLACK if commands else effects.rationale.reason
    return Effects(commands, None, Rationale(reason, str(given.get("why", "")), given))

"""Says which services sleep: a state of their own, beside the plans, which stay as they are meanwhile.

Services that may sleep take turns on GPUs. One that sleeps claims none in the plans of others; its own it makes as if
the others slept, since they give way to it when it wakes. Where requests wait for it and services that never sleep have
its GPUs, it claims these like any other.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from core.observations.fleet.sleep_given import LEVEL, OFF
from pools.models import Instance, Service
from scheduler.models import ControllerState

KIND = "sleep"  # of the ControllerState


@dataclass(frozen=True, slots=True)
class SleepState:
    """The state of a service: it sleeps or is awake since `since_s`; at `seen_s` requests of it were last seen open.

    `short`: requests wait for it, and there are no GPUs for it to wake on. `wakings_s`: seconds that waking took in
    each mode, by its name, as measured until it last fell asleep or woke. `kind`: the knob `sleep` of its policy. Times
    are Unix seconds.
    """

    asleep: bool = False
    since_s: float = 0.0
    seen_s: float = 0.0
    short: bool = False
    wakings_s: Mapping[str, float] = field(default_factory=dict)
    kind: str = OFF

    @property
    def by_level(self) -> bool:
        """Says whether its engines stay on their nodes while they sleep, without their GPUs."""
        return self.kind == LEVEL

    @property
    def takes_turns(self) -> bool:
        return self.kind != OFF

    @property
    def claims(self) -> bool:
        """Says whether it claims GPUs in the plans of services that never sleep, `short` or not."""
        return not (self.asleep and self.takes_turns)

    def claims_beside(self, other: SleepState) -> bool:
        """Says whether the service claims GPUs in the plans of another one."""
        if self.takes_turns and other.takes_turns:
            return not (self.asleep or other.asleep)
        return self.claims or self.short

    def as_json(self) -> dict[str, Any]:
        times = {"since_s": self.since_s, "seen_s": self.seen_s, "wakings_s": {self.kind: dict(self.wakings_s)}}
        return {"asleep": self.asleep, "short": self.short, **times}


def of(service: Service) -> SleepState:
    """Returns a service's state. One whose policy does not have it sleep is awake, whatever it was."""
    return of_all([service])[service.pk]


def of_all(services: Collection[Service]) -> dict[int, SleepState]:
    """Returns the states of services, by key.

    One of which nothing is known yet is awake where it has engines, and sleeps else: a request starts the first.
    """
    kinds = {own.pk: own.policy_knobs().sleep for own in services}
    may = [pk for pk, kind in kinds.items() if kind != OFF]
    found = dict.fromkeys(kinds, SleepState())
    if not may:
        return found
    rows = ControllerState.objects.filter(kind=KIND, service__in=may)
    known = {row.service_id: row.value for row in rows}
    new = [pk for pk in may if pk not in known]
    if new:
        live = Instance.objects.filter(pool__service__in=new).exclude(state=Instance.State.STOPPED)
        started = set(live.values_list("pool__service", flat=True))
        known |= {pk: SleepState(asleep=pk not in started).as_json() for pk in new}
    return found | {pk: _read(known[pk], kinds[pk]) for pk in may}


def asleep_by_level() -> dict[int, float]:
    """Returns since when those services sleep whose engines stay meanwhile, in Unix seconds by key. One query."""
    rows = ControllerState.objects.filter(kind=KIND, value__asleep=True).select_related("service")
    return {row.service_id: row.value["since_s"] for row in rows if row.service.policy_knobs().sleep == LEVEL}


def _read(value: dict[str, Any], kind: str) -> SleepState:
    """Reads a state as `as_json` wrote it. What waking took by the other kind is not known of this one."""
    return SleepState(
        value.get("asleep", False),
        value.get("since_s", 0.0),
        value.get("seen_s", 0.0),
        value.get("short", False),
        value.get("wakings_s", {}).get(kind, {}),
        kind,
    )

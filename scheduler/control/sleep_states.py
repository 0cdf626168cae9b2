"""Says which services sleep: a state of their own, beside the plans, which stay as they are meanwhile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from core.observations.fleet.sleep_given import LEVEL, OFF
from pools.models import Service
from scheduler.models import ControllerState

KIND = "sleep"  # of the ControllerState


@dataclass(frozen=True, slots=True)
class SleepState:
    """The state of a service: it sleeps or is awake since `since_s`; at `seen_s` requests of it were last seen open.

    `on_gpus`: its engines keep their GPUs while they sleep. Times are Unix seconds.
    """

    asleep: bool = False
    since_s: float = 0.0
    seen_s: float = 0.0
    on_gpus: bool = False

    def as_json(self) -> dict[str, Any]:
        return {"asleep": self.asleep, "since_s": self.since_s, "seen_s": self.seen_s}


def of(service: Service) -> SleepState:
    """Returns a service's state. One whose policy does not have it sleep is awake, whatever it was."""
    kind = service.policy_knobs().sleep
    if kind == OFF:
        return SleepState()
    row = ControllerState.objects.filter(kind=KIND, service=service).first()
    return SleepState(on_gpus=kind == LEVEL) if row is None else read(row, kind)


def read(row: ControllerState, kind: str) -> SleepState:
    """Reads a state as `as_json` wrote it. `kind`: the knob `sleep` of its service."""
    value = row.value
    return SleepState(
        value.get("asleep", False), value.get("since_s", 0.0), value.get("seen_s", 0.0), on_gpus=kind == LEVEL
    )

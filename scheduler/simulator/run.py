"""Runs a load on a fleet: `simulate`. One driver for both modes, with controllers called at their epochs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from scheduler.core.types import SetSmClock
from scheduler.simulator.fleet import FleetSpec, Load, SimulationError
from scheduler.simulator.outcome import FleetView, Outcome
from scheduler.simulator.worlds import CompiledWorld, ReferenceWorld

MODES = ("macro", "walk", "reference")
_SLICES = 64  # of the load's time span: how often progress is told and Ctrl-C is heard
_DRAIN_GROWTH = 1.25  # each slice after the last arrival is longer than the one before


class Control(Protocol):
    """A controller in the simulated world. Values in, commands out; it takes effect at once."""

    @property
    def period_s(self) -> float: ...

    def step(self, view: FleetView) -> Iterable[SetSmClock]: ...


@dataclass(frozen=True, slots=True)
class ClockSchedule:
    """A Control that sets clocks at given times: (time, instance, MHz), each a multiple of the period."""

    period_s: float
    changes: tuple[tuple[float, str, float], ...]

    def step(self, view: FleetView) -> Iterable[SetSmClock]:
        return [SetSmClock(name, mhz) for at_s, name, mhz in self.changes if abs(at_s - view.now_s) < self.period_s / 2]


class World(Protocol):
    """A fleet that can be brought forward in time."""

    def run_until(self, to_s: float) -> None: ...

    def view(self, now_s: float) -> FleetView: ...

    def set_clock(self, instance: int, mhz: float, now_s: float) -> None: ...

    @property
    def arrived(self) -> int: ...

    @property
    def pending(self) -> bool: ...

    def outcome(self, end_s: float | None, partial: bool) -> Outcome: ...


def simulate(
    fleet: FleetSpec,
    load: Load,
    *,
    mode: str = "macro",
    control: Control | None = None,
    progress: Callable[[float], None] | None = None,
    bin_s: float = 3600.0,
    keep_events: int = 0,
    keep_segments: int = 0,
) -> Outcome:
    """Runs every request to its end.

    Args:
        mode: `macro` jumps from event to event; `walk` is the same compiled code, one iteration at a time; `reference`
            is plain Python, token by token.
        progress: Called now and then with the share of requests that have arrived, 0 to 1.
        bin_s: Width of the energy series.
        keep_events, keep_segments: How many entries of the logs to keep (the first ones).

    A KeyboardInterrupt (Ctrl-C) ends the run early: what was simulated so far is returned, `partial`.

    Raises:
        SimulationError: The load's classes do not go with the fleet, or no request fits any instance of its pool.
    """
    _check(fleet, load, mode, bin_s)
    world: World
    if mode == "reference":
        world = ReferenceWorld(fleet, load)
    else:
        world = CompiledWorld(fleet, load, bin_s, mode == "walk", keep_events, keep_segments)
    names = {spec.name: i for i, spec in enumerate(fleet.instances)}
    now_s, epoch = 0.0, 0
    span_s = float(load.arrival_s[-1])
    slice_s = max(span_s / _SLICES, 1.0)
    try:
        while world.pending:
            target_s = now_s + slice_s
            if now_s > span_s:
                slice_s *= _DRAIN_GROWTH
            while control is not None and epoch * control.period_s <= target_s and world.pending:
                at_s = epoch * control.period_s
                world.run_until(at_s)
                if not world.pending:
                    break
                now_s = max(now_s, at_s)
                _apply(world, fleet, names, control.step(world.view(at_s)), at_s)
                epoch += 1
            world.run_until(target_s)
            now_s = target_s
            if progress is not None:
                progress(world.arrived / len(load))
    except KeyboardInterrupt:
        return world.outcome(now_s, True)
    return world.outcome(None, False)


def _apply(
    world: World, fleet: FleetSpec, names: Mapping[str, int], commands: Iterable[SetSmClock], now_s: float
) -> None:
    for command in commands:
        if command.instance not in names:
            raise SimulationError(f"a controller set the clock of '{command.instance}', and there is no such instance")
        world.set_clock(names[command.instance], command.mhz, now_s)


def _check(fleet: FleetSpec, load: Load, mode: str, bin_s: float) -> None:
    if mode not in MODES:
        raise SimulationError(f"unknown mode '{mode}'; known: {', '.join(MODES)}")
    if not 0.0 < bin_s < math.inf:
        raise SimulationError(f"bin_s must be above 0, not {bin_s}")
    low, high = int(load.request_class.min()), int(load.request_class.max())
    if low < 0 or high >= len(fleet.class_pool):
        raise SimulationError(f"the load has request classes {low} to {high}; the fleet knows {len(fleet.class_pool)}")
    room = np.array([max(fleet.instances[i].kv_capacity for i in fleet.pools[p].members) for p in fleet.class_pool])
    need = load.prompt_tokens + load.output_tokens
    if (need > room[load.request_class]).all():
        raise SimulationError(
            f"no request can ever be served: the smallest needs {need.min()} tokens of KV cache, and the largest "
            f"instance of its pool has {room[load.request_class].max()}; take more GPUs (tp) or a smaller model"
        )

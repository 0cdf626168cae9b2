"""Observations from views: what came recently in each class, and what each mode would do with it.

As the live product builds them from its records: the peak 5-second rate of the last window, carried forward, and until
a whole window has been seen no less than was declared; profiles from the engine model at the lengths now seen.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from core.algorithms.fleet.fleet_problem import mode_failure
from core.observations.mode_profile import Lengths, mode_profile
from core.simulator.kernel.commands import STRETCH_S, FleetView
from core.simulator.policies.world import CellLoad, ClassInfo, PartitionInfo, ServiceInfo, World
from core.types import ClassDemand, Limits, Mode, ModeProfile

MIN_WINDOW_S, MAX_WINDOW_S = 300.0, 3_600.0
_ENOUGH = 64  # requests whose mean lengths are trusted over declared ones


@dataclass(frozen=True, slots=True)
class ClassView:
    """A class now. `failed`: why no mode can keep its limits; then demand and profiles are without them."""

    demand: ClassDemand
    lengths: Lengths
    profiles: Mapping[Mode, ModeProfile]
    failed: str | None = None

    @property
    def servable(self) -> bool:
        return any(profile.max_rps > 0.0 for profile in self.profiles.values())


def window_s(period_s: float) -> float:
    """Returns how far, in s, a loop of that period looks back."""
    return min(MAX_WINDOW_S, max(MIN_WINDOW_S, period_s))


def recent(view: FleetView, cells: Collection[int], period_s: float) -> NDArray[np.int64]:
    """Returns (stretches, 3): requests, prompt and predicted output tokens of `cells` in each whole stretch of the
    window."""
    now = int(view.now_s / STRETCH_S + 1e-9)
    first = max(0, now - int(window_s(period_s) / STRETCH_S))
    found: NDArray[np.int64] = view.arrived[sorted(cells), first:now].sum(axis=0)
    return found


def class_view(
    world: World,
    service: ServiceInfo,
    info: ClassInfo,
    cells: Collection[int],
    view: FleetView,
    period_s: float,
    steps: int,
    modes: Sequence[Mode],
) -> ClassView:
    """Observes demand, lengths and profiles of one class.

    Where no mode can keep the limits the class is planned for without them, so that it is served at all.
    """
    seen = recent(view, cells, period_s)
    declared = [load for c in sorted(cells) if c < len(world.declared) and (load := world.declared[c]) is not None]
    rps = float(seen[:, 0].max(initial=0)) / STRETCH_S
    if view.now_s < window_s(period_s):
        rps = max(rps, sum(load.rps for load in declared))
    lengths = _lengths(seen.sum(axis=0), declared, info)
    demand = ClassDemand(info.name, (rps,) * steps, info.limits, lengths.prompt_tokens, lengths.output_tokens)
    profiles = _profiles(service, modes, lengths, info.limits)
    failures = {mode: mode_failure(profile, info.limits) for mode, profile in profiles.items()}
    if any(failure is None for failure in failures.values()):
        return ClassView(demand, lengths, profiles)
    free = Limits()
    reasons = "; ".join(f"{mode.name}: {failure}" for mode, failure in sorted(failures.items())) or "no mode is offered"
    return ClassView(replace(demand, limits=free), lengths, _profiles(service, modes, lengths, free), reasons)


def _profiles(service: ServiceInfo, modes: Sequence[Mode], lengths: Lengths, limits: Limits) -> dict[Mode, ModeProfile]:
    return {mode: mode_profile(service.model, service.engine, mode, lengths.rounded, limits) for mode in modes}


def _lengths(totals: NDArray[np.int64], declared: Sequence[CellLoad], info: ClassInfo) -> Lengths:
    count = int(totals[0])
    expected = sum(load.rps for load in declared)
    if count and (count >= _ENOUGH or not expected):
        return Lengths(float(totals[1]) / count, max(1.0, float(totals[2]) / count))
    if expected:
        return Lengths(
            sum(load.rps * load.prompt_tokens for load in declared) / expected,
            sum(load.rps * load.output_tokens for load in declared) / expected,
        )
    return Lengths(*info.typical_tokens)


def cells_of(partition: PartitionInfo, number: int) -> tuple[int, ...]:
    """Returns the cells of a class, by its number in the partition."""
    return tuple(cell for cell, found in sorted(partition.cell_class.items()) if found == number)


def first_view(world: World) -> FleetView:
    """Returns the fleet before its first second: nobody there, nothing seen."""
    none, ints = np.zeros(0), np.zeros(0, np.int64)
    return FleetView(
        0.0, (), ints, ints, none, ints, ints, ints, none, none, none, (), ints, np.zeros((world.cells, 0, 3), np.int64)
    )

"""Splits a GPU's energy counter by what the GPU was doing, so that not a joule is lost or counted twice."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise


class EnergyKind(StrEnum):
    SERVING = "serving"  # an instance with running requests
    IDLE = "idle"  # powered, nothing to do, with or without a loaded model
    TRANSITION = "transition"  # an instance starting or draining away
    UNATTRIBUTED = "unattributed"  # metered, but nobody saw what for


@dataclass(frozen=True, slots=True)
class MeterPoint:
    """One sample of one GPU: its cumulative counter, and the instance that held it (all None: none did)."""

    at_s: float
    energy_j: float
    instance_id: int | None
    pool_id: int | None
    instance_state: str | None  # starting | ready | draining | failed
    running: int | None


@dataclass(frozen=True, slots=True)
class EnergySlice:
    """Energy of one GPU within [start_s, end_s), which lies in one cell, for one kind, pool and instance."""

    start_s: float
    end_s: float
    kind: EnergyKind
    pool_id: int | None
    instance_id: int | None
    energy_j: float


def split_intervals(points: Sequence[MeterPoint], cell_s: float = 10.0, max_gap_s: float = 5.0) -> list[EnergySlice]:
    """Slices of the energy between the first and the last point, one per cell, kind, pool and instance.

    - The delta between two samples goes to what the later one saw, since the counter has just recorded it.
    - A delta over more than `max_gap_s` is unattributed: what happened in between was not seen.
    - A counter that went down was reset (driver reloaded): its new value is what it counted since, unattributed.
    - A delta across a border of cells is divided in proportion to time.

    Without a reset the slices add up to last.energy_j - first.energy_j (each cell's sum is the difference of the
    counter, interpolated, at its ends); with one, to the deltas plus the new value.

    Args:
        points: Samples of one GPU in order of time. Cells are aligned to multiples of `cell_s`.

    Raises:
        ValueError: The points are not strictly in order of time.
    """
    parts: dict[tuple[int, EnergyKind, int | None, int | None], list[tuple[float, float, float]]] = defaultdict(list)
    for before, after in pairwise(points):
        if after.at_s <= before.at_s:
            raise ValueError(f"samples must be in order of time: {after.at_s} does not follow {before.at_s}")
        kind, pool_id, instance_id = _doing(before, after, max_gap_s)
        for cell, start_s, end_s, energy_j in _cut(before, after, cell_s):
            parts[cell, kind, pool_id, instance_id].append((start_s, end_s, energy_j))
    slices = [
        EnergySlice(pieces[0][0], pieces[-1][1], kind, pool_id, instance_id, math.fsum(p[2] for p in pieces))
        for (_, kind, pool_id, instance_id), pieces in parts.items()
    ]
    return sorted(slices, key=lambda s: (s.start_s, s.kind, s.instance_id or 0))


def _doing(before: MeterPoint, after: MeterPoint, max_gap_s: float) -> tuple[EnergyKind, int | None, int | None]:
    if after.at_s - before.at_s > max_gap_s or after.energy_j < before.energy_j:
        return EnergyKind.UNATTRIBUTED, None, None
    return _kind(after), after.pool_id, after.instance_id


def _kind(point: MeterPoint) -> EnergyKind:
    if point.instance_id is None:
        return EnergyKind.IDLE
    if point.instance_state in ("ready", "draining") and point.running:
        return EnergyKind.SERVING
    if point.instance_state in ("starting", "draining"):
        return EnergyKind.TRANSITION
    if point.instance_state == "ready" and point.running is None:
        return EnergyKind.UNATTRIBUTED  # the engine did not answer: busy or idle is not known
    return EnergyKind.IDLE if point.instance_state in ("ready", "failed") else EnergyKind.UNATTRIBUTED


def _cut(before: MeterPoint, after: MeterPoint, cell_s: float) -> Iterator[tuple[int, float, float, float]]:
    """(cell, start, end, joules) of each cell that the interval touches; the counter is interpolated at the borders."""
    base_j = 0.0 if after.energy_j < before.energy_j else before.energy_j
    delta_j, length_s = after.energy_j - base_j, after.at_s - before.at_s
    start_s, reached_j = before.at_s, base_j
    cell = math.floor(start_s / cell_s)
    while start_s < after.at_s:
        border_s = (cell + 1) * cell_s
        if border_s >= after.at_s:
            yield cell, start_s, after.at_s, after.energy_j - reached_j
            return
        if border_s > start_s:
            border_j = min(base_j + delta_j * (border_s - before.at_s) / length_s, after.energy_j)
            yield cell, start_s, border_s, border_j - reached_j
            start_s, reached_j = border_s, border_j
        cell += 1

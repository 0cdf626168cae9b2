"""Single readings of a meter, made into the trace that is split, and the slices of one, made into single ones again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from core.accounting.counters import KINDS, STATES, EnergyKind, Ints, MeterTrace, Slices, split
from core.units import UJ_PER_J, US_PER_S


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
    energy_uj: int
    gpu_us: int

    @property
    def energy_j(self) -> float:
        return self.energy_uj / UJ_PER_J


def split_intervals(points: Sequence[MeterPoint], cell_s: float = 10.0, max_gap_s: float = 5.0) -> list[EnergySlice]:
    """`split` of single points. Raises ValueError as it does."""
    if len(points) < 2:
        return []
    pools = {point.instance_id: point.pool_id for point in points if point.instance_id is not None}
    found = split(trace_of(points), cell_s, max_gap_s)
    columns = (getattr(found, name).tolist() for name in Slices.__slots__[1:])
    return [
        EnergySlice(start / US_PER_S, end / US_PER_S, KINDS[kind], pools.get(held), held or None, energy_uj, gpu_us)
        for kind, held, start, end, energy_uj, gpu_us in zip(*columns, strict=True)
    ]


def trace_of(points: Sequence[MeterPoint]) -> MeterTrace:
    def ints(values: Sequence[float]) -> Ints:
        return np.rint(np.array(values, dtype=np.float64)).astype(np.int64)

    return MeterTrace(
        ints([point.at_s * US_PER_S for point in points]),
        ints([point.energy_j * UJ_PER_J for point in points]),
        ints([point.instance_id or 0 for point in points]),
        ints([state_code(point.instance_state) for point in points]),
        ints([-1 if point.running is None else point.running for point in points]),
    )


def state_code(state: str | None) -> int:
    return STATES.index(state or "") if (state or "") in STATES else -1

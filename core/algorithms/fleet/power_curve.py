"""An instance's power over its load, the clock already chosen: what DynamoLLM's eq. 1 is solved over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from core.algorithms.fleet.highs import SolverStatus
from core.engine.load_profile import LoadProfile
from core.types import Limits, Mode

_TOLERANCE_RPS = 1e-6


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of a mode's power curve, for one instance at one clock."""

    mhz: float
    low_rps: float
    high_rps: float
    low_w: float
    high_w: float

    @property
    def slope(self) -> float:
        """Joules a request more."""
        width = self.high_rps - self.low_rps
        return (self.high_w - self.low_w) / width if width > 0.0 else 0.0

    @property
    def base_w(self) -> float:
        """Watts at no load if the stretch went on."""
        return self.low_w - self.slope * self.low_rps


@dataclass(frozen=True, slots=True)
class Operation:
    """All instances of one mode: N_i, f_i, L_i."""

    count: int
    mhz: float
    each_rps: float


@dataclass(frozen=True, slots=True)
class OperatingMix:
    """The answer of eq. 1."""

    operations: Mapping[Mode, Operation]
    power_w: float
    status: SolverStatus

    @property
    def workers(self) -> dict[Mode, int]:
        return {mode: operation.count for mode, operation in self.operations.items()}


def pieces(profile: LoadProfile, limits: Limits, levels: int = 6) -> tuple[Piece, ...]:
    """Returns the curve of a mode: over each stretch of load the clock that draws least of those that keep `limits`.

    Stretches end where a clock no longer keeps the limits, at the lone request (below it the instance idles in
    between), and at `levels` even parts of the whole. Without any load that keeps the limits: none.
    """
    most = profile.within(limits)
    top = float(most.max(initial=-1.0))
    if top <= 0.0:
        return ()
    ends = np.concatenate([[0.0, top], most[most > 0.0], np.linspace(0.0, top, levels + 1), profile.rps[:, 1]])
    ends = np.unique(np.minimum(ends, top))
    ends = ends[np.append(True, np.diff(ends) > _TOLERANCE_RPS)]
    watts = profile.at(ends)[2]
    found: list[Piece] = []
    for k in range(ends.size - 1):
        able = (most >= ends[k + 1] - 1e-9) & np.isfinite(watts[:, k + 1])
        if able.any():
            mean_w = np.where(able, watts[:, k] + watts[:, k + 1], np.inf)
            row = int(np.argmin(mean_w))
            low_w, high_w = float(watts[row, k]), float(watts[row, k + 1])
            found.append(Piece(float(profile.mhz[row]), float(ends[k]), float(ends[k + 1]), low_w, high_w))
    return tuple(found)

"""What a controller sees of a simulated fleet, and what is known when the run is over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from scheduler.simulator.fleet import Load
from scheduler.simulator.kernel import DONE

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class FleetView:
    """What a controller sees at its epoch; one entry an instance, in the fleet's order."""

    now_s: float
    names: tuple[str, ...]
    mhz: tuple[float, ...]
    running: tuple[int, ...]
    waiting: tuple[int, ...]
    kv_used_tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What happened. Columns have one entry a request, in order of arrival; NaN: it did not happen.

    `spent_j` is by (prefill, decode, idle), each with one entry an instance. `series_j[i, k]` is the energy of instance
    i in the k-th stretch of `bin_s` seconds. `gaps` counts the gaps between tokens in the kernel's bins (None in the
    reference, which keeps each request's own).
    """

    load: Load
    status: Ints
    instance: Ints
    generated: Ints
    first_token_s: Floats
    finish_s: Floats
    itl_max_s: Floats
    itl_p50_s: Floats
    itl_p99_s: Floats
    preemptions: Ints
    timely_tokens: Ints
    energy_j: Floats
    spent_j: Mapping[str, Floats]
    series_j: Floats
    bin_s: float
    gaps: Ints
    end_s: float
    iterations: int
    partial: bool = False
    events: tuple[tuple[int, int, int, float], ...] = ()
    segments: Floats | None = field(default=None, repr=False)

    @property
    def total_j(self) -> float:
        return float(sum(part.sum() for part in self.spent_j.values()))

    @property
    def finished(self) -> NDArray[np.bool_]:
        result: NDArray[np.bool_] = self.status == DONE
        return result

"""The outcome of a run, and the sinks that its requests go to as they end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from core.simulator.kernel.commands import Decision
from core.simulator.kernel.kernel import REQUEST
from core.simulator.kernel.simulated import InstanceSpec

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Sink(Protocol):
    """Takes requests out of the simulator as they end, in blocks (`kernel.REQUEST` rows, in no particular order).

    At the end of a run cut short it also gets those still in flight. The rows are the sink's own.
    """

    def take(self, rows: Any) -> None: ...


class Kept:
    """A Sink that keeps everything."""

    def __init__(self) -> None:
        self._blocks: list[Any] = []

    def take(self, rows: Any) -> None:
        self._blocks.append(rows)

    def rows(self) -> Any:
        """Returns all requests in order of arrival."""
        if not self._blocks:
            return np.zeros(0, REQUEST)
        rows = np.concatenate(self._blocks)
        return rows[np.argsort(rows["number"], kind="stable")]


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """The outcome of a run. `rows` has all requests that arrived, in order of arrival, when no other sink took them.

    `instances` are all that were ever there, and arrays over instances are in their order. `spent_j` is by (prefill,
    decode, idle, transition). `series_j[i, k]` is the energy of instance i in the k-th stretch of `bin_s` seconds,
    `series_on_s[i, k]` how long it was not off in it. `on_s` is how long each was not off, `mhz_s` its clock over that
    time. `gaps` counts the gaps between tokens in the kernel's bins. `holds` counts the epochs in which a control asked
    for nothing, `refused` the commands that came too late to be carried out.
    """

    instances: tuple[InstanceSpec, ...]
    requests: int
    spent_j: Mapping[str, Floats]
    series_j: Floats
    series_on_s: Floats
    bin_s: float
    on_s: Floats
    mhz_s: Floats
    gaps: Ints
    end_s: float
    iterations: int
    partial: bool = False
    decisions: tuple[Decision, ...] = ()
    holds: Mapping[str, int] = field(default_factory=dict)
    refused: int = 0
    rows: Any = field(default=None, repr=False)
    events: tuple[tuple[int, int, int, float], ...] = ()
    segments: Floats | None = field(default=None, repr=False)

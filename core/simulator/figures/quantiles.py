"""Percentiles of a stream of durations: exact while there are few; of many, to 0.1 % and in bounded memory."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

EXACT_VALUES = 1_000_000  # 8 MB
LEAST_S, MOST_S, BINS_PER_E = 1e-6, 1e7, 1000.0  # bins of 0.1 %
BINS = math.ceil(BINS_PER_E * math.log(MOST_S / LEAST_S))
NAMED = {"p50": 0.50, "p90": 0.90, "p99": 0.99}


class Quantiles:
    """Takes values in blocks of any size; order does not matter.

    Up to `exact_values` all are kept, and the answers are NumPy's (linear between ranks). Beyond that they are counted
    in logarithmic bins from 1 us to 1e7 s, and each rank is answered by its bin's middle, which is off by at most
    0.05 %. The mean is of the values themselves either way.
    """

    def __init__(self, exact_values: int = EXACT_VALUES) -> None:
        self._exact_values = exact_values
        self._kept: list[Floats] = []
        self._bins: Ints | None = None
        self._sum, self._lost = 0.0, 0.0
        self._least, self._most = math.inf, -math.inf
        self.count = 0

    def add(self, values: Floats) -> None:
        """Raises ValueError for a value that is not finite: whoever has none must leave it out."""
        if not values.size:
            return
        total = float(values.sum())
        if not math.isfinite(total):
            raise ValueError("percentiles are of finite values: leave out what did not happen")
        self._add_sum(total)
        self._least, self._most = min(self._least, float(values.min())), max(self._most, float(values.max()))
        self.count += values.size
        if self._bins is not None:
            self._bins += _counted(values)
            return
        self._kept.append(np.array(values, dtype=np.float64))
        if self.count > self._exact_values:
            self._bins = sum((_counted(block) for block in self._kept), np.zeros(BINS, np.int64))
            self._kept.clear()

    def points(self, shares: Sequence[float]) -> list[float] | None:
        """Returns the values below which these shares (0 to 1) of all lie; None: there were no values."""
        if not self.count:
            return None
        if self._bins is None:
            self._kept = [np.concatenate(self._kept)]
            return [float(point) for point in np.quantile(self._kept[0], shares)]
        rank = np.asarray(shares, dtype=np.float64) * (self.count - 1)
        low = np.floor(rank)
        below, above = self._ranked(low), self._ranked(np.minimum(low + 1.0, self.count - 1.0))
        return [float(point) for point in below + (rank - low) * (above - below)]

    @property
    def mean(self) -> float | None:
        return (self._sum + self._lost) / self.count if self.count else None

    def summary(self) -> dict[str, float | None]:
        """Returns p50, p90, p99 and mean."""
        points = self.points(list(NAMED.values()))
        named = dict.fromkeys(NAMED) if points is None else dict(zip(NAMED, points, strict=True))
        return {**named, "mean": self.mean}

    def _ranked(self, rank: Floats) -> Floats:
        """Returns the values of these ranks (from 0), to the middle of their bins."""
        assert self._bins is not None
        place = np.searchsorted(np.cumsum(self._bins), rank, side="right")
        middle: Floats = LEAST_S * np.exp((place + 0.5) / BINS_PER_E)
        return np.clip(middle, self._least, self._most)

    def _add_sum(self, value: float) -> None:
        """Neumaier's sum: what rounding takes away is kept aside."""
        total = self._sum + value
        larger, smaller = (self._sum, value) if abs(self._sum) >= abs(value) else (value, self._sum)
        self._lost += (larger - total) + smaller
        self._sum = total


def _counted(values: Floats) -> Ints:
    place = BINS_PER_E * np.log(np.maximum(values, LEAST_S) / LEAST_S)
    counts: Ints = np.bincount(np.minimum(place, BINS - 1.0).astype(np.int64), minlength=BINS)
    return counts

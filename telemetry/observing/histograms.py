"""Histograms of what was counted: buckets, bounds of attainment, and quantiles of lengths whose mean is known."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

_PARTS = 8  # of each bucket, in which lengths are spread
_LEAST_PLACE, _MOST_PLACE = 0.02, 0.98  # of the mean between its buckets' ends
_JUMP = 1e-9


@dataclass(frozen=True, slots=True)
class CountedBuckets:
    """Values counted by bucket. `cumulative[k]` of them are at most `bounds[k]`; `count` are all, `total` their sum."""

    bounds: tuple[float, ...]
    cumulative: tuple[float, ...]
    count: float
    total: float

    @property
    def buckets(self) -> tuple[tuple[float, float, float], ...]:
        """Each bucket with something in it as (lower end, upper end, count). The last one is taken to end at twice
        where it begins."""
        ends = [0.0, *self.bounds, 2.0 * self.bounds[-1] if self.bounds else math.inf]
        counts = np.diff([0.0, *self.cumulative, self.count]).tolist()
        return tuple((lo, hi, n) for (lo, hi), n in zip(pairwise(ends), counts, strict=True) if n > 0.0)

    def at_most(self, limit: float) -> tuple[float, float]:
        """Returns the least and the most values that can be at most `limit`: equal where it is the end of a bucket."""
        least = max((n for end, n in zip(self.bounds, self.cumulative, strict=True) if end <= limit), default=0.0)
        above = (n for end, n in zip(self.bounds, self.cumulative, strict=True) if end >= limit)
        return least, next(above, self.count)


def length_quantiles(
    buckets: Iterable[tuple[float, float, float]], mean_tokens: float
) -> tuple[list[float], list[float]]:
    """Returns shares and lengths in tokens, as a scenario's `quantiles`, of lengths that were counted by bucket.

    How lengths lie within a bucket is not known. They are spread in the same way in each, so that the mean is the
    recorded one: the place u of a length among those of its bucket is put at u^k of the bucket's width, whose mean is
    1 / (k + 1).

    Raises:
        ValueError: No length was counted.
    """
    known = np.array([(lo, hi, n) for lo, hi, n in buckets], np.float64)
    if not known.size:
        raise ValueError("a table of lengths needs at least one request")
    low, high, share = known[:, 0], known[:, 1], known[:, 2] / known[:, 2].sum()
    place = (mean_tokens - float(share @ low)) / float(share @ (high - low))
    power = 1.0 / min(_MOST_PLACE, max(_LEAST_PLACE, place)) - 1.0
    cuts = (np.arange(_PARTS + 1) / _PARTS) ** power
    ends = low[:, None] + (high - low)[:, None] * cuts[None, :]
    edges = np.unique(ends)
    reached = sum(
        w * np.interp(edges, own, np.arange(_PARTS + 1) / _PARTS) for own, w in zip(ends, share.tolist(), strict=True)
    )
    steps = _JUMP * np.arange(edges.size)  # shares must ascend, over lengths that no request has too
    shares = ((np.asarray(reached) + steps) / (1.0 + steps[-1])).tolist()
    return [0.0, *shares[1:-1], 1.0], np.maximum(1.0, edges).tolist()

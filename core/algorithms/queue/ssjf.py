"""Speculative shortest job first with aging (mu-Serve, section 3.3).

A request's time is T = C + K N with N output tokens (section 2.3), so that the order by predicted N is the order by
time. To keep long requests from starving, each second of waiting counts as `aging` tokens less (section 3.5 cites
Shadmi's SJF with aging). All wait at the same pace, so the order of two requests never changes, and the key

    arrival + N / aging

holds from arrival on. It also bounds starvation: a request of N tokens is overtaken only by those that arrive within
(N - 1) / aging seconds after it, however many they are.

The paper gives no figure. Where none is set, aging goes by the measured tail of predicted lengths and by the service's
limits: a request as long as one in a hundred is overtaken for as long as it may take. So the order is shortest first as
long as requests can be in time, and all but one in a hundred wait at most a limit longer than first come, first served.

Lengths are predicted as one of five classes, cut at the percentiles 25, 50, 75 and 99 of a model's outputs; the paper
found more classes to sort worse.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from core.types import Limits

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

NO_LIMIT_S = 30.0  # for how long the longest are overtaken where nothing says how long they may take

PERCENTILES = (25.0, 50.0, 75.0, 99.0)


def measured_aging(long_tokens: float, limits: Iterable[Limits]) -> float:
    """Returns the aging, in tokens/s, with which long requests are overtaken for as long as they may take.

    Args:
        long_tokens: What one predicted length in a hundred exceeds.
        limits: Of the service's classes. The loosest counts: nobody is to wait longer than every limit allows.
    """
    tokens = max(1.0, long_tokens)
    return tokens / max((_may_take_s(own, tokens) for own in limits), default=NO_LIMIT_S)


def _may_take_s(limits: Limits, tokens: float) -> float:
    """Returns the time that an answer of so many tokens may take: its E2E limit, or what the limits of its parts come
    to."""
    if limits.e2e_s is not None:
        return limits.e2e_s
    return (limits.ttft_s or 0.0) + (limits.tpot_s or 0.0) * tokens or NO_LIMIT_S


@dataclass(frozen=True, slots=True)
class LengthClasses:
    """Classes of output length, cut at percentiles of what a model has put out: [0, p25), [p25, p50) ... [p99, oo)."""

    bounds_tokens: tuple[float, ...]  # between the classes, rising
    typical_tokens: tuple[float, ...]  # of each class, its median

    @classmethod
    def of(cls, output_tokens: ArrayLike) -> LengthClasses:
        """Makes classes from the outputs, in tokens, of requests that ended.

        An empty class has the bound it begins at as its typical length.
        """
        seen = np.asarray(output_tokens, dtype=np.float64)
        if seen.size == 0:
            raise ValueError("classes need outputs to be cut from")
        bounds = np.percentile(seen, PERCENTILES)
        places = np.searchsorted(bounds, seen, side="right")
        begins = np.concatenate(([0.0], bounds))
        typical = [
            float(np.median(seen[places == k])) if (places == k).any() else float(begins[k])
            for k in range(bounds.size + 1)
        ]
        return cls(tuple(bounds.tolist()), tuple(typical))

    def classes(self, tokens: ArrayLike) -> Ints:
        """Returns the class, 0..4, of each length."""
        return np.searchsorted(np.asarray(self.bounds_tokens), np.asarray(tokens), side="right").astype(np.int64)

    def tokens(self, scores: ArrayLike) -> Floats:
        """Returns typical lengths for an ordinal predictor's real-valued scores, rounded to the nearest class."""
        nearest = np.clip(np.rint(np.asarray(scores, dtype=np.float64)), 0, len(self.typical_tokens) - 1)
        return np.asarray(self.typical_tokens)[nearest.astype(np.int64)]

"""Speculative shortest job first with aging (mu-Serve, section 3.3).

A request's time is T = C + K N with N output tokens (section 2.3), so that the order by predicted N is the order by
time. To keep long requests from starving, each second of waiting counts as `aging_tokens_per_s` tokens less (section
3.5 cites Shadmi's SJF with aging). All wait at the same pace, so the order of two requests never changes, and the key

    N + aging x arrival

holds from arrival on. It also bounds starvation: a request of N tokens is overtaken only by those that arrive within
(N - 1) / aging seconds after it, however many they are.

Lengths are predicted as one of five classes, cut at the percentiles 25, 50, 75 and 99 of a model's outputs; the paper
found more classes to sort worse.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

PERCENTILES = (25.0, 50.0, 75.0, 99.0)


@dataclass(frozen=True, slots=True)
class SsjfConfig:
    """`aging_tokens_per_s`: 0 is plain SJF and may starve; the larger, the nearer to first come, first served.

    The paper gives no figure. At 20 a request of 600 tokens is overtaken for at most half a minute.
    """

    aging_tokens_per_s: float = 20.0

    def __post_init__(self) -> None:
        if self.aging_tokens_per_s < 0.0:
            raise ValueError("aging makes requests shorter, not longer: aging_tokens_per_s is from 0")


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

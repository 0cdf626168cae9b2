"""Measures by how much answers exceed what was predicted of them: what projections raise predictions by.

throttLL'eM raises them by its predictor's 95th percentile of errors. Here that is measured on requests that have ended.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass

WINDOW = 512  # newest requests of a service that count
LEAST = 64  # below which a percentile says little
QUANTILE = 0.95


@dataclass(frozen=True, slots=True)
class LengthError:
    """The share by which 95 of 100 answers exceed their predictions at most, measured on so many requests."""

    share: float
    requests: int


class LengthErrors:
    """The errors of the newest predictions, by service."""

    def __init__(self) -> None:
        self._newest: dict[Hashable, deque[float]] = {}
        self._ordered: dict[Hashable, list[float]] = {}

    def observe(self, service: Hashable, predicted_tokens: int, output_tokens: int) -> None:
        """Takes in a request that has ended well. A prediction is at least one token."""
        newest = self._newest.setdefault(service, deque())
        ordered = self._ordered.setdefault(service, [])
        if len(newest) == WINDOW:
            del ordered[bisect_left(ordered, newest.popleft())]
        error = max(0.0, output_tokens / max(1, predicted_tokens) - 1.0)
        newest.append(error)
        insort(ordered, error)

    def of(self, service: Hashable) -> LengthError | None:
        """Returns the error of a service's predictions; None: too few requests have ended."""
        ordered = self._ordered.get(service, [])
        if len(ordered) < LEAST:
            return None
        return LengthError(ordered[min(len(ordered) - 1, int(QUANTILE * len(ordered)))], len(ordered))

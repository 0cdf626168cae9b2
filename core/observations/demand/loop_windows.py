"""Says how far a loop looks back, in whole stretches of 5 s, and how far it plans ahead, in steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.observations.demand.class_arrivals import STRETCH_S

LOOK_S = 5.0  # how often scale and shard look whether a step wants its turn before its next epoch
MIN_WINDOW_S = 300.0
MAX_WINDOW_S = 3_600.0


def window_s(period_s: float) -> float:
    """Returns how far, in s, a loop of that period looks back."""
    return min(MAX_WINDOW_S, max(MIN_WINDOW_S, period_s))


def whole_stretches(now_s: float, period_s: float) -> tuple[int, int]:
    """Returns the window of a loop of that period as [first, end), in stretches since the moment 0: without the one
    under way.
    """
    end = int(now_s / STRETCH_S + 1e-9)
    return end - math.ceil(window_s(period_s) / STRETCH_S), end


def recent_stretches(now_s: float, span_s: float) -> tuple[int, int]:
    """Returns the last whole stretches of about `span_s` as [first, end), for loops that look each few seconds: without
    the one under way."""
    end = int(now_s / STRETCH_S + 1e-9)
    return end - round(span_s / STRETCH_S), end


def first_busy_s(first: int, requests: Sequence[float] | NDArray[Any]) -> float | None:
    """Returns when the first stretch with a request begins; None: none has any.

    Args:
        first: The number of the first stretch.
        requests: Of each stretch, (stretches,).
    """
    busy = np.flatnonzero(requests)
    return float(first + int(busy[0])) * STRETCH_S if busy.size else None


def loop_steps(period_s: float, step_s: float) -> int:
    """Returns the number of steps that an epoch plans for: those that it reaches into."""
    return max(1, math.ceil(period_s / step_s - 1e-9))

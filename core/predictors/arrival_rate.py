"""Forecasts of the arrival rate."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def peak_rates(
    arrival_times_s: NDArray[np.float64], now_s: float, window_s: float, bucket_s: float = 5.0, steps: int = 6
) -> tuple[float, ...]:
    """Returns the peak rate of the last `window_s`, held for each of the coming `steps` (requests per second).

    The rate is counted in buckets of `bucket_s` that end at `now_s`: FREESH plans for the peak 5-second rate of a step.
    Persistence is the first honest forecast; templates of the day and week, which see a rise coming, come later.

    Args:
        arrival_times_s: Arrivals in any order; those outside (now_s - window_s, now_s] are ignored.

    Raises:
        ValueError: The window or the bucket is not longer than nothing.
    """
    if window_s <= 0.0 or bucket_s <= 0.0:
        raise ValueError("window and bucket must be longer than nothing")
    age_s = now_s - np.asarray(arrival_times_s, dtype=np.float64)
    recent = age_s[(age_s >= 0.0) & (age_s < window_s)]
    if recent.size == 0:
        return (0.0,) * steps
    peak = int(np.bincount((recent // bucket_s).astype(np.int64)).max())
    return (peak / bucket_s,) * steps

"""Fairness: Jain's index."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np


def jain(values: Iterable[float]) -> float | None:
    """Returns Jain's index (sum x)^2 / (n sum x^2), in [1/n, 1]; None for no values or all zero.

    Raises ValueError for a negative value: the bounds hold for shares only.
    """
    x = np.fromiter(values, dtype=np.float64)
    if (x < 0.0).any():
        raise ValueError("Jain's index is for values that are not negative")
    top = float(x.max(initial=0.0))
    if top <= 0.0:
        return None
    x = x / top  # keeps the squares from under- and overflowing
    index = float(x.sum() ** 2 / (x.size * (x**2).sum()))
    return float(min(1.0, max(1.0 / x.size, index)))

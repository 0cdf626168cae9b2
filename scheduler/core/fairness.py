"""Fairness: Jain's index, and FREESH's timely-token index."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import ArrayLike


def jain(values: Iterable[float]) -> float | None:
    """Jain's index (sum x)^2 / (n sum x^2), in [1/n, 1]; None for no values or all zero.

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


def timely_shares(output_tokens: ArrayLike, timely_tokens: ArrayLike, groups: int = 4) -> Sequence[float]:
    """Share of tokens delivered in time, for each group of requests of like output length (FREESH C.2).

    Requests are ordered by output length and cut into `groups` of equal count; groups without tokens are left out.

    Args:
        output_tokens: Tokens each request generated, shape (n,).
        timely_tokens: Tokens of each that came within its window W, shape (n,).
    """
    output, timely = np.asarray(output_tokens, dtype=np.float64), np.asarray(timely_tokens, dtype=np.float64)
    if output.shape != timely.shape or output.ndim != 1:
        raise ValueError("output and timely tokens need one value each per request")
    if groups < 1:
        raise ValueError("at least one group is needed")
    order = np.argsort(output, kind="stable")
    totals = [(output[part].sum(), timely[part].sum()) for part in np.array_split(order, groups)]
    return [float(in_time / all_) for all_, in_time in totals if all_ > 0.0]


def freesh_timely_jain(output_tokens: ArrayLike, timely_tokens: ArrayLike, groups: int = 4) -> float | None:
    """Jain's index over the timely shares of `timely_shares`: 1 when short and long answers are in time alike."""
    return jain(timely_shares(output_tokens, timely_tokens, groups))

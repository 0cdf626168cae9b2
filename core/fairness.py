"""Fairness: Jain's index, and the one of tenants for every world."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

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


def jain_of_tenants(timely_tokens: Sequence[float], tokens: Sequence[float]) -> float | None:
    """Returns the Jain index of tenants: over the share of its tokens that each tenant got in time.

    `timely_tokens` and `tokens` have one value for each tenant (tenants,). A tenant without tokens has no share. None:
    fewer than two tenants have one, so that there is nothing to compare.

    Raises ValueError for a negative count, or lists that differ in length.
    """
    shares = [timely / all_of_it for timely, all_of_it in zip(timely_tokens, tokens, strict=True) if all_of_it > 0]
    return jain(shares) if len(shares) > 1 else None

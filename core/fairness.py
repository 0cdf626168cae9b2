"""Fairness: Jain's index, and the one of tenants for every world."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

Table = NDArray[np.float64]


def jain(values: Iterable[float]) -> float | None:
    """Returns Jain's index (sum x)^2 / (n sum x^2), in [1/n, 1]; None for no values or all zero.

    Raises ValueError for a negative value: the bounds hold for shares only.
    """
    return jain_by_row(np.fromiter(values, dtype=np.float64)[np.newaxis])[0]


def jain_by_row(values: Table, counted: NDArray[np.bool_] | None = None) -> tuple[float | None, ...]:
    """Returns `jain` of each row of `values` (rows, n), over those that `counted` (rows, n) names; all without it.

    Raises ValueError for a negative value.
    """
    if (values < 0.0).any():
        raise ValueError("Jain's index is for values that are not negative")
    x = values if counted is None else np.where(counted, values, 0.0)
    n = np.full(len(x), x.shape[1]) if counted is None else counted.sum(axis=1)
    top = x.max(axis=1, initial=0.0)
    known = top > 0.0
    x, n = x[known] / top[known, np.newaxis], n[known]  # keeps the squares from under- and overflowing
    found: list[float | None] = [None] * len(values)
    index = np.clip(x.sum(axis=1) ** 2 / (n * (x**2).sum(axis=1)), 1.0 / n, 1.0)
    for row, value in zip(np.flatnonzero(known).tolist(), index.tolist(), strict=True):
        found[row] = value
    return tuple(found)


def jain_of_tenants(timely_tokens: Sequence[float], tokens: Sequence[float]) -> float | None:
    """Returns the Jain index of tenants: over the share of its tokens that each tenant got in time.

    `timely_tokens` and `tokens` have one value for each tenant (tenants,). A tenant without tokens has no share. None:
    fewer than two tenants have one, so that there is nothing to compare.

    Raises ValueError for a negative count, or lists that differ in length.
    """
    return jain_of_tenants_by_row(*(np.asarray([counts], dtype=np.float64) for counts in (timely_tokens, tokens)))[0]


def jain_of_tenants_by_row(timely_tokens: Table, tokens: Table) -> tuple[float | None, ...]:
    """Returns `jain_of_tenants` of each row of the two (rows, tenants). Raises ValueError likewise."""
    if timely_tokens.shape != tokens.shape:
        raise ValueError(f"timely tokens {timely_tokens.shape} are not those of tokens {tokens.shape}")
    have = tokens > 0.0
    shares = np.divide(timely_tokens, tokens, out=np.zeros_like(tokens), where=have)
    enough = (have.sum(axis=1) > 1).tolist()
    return tuple(jain if many else None for jain, many in zip(jain_by_row(shares, have), enough, strict=True))

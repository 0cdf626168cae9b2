"""FREESH's index of timely tokens (eq. 9, C.2), from one row a request: the oracle of streams and SQL."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from core.fairness import jain


def timely_totals(output_tokens: ArrayLike, timely_tokens: ArrayLike, groups: int = 4) -> Sequence[float]:
    """X_k of FREESH C.2: tokens delivered in time to each group of requests of like output length.

    Requests are ordered by output length and cut into `groups` of equal count (to one); empty groups are left out.

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
    return [float(timely[part].sum()) for part in np.array_split(order, groups) if part.size]


def freesh_timely_jain(output_tokens: ArrayLike, timely_tokens: ArrayLike, groups: int = 4) -> float | None:
    """FREESH eq. 9: Jain's index over the groups' totals of timely tokens.

    Long answers have more tokens to be in time, so that it stays below 1 even when all are: FREESH reports 0.62 to
    0.66 for its mixed load. It serves to compare policies on one load, not as a mark out of one.
    """
    return jain(timely_totals(output_tokens, timely_tokens, groups))

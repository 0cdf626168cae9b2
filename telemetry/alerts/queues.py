"""Decides whether a queue grows. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

SPAN_S = 300.0
PARTS = 5


def growth(means: Sequence[float | None]) -> float | None:
    """Returns by how many requests a queue grew over the span, when it grew in every part of it; 0 when it did not.

    Args:
        means: Mean waiting requests in each part of the span, oldest first; None: nobody counted.

    Returns:
        None unless the first and the last part are known.
    """
    if len(means) < 2 or means[0] is None or means[-1] is None:
        return None
    known = [mean for mean in means if mean is not None]
    steady = all(later >= earlier for earlier, later in pairwise(known))
    return max(0.0, known[-1] - known[0]) if steady else 0.0

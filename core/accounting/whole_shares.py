"""Cuts whole amounts of any size into whole shares that add up to them: what a bill shares out.

`allocation.share_out` does the same to arrays of amounts below 2**53; a month of a fleet in microjoules is more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import TypeVar

K = TypeVar("K")


def cut(total: int, weights: Sequence[int]) -> list[int]:
    """Cuts a whole total of either sign into a share for each weight, (weights,): the shares add up to it exactly.

    The running sum of the shares is the rounded-down running sum of the exact ones, as in the ledger. Each share is
    thus within 1 of its exact value, and nothing is left over.

    Raises:
        ValueError: A weight is negative, or none is above 0.
    """
    whole = sum(weights)
    if not whole or min(weights) < 0:
        raise ValueError(f"weights must be at least 0 and one above 0, not {list(weights)}")
    shares, running, reached = [], 0, 0
    for weight in weights:
        running += weight
        before, reached = reached, total * running // whole
        shares.append(reached - before)
    return shares


def whole_weights(weights: Mapping[K, Fraction]) -> dict[K, int]:
    """Returns whole numbers in the same proportions, by the same keys. Raises nothing."""
    scale = math.lcm(*(weight.denominator for weight in weights.values()))
    return {key: int(weight * scale) for key, weight in weights.items()}

"""Differences between two policies that took turns: means of pairs with Student's t-interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.special import stdtrit  # all of scipy.stats takes a second to import

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """The mean difference of B to A over `pairs` pairs, and its interval; None: fewer than two pairs give none."""

    pairs: int
    mean: float
    low: float | None
    high: float | None


def paired_difference(a: Sequence[float], b: Sequence[float], confidence: float = CONFIDENCE) -> PairedDifference:
    """Returns the mean of b - a with its t-interval of n - 1 degrees of freedom.

    Args:
        a, b: A value for each pair (pairs,).
        confidence: The probability that the interval covers the true mean, where differences are normal.

    Raises:
        ValueError: There is no pair, or the lists differ in length.
    """
    differences = [y - x for x, y in zip(a, b, strict=True)]
    count = len(differences)
    if not count:
        raise ValueError("a difference needs at least one pair")
    mean = math.fsum(differences) / count
    if count == 1:
        return PairedDifference(1, mean, None, None)
    variance = math.fsum((d - mean) ** 2 for d in differences) / (count - 1)
    half = float(stdtrit(count - 1, 0.5 + confidence / 2)) * math.sqrt(variance / count)
    return PairedDifference(count, mean, mean - half, mean + half)


def paired_ratio(a: Sequence[float], b: Sequence[float], confidence: float = CONFIDENCE) -> PairedDifference:
    """Returns how much more b is than a as a share: the geometric mean of b / a, less 1, with its interval.

    The t-interval is that of the logarithms: a saving of a tenth and its undoing cancel each other out.

    Args:
        a, b: A value above zero for each pair (pairs,).
        confidence: As for `paired_difference`.

    Raises:
        ValueError: There is no pair, the lists differ in length, or a value is not above zero.
    """
    if any(value <= 0.0 for value in (*a, *b)):
        raise ValueError("a ratio needs values above zero")
    logs = paired_difference([math.log(x) for x in a], [math.log(y) for y in b], confidence)
    low, high = (None if end is None else math.expm1(end) for end in (logs.low, logs.high))
    return PairedDifference(logs.pairs, math.expm1(logs.mean), low, high)

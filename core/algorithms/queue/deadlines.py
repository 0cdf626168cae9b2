"""Deadlines of requests, and the order of a queue that lets the fewest miss theirs (Moore and Hodgson)."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from core.types import Limits

Seconds = TypeVar("Seconds", float, NDArray[np.float64])


def due_by_limits(arrival_s: Seconds, predicted_tokens: Seconds, limits: Limits) -> Seconds | None:
    """Returns when requests of one class are to end so that they keep their limits; None: these set no time.

    That is by the E2E limit, and by the TTFT limit with the TPOT limit for each further token: the earlier of the two.
    Without a TPOT limit the latter is the first token's time, since none is set for the others.

    Args:
        arrival_s: Of one request, or of n: shape (n,). The result has the same shape and clock.
        predicted_tokens: Of output, in the same shape.
    """
    found = None
    if limits.ttft_s is not None:
        found = arrival_s + limits.ttft_s + (predicted_tokens - 1.0) * (limits.tpot_s or 0.0)
    if limits.e2e_s is not None:
        whole = arrival_s + limits.e2e_s
        found = whole if found is None else np.minimum(found, whole)
    return found


def fewest_late(
    deadlines_s: Sequence[float], service_s: Sequence[float], start_s: float
) -> tuple[list[int], list[int]]:
    """Places in the queue: those that will be in time, by deadline, and those that cannot, by deadline too.

    Serving the second after the first, in these orders, leaves as few late as any order can. Earliest deadline first
    alone would serve those that are lost already before those that can still be saved.

    Args:
        deadlines_s: By when each is to be served, on the clock of `start_s`.
        service_s: How long each takes.
        start_s: When the first can begin.
    """
    by_deadline = sorted(range(len(deadlines_s)), key=lambda i: (deadlines_s[i], i))
    longest: list[tuple[float, int]] = []
    late: set[int] = set()
    at_s = start_s
    for place, i in enumerate(by_deadline):
        heapq.heappush(longest, (-service_s[i], -place))  # of equally long ones the last is given up
        at_s += service_s[i]
        if at_s > deadlines_s[i]:
            minus_s, minus_place = heapq.heappop(longest)
            at_s += minus_s
            late.add(by_deadline[-minus_place])
    return [i for i in by_deadline if i not in late], [i for i in by_deadline if i in late]


def late_in_order(deadlines_s: Sequence[float], service_s: Sequence[float], start_s: float) -> list[int]:
    """Returns the places of those that miss their deadlines when served in the order given."""
    late, at_s = [], start_s
    for i, (deadline_s, takes_s) in enumerate(zip(deadlines_s, service_s, strict=True)):
        at_s += takes_s
        if at_s > deadline_s:
            late.append(i)
    return late

"""The order of a queue that lets the fewest requests miss their deadlines (Moore and Hodgson), one after another."""

from __future__ import annotations

import heapq
from collections.abc import Sequence


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

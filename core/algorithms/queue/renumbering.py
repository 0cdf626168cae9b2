"""New numbers for requests that wait inside an engine by number, so that they are served in another order.

A number cannot be changed: a request gets a new one by being taken back and sent again. So as many as possible keep
theirs: those of a longest subsequence that stands in the wanted order already.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

Place = tuple[int, float]  # its number, the lower first, and of equal ones the earlier


def renumbered(places: Sequence[Place]) -> dict[int, int]:
    """Returns the new numbers, by position, of as few requests as possible.

    Args:
        places: Of each request, in the order that is wanted; no two are the same. Between two of one number there is
            no place: who is to go there comes behind both.
    """
    kept = _longest_rising(places)
    found: dict[int, int] = {}
    before: int | None = None  # the number of the one ahead
    following = iter([*sorted(kept), None])
    stays = next(following)
    for n, (number, _) in enumerate(places):
        if n == stays:
            before, stays = number, next(following)
            continue
        most = None if stays is None else places[stays][0] - 1
        if before is None:
            before = 0 if most is None else most
        else:  # equal numbers go by arrival, and it will arrive later than the one ahead
            before = before + 1 if most is None else max(before, min(before + 1, most))
        found[n] = before
    return found


def _longest_rising(places: Sequence[Place]) -> set[int]:
    """Returns the positions of a longest subsequence that rises."""
    ends: list[Place] = []  # the lowest place at which a rising one of each length ends
    at: list[int] = []
    before: list[int | None] = []
    for n, place in enumerate(places):
        length = bisect_left(ends, place)
        ends[length : length + 1] = [place]
        at[length : length + 1] = [n]
        before.append(at[length - 1] if length else None)
    found: set[int] = set()
    last = at[-1] if at else None
    while last is not None:
        found.add(last)
        last = before[last]
    return found

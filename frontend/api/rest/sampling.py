"""Fewer points of a series that still look like it. Gaps stay gaps: nothing is drawn across what is not known.

`lttb` is Largest-Triangle-Three-Buckets (S. Steinarsson, "Downsampling Time Series for Visual Representation",
University of Iceland, 2013, section 4.2): of each bucket the point that spans the largest triangle with the one chosen
before and the mean of the next bucket. `minmax` keeps the least and the largest of each bucket: no peak is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

Point = tuple[float, float | None]  # at_s, value
Known = tuple[float, float]


def reduced(points: Sequence[Point], most: int, method: str) -> list[Point]:
    """Returns about `most` points, shared out to stretches without a gap by length; a gap is one empty point."""
    if len(points) <= most:
        return list(points)
    stretches = list(_stretches(points))
    known = sum(len(run) for run, _ in stretches)
    pick = METHODS[method]
    found: list[Point] = []
    for run, gap_s in stretches:
        share = max(2, round(most * len(run) / known)) if run else 0
        found += pick(run, share) if len(run) > share else run
        if gap_s is not None:
            found.append((gap_s, None))
    return found


def _stretches(points: Sequence[Point]) -> Iterator[tuple[list[Known], float | None]]:
    """Yields runs of known points, each with the moment at which a gap begins after it."""
    run: list[Known] = []
    in_gap = False
    for at_s, value in points:
        if value is not None:
            run.append((at_s, value))
            in_gap = False
        elif not in_gap:
            yield run, at_s
            run, in_gap = [], True
    if run:
        yield run, None


def lttb(points: Sequence[Known], most: int) -> list[Known]:
    """At least 2 of them: the first and the last always stay."""
    if most < 3 or len(points) <= most:
        return list(points) if len(points) <= most else [points[0], points[-1]]
    width = (len(points) - 2) / (most - 2)
    edges = [1 + int(i * width) for i in range(most - 1)]
    edges[-1] = len(points) - 1
    chosen = [points[0]]
    for i, (low, high) in enumerate(pairwise(edges)):
        following = points[high : edges[i + 2]] if i + 2 < len(edges) else points[-1:]
        mean = _mean(following or points[-1:])
        chosen.append(max(points[low:high], key=lambda point: _area(chosen[-1], point, mean)))
    return [*chosen, points[-1]]


def minmax(points: Sequence[Known], most: int) -> list[Known]:
    buckets = max(1, most // 2)
    found: list[Known] = []
    for i in range(buckets):
        part = points[len(points) * i // buckets : len(points) * (i + 1) // buckets]
        if part:
            found += sorted({min(part, key=lambda point: point[1]), max(part, key=lambda point: point[1])})
    return found


def _mean(points: Sequence[Known]) -> Known:
    return sum(at_s for at_s, _ in points) / len(points), sum(value for _, value in points) / len(points)


def _area(a: Known, b: Known, c: Known) -> float:
    """Returns twice the triangle's area."""
    return abs((a[0] - c[0]) * (b[1] - a[1]) - (a[0] - b[0]) * (c[1] - a[1]))


METHODS: dict[str, Callable[[Sequence[Known], int], list[Known]]] = {"lttb": lttb, "minmax": minmax}

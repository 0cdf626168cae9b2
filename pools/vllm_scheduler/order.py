"""Least laxity first inside an engine (FREESH, eq. 6 and Algorithm 1). Pure.

A request is due at arrival + W, W = 1.4 x Lat, and its laxity is the time for which it could still wait:
l(t) = due - t - T_remain. The present time is the same for all, so the order by due - T_remain is the order by laxity.
Of a waiting request this key is constant; a running one's grows with each token that it gets.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

WINDOW_FACTOR = 1.4  # alpha_LLF (FREESH C.2)
HINTS = ("lat_s", "ttft_s", "predicted_tokens", "slo_s")

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Work:
    """The properties of a request that the order needs.

    Attributes:
        due_s: Unix seconds.
        lat_s: Lat, its time alone, of which its first token takes `ttft_s`; 0: not known, then it goes by `due_s`.
        tokens: Of its output, as predicted; at least 1.
    """

    due_s: float
    lat_s: float = 0.0
    ttft_s: float = 0.0
    tokens: int = 1

    def remaining_s(self, generated: int) -> float:
        """T_remain. One that outran its prediction has a token left: it cannot be known to end."""
        if not generated:
            return self.lat_s
        return max(1, self.tokens - generated) * (self.lat_s - self.ttft_s) / self.tokens

    def key(self, generated: int) -> float:
        """The smaller goes first; Unix seconds: when it has to be started, or gone on with, at the latest."""
        return self.due_s - self.remaining_s(generated)


def work_of(
    hints: Mapping[str, Any] | None,
    arrival_s: float,
    max_tokens: int,
    priority: int,
    default_window_s: float,
) -> tuple[Work, tuple[str, ...]]:
    """Returns what a request brings, and the names of hints that make no sense, which count as not given.

    Args:
        hints: `lat_s`, `ttft_s`, `predicted_tokens` and `slo_s` (due so long after its arrival; beats 1.4 x Lat), all
            optional, among others that are not looked at.
        max_tokens: Stands in for a prediction that is missing.
        priority: vLLM's. Without hints it is taken for the key in milliseconds, as GreenServe's gateway sends it.
        default_window_s: A request with none of all this is due so long after its arrival.
    """
    found: dict[str, float] = {}
    bad = []
    for name in HINTS:
        value = None if hints is None else hints.get(name)
        if value is None:
            continue
        if _sensible(name, value):
            found[name] = float(value)
        else:
            bad.append(name)
    lat_s = found.get("lat_s", 0.0)
    if "slo_s" in found:
        due_s = arrival_s + found["slo_s"]
    elif lat_s:
        due_s = arrival_s + WINDOW_FACTOR * lat_s
    else:
        due_s = priority / 1000.0 if priority else arrival_s + default_window_s
    tokens = int(found.get("predicted_tokens", max_tokens))
    return Work(due_s, lat_s, min(found.get("ttft_s", 0.0), lat_s), max(1, tokens)), tuple(bad)


def _sensible(name: str, value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return False
    return name == "slo_s" or value >= 0.0  # what is late already is due before it comes


class LaxityQueue(Generic[R]):
    """Waiting requests by key, ties by arrival here; it has what vLLM's `RequestQueue` has.

    A queue of this kind has no front to put something at: `prepend_request` adds by key as well.
    """

    def __init__(self, key: Callable[[R], float], requests: Iterable[R] = ()) -> None:
        self._key = key
        self._count = 0
        self._rows: list[tuple[float, int, R]] = []
        for request in requests:
            self.add_request(request)

    def add_request(self, request: R) -> None:
        self._count += 1
        bisect.insort(self._rows, (self._key(request), self._count, request))

    def pop_request(self) -> R:
        """Raises IndexError where there is none."""
        return self._rows.pop(0)[2]

    def peek_request(self) -> R:
        """Raises IndexError where there is none."""
        return self._rows[0][2]

    def prepend_request(self, request: R) -> None:
        self.add_request(request)

    def prepend_requests(self, requests: Iterable[R]) -> None:
        for request in requests:
            self.add_request(request)

    def remove_request(self, request: R) -> None:
        self.remove_requests((request,))

    def remove_requests(self, requests: Iterable[R]) -> None:
        gone = {id(request) for request in requests}
        self._rows = [row for row in self._rows if id(row[2]) not in gone]

    def first(self, count: int) -> list[R]:
        """Returns those that go next, at most `count`."""
        return [row[2] for row in self._rows[:count]]

    def __bool__(self) -> bool:
        return bool(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[R]:
        return (row[2] for row in list(self._rows))


@dataclass(frozen=True, slots=True)
class Seat(Generic[R]):
    """A running request. `cost_s`: what it would take to compute again what is in its cache of `blocks` blocks."""

    request: R
    key: float
    cost_s: float
    blocks: int


@dataclass(frozen=True, slots=True)
class Head(Generic[R]):
    """A waiting request that needs `blocks` blocks of the KV cache to begin."""

    request: R
    key: float
    blocks: int


def displaced(
    heads: Iterable[Head[R]], seats: Iterable[Seat[R]], free_seats: int, free_blocks: int, margin_s: float, most: int
) -> list[R]:
    """Chooses running requests that give way to waiting ones, those with the most laxity first; at most `most`.

    One gives way only to one whose laxity is smaller by more than `margin_s` and what its own work would cost again:
    else two requests of like laxity would take the place from each other forever. Nobody gives way in vain: a waiting
    request that would not get in even so displaces nobody.
    """
    candidates = sorted(seats, key=lambda seat: -seat.key)
    gone: list[R] = []
    for head in heads:
        freed_seats, freed_blocks, taken = free_seats, free_blocks, 0
        while freed_seats < 1 or freed_blocks < head.blocks:
            if taken == len(candidates) or len(gone) + taken == most:
                return gone
            seat = candidates[taken]
            if seat.key - seat.cost_s - margin_s <= head.key:
                return gone
            taken, freed_seats, freed_blocks = taken + 1, freed_seats + 1, freed_blocks + seat.blocks
        gone += [seat.request for seat in candidates[:taken]]
        del candidates[:taken]
        free_seats, free_blocks = freed_seats - 1, freed_blocks - head.blocks
    return gone

"""Least laxity first inside an engine (FREESH, eq. 6 and Algorithm 1). Pure.

A request is due at arrival + W, W = alpha_LLF x Lat, and its laxity is the time for which it could still wait:
l(t) = due - t - T_remain. The present time is the same for all, so the order by due - T_remain is the order by laxity.
Of a waiting request this key is constant; a running one's grows with each token that it gets.

The rule is that of `core.algorithms.queue.queueing`, which says why: laxity below 0 counts as 0, and of those that are
late, so that theirs is the same, the one with the least work left goes first. Work that is not known goes last, by key.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

Place = tuple[int, float, float]  # in the order, the smaller first: late ones by work left, then the others by key

HINTS = ("lat_s", "ttft_s", "predicted_tokens", "slo_s")

R = TypeVar("R")
_Row = tuple[float, float, int, R]  # what it goes by, then how many came before it


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

    def place(self, generated: int, now_s: float) -> Place:
        """Returns its place in the order at `now_s`."""
        key, left_s = self.key(generated), self.remaining_s(generated)
        return (0, left_s or math.inf, key) if key < now_s else (1, key, 0.0)


def work_of(
    hints: Mapping[str, Any] | None,
    arrival_s: float,
    max_tokens: int,
    priority: int,
    default_window_s: float,
    window_factor: float,
) -> tuple[Work, tuple[str, ...]]:
    """Returns what a request brings, and the names of hints that make no sense, which count as not given.

    Args:
        hints: `lat_s`, `ttft_s`, `predicted_tokens` and `slo_s` (due so long after its arrival; beats the window), all
            optional, among others that are not looked at.
        max_tokens: Stands in for a prediction that is missing.
        priority: vLLM's. Without hints it is taken for the key in milliseconds, as GreenServe's gateway sends it.
        default_window_s: A request with none of all this is due so long after its arrival.
        window_factor: alpha_LLF, the window over `lat_s`.
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
        due_s = arrival_s + window_factor * lat_s
    else:
        due_s = priority / 1000.0 if priority else arrival_s + default_window_s
    tokens = int(found.get("predicted_tokens", max_tokens))
    return Work(due_s, lat_s, min(found.get("ttft_s", 0.0), lat_s), max(1, tokens)), tuple(bad)


def _sensible(name: str, value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return False
    return name == "slo_s" or value >= 0.0  # what is late already is due before it comes


class LaxityQueue(Generic[R]):
    """Waiting requests in the order, ties by arrival here; it has what vLLM's `RequestQueue` has.

    A queue of this kind has no front to put something at: `prepend_request` adds in order as well.
    """

    def __init__(
        self, work: Callable[[R], tuple[float, float]], now: Callable[[], float], requests: Iterable[R] = ()
    ) -> None:
        """Makes a queue of these.

        Args:
            work: A request's key and its work left, in s; they stay as they are while it waits. Work of 0: not known.
            now: Unix seconds.
            requests: Those that wait already, in order of arrival.
        """
        self._work = work
        self._now = now
        self._count = 0
        self._late: list[_Row[R]] = []  # by work left
        self._lax: list[_Row[R]] = []  # by key
        self._rows: dict[int, _Row[R]] = {}  # by the request's id: its row, in one of the two
        for request in requests:
            self.add_request(request)

    def add_request(self, request: R) -> None:
        self._count += 1
        row = self._rows[id(request)] = (self._work(request)[0], 0.0, self._count, request)
        bisect.insort(self._lax, row)

    def pop_request(self) -> R:
        """Raises IndexError where there is none."""
        request = self._in_order()[0].pop(0)[3]
        del self._rows[id(request)]
        return request

    def peek_request(self) -> R:
        """Raises IndexError where there is none."""
        return self._in_order()[0][0][3]

    def prepend_request(self, request: R) -> None:
        self.add_request(request)

    def prepend_requests(self, requests: Iterable[R]) -> None:
        for request in requests:
            self.add_request(request)

    def remove_request(self, request: R) -> None:
        self.remove_requests((request,))

    def remove_requests(self, requests: Iterable[R]) -> None:
        for request in requests:
            row = self._rows.pop(id(request), None)
            if row is not None:
                rows = self._late if _holds(self._late, row) else self._lax
                del rows[bisect.bisect_left(rows, row)]

    def first(self, count: int) -> list[R]:
        """Returns those that go next, at most `count`."""
        return [row[3] for rows in self._in_order() for row in rows[:count]][:count]

    def _in_order(self) -> tuple[list[_Row[R]], ...]:
        """Returns the rows, the part that is first before the other; those that have become late change theirs."""
        passed = bisect.bisect_left(self._lax, (self._now(),))
        for key, _, count, request in self._lax[:passed]:
            row = self._rows[id(request)] = (self._work(request)[1] or math.inf, key, count, request)
            bisect.insort(self._late, row)
        del self._lax[:passed]
        return (self._late, self._lax) if self._late else (self._lax,)

    def __bool__(self) -> bool:
        return bool(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[R]:
        return iter([row[3] for rows in self._in_order() for row in rows])


def _holds(rows: list[_Row[R]], row: _Row[R]) -> bool:
    at = bisect.bisect_left(rows, row)
    return at < len(rows) and rows[at] is row


@dataclass(frozen=True, slots=True)
class Seat(Generic[R]):
    """A running request with `left_s` of work (0: not known).

    `cost_s`: what it would take to compute again what is in its cache of `blocks` blocks.
    """

    request: R
    key: float
    cost_s: float
    blocks: int
    left_s: float = 0.0

    def gives_way(self, head: Head[R], now_s: float, margin_s: float) -> bool:
        """Says whether it can afford it: whether it still has laxity, by more than `margin_s`, when the other's work is
        done and its own cache is computed again, all of which takes less time than its own rest."""
        if self.left_s and head.left_s + self.cost_s >= self.left_s:
            return False
        return max(head.key, now_s) + head.left_s + margin_s < self.key - self.cost_s


@dataclass(frozen=True, slots=True)
class Head(Generic[R]):
    """A waiting request with `left_s` of work (0: not known), that needs `blocks` blocks of the KV cache to begin."""

    request: R
    key: float
    blocks: int
    left_s: float = 0.0


def displaced(
    heads: Iterable[Head[R]],
    seats: Iterable[Seat[R]],
    free_seats: int,
    free_blocks: int,
    now_s: float,
    margin_s: float,
    most: int,
) -> list[R]:
    """Chooses running requests that give way to waiting ones, those with the most laxity first; at most `most`.

    Without what its own work would cost again, two requests of like laxity would take the place from each other
    forever. Nobody gives way in vain: a waiting request that would not get in even so displaces nobody.
    """
    candidates = sorted(seats, key=lambda seat: -seat.key)
    gone: list[R] = []
    for head in heads:
        freed_seats, freed_blocks = free_seats, free_blocks
        taken: list[Seat[R]] = []
        able = (seat for seat in candidates if seat.gives_way(head, now_s, margin_s))
        while freed_seats < 1 or freed_blocks < head.blocks:
            seat = next(able, None)
            if seat is None or len(gone) + len(taken) == most:
                return gone
            taken.append(seat)
            freed_seats, freed_blocks = freed_seats + 1, freed_blocks + seat.blocks
        gone += [seat.request for seat in taken]
        for seat in taken:
            candidates.remove(seat)
        free_seats, free_blocks = freed_seats - 1, freed_blocks - head.blocks
    return gone

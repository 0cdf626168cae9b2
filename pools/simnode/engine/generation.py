"""A request in a simulated engine, and the queue it waits in."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from .hand_over import Arriving, HandOver


@dataclass(slots=True, eq=False)
class Generation:
    """A request in the engine. `target_tokens` is how many it will generate; `finish`: length | stop.

    `on_token(index, finish)` is called for each token with its index from 0; `finish` is None but for the last. A
    request that ends without another token says so with index None: one that only computes its prompt
    (`target_tokens` 0), or that the engine aborts (`finish` abort).
    """

    prompt_tokens: int
    target_tokens: int
    finish: str
    on_token: Callable[[int | None, str | None], None]
    arrived_s: float
    priority: int = 0  # lower goes first, where the engine heeds it
    hand_over: HandOver | None = None  # its cache is to be kept for another engine
    arriving: Arriving | None = None  # a part of its cache is to come from another engine
    generated: int = 0
    computed: int = 0  # tokens whose keys and values are in the cache
    to_prefill: int = 0  # tokens that must be computed before the next one comes; 0 when decoding
    kv_tokens: int = 0  # reserved in the cache
    loaded: int = 0  # of these came from another engine
    scheduled: bool = False  # has been part of an iteration, or waited for its cache
    first_token_s: float | None = None
    last_token_s: float = 0.0
    ended: bool = False
    rank: tuple[int, float, int] = (0, 0.0, 0)  # priority, arrival, and which came first of those


class WaitingQueue:
    """Requests in the order in which they are to be admitted: of arrival, or of priority and then arrival (vLLM's).

    One that was preempted goes to the front in order of arrival, and to its place in order of priority.
    """

    def __init__(self, by_priority: bool) -> None:
        self._by_priority = by_priority
        self._queue: list[Generation] = []

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[Generation]:
        return iter(self._queue)

    @property
    def head(self) -> Generation | None:
        return self._queue[0] if self._queue else None

    def add(self, sequence: Generation) -> None:
        if self._by_priority:
            insort(self._queue, sequence, key=_rank)
        else:
            self._queue.append(sequence)

    def put_back(self, sequence: Generation) -> None:
        if self._by_priority:
            insort(self._queue, sequence, key=_rank)
        else:
            self._queue.insert(0, sequence)

    def remove(self, sequence: Generation) -> None:
        self._queue.remove(sequence)


def _rank(sequence: Generation) -> tuple[int, float, int]:
    return sequence.rank

"""A queue of requests that wait, served in one of `queueing`'s orders, and with weighted fair shares of its tenants.

Keys of waiting requests do not change, so a heap per tenant holds them, O(log n) a request. Only under LLF a request
changes its place, once, when it becomes late. Shares are fair by virtual start times: a request starts where its
tenant's account stands, served tokens over the tenant's weight.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from core.algorithms.queue.queueing import Order, OrderConfig

T = TypeVar("T", bound=Hashable)

HINT_TOKENS_PER_S = 20.0  # what a second of a client's hint counts in an order by tokens that has no aging
EVERYBODY = None  # the tenant of all where shares are not kept apart
FIRST, LATE, BY_KEY, NOBODY = range(4)  # ranks: named first, late by LLF, all others, an empty queue


@dataclass(frozen=True, slots=True)
class Waiting:
    """A request, as the queue needs to know it. `work_s`: the seconds that it takes at the present pace (Lat)."""

    arrival_s: float
    prompt_tokens: int
    predicted_tokens: int
    work_s: float
    due_s: float
    tenant: Hashable = EVERYBODY
    head_start_s: float = 0.0  # a hint of the client's: as if it had come so much earlier (or later, below 0); not LLF

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.predicted_tokens


def due_s(arrival_s: float, work_s: float, config: OrderConfig) -> float:
    """Returns arrival + W in seconds, with W = alpha_LLF x Lat (FREESH C.2)."""
    return arrival_s + config.window_factor * work_s


def key(request: Waiting, config: OrderConfig) -> float:
    """The smaller goes first; of a request that has not begun. Under LLF no hint counts: laxity alone is urgency."""
    if config.order in (Order.SJF, Order.SPF):
        tokens = request.predicted_tokens if config.order is Order.SJF else request.prompt_tokens
        aging = config.aging_tokens_per_s
        if not aging:
            return tokens - HINT_TOKENS_PER_S * request.head_start_s
        return request.arrival_s + tokens / aging - request.head_start_s  # in s: a new aging moves keys little
    if config.order is Order.SRTF:
        return request.work_s - request.head_start_s
    if config.order is Order.LLF:
        return request.due_s - request.work_s
    return (request.arrival_s if config.order is Order.FCFS else request.due_s) - request.head_start_s


def priority(request: Waiting, config: OrderConfig) -> int:
    """Returns the key as an engine's `priority` (vLLM: lower runs first): milliseconds; thousandths of a token in an
    order by tokens that has no aging."""
    return round(key(request, config) * 1000.0)


@dataclass(slots=True)
class _Entry(Generic[T]):
    item: T
    request: Waiting
    number: int
    waits: bool = True


class FairQueue(Generic[T]):
    """Not for threads. `weights` None: one queue for all tenants; else a tenant that it does not name has weight 1."""

    def __init__(self, config: OrderConfig, weights: Mapping[Any, float] | None = None) -> None:
        """Raises ValueError on a weight that is not above 0."""
        if weights is not None and any(not weight > 0.0 for weight in weights.values()):
            raise ValueError("a tenant's weight must be above 0")
        self.config = config
        self._weights = weights
        self._heaps: dict[Hashable, list[tuple[int, float, int, _Entry[T]]]] = {}
        self._lax: list[tuple[float, int, _Entry[T]]] = []  # under LLF those that are not late yet, of all tenants
        self._accounts: dict[Hashable, float] = {}
        self._entries: dict[T, _Entry[T]] = {}
        self._numbers = itertools.count()
        self.tokens = 0  # prompt and predicted output of all that wait

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, item: T) -> bool:
        return item in self._entries

    def push(self, item: T, request: Waiting) -> None:
        """Raises ValueError when the item waits already."""
        if item in self._entries:
            raise ValueError("it waits already")
        entry = _Entry(item, request, next(self._numbers))
        tenant = EVERYBODY if self._weights is None else request.tenant
        heap = self._live(tenant)
        if not heap:
            self._join(tenant)
        own = key(request, self.config)
        heapq.heappush(self._heaps[tenant], (BY_KEY, own, entry.number, entry))
        if self.config.order is Order.LLF:
            heapq.heappush(self._lax, (own, entry.number, entry))
        self._entries[item] = entry
        self.tokens += request.tokens

    def advance(self, now_s: float) -> None:
        """Gives those that have become late, under LLF, their places before all that are not: the shortest first.

        Without it the queue goes on as it stood. `now_s`: on the clock of the arrivals.
        """
        while self._lax and (self._lax[0][0] < now_s or not self._lax[0][2].waits):
            _, number, entry = heapq.heappop(self._lax)
            if entry.waits:
                self._move(entry, LATE, entry.request.work_s, number)

    def peek(self) -> T | None:
        """Returns the request that is served next; None: nobody waits."""
        tenant = self._next_tenant()
        return self._heaps[tenant][0][3].item if tenant in self._heaps else None

    def urgency(self) -> tuple[int, float]:
        """Returns the rank of the next request, to be compared with other queues of the same order; the smaller goes
        first."""
        heap = self._heaps.get(self._next_tenant())
        return (NOBODY, 0.0) if heap is None else heap[0][:2]

    def pop(self) -> T | None:
        """Takes the next one out, and charges its tenant."""
        tenant = self._next_tenant()
        if tenant not in self._heaps:
            return None
        entry = heapq.heappop(self._heaps[tenant])[3]
        self._forget(entry)
        self._charge(tenant, entry.request.tokens)
        return entry.item

    def charge(self, tenant: Hashable, tokens: int) -> None:
        """Adds to a tenant's account what another queue of the same service gave it, if it waits here.

        Who does not wait here is charged nothing: what it uses where nobody waits takes nothing from others.
        """
        if tenant in self._heaps and self._live(tenant):
            self._charge(tenant, tokens)

    def remove(self, item: T) -> bool:
        """Takes one out that is not to be served; says whether it waited."""
        entry = self._entries.get(item)
        if entry is None:
            return False
        self._forget(entry)
        return True

    def reorder(self, first: Sequence[T]) -> None:
        """These go before all others of their tenants, in the order given; items that do not wait are passed over."""
        for place, item in enumerate(first):
            entry = self._entries.get(item)
            if entry is not None:
                self._move(entry, FIRST, float(place), next(self._numbers))  # its old one may be in the heap, as a tie

    def items(self) -> list[T]:
        """Returns all that wait, in no particular order."""
        return list(self._entries)

    def _move(self, entry: _Entry[T], rank: int, at: float, number: int) -> None:
        entry.waits = False
        moved = _Entry(entry.item, entry.request, number)
        tenant = EVERYBODY if self._weights is None else entry.request.tenant
        heapq.heappush(self._heaps[tenant], (rank, at, number, moved))
        self._entries[entry.item] = moved

    def _forget(self, entry: _Entry[T]) -> None:
        entry.waits = False
        del self._entries[entry.item]
        self.tokens -= entry.request.tokens

    def _live(self, tenant: Hashable) -> list[tuple[int, float, int, _Entry[T]]]:
        """Returns the tenant's heap with somebody who waits at its top, or empty."""
        heap = self._heaps.setdefault(tenant, [])
        while heap and not heap[0][3].waits:
            heapq.heappop(heap)
        return heap

    def _next_tenant(self) -> Hashable:
        for tenant in list(self._heaps):
            if not self._live(tenant):
                del self._heaps[tenant]
        if self._weights is None or len(self._heaps) < 2:
            return next(iter(self._heaps), EVERYBODY)
        return min(self._heaps, key=lambda t: (self._accounts.get(t, 0.0), self._heaps[t][0][2]))

    def _charge(self, tenant: Hashable, tokens: int) -> None:
        if self._weights is not None:
            self._accounts[tenant] = self._accounts.get(tenant, 0.0) + tokens / self._weights.get(tenant, 1.0)

    def _join(self, tenant: Hashable) -> None:
        """Lets a tenant join that had nothing waiting; it earns no credit for that time (`queueing.joined`)."""
        if self._weights is None:
            return
        active = [t for t in self._heaps if t != tenant and self._live(t)]
        others = [self._accounts.get(t, 0.0) for t in active]
        floor = min(others) if others else max(self._accounts.values(), default=0.0)
        self._accounts[tenant] = max(self._accounts.get(tenant, 0.0), floor)

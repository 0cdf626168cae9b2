"""FREESH's orders over request columns (section 3.3), and its Algorithm 1: the oracle of queues' and engines' orders.

The product keeps heaps and gives each request its key as it comes; here every key is computed anew from what is known
of all requests. Rows are in order of arrival, and of equal keys the first comes first.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from core.algorithms.queue.queueing import WINDOW_FACTOR, Order, OrderConfig

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

PREEMPTIVE = frozenset({Order.SRTF, Order.EDF, Order.LLF})
_DONE = 1e-9  # tokens: less than this is rounding
_BEFORE_ALL = 1e12  # seconds


@dataclass(frozen=True, slots=True)
class Pace:
    """What the present configuration (GPU, TP degree, clock) takes for a request, as profiled."""

    ttft_s: float
    tpot_s: float

    def __post_init__(self) -> None:
        if self.ttft_s < 0.0 or not self.tpot_s > 0.0:
            raise ValueError(f"a pace needs tpot_s above 0 and ttft_s from 0, not {self}")


@dataclass(frozen=True, slots=True, eq=False)
class Requests:
    """Requests in order of arrival, a column of shape (n,) for each quantity. A running one may have no token yet."""

    arrival_s: Floats
    predicted_tokens: Floats
    generated_tokens: Floats
    due_s: Floats
    prompt_tokens: Floats | float = 0.0

    @classmethod
    def arrived(
        cls,
        arrival_s: ArrayLike,
        predicted_tokens: ArrayLike,
        pace: Pace,
        prompt_tokens: ArrayLike = 0.0,
        window_factor: float = WINDOW_FACTOR,
    ) -> Requests:
        """Newly arrived ones, due by the pace they found."""
        arrival, tokens = np.asarray(arrival_s, dtype=np.float64), np.asarray(predicted_tokens, dtype=np.float64)
        if arrival.shape != tokens.shape or arrival.ndim != 1:
            raise ValueError("arrivals and predicted tokens need one value each per request")
        due_s, prompts = arrival + window_factor * alone_s(tokens, pace), np.asarray(prompt_tokens, np.float64)
        return cls(arrival, tokens, np.zeros_like(tokens), due_s, prompts)


def alone_s(predicted_tokens: Floats, pace: Pace) -> Floats:
    """Lat: how long each would take if it never waited."""
    return predicted_tokens * pace.tpot_s + pace.ttft_s


def remaining_s(requests: Requests, pace: Pace) -> Floats:
    """T_remain at the present pace. One that outran its prediction has a token left: it cannot be known to end."""
    left = requests.predicted_tokens - requests.generated_tokens
    np.maximum(left, 1.0, out=left, where=requests.generated_tokens > 0.0)
    left *= pace.tpot_s
    if pace.ttft_s:
        left += np.where(requests.generated_tokens > 0.0, 0.0, pace.ttft_s)
    return left


def laxity_s(requests: Requests, pace: Pace, now_s: float) -> Floats:
    """l(t) of eq. 6; below 0: due before it can be done."""
    return requests.due_s - now_s - remaining_s(requests, pace)


def ranks(requests: Requests, pace: Pace, config: OrderConfig, now_s: float) -> Floats:
    """The smaller goes first, at `now_s`: by `keys`, but that under LLF a laxity below 0 is one of 0.

    Those that have none left are before all others, by the work left.
    """
    found = keys(requests, pace, config)
    if config.order != Order.LLF:
        return found
    return np.where(laxity_s(requests, pace, now_s) < 0.0, remaining_s(requests, pace) - _BEFORE_ALL, found)


def keys(requests: Requests, pace: Pace, config: OrderConfig) -> Floats:
    """The smaller goes first while nobody is late. In seconds, but for sjf and spf without aging: tokens."""
    if config.order == Order.FCFS:
        return requests.arrival_s
    if config.order in (Order.SJF, Order.SPF):
        tokens = requests.predicted_tokens if config.order == Order.SJF else requests.prompt_tokens
        aging = config.aging_tokens_per_s
        return requests.arrival_s + tokens / aging if aging else tokens
    if config.order == Order.EDF:
        return requests.due_s
    work_s = remaining_s(requests, pace)
    return work_s if config.order == Order.SRTF else requests.due_s - work_s


def ordered(requests: Requests, pace: Pace, config: OrderConfig, now_s: float = -np.inf) -> Ints:
    """Rows in the order to be served; with no `now_s` while nobody is late."""
    return np.argsort(ranks(requests, pace, config, now_s), kind="stable").astype(np.int64)


def priorities(requests: Requests, pace: Pace, config: OrderConfig, origin_s: float) -> Ints:
    """Keys as the whole numbers that an engine takes for `priority`, lower first and ties by arrival.

    In milliseconds (sjf, spf without aging: thousandths of a token) since `origin_s`, which all requests of an engine
    must share.
    """
    origin = origin_s
    if config.order == Order.SRTF or (config.order in (Order.SJF, Order.SPF) and not config.aging_tokens_per_s):
        origin = 0.0
    return np.rint((keys(requests, pace, config) - origin) * 1000.0).astype(np.int64)


def seated(
    requests: Requests,
    running: Bools,
    slots: int,
    pace: Pace,
    config: OrderConfig,
    margin_s: float = 0.0,
    now_s: float = -np.inf,
) -> Ints:
    """Rows of the at most `slots` requests that run next, in order; those that ran and are not among them give way.

    An order that does not preempt keeps those that run, and so does any while there are slots enough. A running one
    gives way only to a waiting one that is strictly ahead, by more than `margin_s`.
    """
    if slots < 1 or not running.size:
        return np.zeros(0, dtype=np.int64)
    rank = ranks(requests, pace, config, now_s)
    if config.order in PREEMPTIVE:
        rank = np.where(running, rank - margin_s, rank)
    else:
        rank = np.where(running, rank - (np.ptp(rank) + 1.0), rank)  # all that run come first
    if slots < rank.size:  # only the head has to be sorted
        edge = np.partition(rank, slots - 1)[slots - 1]
        head = np.flatnonzero(rank <= edge)
    else:
        head = np.arange(rank.size)
    order = np.lexsort((head, ~running[head], rank[head]))
    return head[order[:slots]].astype(np.int64)


@dataclass(frozen=True, slots=True)
class Walk:
    """What became of requests: the rows that each tick served, and when each was first served and done."""

    served: tuple[tuple[int, ...], ...]
    begun_s: tuple[float, ...]
    done_s: tuple[float, ...]


def walk(
    arrival_s: ArrayLike,
    tokens: ArrayLike,
    pace: Pace,
    config: OrderConfig,
    slots: int = 1,
    tick_s: float = 1.0,
) -> Walk:
    """Algorithm 1: at each tick the requests at the head of the order are executed for `tick_s` on `slots` workers.

    Lengths are known and being preempted costs nothing, as in the paper's toy example (C.3). Ticks with nothing to do
    serve nobody and are not skipped.
    """
    if slots < 1 or not tick_s > 0.0:
        raise ValueError("a walk needs a slot, and ticks longer than 0")
    requests = Requests.arrived(arrival_s, tokens, pace)
    count = requests.arrival_s.size
    work_s = alone_s(requests.predicted_tokens, pace)
    begun, done = np.full(count, np.nan), np.full(count, np.nan)
    running: Bools = np.zeros(count, dtype=np.bool_)
    served: list[tuple[int, ...]] = []
    while np.isnan(done).any():
        now_s = len(served) * tick_s
        active = np.flatnonzero((requests.arrival_s <= now_s + _DONE) & np.isnan(done))
        given = np.maximum(0.0, requests.predicted_tokens - work_s / pace.tpot_s)
        seen = Requests(*(c[active] for c in (requests.arrival_s, requests.predicted_tokens, given, requests.due_s)))
        chosen = active[seated(seen, running[active], slots, pace, config, now_s=now_s)]
        running[:] = False
        running[chosen] = True
        begun[chosen] = np.where(np.isnan(begun[chosen]), now_s, begun[chosen])
        ended = chosen[work_s[chosen] <= tick_s + _DONE]
        done[ended] = now_s + work_s[ended]
        work_s[chosen] -= tick_s
        served.append(tuple(chosen.tolist()))
    return Walk(tuple(served), tuple(begun.tolist()), tuple(done.tolist()))

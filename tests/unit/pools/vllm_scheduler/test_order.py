"""Least laxity first, as it is done inside an engine."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.algorithms.queue import queueing
from pools.vllm_scheduler.order import WINDOW_FACTOR, Head, LaxityQueue, Seat, Work, displaced, work_of
from tests.oracles import queue_orders

WINDOW_S = 30.0


def work(hints: dict[str, Any] | None, priority: int = 0) -> Work:
    return work_of(hints, 100.0, 50, priority, WINDOW_S)[0]


def test_request_is_due_by_its_hints_when_it_has_some() -> None:
    assert work({"lat_s": 10.0}).due_s == pytest.approx(100.0 + 1.4 * 10.0)
    assert work({"slo_s": 2.0}).due_s == 102.0
    assert work({"lat_s": 10.0, "slo_s": -1.5}).due_s == 98.5
    assert work({"lat_s": 10.0, "predicted_tokens": 20}).tokens == 20
    assert work({"lat_s": 10.0}).tokens == 50
    assert WINDOW_FACTOR == queueing.WINDOW_FACTOR


def test_request_goes_by_its_priority_or_by_a_window_when_it_has_no_hints() -> None:
    assert work(None, priority=99_500).key(0) == 99.5
    assert work({"other": 1}).key(0) == 130.0


@pytest.mark.parametrize("bad", ["2", True, math.inf, math.nan, -1.0, [1]])
def test_hint_counts_as_not_given_when_it_makes_no_sense(bad: Any) -> None:
    found, ignored = work_of({"lat_s": bad, "predicted_tokens": 5}, 100.0, 50, 0, WINDOW_S)
    assert ignored == ("lat_s",)
    assert (found.due_s, found.tokens) == (130.0, 5)


@given(st.lists(st.tuples(st.floats(0, 100), st.integers(1, 500), st.integers(0, 600)), min_size=1, max_size=20))
def test_order_is_that_of_the_core_when_hints_tell_the_same(rows: list[tuple[float, int, int]]) -> None:
    pace = queue_orders.Pace(ttft_s=0.5, tpot_s=0.02)
    config = queueing.OrderConfig(queueing.Order.LLF)
    arrival, tokens, generated = (np.array(column, dtype=np.float64) for column in zip(*rows, strict=True))
    known = queue_orders.Requests.arrived(arrival, tokens, pace)
    known = queue_orders.Requests(known.arrival_s, known.predicted_tokens, generated, known.due_s)
    own = [
        work_of({"lat_s": 0.5 + 0.02 * n, "ttft_s": 0.5, "predicted_tokens": n}, at, 9, 0, WINDOW_S)[0].key(int(g))
        for at, n, g in rows
    ]
    assert own == pytest.approx(queue_orders.keys(known, pace, config).tolist())


@given(st.lists(st.integers(-50, 50)))
def test_queue_gives_the_least_key_first_and_ties_by_arrival(keys: list[int]) -> None:
    rows = list(enumerate(keys))
    queue: LaxityQueue[tuple[int, int]] = LaxityQueue(lambda row: row[1], rows)
    assert len(queue) == len(rows)
    assert list(queue) == sorted(rows, key=lambda row: row[1])
    removed = rows[::3]
    queue.remove_requests(removed)
    taken = []
    while queue:
        assert queue.peek_request() is queue.first(1)[0]
        taken.append(queue.pop_request())
    assert taken == sorted((row for row in rows if row not in removed), key=lambda row: row[1])
    with pytest.raises(IndexError):
        queue.pop_request()


def seats(*keys: float, cost_s: float = 0.0) -> list[Seat[str]]:
    return [Seat(f"r{key:g}", key, cost_s, 4) for key in keys]


def test_most_relaxed_gives_way_when_the_batch_is_full() -> None:
    assert displaced([Head("w", 1.0, 2)], seats(5.0, 9.0, 7.0), 0, 100, 0.0, 4) == ["r9"]


def test_nobody_gives_way_when_there_is_room_or_nobody_is_more_urgent() -> None:
    assert displaced([Head("w", 1.0, 2)], seats(5.0), 1, 2, 0.0, 4) == []
    assert displaced([Head("w", 4.95, 2)], seats(5.0), 0, 2, 0.1, 4) == []
    assert displaced([Head("w", 3.0, 2)], seats(5.0, cost_s=2.5), 0, 2, 0.0, 4) == []


def test_nobody_gives_way_in_vain_when_the_cache_would_be_too_small_even_so() -> None:
    assert displaced([Head("w", 1.0, 9)], seats(5.0, 9.0), 0, 0, 0.0, 4) == []
    assert displaced([Head("w", 1.0, 8)], seats(5.0, 9.0), 0, 0, 0.0, 4) == ["r9", "r5"]
    assert displaced([Head("w", 1.0, 8)], seats(5.0, 9.0), 0, 0, 0.0, 1) == []


def test_each_waiting_one_displaces_its_own_when_several_are_more_urgent() -> None:
    heads = [Head("a", 1.0, 4), Head("b", 2.0, 4), Head("c", 6.0, 4)]
    assert displaced(heads, seats(5.0, 9.0, 7.0), 0, 0, 0.0, 4) == ["r9", "r7"]

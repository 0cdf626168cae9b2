"""Least laxity first, as it is done inside an engine."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.algorithms.queue import queueing
from pools.vllm_scheduler.order import Head, LaxityQueue, Seat, Work, displaced, work_of
from pools.vllm_scheduler.scheduler_settings import Settings
from tests.oracles import queue_orders

WINDOW_S = 30.0


def work(hints: dict[str, Any] | None, priority: int = 0) -> Work:
    return work_of(hints, 100.0, 50, priority, WINDOW_S, 1.4)[0]


def test_request_is_due_by_its_hints_when_it_has_some() -> None:
    assert work({"lat_s": 10.0}).due_s == pytest.approx(100.0 + 1.4 * 10.0)
    assert work({"slo_s": 2.0}).due_s == 102.0
    assert work({"lat_s": 10.0, "slo_s": -1.5}).due_s == 98.5
    assert work({"lat_s": 10.0, "predicted_tokens": 20}).tokens == 20
    assert work({"lat_s": 10.0}).tokens == 50
    assert work_of({"lat_s": 10.0}, 100.0, 50, 0, WINDOW_S, 2.0)[0].due_s == 120.0
    assert Settings().window_factor == queueing.WINDOW_FACTOR


def test_request_goes_by_its_priority_or_by_a_window_when_it_has_no_hints() -> None:
    assert work(None, priority=99_500).key(0) == 99.5
    assert work({"other": 1}).key(0) == 130.0


@pytest.mark.parametrize("bad", ["2", True, math.inf, math.nan, -1.0, [1]])
def test_hint_counts_as_not_given_when_it_makes_no_sense(bad: Any) -> None:
    found, ignored = work_of({"lat_s": bad, "predicted_tokens": 5}, 100.0, 50, 0, WINDOW_S, 1.4)
    assert ignored == ("lat_s",)
    assert (found.due_s, found.tokens) == (130.0, 5)


@given(
    st.lists(st.tuples(st.integers(0, 100), st.integers(1, 500), st.integers(0, 600)), min_size=1, max_size=20),
    st.floats(0.0, 150.0),
)
def test_order_is_that_of_the_core_when_hints_tell_the_same(rows: list[tuple[float, int, int]], now_s: float) -> None:
    pace = queue_orders.Pace(ttft_s=0.5, tpot_s=0.02)
    config = queueing.OrderConfig(queueing.Order.LLF)
    arrival, tokens, generated = (np.array(column, dtype=np.float64) for column in zip(*rows, strict=True))
    known = queue_orders.Requests.arrived(arrival, tokens, pace)
    known = queue_orders.Requests(known.arrival_s, known.predicted_tokens, generated, known.due_s)
    works = [
        work_of({"lat_s": 0.5 + 0.02 * n, "ttft_s": 0.5, "predicted_tokens": n}, at, 9, 0, WINDOW_S, 1.4)[0]
        for at, n, _ in rows
    ]
    own = [work.key(g) for work, (_, _, g) in zip(works, rows, strict=True)]
    assert own == pytest.approx(queue_orders.keys(known, pace, config).tolist())
    places = [work.place(g, now_s) for work, (_, _, g) in zip(works, rows, strict=True)]
    ranks = queue_orders.ranks(known, pace, config, now_s)
    for a, b in itertools.combinations(range(len(rows)), 2):
        if abs(ranks[a] - ranks[b]) > 1e-3:  # what is late lies far below
            assert (places[a] < places[b]) == (ranks[a] < ranks[b])


Row = tuple[int, int, int]  # its number, its key, its work left


@given(st.lists(st.tuples(st.integers(-50, 50), st.integers(0, 9))), st.lists(st.integers(-60, 60)))
def test_queue_gives_the_shortest_late_one_first_and_then_the_least_key(
    works: list[tuple[int, int]], moments: list[int]
) -> None:
    rows: list[Row] = [(n, key, left) for n, (key, left) in enumerate(works)]
    clock = [-100.0]

    def place(row: Row) -> tuple[float, ...]:
        n, key, left = row
        return (0, left or math.inf, key, n) if key < clock[0] else (1, key, n)

    def in_order(rows: list[Row]) -> list[Row]:
        return sorted(rows, key=place)

    queue: LaxityQueue[Row] = LaxityQueue(lambda row: (row[1], row[2]), lambda: clock[0], rows)
    assert len(queue) == len(rows)
    assert list(queue) == in_order(rows)
    removed = rows[::3]
    queue.remove_requests(removed)
    left = [row for row in rows if row not in removed]
    for moment in sorted(moments):
        clock[0] = moment
        assert list(queue) == in_order(left)
        assert queue.first(2) == in_order(left)[:2]
        if left:
            assert queue.peek_request() is queue.first(1)[0]
            left.remove(queue.pop_request())
        queue.remove_requests(left[:1])
        del left[:1]
    assert [queue.pop_request() for _ in left] == in_order(left)
    assert not queue
    with pytest.raises(IndexError):
        queue.pop_request()


def test_request_whose_work_is_not_known_goes_last_of_those_that_are_late() -> None:
    known, unknown, earlier = work({"lat_s": 9.0}), work(None), work(None, priority=99_000)
    assert known.place(0, 200.0) < earlier.place(0, 200.0) < unknown.place(0, 200.0)
    assert known.place(0, 200.0) < unknown.place(0, 100.0)


def seats(*keys: float, cost_s: float = 0.0, left_s: float = 0.0) -> list[Seat[str]]:
    return [Seat(f"r{key:g}", key, cost_s, 4, left_s) for key in keys]


def test_most_relaxed_gives_way_when_the_batch_is_full() -> None:
    assert displaced([Head("w", 1.0, 2)], seats(5.0, 9.0, 7.0), 0, 100, 0.0, 0.0, 4) == ["r9"]


def test_nobody_gives_way_when_there_is_room_or_nobody_is_more_urgent() -> None:
    assert displaced([Head("w", 1.0, 2)], seats(5.0), 1, 2, 0.0, 0.0, 4) == []
    assert displaced([Head("w", 4.95, 2)], seats(5.0), 0, 2, 0.0, 0.1, 4) == []
    assert displaced([Head("w", 3.0, 2)], seats(5.0, cost_s=2.5), 0, 2, 0.0, 0.0, 4) == []


def test_nobody_gives_way_in_vain_when_the_cache_would_be_too_small_even_so() -> None:
    assert displaced([Head("w", 1.0, 9)], seats(5.0, 9.0), 0, 0, 0.0, 0.0, 4) == []
    assert displaced([Head("w", 1.0, 8)], seats(5.0, 9.0), 0, 0, 0.0, 0.0, 4) == ["r9", "r5"]
    assert displaced([Head("w", 1.0, 8)], seats(5.0, 9.0), 0, 0, 0.0, 0.0, 1) == []


def test_each_waiting_one_displaces_its_own_when_several_are_more_urgent() -> None:
    heads = [Head("a", 1.0, 4), Head("b", 2.0, 4), Head("c", 6.0, 4)]
    assert displaced(heads, seats(5.0, 9.0, 7.0), 0, 0, 0.0, 0.0, 4) == ["r9", "r7"]


def test_laxity_below_none_counts_as_none_when_somebody_may_give_way() -> None:
    late = Head("w", -100.0, 2)
    assert displaced([late], seats(5.0), 0, 100, 0.0, 0.0, 4) == ["r5"]
    assert displaced([late], seats(5.0), 0, 100, 5.0, 0.0, 4) == []  # it has none to give: it is due to begin now


def test_one_gives_way_only_when_it_can_afford_the_other_and_takes_longer_than_that() -> None:
    head = Head("w", 1.0, 2, left_s=3.0)
    assert displaced([head], seats(5.0, left_s=9.0), 0, 100, 0.0, 0.9, 4) == ["r5"]
    assert displaced([head], seats(5.0, left_s=9.0), 0, 100, 0.0, 1.0, 4) == []  # 1 + 3 + 1 is all of its laxity
    assert displaced([head], seats(5.0, left_s=3.0), 0, 100, 0.0, 0.0, 4) == []  # it is done as soon as the other were
    assert displaced([head], seats(5.5, left_s=4.0, cost_s=1.0), 0, 100, 0.0, 0.0, 4) == []
    # The next one that can is asked: the most relaxed is nearly done.
    either = [Seat("nearly done", 9.0, 0.0, 4, 0.5), Seat("begun", 8.0, 0.0, 4, 20.0)]
    assert displaced([head], either, 0, 100, 0.0, 0.0, 4) == ["begun"]

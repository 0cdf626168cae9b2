import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.algorithms.queue.queueing import Order, OrderConfig
from tests.oracles import queue_orders
from tests.oracles.queue_orders import Pace, Requests, Walk, walk

TOKEN = Pace(0.0, 1.0)  # a token a second
PACE = Pace(0.5, 0.1)
ARRIVALS, LENGTHS = [0.0, 1.0, 2.0], [10.0, 2.0, 1.0]


def latencies(found: Walk) -> list[float]:
    """Seconds a token (FREESH C.3)."""
    return [(end - start) / n for start, end, n in zip(ARRIVALS, found.done_s, LENGTHS, strict=True)]


def of(arrival: list[float], predicted: list[float], generated: list[float], due: list[float]) -> Requests:
    return Requests(*(np.array(column, dtype=np.float64) for column in (arrival, predicted, generated, due)))


def test_toy_example_is_served_as_in_the_paper_when_least_laxity_goes_first() -> None:
    found = walk(ARRIVALS, LENGTHS, TOKEN, OrderConfig(Order.LLF))
    assert found.served[:5] == ((0,), (1,), (2,), (1,), (0,))
    assert latencies(found) == pytest.approx([1.3, 1.5, 1.0])


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        (Order.FCFS, [1.0, 5.5, 11.0]),  # R0 blocks the head of the line
        (Order.SJF, [1.0, 6.0, 9.0]),  # R0 runs on, then the shortest
        (Order.SRTF, [1.3, 1.0, 2.0]),  # R1 has a token left, like R2, and runs
        (Order.EDF, [1.3, 1.5, 1.0]),
    ],
)
def test_toy_example_is_served_by_the_order_when_it_is_another(order: Order, expected: list[float]) -> None:
    found = walk(ARRIVALS, LENGTHS, TOKEN, OrderConfig(order, aging_tokens_per_s=0.0))
    assert latencies(found) == pytest.approx(expected)


def test_laxity_is_what_is_left_to_wait_when_work_is_counted() -> None:
    requests = Requests.arrived([10.0, 10.0], [20.0, 5.0], PACE)
    assert requests.due_s == pytest.approx([10.0 + 1.4 * 2.5, 10.0 + 1.4 * 1.0])
    assert queue_orders.laxity_s(requests, PACE, 11.0) == pytest.approx([0.0, -0.6])


def test_first_token_is_paid_once_when_a_request_has_begun() -> None:
    requests = of([0.0] * 4, [10.0] * 4, [0.0, 1.0, 9.0, 14.0], [9.0] * 4)
    assert queue_orders.remaining_s(requests, PACE) == pytest.approx([1.5, 0.9, 0.1, 0.1])


def test_slower_pace_makes_long_requests_urgent_when_the_clock_falls() -> None:
    requests = of([0.0, 0.0], [100.0, 10.0], [0.0, 0.0], [20.0, 13.0])
    fast, slow = Pace(0.5, 0.05), Pace(0.5, 0.15)
    assert queue_orders.ordered(requests, fast, OrderConfig()).tolist() == [1, 0]
    assert queue_orders.ordered(requests, slow, OrderConfig()).tolist() == [0, 1]


def test_long_request_is_not_starved_when_short_ones_age_less() -> None:
    requests = Requests.arrived([0.0, 31.0], [600.0, 1.0], PACE)
    aging, plain = (OrderConfig(Order.SJF, aging_tokens_per_s=value) for value in (20.0, 0.0))
    assert queue_orders.ordered(requests, PACE, aging).tolist() == [0, 1]
    assert queue_orders.ordered(requests, PACE, plain).tolist() == [1, 0]


def test_running_request_stays_when_a_waiting_one_is_no_more_urgent() -> None:
    requests = of([0.0, 1.0], [5.0, 5.0], [0.0, 0.0], [9.0, 9.0])
    running = np.array([False, True])
    assert queue_orders.seated(requests, running, 1, PACE, OrderConfig()).tolist() == [1]
    assert queue_orders.seated(requests, ~running, 1, PACE, OrderConfig()).tolist() == [0]
    urgent = of([0.0, 1.0], [5.0, 5.0], [0.0, 0.0], [8.9, 9.0])
    assert queue_orders.seated(urgent, running, 1, PACE, OrderConfig()).tolist() == [0]
    assert queue_orders.seated(urgent, running, 1, PACE, OrderConfig(), 0.2).tolist() == [1]
    assert queue_orders.seated(urgent, running, 1, PACE, OrderConfig(Order.FCFS)).tolist() == [1]
    assert queue_orders.seated(urgent, running, 0, PACE, OrderConfig()).tolist() == []


columns = st.lists(
    st.tuples(st.floats(0.0, 50.0), st.integers(1, 40), st.integers(0, 45), st.floats(0.0, 99.0), st.booleans()),
    min_size=1,
    max_size=12,
)


@settings(deadline=None)
@given(columns, st.sampled_from(list(Order)), st.integers(1, 14))
def test_seats_are_the_head_of_the_order_when_drawn(rows, order, n):
    rows = sorted(rows)
    arrival, predicted, generated, due, running = (list(column) for column in zip(*rows, strict=True))
    requests, config = of(arrival, predicted, generated, due), OrderConfig(order)
    key = queue_orders.keys(requests, PACE, config)
    chosen = queue_orders.seated(requests, np.array(running), n, PACE, config).tolist()
    assert len(chosen) == min(n, len(rows)) == len(set(chosen))
    for row, other in itertools.product(chosen, set(range(len(rows))) - set(chosen)):
        if order in queue_orders.PREEMPTIVE or running[row] == running[other]:
            assert key[row] <= key[other]
        else:
            assert running[row]
    assert queue_orders.ordered(requests, PACE, config).tolist() == sorted(
        range(len(rows)), key=lambda row: (key[row], row)
    )


@settings(deadline=None)
@given(columns, st.sampled_from(list(Order)), st.floats(0.0, 1e6))
def test_priorities_keep_the_order_when_handed_to_an_engine(rows, order, origin_s):
    arrival, predicted, generated, due, _ = (list(column) for column in zip(*sorted(rows), strict=True))
    requests, config = of(arrival, predicted, generated, due), OrderConfig(order)
    key = queue_orders.keys(requests, PACE, config)
    numbers = queue_orders.priorities(requests, PACE, config, origin_s)
    for a, b in itertools.combinations(range(len(rows)), 2):
        if key[a] + 0.002 < key[b]:
            assert numbers[a] < numbers[b]


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(1, 9)), min_size=1, max_size=7),
    st.sampled_from(list(Order)),
    st.integers(1, 3),
)
def test_workers_never_idle_when_requests_wait(rows, order, slots):
    arrival, tokens = (list(column) for column in zip(*sorted(rows), strict=True))
    found = walk(arrival, tokens, TOKEN, OrderConfig(order), slots)
    left = list(tokens)
    for tick, served in enumerate(found.served):
        waiting = [n for n in range(len(rows)) if arrival[n] <= tick and left[n]]
        assert len(served) == min(slots, len(waiting))
        assert set(served) <= set(waiting)
        for n in served:
            left[n] -= 1
    assert not any(left)
    assert all(end - start >= n for start, end, n in zip(arrival, found.done_s, tokens, strict=True))


def test_idle_ticks_are_walked_when_a_request_comes_late() -> None:
    found = walk([2.0], [1.5], TOKEN, OrderConfig())
    assert (found.served, found.begun_s, found.done_s) == (((), (), (0,), (0,)), (2.0,), (3.5,))


@pytest.mark.parametrize(
    "bad", [lambda: Pace(0.0, 0.0), lambda: OrderConfig(aging_tokens_per_s=-1.0), lambda: OrderConfig("best")]
)  # type: ignore[arg-type]
def test_knobs_are_refused_when_they_make_no_sense(bad) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        bad()

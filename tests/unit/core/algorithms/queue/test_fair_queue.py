"""The queue that is served one by one, against the orders and shares worked out for all rows at once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.algorithms.queue.fair_queue import FairQueue, Waiting, due_s, key, priority
from core.algorithms.queue.queueing import Order, OrderConfig
from tests.oracles import queue_orders
from tests.oracles.queue_orders import Pace

PACE = Pace(0.5, 0.05)
ROWS = st.lists(
    st.tuples(st.integers(0, 40), st.integers(1, 2000), st.integers(0, 2)), min_size=1, max_size=40
)  # arrival in quarters of a second, tokens, tenant
CONFIGS = st.builds(OrderConfig, order=st.sampled_from(Order), aging_tokens_per_s=st.sampled_from([0.0, 20.0, 300.0]))


def prompt_of(tokens):
    """Another order of prompts than that of answers."""
    return 1 + 37 * tokens % 1009


def waiting(arrival_s, tokens, tenant=None, head_start_s=0.0):
    work_s = tokens * PACE.tpot_s + PACE.ttft_s
    return Waiting(
        arrival_s, prompt_of(tokens), tokens, work_s, due_s(arrival_s, work_s, OrderConfig()), tenant, head_start_s
    )


def columns(rows):
    arrival_s = [quarters / 4.0 for quarters, _, _ in rows]
    tokens, prompts = ([float(count(own)) for _, own, _ in rows] for count in (int, prompt_of))
    return queue_orders.Requests.arrived(arrival_s, tokens, PACE, prompts)


def drained(queue, now_s=None):
    found = []
    if now_s is not None:
        queue.advance(now_s)
    while (item := queue.pop()) is not None:
        found.append(item)
    return found


@settings(deadline=None)
@given(ROWS, CONFIGS)
def test_line_is_served_in_the_order_of_all_rows_when_all_wait(rows, config):
    rows = sorted(rows)
    queue = FairQueue(config)
    for n, (quarters, tokens, _) in enumerate(rows):
        queue.push(n, waiting(quarters / 4.0, tokens))
    assert queue.tokens == sum(tokens + prompt_of(tokens) for _, tokens, _ in rows)
    assert queue.peek() == queue_orders.ordered(columns(rows), PACE, config)[0]
    assert drained(queue) == queue_orders.ordered(columns(rows), PACE, config).tolist()
    assert (len(queue), queue.tokens, queue.peek()) == (0, 0, None)


@settings(deadline=None)
@given(ROWS, CONFIGS, st.lists(st.floats(0.0, 200.0), min_size=1, max_size=5).map(sorted))
def test_line_is_that_of_all_rows_at_each_moment_when_some_become_late(rows, config, moments):
    rows = sorted(rows)
    queue, left = FairQueue(config), list(range(len(rows)))
    for n, (quarters, tokens, _) in enumerate(rows):
        queue.push(n, waiting(quarters / 4.0, tokens))
    for now_s in moments:
        own = columns([rows[n] for n in left])
        order = [left[n] for n in queue_orders.ordered(own, PACE, config, now_s)]
        queue.advance(now_s)
        assert queue.peek() == (order[0] if order else None)
        if order:
            assert queue.pop() == order[0]
            left.remove(order[0])
    order = [left[n] for n in queue_orders.ordered(columns([rows[n] for n in left]), PACE, config, moments[-1])]
    assert drained(queue) == order


def test_shortest_goes_first_when_all_are_late_and_urgency_says_so():
    queue = FairQueue(OrderConfig(Order.LLF))
    for n, tokens in enumerate((500, 100, 300)):
        queue.push(n, waiting(0.0, tokens))
    assert queue.urgency() == (2, key(waiting(0.0, 100), queue.config))
    assert drained(queue, 1000.0) == [1, 2, 0]
    queue.push("late", waiting(0.0, 500))
    queue.push("in time", waiting(990.0, 500))
    queue.advance(1000.0)
    assert queue.urgency() == (1, pytest.approx(25.5))  # before other queues' that can be in time
    assert not queue.remove(0)
    assert drained(queue) == ["late", "in time"]


def test_window_is_as_long_as_the_order_says_and_never_shorter_than_the_request():
    wide = OrderConfig(Order.LLF, window_factor=3.0)
    assert due_s(10.0, 4.0, wide) == 22.0
    with pytest.raises(ValueError, match="window_factor from 1"):
        OrderConfig(window_factor=0.9)


@settings(deadline=None)
@given(ROWS, CONFIGS, st.tuples(*(st.sampled_from([0.5, 1.0, 3.0]) for _ in range(3))))
def test_tenants_get_their_shares_when_weights_are_given(rows, config, weights):
    rows = sorted(rows)
    queue = FairQueue(config, dict(enumerate(weights)))
    for n, (quarters, tokens, tenant) in enumerate(rows):
        queue.push(n, waiting(quarters / 4.0, tokens, tenant))
    served = drained(queue)
    # Of each tenant in its order.
    for tenant in range(3):
        own = [n for n, row in enumerate(rows) if row[2] == tenant]
        order = [n for n in queue_orders.ordered(columns(rows), PACE, config).tolist() if n in own]
        assert [n for n in served if n in own] == order
    # Whoever is served had the least account of all that still wait.
    account = [0.0, 0.0, 0.0]
    left = [row[2] for row in rows]
    for n in served:
        tenant = rows[n][2]
        assert account[tenant] == min(account[t] for t in left)
        account[tenant] += (rows[n][1] + prompt_of(rows[n][1])) / weights[tenant]
        left.remove(tenant)


@settings(deadline=None)
@given(st.lists(st.sampled_from(["a", "b", "pop"]), min_size=1, max_size=200))
def test_shares_stay_within_one_request_when_tenants_come_and_go(steps):
    """Over any stretch in which both wait, what they are served differs by one request's tokens at most each."""
    config, tokens = OrderConfig(Order.FCFS), 100
    queue, served, waits, gap = FairQueue(config, {}), [], {"a": 0, "b": 0}, 0
    for n, step in enumerate(steps):
        if step != "pop":
            queue.push((step, n), waiting(float(n), tokens, step))
            waits[step] += 1
        elif (item := queue.pop()) is not None:
            both = all(waits.values())
            waits[item[0]] -= 1
            served.append(item[0])
            gap = gap + (1 if item[0] == "a" else -1) if both else 0
            assert abs(gap) <= 2


def test_nobody_starves_when_short_ones_keep_coming_and_waiting_counts():
    config = OrderConfig(Order.SJF, aging_tokens_per_s=10.0)
    queue = FairQueue(config)
    queue.push("long", waiting(0.0, 1000))
    for second in range(1, 200):
        queue.push(second, waiting(float(second), 10))
        if queue.pop() == "long":
            break
    assert 95 <= second <= 105  # 990 tokens at 10 a second
    forever = FairQueue(OrderConfig(Order.SJF, aging_tokens_per_s=0.0))
    forever.push("long", waiting(0.0, 1000))
    for second in range(1, 200):
        forever.push(second, waiting(float(second), 10))
        assert forever.pop() != "long"


def test_one_is_not_served_when_it_has_left():
    config = OrderConfig(Order.LLF)
    queue = FairQueue(config)
    for n in range(3):
        queue.push(n, waiting(float(n), 10))
    assert queue.remove(0)
    assert not queue.remove(0)
    assert 0 not in queue
    with pytest.raises(ValueError, match="waits already"):
        queue.push(1, waiting(0.0, 1))
    assert drained(queue) == [1, 2]


def test_those_named_go_first_when_reordered():
    config = OrderConfig(Order.FCFS)
    queue = FairQueue(config)
    for n in range(5):
        queue.push(n, waiting(float(n), 10))
    queue.reorder([3, 9, 2])
    assert drained(queue) == [3, 2, 0, 1, 4]


def test_one_goes_first_when_named_again_and_again():
    config = OrderConfig(Order.FCFS)
    queue = FairQueue(config)
    for n in range(3):
        queue.push(n, waiting(float(n), 10))
    for _ in range(3):
        queue.reorder([2])
    assert drained(queue) == [2, 0, 1]


@pytest.mark.parametrize("aging_tokens_per_s", [20.0, 0.0])
def test_head_start_counts_as_time_when_given(aging_tokens_per_s):
    for order in Order:
        config = OrderConfig(order, aging_tokens_per_s=aging_tokens_per_s)
        plain, ahead = waiting(5.0, 100), waiting(5.0, 100, head_start_s=10.0)
        if order is Order.LLF:  # how urgent it is, its laxity says, not its client
            assert key(ahead, config) == key(plain, config)
            continue
        assert key(ahead, config) < key(plain, config)
        assert priority(ahead, config) < priority(plain, config)


@settings(deadline=None)
@given(ROWS, CONFIGS)
def test_priorities_are_those_of_all_rows_when_made_one_by_one(rows, config):
    rows = sorted(rows)
    made = [priority(waiting(quarters / 4.0, tokens), config) for quarters, tokens, _ in rows]
    expected = queue_orders.priorities(columns(rows), PACE, config, 0.0)
    np.testing.assert_allclose(made, expected, atol=1)


def test_weight_must_be_above_zero():
    with pytest.raises(ValueError, match="above 0"):
        FairQueue(OrderConfig(), {"a": 0.0})

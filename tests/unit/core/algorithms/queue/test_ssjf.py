"""Speculative shortest job first: order, aging, classes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.algorithms.queue.fair_queue import FairQueue, Waiting
from core.algorithms.queue.queueing import Order, OrderConfig
from core.algorithms.queue.ssjf import NO_LIMIT_S, LengthClasses, measured_aging
from core.types import Limits


def order(predicted_tokens, arrival_s, aging_tokens_per_s: float) -> np.ndarray:
    """Numbers of requests as a queue serves them that all wait in it, in order of arrival."""
    queue: FairQueue[int] = FairQueue(OrderConfig(Order.SJF, aging_tokens_per_s=aging_tokens_per_s))
    for number in np.argsort(arrival_s, kind="stable").tolist():
        queue.push(number, Waiting(arrival_s[number], 0, predicted_tokens[number], 0.0, 0.0))
    return np.array([queue.pop() for _ in range(len(queue))])


def overtaking_s(predicted_tokens: float, aging_tokens_per_s: float) -> float:
    """For how long after a request later ones, of at least a token, can still go before it."""
    return (predicted_tokens - 1.0) / aging_tokens_per_s


jobs = st.lists(st.tuples(st.integers(1, 2000), st.integers(0, 100)), min_size=1, max_size=40)


@settings(deadline=None)
@given(jobs, st.floats(0.0, 100.0), st.floats(0.0, 1000.0))
def test_order_is_that_of_remaining_length_less_aging_when_looked_at_at_any_time(
    queue: list[tuple[int, int]], aging: float, now_s: float
) -> None:
    predicted, arrival = np.array(queue, dtype=float).T
    found = order(predicted, arrival, aging)
    aged = predicted - aging * (now_s - arrival)
    assert sorted(found.tolist()) == list(range(len(queue)))
    assert (np.diff(aged[found]) >= -1e-6 * (1 + np.abs(aged[found][1:]))).all()


@settings(deadline=None)
@given(jobs, st.floats(0.1, 100.0))
def test_nobody_is_overtaken_for_longer_than_the_bound_when_requests_age(
    queue: list[tuple[int, int]], aging: float
) -> None:
    predicted, arrival = np.array(queue, dtype=float).T
    found = order(predicted, arrival, aging).tolist()
    for place, long in enumerate(found):
        ahead = [arrival[job] for job in found[:place]]
        assert max(ahead, default=0.0) <= arrival[long] + overtaking_s(predicted[long], aging) + 1e-9


def test_bound_is_reached_when_the_shortest_come_until_then() -> None:
    assert overtaking_s(101, 10.0) == 10.0
    assert order([101, 1, 1], [0.0, 9.9, 10.1], 10.0).tolist() == [1, 0, 2]


def test_order_is_shortest_first_when_nothing_ages() -> None:
    assert order([30, 10, 20, 10], [0.0, 3.0, 1.0, 2.0], 0.0).tolist() == [3, 1, 2, 0]  # equals by arrival


def test_order_is_first_come_first_served_when_aging_outweighs_all_lengths() -> None:
    assert order([500, 1, 300], [0.0, 1.0, 2.0], 1000.0).tolist() == [0, 1, 2]


def test_mean_completion_time_falls_when_short_ones_go_first() -> None:
    rng = np.random.default_rng(3)
    tokens = rng.lognormal(4.5, 1.2, 200)

    def mean_s(served: np.ndarray) -> float:
        return float(np.cumsum(tokens[served]).mean())

    assert mean_s(order(tokens, np.zeros(200), 20.0)) < 0.7 * mean_s(np.arange(200))


@settings(deadline=None)
@given(jobs, st.integers(1, 2000), st.sampled_from([0.5, 5.0, 72.0]))
def test_long_answers_are_overtaken_for_as_long_as_they_may_take_when_aging_is_measured(
    queue: list[tuple[int, int]], long_tokens: int, limit_s: float
) -> None:
    predicted, arrival = np.array(queue, dtype=float).T
    found = order(predicted, arrival, measured_aging(long_tokens, [Limits(e2e_s=limit_s)])).tolist()
    for place, long in enumerate(found):
        ahead = [arrival[job] for job in found[:place]]
        allowed_s = limit_s * max(1.0, predicted[long] / long_tokens)
        assert max(ahead, default=0.0) <= arrival[long] + allowed_s + 1e-6


@pytest.mark.parametrize(
    ("limits", "allowed_s"),
    [
        ([Limits(e2e_s=72.0)], 72.0),
        ([Limits(ttft_s=1.0, tpot_s=0.1, e2e_s=72.0)], 72.0),
        ([Limits(ttft_s=1.0, tpot_s=0.1)], 61.0),
        ([Limits(ttft_s=2.0)], 2.0),
        ([Limits(e2e_s=10.0), Limits(e2e_s=20.0)], 20.0),
        ([Limits()], NO_LIMIT_S),
        ([], NO_LIMIT_S),
    ],
)
def test_time_that_an_answer_may_take_is_by_its_limits_when_aging_is_measured(
    limits: list[Limits], allowed_s: float
) -> None:
    assert 600 / measured_aging(600.0, limits) == pytest.approx(allowed_s)


def test_aging_is_that_of_a_token_when_answers_have_none() -> None:
    assert measured_aging(0.0, [Limits(e2e_s=10.0)]) == 0.1


def test_lengths_fall_into_five_classes_when_cut_at_the_papers_percentiles() -> None:
    found = LengthClasses.of(np.arange(1000))
    shares = np.bincount(found.classes(np.arange(1000)), minlength=5) / 1000
    assert shares == pytest.approx([0.25, 0.25, 0.25, 0.24, 0.01])
    assert found.classes(found.typical_tokens).tolist() == [0, 1, 2, 3, 4]
    assert found.classes([found.bounds_tokens[0]]).tolist() == [1]  # a bound begins the next class


def test_scores_are_rounded_to_classes_when_an_ordinal_predictor_answers() -> None:
    found = LengthClasses.of(np.arange(1000))
    low, *_, high = found.typical_tokens
    assert found.tokens([-0.7, 0.4, 3.6, 9.0]).tolist() == [low, low, high, high]


def test_classes_exist_when_all_lengths_are_equal() -> None:
    found = LengthClasses.of([7, 7, 7])
    assert found.classes([6, 7, 8]).tolist() == [0, 4, 4]
    assert found.typical_tokens[4] == 7.0
    with pytest.raises(ValueError, match="outputs"):
        LengthClasses.of([])

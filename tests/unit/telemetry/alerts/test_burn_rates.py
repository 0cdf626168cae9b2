"""Burn rates over windows, against counting each request by itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telemetry.alerts.burn_rates import WINDOWS, BurnWindow, MinuteCount, burn_rate, burning, counted, rates
from telemetry.alerts.queues import growth

NOW_S = 1_800_000_000.0
FAST = WINDOWS[0]


def minutes(*pairs: tuple[int, int]) -> list[MinuteCount]:
    """(judged, within) of the minutes before now, oldest first."""
    count = len(pairs)
    return [MinuteCount(NOW_S - 60.0 * (count - n), judged, within) for n, (judged, within) in enumerate(pairs)]


counts = st.lists(
    st.integers(0, 50).flatmap(lambda judged: st.tuples(st.just(judged), st.integers(0, judged))), max_size=420
).map(lambda pairs: minutes(*pairs))


@given(counts, st.sampled_from(WINDOWS), st.floats(0.5, 0.9999))
def test_burn_is_the_lower_of_both_windows_counted_request_by_request(found, window, target):
    def by_hand(length_s: float) -> float:
        outcomes = [ok for m in found if NOW_S - m.start_s <= length_s for ok in _requests(m)]
        return (outcomes.count(False) / len(outcomes)) / (1 - target) if outcomes else 0.0

    judged = sum(m.judged for m in found if NOW_S - m.start_s <= window.long_s)
    rate = burning(window, found, target, NOW_S)
    if 0 < judged < window.least_judged:
        assert rate is None
    else:
        assert rate == pytest.approx(min(by_hand(window.short_s), by_hand(window.long_s)), abs=1e-6)


def _requests(minute: MinuteCount) -> list[bool]:
    return [True] * minute.within + [False] * (minute.judged - minute.within)


@given(counts, st.floats(0.5, 0.9999))
def test_burn_never_exceeds_a_failure_of_everything(found, target):
    for window in WINDOWS:
        rate = burning(window, found, target, NOW_S)
        assert rate is None or 0.0 <= rate <= 1.0 / (1.0 - target) + 1e-6


@given(counts)
def test_order_of_the_minutes_does_not_matter(found):
    assert burning(FAST, found, 0.99, NOW_S) == burning(FAST, found[::-1], 0.99, NOW_S)


def test_all_failing_for_an_hour_burns_a_hundred_times_too_fast_when_one_in_a_hundred_may_fail():
    assert burning(FAST, minutes(*[(10, 0)] * 60), 0.99, NOW_S) == pytest.approx(100.0)


def test_a_burst_that_is_over_holds_no_alert():
    over = minutes(*[(10, 0)] * 50, *[(10, 10)] * 10)
    assert burning(FAST, over, 0.99, NOW_S) == 0.0


def test_a_short_burst_after_a_good_hour_is_not_enough():
    brief = minutes(*[(100, 100)] * 59, (100, 50))
    assert burning(FAST, brief, 0.99, NOW_S) < FAST.factor


def test_too_few_requests_say_nothing_and_none_at_all_burn_nothing():
    assert burning(FAST, minutes((3, 1)), 0.99, NOW_S) is None
    assert burning(FAST, [], 0.99, NOW_S) == 0.0


def test_an_objective_for_all_requests_has_no_budget_but_a_finite_rate():
    assert burn_rate(10, 10, 1.0) == 0.0
    assert burn_rate(10, 9, 1.0) == pytest.approx(1e5)


def test_rates_are_given_for_each_length_and_none_where_nothing_was_judged():
    found = rates(minutes((10, 9)), 0.99, NOW_S + 1_800.0)
    assert sorted(found) == [300.0, 1_800.0, 3_600.0, 21_600.0, 259_200.0]
    assert found[300.0] is None
    assert found[3_600.0] == pytest.approx(10.0)


def test_windows_are_those_of_the_workbook():
    """Table 5-8: the share of thirty days' budget that is gone when a window raises its alert."""
    month_s = 30 * 86_400.0
    spent = {window.rule: window.factor * window.long_s / month_s for window in WINDOWS}
    assert spent == pytest.approx({"slo_burn_fast": 0.02, "slo_burn_slow": 0.05, "slo_burn_steady": 0.10})
    assert all(window.short_s == pytest.approx(window.long_s / 12) for window in WINDOWS)


def test_counting_includes_the_minute_that_still_runs():
    assert counted([MinuteCount(NOW_S - 10.0, 5, 4)], NOW_S, 300.0) == (5, 4)
    assert isinstance(FAST, BurnWindow)


@pytest.mark.parametrize(
    ("means", "grown"),
    [
        ((0.0, 5.0, 10.0, 20.0, 40.0), 40.0),
        ((40.0, 20.0, 10.0, 5.0, 0.0), 0.0),
        ((10.0, 30.0, 20.0, 40.0, 50.0), 0.0),
        ((10.0, None, 20.0, None, 50.0), 40.0),
        ((None, 5.0, 10.0, 20.0, 40.0), None),
        ((1.0, 5.0, 10.0, 20.0, None), None),
        ((), None),
    ],
)
def test_growth_of_a_queue(means, grown):
    assert growth(means) == grown

from __future__ import annotations

import statistics

import numpy as np
import pytest

from telemetry.report_values.month_forecast import month_forecast, used_up_in_days


def test_forecast_is_the_mean_of_the_newest_seven_days_for_each_day_left():
    found = month_forecast(100.0, [999.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], 10.5)
    assert found is not None
    assert (found.a_day, found.days) == (4.0, 7)
    assert found.value == pytest.approx(100.0 + 4.0 * 10.5)
    assert found.low < found.value < found.high


def test_range_holds_four_months_of_five_when_days_vary_by_chance():
    rng = np.random.default_rng(5)
    within = 0
    for _ in range(1_000):
        days = rng.normal(100.0, 20.0, 27)
        found = month_forecast(0.0, list(days[:7]), 20.0)
        within += found.low <= days[7:].sum() <= found.high
    assert within == pytest.approx(800, abs=40)


def test_forecast_is_never_below_what_is_used_and_exact_when_the_month_is_over():
    found = month_forecast(50.0, [0.0, 0.0, 30.0, 0.0], 5.0)
    assert found.low == 50.0
    over = month_forecast(50.0, [1.0, 2.0, 3.0], 0.0)
    assert (over.low, over.value, over.high) == (50.0, 50.0, 50.0)


@pytest.mark.parametrize("days", [[], [1.0, 2.0], [None, 3.0, None, 4.0]])
def test_there_is_no_forecast_when_fewer_than_three_days_are_known(days):
    assert month_forecast(1.0, days, 10.0) is None


def test_days_that_are_not_known_are_left_out():
    found = month_forecast(0.0, [None, 2.0, 4.0, 6.0], 1.0)
    assert (found.value, found.days) == (statistics.mean([2, 4, 6]), 3)


def test_budget_is_used_up_at_the_pace_of_the_forecast():
    assert used_up_in_days(50.0, 100.0, 10.0) == 5.0
    assert used_up_in_days(120.0, 100.0, 10.0) == 0.0
    assert used_up_in_days(50.0, 100.0, 0.0) is None

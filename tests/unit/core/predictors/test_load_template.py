"""The weekly template: what it rests on, what it forgets, and that a rise is not missed."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.predictors.load_template import (
    DAY_S,
    WEEK_S,
    Basis,
    LoadHistory,
    TemplateConfig,
    forecast,
    from_json,
    observe,
    to_json,
)

HOUR = TemplateConfig(step_s=3600.0, percentile=1.0, neighbours=0, recent_steps=2)
MONDAY_S = 4.0 * DAY_S  # 5 January 1970


def rate_at(at_s: float) -> float:
    """Ten at night, up to a hundred at noon, a fifth of that at weekends."""
    day = math.floor((at_s - MONDAY_S) / DAY_S) % 7
    hour = (at_s % DAY_S) / 3600.0
    return (0.2 if day >= 5 else 1.0) * (10.0 + 90.0 * max(0.0, math.sin(math.pi * (hour - 6.0) / 12.0)))


def observed(start_s: float, end_s: float, config: TemplateConfig = HOUR, history: LoadHistory | None = None):
    history = history or LoadHistory()
    for step in range(round((end_s - start_s) / config.step_s)):
        at_s = start_s + step * config.step_s
        history = observe(history, "MM", at_s, [5.0 * rate_at(at_s)], config)
    return history


def test_rise_is_foreseen_when_the_week_before_had_it():
    history = observed(MONDAY_S, MONDAY_S + WEEK_S + 6 * 3600.0)
    found = forecast(history, "MM", MONDAY_S + WEEK_S + 6 * 3600.0, 6, HOUR)
    assert set(found.bases) == {Basis.WEEK}
    assert found.rates == pytest.approx([rate_at(MONDAY_S + (6 + k) * 3600.0) for k in range(6)])
    assert found.peak() == pytest.approx(rate_at(MONDAY_S + 11 * 3600.0))


def test_weekend_is_foreseen_from_weekends():
    saturday_s = MONDAY_S + 5 * DAY_S
    history = observed(MONDAY_S, saturday_s + 12 * 3600.0)
    sunday = forecast(history, "MM", saturday_s + DAY_S, 12, HOUR)
    assert set(sunday.bases) == {Basis.DAY}
    assert sunday.rates == pytest.approx([rate_at(saturday_s + k * 3600.0) for k in range(12)])


def test_working_day_is_foreseen_from_working_days_when_it_is_the_first_of_its_kind():
    tuesday_s = MONDAY_S + DAY_S
    found = forecast(observed(MONDAY_S, tuesday_s), "MM", tuesday_s, 24, HOUR)
    assert set(found.bases) == {Basis.DAY}
    assert found.rates[12] == pytest.approx(100.0)


def test_what_came_recently_is_held_when_there_is_no_pattern_yet():
    history = observed(MONDAY_S, MONDAY_S + 9 * 3600.0)
    found = forecast(history, "MM", MONDAY_S + 9 * 3600.0, 3, HOUR)
    assert set(found.bases) == {Basis.RECENT}
    assert found.rates == pytest.approx([rate_at(MONDAY_S + 8 * 3600.0)] * 3)


def test_what_came_recently_is_the_least_when_the_template_missed_it():
    now_s = MONDAY_S + WEEK_S + 3 * 3600.0
    history = observe(observed(MONDAY_S, now_s), "MM", now_s, [5.0 * 60.0], HOUR)
    found = forecast(history, "MM", now_s, 10, HOUR)
    assert found.bases[1] is Basis.RECENT
    assert found.rates[1] == 60.0
    assert found.bases[9] is Basis.WEEK  # noon is above that anyway
    assert found.rates[9] == pytest.approx(100.0)
    assert found.basis is Basis.RECENT


def test_nothing_is_known_when_nothing_was_seen():
    found = forecast(LoadHistory(), "LL", 0.0, 3, HOUR)
    assert (found.rates, found.basis, found.peak()) == ((None,) * 3, Basis.NONE, None)


def test_old_figures_do_not_count_as_recent():
    history = observed(MONDAY_S, MONDAY_S + 3600.0)
    found = forecast(history, "MM", MONDAY_S + 9 * 3600.0, 2, HOUR)
    assert found.rates == (None, None)


def test_template_follows_the_sites_time_when_it_has_an_offset():
    tokyo = TemplateConfig(step_s=3600.0, percentile=1.0, neighbours=0, utc_offset_s=9 * 3600.0)
    friday_s = MONDAY_S + 4 * DAY_S + 16 * 3600.0  # Saturday 01:00 there
    history = observe(LoadHistory(), "MM", friday_s, [50.0], tokyo)
    assert forecast(history, "MM", friday_s + DAY_S, 1, tokyo).bases == (Basis.DAY,)  # Sunday there
    assert forecast(history, "MM", friday_s + 2 * DAY_S, 1, tokyo).bases == (Basis.NONE,)  # Monday there


def test_peak_of_a_step_is_its_busiest_stretch():
    config = TemplateConfig(step_s=300.0)
    history = observe(LoadHistory(), "SS", 0.0, [5.0, 0.0, 40.0] + [10.0] * 57 + [15.0], config)
    assert forecast(history, "SS", 0.0, 1, config).rates == (8.0,)
    assert history.series["SS"].last_step - config.step_of(0.0) == 1


def test_percentile_leaves_an_outlier_out_when_asked_to():
    history = LoadHistory()
    config = TemplateConfig(step_s=3600.0, percentile=0.5, neighbours=0)
    for week, rate in enumerate([10.0, 12.0, 500.0]):
        history = observe(history, "MM", MONDAY_S + week * WEEK_S, [5.0 * rate], config)
    assert forecast(history, "MM", MONDAY_S + 3 * WEEK_S, 1, config).rates == (12.0,)


def test_weeks_are_forgotten_when_they_are_too_old():
    config = TemplateConfig(step_s=3600.0, weeks=2, percentile=1.0, neighbours=0)
    history = LoadHistory()
    for week, rate in enumerate([90.0, 20.0, 30.0]):
        history = observe(history, "MM", MONDAY_S + week * WEEK_S, [5.0 * rate], config)
    assert forecast(history, "MM", MONDAY_S + 3 * WEEK_S, 1, config).rates == (30.0,)
    assert all(len(samples) <= 2 for samples in history.series["MM"].slots.values())


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3 * 604_800 // 5), st.floats(0.0, 100.0)), min_size=1, max_size=30),
    st.integers(0, 4 * 604_800),
)
def test_forecasts_lie_among_what_was_seen_and_survive_storage(stretches, now_s):
    history = LoadHistory()
    for stretch, amount in stretches:
        history = observe(history, "MM", 5.0 * stretch, [amount], HOUR)
    again = LoadHistory()
    for stretch, amount in reversed(stretches + stretches):
        again = observe(again, "MM", 5.0 * stretch, [amount], HOUR)
    assert again == history  # in any order, and observed twice
    stored = from_json(json.loads(json.dumps(to_json(history))))
    assert stored == history
    found = forecast(history, "MM", float(now_s), 30, HOUR)
    seen = [amount / 5.0 for _, amount in stretches]
    for rate, basis in zip(found.rates, found.bases, strict=True):
        assert (rate is None) == (basis is Basis.NONE)
        assert rate is None or 0.0 <= rate <= max(seen) + 1e-9


def test_state_is_a_value():
    before = observed(MONDAY_S, MONDAY_S + 3600.0)
    kept = to_json(before)
    observe(before, "MM", MONDAY_S, [1e6], HOUR)
    assert to_json(before) == kept
    assert observe(before, "MM", MONDAY_S, [], HOUR) is before


@pytest.mark.parametrize("wrong", [{"step_s": 1.0}, {"step_s": 7_000.0}, {"percentile": 2.0}, {"weeks": 0}])
def test_configuration_is_refused_when_it_makes_no_sense(wrong):
    with pytest.raises(ValueError, match=r"step|percentile"):
        TemplateConfig(**wrong)

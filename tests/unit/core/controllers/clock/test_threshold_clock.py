"""The clock by thresholds: up when busy or late, down when idle, and never down on what is not known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core.algorithms.clock.busy_thresholds import ThresholdClockConfig, next_clock_mhz
from core.controllers.clock.frequency import ClockState
from core.controllers.clock.threshold_clock import ThresholdClockObservation, step
from core.types import ClockObservation, Limits, Reason, SetSmClock

CONFIG = ThresholdClockConfig()
AT_1500 = ClockState(1500.0)
CALM = ClockObservation(1000.0, "i", 1500.0, 1330.0, 1980.0, 3, 0, 0.5, 0.05, None, Limits(1.0, 0.1, 10.0))


def decided(use, state=AT_1500, **changes):
    return step(state, ThresholdClockObservation(replace(CALM, **changes), use), CONFIG)


@pytest.mark.parametrize(
    ("use", "changes", "mhz", "reason"),
    [
        (0.3, {}, 1410.0, Reason.SLACK),
        (0.5, {}, 1500.0, Reason.NO_CHANGE),
        (0.75, {}, 1500.0, Reason.NO_CHANGE),
        (0.76, {}, 1980.0, Reason.CONGESTED),
        (0.3, {"waiting": 1}, 1980.0, Reason.CONGESTED),
        (0.3, {"ttft_s": 1.01}, 1980.0, Reason.CONGESTED),
        (0.3, {"tpot_s": 0.11}, 1980.0, Reason.CONGESTED),
        (0.3, {"e2e_s": 11.0}, 1980.0, Reason.CONGESTED),
        (None, {}, 1500.0, Reason.NO_DATA),
        (None, {"waiting": 1}, 1980.0, Reason.CONGESTED),
    ],
)
def test_clock_follows_use_and_latencies(use, changes, mhz, reason):
    state, effects = decided(use, **changes)
    assert (state.target_mhz, effects.rationale.reason) == (mhz, reason)
    assert effects.commands == (() if mhz == 1500.0 else (SetSmClock("i", mhz),))
    assert ("not known" in effects.rationale.summary) == (use is None)
    assert effects.rationale.inputs["use"] == use


def test_clock_stays_between_the_floor_and_the_top():
    down, effects = decided(0.1, ClockState(1350.0))
    assert down.target_mhz == 1330.0
    still, effects = decided(0.1, down)
    assert (still.target_mhz, effects.rationale.reason) == (1330.0, Reason.AT_LIMIT)
    assert "already at its bottom, 1330 MHz" in effects.rationale.summary
    top, effects = decided(0.9, None)
    assert (top.target_mhz, effects.rationale.reason) == (1980.0, Reason.AT_LIMIT)
    assert effects.commands == (SetSmClock("i", 1980.0),), "asked for once, so that state and GPU agree"


def test_clock_below_its_floor_is_not_raised_for_being_idle():
    assert next_clock_mhz(1200.0, 0.1, False, 1330.0, 1980.0, CONFIG) == 1200.0


@pytest.mark.parametrize("wrong", [{"busy_low": 0.8}, {"busy_low": 0.0}, {"clock_step_mhz": 0.0}, {"period_s": 0.0}])
def test_configuration_is_refused_when_it_makes_no_sense(wrong):
    with pytest.raises(ValueError, match="busy_low"):
        ThresholdClockConfig(**wrong)

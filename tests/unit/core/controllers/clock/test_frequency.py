from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.controllers.clock.frequency import ClockState, MiadConfig, step
from core.types import ClockObservation, Limits, Reason, SetSmClock

CALM = ClockObservation(
    now_s=50.0,
    instance="i1",
    sm_clock_mhz=900.0,
    min_mhz=300.0,
    max_mhz=1410.0,
    running=4,
    waiting=0,
    ttft_s=0.1,
    tpot_s=0.02,
    e2e_s=3.0,
    limits=Limits(0.3, 0.15, 7.0),
)


def test_clock_steps_down_when_there_is_slack() -> None:
    state, effects = step(ClockState(900.0), CALM, MiadConfig())
    assert state == ClockState(800.0)
    assert effects.commands == (SetSmClock("i1", 800.0),)
    assert effects.rationale.reason is Reason.SLACK
    assert effects.next_tick_s == 51.0


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"waiting": 2}, "2 requests wait"),
        ({"ttft_s": 0.31}, "TTFT"),
        ({"tpot_s": 0.2}, "TPOT"),
        ({"e2e_s": 8.0}, "E2E"),
    ],
)
def test_clock_doubles_when_congested(change: dict[str, float], word: str) -> None:
    state, effects = step(ClockState(600.0), replace(CALM, **change), MiadConfig())
    assert state == ClockState(1200.0)
    assert effects.rationale.reason is Reason.CONGESTED
    assert word in effects.rationale.summary


def test_clock_holds_when_congested_at_the_top() -> None:
    state, effects = step(ClockState(1410.0), replace(CALM, waiting=1), MiadConfig())
    assert (state.target_mhz, effects.commands) == (1410.0, ())
    assert effects.rationale.reason is Reason.AT_LIMIT


def test_clock_holds_when_slack_at_the_bottom() -> None:
    state, effects = step(ClockState(300.0), CALM, MiadConfig())
    assert (state.target_mhz, effects.commands) == (300.0, ())
    assert effects.rationale.reason is Reason.AT_LIMIT


def test_clock_steps_down_when_nothing_runs_and_nothing_was_measured() -> None:
    quiet = replace(CALM, running=0, ttft_s=None, tpot_s=None, e2e_s=None)
    _, effects = step(ClockState(1410.0), quiet, MiadConfig())
    assert effects.commands == (SetSmClock("i1", 1310.0),)


def test_clock_starts_from_the_top_when_there_is_no_state() -> None:
    state, _ = step(None, replace(CALM, sm_clock_mhz=345.0), MiadConfig())
    assert state.target_mhz == 1310.0


def test_reported_clock_is_ignored_when_the_gpu_throttles() -> None:
    state, _ = step(ClockState(1410.0), replace(CALM, sm_clock_mhz=700.0), MiadConfig())
    assert state.target_mhz == 1310.0


def test_latency_is_no_congestion_when_it_has_no_limit() -> None:
    state, _ = step(ClockState(900.0), replace(CALM, ttft_s=99.0, limits=Limits()), MiadConfig())
    assert state.target_mhz == 800.0


@pytest.mark.parametrize("knobs", [{"increase": 1.0}, {"decrease_mhz": 0.0}, {"period_s": 0.0}])
def test_configuration_is_refused_when_a_knob_has_no_effect(knobs: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="MIAD needs"):
        MiadConfig(**knobs)


@given(st.lists(st.booleans(), max_size=60), st.floats(100.0, 3000.0))
def test_clock_stays_within_its_range_when_anything_happens(congested: list[bool], start_mhz: float) -> None:
    state = ClockState(start_mhz)
    for waits in congested:
        state, effects = step(state, replace(CALM, waiting=int(waits)), MiadConfig())
        assert state.target_mhz is not None
        assert 300.0 <= state.target_mhz <= 1410.0
        assert all(isinstance(command, SetSmClock) for command in effects.commands)

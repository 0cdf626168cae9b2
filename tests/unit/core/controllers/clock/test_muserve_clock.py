"""mu-Serve's Algorithm 3, by hand and at random, and the loop around it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.algorithms.clock.slack_miad import Action, SlackConfig, agreed, next_clock_mhz, slack, wanted
from core.controllers.clock.muserve_clock import (
    DeviceObservation,
    MuServeClockConfig,
    MuServeClockState,
    PartitionLoad,
    Sample,
    observe_instance,
    step,
)
from core.types import ClockObservation, Limits, Reason, SetSmClock
from tests.oracles.many_clocks import slack_clocks_mhz

KNOBS = SlackConfig()
LOOP = MuServeClockConfig()


# -- the algorithm ---------------------------------------------------------------------------------


def test_clock_goes_up_when_slack_is_under_the_reserve() -> None:
    assert slack(1.0, 0.96) == pytest.approx(0.04)
    assert wanted(1.0, 0.96, 1.0, 1000.0, KNOBS) is Action.UP
    assert wanted(1.0, 1.5, 0.0, 1000.0, KNOBS) is Action.UP  # an insensitive one too


def test_step_down_is_weighed_by_sensitivity_when_slack_is_little() -> None:
    """Slack 0.12: 0.07 beyond the reserve. A step of 100 of 1000 MHz costs w x 0.88 x 0.1 = 0.088 w."""
    assert wanted(1.0, 0.88, 1.0, 1000.0, KNOBS) is Action.SAME
    assert wanted(1.0, 0.88, 0.79, 1000.0, KNOBS) is Action.DOWN
    assert wanted(1.0, 0.88, 0.81, 1000.0, KNOBS) is Action.SAME
    assert wanted(1.0, 0.88, 1.0, 2000.0, KNOBS) is Action.DOWN  # the step is a smaller share of a higher clock


@pytest.mark.parametrize(
    ("actions", "action"),
    [
        ([Action.DOWN, Action.DOWN], Action.DOWN),
        ([Action.SAME, Action.DOWN], Action.SAME),  # the printed listing would go down
        ([Action.DOWN, Action.SAME], Action.SAME),
        ([Action.DOWN, Action.SAME, Action.UP], Action.UP),
        ([], Action.DOWN),
    ],
)
def test_device_goes_down_only_when_every_partition_allows_it(actions: list[Action], action: Action) -> None:
    assert agreed(actions) is action


def test_clock_doubles_or_steps_when_within_its_range() -> None:
    assert next_clock_mhz(500.0, Action.UP, 200.0, 1380.0, KNOBS) == 1000.0
    assert next_clock_mhz(900.0, Action.UP, 200.0, 1380.0, KNOBS) == 1380.0
    assert next_clock_mhz(900.0, Action.DOWN, 200.0, 1380.0, KNOBS) == 800.0
    assert next_clock_mhz(250.0, Action.DOWN, 200.0, 1380.0, KNOBS) == 200.0
    assert next_clock_mhz(900.0, Action.SAME, 200.0, 1380.0, KNOBS) == 900.0


partition = st.tuples(
    st.integers(0, 4),  # device
    st.floats(0.1, 5.0),  # target
    st.one_of(st.none(), st.floats(0.01, 6.0)),  # latency
    st.floats(0.0, 1.0),  # weight
    st.booleans(),  # busy
)


@settings(deadline=None)
@given(st.lists(partition, max_size=20), st.lists(st.floats(200.0, 1380.0), min_size=5, max_size=5))
def test_all_devices_at_once_do_as_each_does_when_partitions_are_any(
    partitions: list[tuple[int, float, float | None, float, bool]], clocks: list[float]
) -> None:
    expected = []
    for device, mhz in enumerate(clocks):
        asked = []
        for _, target, latency, weight, busy in (p for p in partitions if p[0] == device):
            if latency is None:
                asked.append(Action.SAME if busy else Action.DOWN)
            else:
                asked.append(wanted(target, latency, weight, mhz, KNOBS))
        expected.append(next_clock_mhz(mhz, agreed(asked), 200.0, 1380.0, KNOBS))
    columns = [np.array(column) for column in zip(*partitions, strict=True)] if partitions else [np.empty(0)] * 5
    found = slack_clocks_mhz(
        np.array(clocks),
        columns[0].astype(np.int64),
        columns[1].astype(float),
        columns[2].astype(float),
        columns[3].astype(float),
        columns[4].astype(bool),
        200.0,
        1380.0,
        KNOBS,
    )
    assert found.tolist() == expected


# -- the loop --------------------------------------------------------------------------------------

CALM = PartitionLoad("chat", 0.5, 1.0, 0.3, busy=True)
DEVICE = DeviceObservation(0.0, "gpu0", 200.0, 1380.0, (CALM,))


def at(now_s: float, *partitions: PartitionLoad) -> DeviceObservation:
    return replace(DEVICE, now_s=now_s, partitions=partitions or (CALM,))


def run(*observations: DeviceObservation) -> tuple[MuServeClockState, list[float]]:
    state, clocks = None, []
    for observation in observations:
        state, _ = step(state, observation, LOOP)
        assert state.target_mhz is not None
        clocks.append(state.target_mhz)
    assert state is not None
    return state, clocks


def test_loop_starts_at_the_top_and_acts_each_second_when_sampled_each_half() -> None:
    state, effects = step(None, at(10.0), LOOP)
    assert effects.commands == (SetSmClock("gpu0", 1380.0),)
    assert effects.rationale.reason is Reason.POLICY
    assert effects.next_tick_s == 10.5
    state, effects = step(state, at(10.5), LOOP)
    assert (effects.commands, effects.rationale.reason) == ((), Reason.NO_CHANGE)
    state, effects = step(state, at(11.0), LOOP)
    assert effects.commands == (SetSmClock("gpu0", 1280.0),)
    assert effects.rationale.reason is Reason.SLACK
    _, clocks = run(*(at(0.5 * k) for k in range(7)))
    assert clocks == [1380.0, 1380.0, 1280.0, 1280.0, 1180.0, 1180.0, 1080.0]


def test_worst_of_both_samples_counts_when_the_first_was_late() -> None:
    late = replace(CALM, latency_s=1.2)
    _, clocks = run(*(at(0.5 * k) for k in range(19)), at(9.5, late), at(10.0))
    assert clocks[-3:] == [480.0, 480.0, 960.0]


def test_one_sensitive_partition_holds_the_device_when_others_have_slack() -> None:
    tight = PartitionLoad("code", 1.0, 1.0, 0.92, busy=True)
    _, clocks = run(at(0.0), at(1.0, CALM, tight), at(2.0, tight, CALM))
    assert clocks == [1380.0] * 3


def test_clock_is_held_when_a_busy_partition_has_no_latency_yet() -> None:
    unknown = replace(CALM, latency_s=None)
    assert run(at(0.0, unknown), at(1.0, unknown))[1] == [1380.0, 1380.0]
    idle = replace(unknown, busy=False)
    assert run(at(0.0, idle), at(1.0, idle))[1] == [1380.0, 1280.0]


def test_old_latency_is_projected_to_the_clock_when_no_newer_one_comes() -> None:
    """0.5 s at 1380 MHz, weight 1: a step is allowed while 0.5 x 1380/f x (1 + 100/f) < 0.95."""
    silent = replace(CALM, weight=1.0, latency_s=None)
    _, clocks = run(at(0.0, replace(silent, latency_s=0.5)), *(at(float(k), silent) for k in range(1, 15)))
    least = next(f for f in (1380.0 - 100 * k for k in range(12)) if 0.5 * 1380 / f * (1 + 100 / f) >= 0.95)
    assert clocks[-1] == least == 780.0
    state, _ = run(at(0.0, replace(silent, latency_s=0.5)), at(31.0, silent))
    assert state.samples == {}  # too old


def test_starving_is_counted_when_the_top_clock_is_not_enough() -> None:
    slow = replace(CALM, latency_s=2.0)
    state, effects = MuServeClockState(1380.0, 0.0), None
    for k in range(1, 4):
        state, effects = step(state, at(float(k), slow), LOOP)
    assert effects is not None
    assert (state.starved, effects.commands) == (3, ())
    assert effects.rationale.reason is Reason.AT_LIMIT
    assert effects.rationale.inputs["starved"] == 3
    state, _ = step(state, at(4.0), LOOP)
    assert state.starved == 0


def test_clock_is_at_its_limit_when_slack_lasts() -> None:
    state, effects = step(MuServeClockState(200.0, 0.0), at(1.0), LOOP)
    assert (state.target_mhz, effects.rationale.reason) == (200.0, Reason.AT_LIMIT)


def test_instance_has_a_partition_for_each_limit_when_observed_whole() -> None:
    seen = ClockObservation(5.0, "i1", 900.0, 200.0, 1380.0, 3, 0, 0.1, None, 2.0, Limits(0.3, 0.1, None))
    found = observe_instance(seen, {"tpot": 0.4})
    assert found == DeviceObservation(
        5.0,
        "i1",
        200.0,
        1380.0,
        (PartitionLoad("ttft", 1.0, 0.3, 0.1, True), PartitionLoad("tpot", 0.4, 0.1, None, True)),
    )


def test_sample_keeps_its_clock_when_taken() -> None:
    state, _ = step(MuServeClockState(800.0, 0.0), at(0.5), LOOP)
    assert state.samples == {"chat": Sample(0.3, 0.5, 800.0)}


@settings(deadline=None)
@given(st.lists(st.tuples(st.one_of(st.none(), st.floats(0.01, 3.0)), st.booleans()), max_size=60))
def test_clock_stays_in_its_range_and_moves_as_allowed_when_anything_happens(
    seen: list[tuple[float | None, bool]],
) -> None:
    state = None
    before = 1380.0
    for k, (latency_s, busy) in enumerate(seen):
        state, _ = step(state, at(0.5 * k, replace(CALM, latency_s=latency_s, busy=busy)), LOOP)
        assert state.target_mhz in {before, max(200.0, before - 100.0), min(1380.0, 2 * before)}
        if k % 2:
            assert state.target_mhz == before
        before = state.target_mhz


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: SlackConfig(step_mhz=0.0),
        lambda: SlackConfig(increase=1.0),
        lambda: SlackConfig(reserve=1.0),
        lambda: MuServeClockConfig(sample_s=2.0),
    ],
)
def test_configuration_is_refused_when_a_knob_has_no_effect(wrong) -> None:
    with pytest.raises(ValueError, match=r"MIAD|periods"):
        wrong()

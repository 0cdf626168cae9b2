"""Clocks by profile: the least power that keeps the limits, against trying each clock."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.controllers.clock.clock_profile import (
    InstanceLoad,
    ProfileClockConfig,
    ProfileClockObservation,
    ProfileClockState,
    step,
)
from core.engine.engine_model import engine_model
from core.engine.load_profile import clocks, modelled
from core.types import Limits, Reason, SetSmClock
from tests.fakes.load_profiles import measured
from tests.unit.laws import examples

WORKER = engine_model("Llama2-70B", "H100-SXM-80GB", 8)
MODELLED = modelled(WORKER, 640.0, 200.0, clocks(WORKER.gpu_params))
# At 1000 MHz least power, at 500 more than there: a token takes longer, as in the paper's LL at 1.2 and 1.6 GHz.
SMALL = measured(
    [500.0, 1000.0, 2000.0],
    [
        [(0.0, 0.2, 0.08, 100.0), (1.0, 0.2, 0.08, 460.0), (2.0, 0.3, 0.12, 480.0)],
        [(0.0, 0.1, 0.04, 120.0), (2.0, 0.1, 0.05, 400.0), (4.0, 0.2, 0.09, 500.0)],
        [(0.0, 0.05, 0.02, 200.0), (4.0, 0.05, 0.03, 700.0), (8.0, 0.1, 0.06, 900.0)],
    ],
)
PROFILES = {"small": SMALL, "modelled": MODELLED}
CONFIG = ProfileClockConfig(min_saving=0.0)
LIMITS = Limits(ttft_s=0.25, tpot_s=0.1)


def load(rps: float | None, **more) -> InstanceLoad:
    figures = {"profile": "small", "waiting": 0, "min_mhz": 500.0, "max_mhz": 2000.0, "limits": LIMITS, **more}
    return InstanceLoad("i1", load_rps=rps, **figures)


def decide(*items: InstanceLoad, asked: float | None = None, config: ProfileClockConfig = CONFIG):
    state = None if asked is None else ProfileClockState({item.instance: asked for item in items})
    return step(state, ProfileClockObservation(10.0, items, PROFILES), config)


@pytest.mark.parametrize(
    ("rps", "mhz"),
    [(1.0, 1000.0), (4.0, 1000.0), (4.01, 2000.0), (8.0, 2000.0), (9.0, 2000.0), (0.0, 500.0)],
)
def test_clock_is_the_one_of_least_power_that_keeps_the_limits(rps, mhz):
    state, effects = decide(load(rps))
    assert effects.commands == (SetSmClock("i1", mhz),)
    assert state.asked_mhz == {"i1": mhz}
    assert effects.next_tick_s == 15.0
    json.dumps(effects.rationale.inputs, allow_nan=False)
    assert effects.rationale.inputs["i1"]["source"] == "measured"


def test_top_clock_is_taken_when_none_carries_the_load():
    _, effects = decide(load(9.0), asked=1000.0)
    assert effects.rationale.reason is Reason.CONGESTED


def test_waiting_requests_count_as_load():
    _, effects = decide(load(1.0, waiting=16))  # 1 + 16 / 5 s
    assert effects.commands == (SetSmClock("i1", 2000.0),)


def test_clock_goes_up_when_a_latency_was_seen_beyond_its_limit():
    _, effects = decide(load(1.0, tpot_s=0.11), asked=1000.0)
    assert effects.commands == (SetSmClock("i1", 2000.0),)
    _, effects = decide(load(1.0, tpot_s=0.09), asked=1000.0)
    assert effects.commands == ()


def test_clock_stays_when_another_saves_too_little():
    assert decide(load(2.0), asked=2000.0)[1].commands == (SetSmClock("i1", 1000.0),)
    lazy = replace(CONFIG, min_saving=0.5)
    assert decide(load(2.0), asked=2000.0, config=lazy)[1].commands == ()


def test_clocks_stay_within_the_range_of_the_gpu():
    assert decide(load(1.0, max_mhz=900.0))[0].asked_mhz == {"i1": 500.0}
    assert decide(load(6.0, max_mhz=900.0))[0].asked_mhz == {"i1": 900.0}


def test_clock_stays_when_figures_are_missing():
    state, effects = decide(load(None), load(1.0, profile="none"), asked=1000.0)
    assert effects.rationale.reason is Reason.NO_DATA
    assert (effects.commands, state.asked_mhz) == ((), {"i1": 1000.0})


def test_no_limit_is_no_limit():
    assert decide(load(1.9, limits=Limits()))[0].asked_mhz == {"i1": 1000.0}


@settings(max_examples=examples(15), deadline=None)
@given(st.lists(st.tuples(st.floats(0.0, 26.0), st.floats(0.02, 0.3), st.floats(0.02, 0.12)), min_size=1, max_size=12))
def test_clocks_are_the_best_of_all_when_each_is_tried(drawn):
    items = tuple(
        InstanceLoad(f"i{n}", "modelled", rps, 0, 210.0, 1980.0, Limits(ttft_s, tpot_s))
        for n, (rps, ttft_s, tpot_s) in enumerate(drawn)
    )
    state, _ = decide(*items)
    for item in items:
        able = []
        for mhz in MODELLED.mhz.tolist():
            steady = WORKER.steady_state(item.load_rps, 640.0, 200.0, mhz)
            if steady.stable and steady.ttft_s <= item.limits.ttft_s and steady.tpot_s <= item.limits.tpot_s:
                able.append((steady.power_w, mhz))
        got = WORKER.steady_state(item.load_rps, 640.0, 200.0, state.asked_mhz[item.instance])
        if not able:
            continue
        # Lines between the levels are off by a little: the clock may differ where two are as good.
        near = any(
            abs(value / limit - 1.0) < 0.05
            for value, limit in ((got.ttft_s, item.limits.ttft_s), (got.tpot_s, item.limits.tpot_s))
        )
        if not near:
            assert got.ttft_s <= item.limits.ttft_s
            assert got.tpot_s <= item.limits.tpot_s
        assert near or got.power_w <= min(able)[0] * 1.02 or _edge(item)


def _edge(item: InstanceLoad) -> bool:
    """Whether some clock is within a few percent of a limit, where lines and curve may disagree."""
    for mhz in MODELLED.mhz.tolist():
        steady = WORKER.steady_state(item.load_rps, 640.0, 200.0, mhz)
        if not steady.stable:
            if WORKER.steady_state(0.97 * item.load_rps, 640.0, 200.0, mhz).stable:
                return True
            continue
        pairs = ((steady.ttft_s, item.limits.ttft_s), (steady.tpot_s, item.limits.tpot_s))
        if any(abs(value / limit - 1.0) < 0.05 for value, limit in pairs):
            return True
    return False


@pytest.mark.parametrize("wrong", [{"period_s": 0.0}, {"min_saving": 1.0}])
def test_configuration_is_refused_when_it_makes_no_sense(wrong):
    with pytest.raises(ValueError, match="period_s"):
        ProfileClockConfig(**wrong)

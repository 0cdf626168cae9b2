"""Profiles over load and clock: both builders agree, and both with the steady state they are made of."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from core.engine.engine_model import engine_model, gpu
from core.engine.load_profile import clocks, from_costs, modelled
from core.engine.steady_state import SPARE_DEVIATIONS
from core.types import Limits, Source

WORKER = engine_model("Llama2-70B", "H100-SXM-80GB", 4)
MHZ = clocks(WORKER.gpu_params)
PROFILE = modelled(WORKER, 640.0, 200.0, MHZ)


def test_clocks_are_those_of_the_paper_when_the_gpu_is_an_h100():
    assert MHZ.tolist() == [800.0, 1000.0, 1200.0, 1400.0, 1600.0, 1800.0, 1980.0]
    assert clocks(gpu("A100-80GB"))[-1] == gpu("A100-80GB").f_max


def test_both_builders_agree():
    one_by_one = from_costs(WORKER, 640.0, 200.0, MHZ, source=Source.MODELLED)
    for name in ("rps", "ttft_s", "tpot_s", "watts"):
        np.testing.assert_allclose(getattr(PROFILE, name), getattr(one_by_one, name), rtol=1e-9)


@pytest.mark.parametrize("mhz", [800.0, 1400.0, 1980.0])
@pytest.mark.parametrize("share", [0.0, 0.02, 0.3, 0.9])
def test_lines_are_close_to_the_steady_state_when_in_between(mhz, share):
    row = MHZ.tolist().index(mhz)
    load = share * float(PROFILE.rps[row, -1])
    ttft_s, tpot_s, watts = (values[row, 0] for values in PROFILE.at(np.array([load])))
    steady = WORKER.steady_state(load, 640.0, 200.0, mhz)
    assert ttft_s == pytest.approx(steady.ttft_s, rel=0.05)
    assert tpot_s == pytest.approx(steady.tpot_s, rel=0.05)
    assert watts == pytest.approx(steady.power_w, rel=0.01)


def test_figures_lie_on_the_lines_between_levels_to_the_last_bit():
    flat = replace(PROFILE, rps=np.maximum(PROFILE.rps, PROFILE.rps[:, 3:4] * (PROFILE.rps > 0.0)))  # levels alike
    for profile in (PROFILE, flat, PROFILE.top()):
        own = profile.rps.ravel()
        loads = np.concatenate([own, 0.37 * own, np.nextafter(own, np.inf)])
        for found, name in zip(profile.at(loads), ("ttft_s", "tpot_s", "watts"), strict=True):
            lines = zip(profile.rps, getattr(profile, name), strict=True)
            assert found.tolist() == [np.interp(loads, x, y, right=np.inf).tolist() for x, y in lines]


def test_figures_are_infinite_when_the_instance_cannot_keep_up():
    assert np.all(np.isinf(PROFILE.at(np.array([1e6]))[0]))


@pytest.mark.parametrize("limits", [Limits(), Limits(0.4, 0.1), Limits(tpot_s=0.05), Limits(ttft_s=0.06)])
def test_largest_load_is_that_of_the_engine_model(limits):
    expected = [WORKER.max_rps(640.0, 200.0, mhz, limits) for mhz in MHZ]
    np.testing.assert_allclose(np.maximum(0.0, PROFILE.within(limits)), expected, rtol=0.03)


def test_no_load_is_within_limits_that_a_lone_request_breaks():
    assert np.all(PROFILE.within(Limits(tpot_s=1e-4)) == -1.0)


def test_there_is_no_profile_when_a_request_does_not_fit():
    assert modelled(engine_model("Llama2-70B", "H100-SXM-80GB", 1), 640.0, 200.0, MHZ) is None


def test_room_for_bursts_ends_the_loads_where_the_engine_model_does():
    spare = modelled(WORKER, 640.0, 200.0, MHZ, spare_deviations=SPARE_DEVIATIONS)
    expected = [WORKER.max_rps(640.0, 200.0, mhz, Limits(), SPARE_DEVIATIONS) for mhz in MHZ]
    np.testing.assert_allclose(spare.rps[:, -1], expected, rtol=1e-6)


def test_instance_with_little_room_carries_less_when_answers_differ():
    narrow = engine_model("Llama3-70B", "A100-80GB", 2)
    alike, spread = (modelled(narrow, 70.0, 300.0, MHZ, context_tokens=tokens) for tokens in (None, 2 * 220.0))
    assert 0.5 < spread.max_rps / alike.max_rps < 0.7  # half the batch, and that is faster


def test_top_is_the_top_clock():
    assert PROFILE.top().mhz.tolist() == [1980.0]
    assert PROFILE.top().max_rps == PROFILE.max_rps

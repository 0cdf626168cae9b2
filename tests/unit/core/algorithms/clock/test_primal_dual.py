import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.algorithms.clock import miad, primal_dual
from core.algorithms.clock.miad import MiadConfig
from core.algorithms.clock.primal_dual import Curves, PrimalDualConfig, Problem, update
from core.controllers.clock import frequency
from core.controllers.clock.frequency import ClockState, step
from core.engine.engine_model import engine_model
from core.engine.load_profile import clocks, modelled
from core.engine.steady_state import batch_point
from core.observations.clock_given import curves
from core.types import ClockObservation, Limits, Reason, SetSmClock
from tests.oracles.best_clock import best_clock_mhz
from tests.oracles.many_clocks import miad_clocks_mhz
from tests.unit.laws import examples

LOW, TOP = 300.0, 1410.0
OBSERVED = ClockObservation(50.0, "i1", 900.0, LOW, TOP, 8, 0, 0.1, 0.02, 3.0, Limits(0.3, 0.15, 7.0))


def settled(requests: int, config: PrimalDualConfig, start_mhz: float = TOP, urgent: bool = False) -> float:
    mhz, prices = start_mhz, None
    for _ in range(40):
        mhz, prices = primal_dual.next_clock_mhz(mhz, prices, requests, urgent, LOW, TOP, config)
    return mhz


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.floats(0.5, 3.0), min_size=1, max_size=4),
    st.floats(0.5, 3.0),
    st.floats(0.2, 0.6),
    st.floats(0.7, 1.5),
)
def test_updates_reach_the_optimum_when_steps_are_small(weights, slope, least, most):
    """Eq. 2 with U = w log(1 + y), P = slope f^2 and r(f) = 2 f, against every clock of a fine grid."""
    worth = np.array(weights)
    problem = Problem(
        lambda y: worth / (1.0 + y), lambda f: 2.0 * slope * f, lambda f: 2.0 * f, lambda f: 2.0, least, most
    )
    y, f, gamma = np.full(worth.size, 0.5), most, 1.0
    for _ in range(1500):
        y, f, gamma = update(y, f, gamma, problem, (0.05, 0.03, 0.05))
    assert y.sum() <= problem.rate(f) + 0.02
    reached = float((worth * np.log1p(y)).sum()) - slope * f**2
    assert reached == pytest.approx(
        max(best_worth(worth, 2.0 * g) - slope * g**2 for g in np.linspace(least, most, 60)), abs=0.02
    )


def best_worth(worth: np.ndarray, total: float) -> float:
    """max sum w log(1 + y) with sum y <= total: y = [w / gamma - 1]+, by bisection on gamma."""
    low, high = 1e-6, float(worth.max())
    for _ in range(60):
        gamma = (low + high) / 2.0
        low, high = (gamma, high) if np.maximum(0.0, worth / gamma - 1.0).sum() > total else (low, gamma)
    return float((worth * np.log1p(np.maximum(0.0, worth / high - 1.0))).sum())


def test_one_update_moves_each_way_when_signs_are_plain():
    problem = Problem(lambda y: 1.0 / y, lambda f: 1.0, lambda f: 3.0 * f, lambda f: 3.0, 0.2, 1.0)
    y, f, gamma = update(np.array([0.5, 2.0]), 0.5, 1.0, problem, (0.1, 0.1, 0.1))
    assert y == pytest.approx([0.6, 1.95])  # worth 2 and 1/2 against a price of 1
    assert f == pytest.approx(0.7)  # worth 3, costs 1
    assert gamma == pytest.approx(1.1)  # 2.5 asked for, 1.5 made
    _, f, gamma = update(np.array([0.1]), 0.5, 0.0, problem, (0.1, 9.0, 9.0))
    assert (f, gamma) == (0.2, 0.0)  # projected


@settings(max_examples=examples(20), deadline=None)
@given(st.integers(1, 64), st.floats(0.05, 1.0), st.sampled_from([1.0, 2.0, 3.0]), st.sampled_from([LOW, 800.0, TOP]))
def test_clock_settles_at_the_optimum_when_the_load_is_steady(requests, sensitivity, exponent, start_mhz):
    config = PrimalDualConfig(sensitivity=sensitivity, power_exponent=exponent)
    assert settled(requests, config, start_mhz) == pytest.approx(
        best_clock_mhz(requests, False, LOW, TOP, config), rel=0.02
    )


def test_clock_is_in_proportion_to_requests_when_all_is_linear():
    config = PrimalDualConfig(full_at=16.0, sensitivity=1.0)
    assert settled(8, config) == pytest.approx(TOP / 2.0, rel=1e-3)
    assert settled(16, config) == pytest.approx(TOP, rel=1e-3)
    assert settled(8, replace(config, beta=2.0)) == pytest.approx(LOW + 52.5, rel=1e-3)


def test_condition_of_proposition_1_holds_when_settled():
    config = PrimalDualConfig(power_exponent=2.0)
    mhz, prices = TOP, None
    for _ in range(80):
        mhz, prices = primal_dual.next_clock_mhz(mhz, prices, 12, False, LOW, TOP, config)
    x, s = mhz / TOP, config.sensitivity
    assert 2.0 * x == pytest.approx(prices.gamma * s / ((1.0 - s) * x + s) ** 2, rel=1e-3)
    assert 12 * prices.rate == pytest.approx(x / ((1.0 - s) * x + s), rel=1e-3)


def test_loop_follows_the_load_when_the_rule_is_primal_dual():
    config, state, targets = PrimalDualConfig(), None, []
    for running in (4, 4, 4, 40, 40, 0, 0, 0):
        state, effects = step(state, replace(OBSERVED, running=running), config)
        targets.append(state.target_mhz)
    assert targets[2] < 400.0
    assert targets[4] == TOP
    assert targets[-1] == LOW
    assert all(isinstance(command, SetSmClock) for command in effects.commands)


def test_loop_hurries_when_a_latency_is_over_its_limit():
    calm, state = ClockState(700.0), None
    for _ in range(10):
        calm, effects = step(calm, OBSERVED, PrimalDualConfig())
    assert effects.commands == ()
    assert effects.rationale.reason is Reason.NO_CHANGE
    state, effects = step(calm, replace(OBSERVED, tpot_s=0.2), PrimalDualConfig())
    assert state.target_mhz > calm.target_mhz
    assert effects.rationale.reason is Reason.CONGESTED
    assert "TPOT" in effects.rationale.summary


@settings(deadline=None)
@given(st.lists(st.integers(0, 300), max_size=20), st.floats(LOW, TOP))
def test_clock_stays_within_its_range_when_anything_happens(loads, start_mhz):
    state = ClockState(start_mhz)
    for running in loads:
        state, _ = step(state, replace(OBSERVED, running=running), PrimalDualConfig())
        assert LOW <= state.target_mhz <= TOP
        assert state.prices is not None
        assert math.isfinite(state.prices.gamma)


@pytest.mark.parametrize("knobs", [{"full_at": 0.0}, {"sensitivity": 0.0}, {"step": 0.9}, {"power_exponent": 0.5}])
def test_configuration_is_refused_when_it_cannot_settle(knobs):
    with pytest.raises(ValueError, match="primal-dual needs"):
        PrimalDualConfig(**knobs)


WORKER = engine_model("Llama3-70B", "A100-80GB", 4)
LENGTHS = 512.0, 256.0


def engine_curves(batch: float, step_mhz: float = 60.0) -> Curves:
    profile = modelled(WORKER, *LENGTHS, clocks(WORKER.gpu_params, step_mhz))
    assert profile is not None
    return curves(profile, LENGTHS[1], batch)


@settings(max_examples=examples(20), deadline=None)
@given(st.floats(1.0, 60.0), st.floats(1100.0, 1380.0))
def test_slopes_are_those_of_the_engine_at_its_batch(batch, mhz):
    """Against finite differences of the engine model's own steady state, above the kink of the voltage."""
    found, d = engine_curves(batch), 30.0

    def at(f):
        point = batch_point(WORKER, f, batch, *LENGTHS)
        return batch / (point.ttft_s + LENGTHS[1] * point.tpot_s), point.busy_w

    (low_rps, low_w), (high_rps, high_w) = at(mhz - d), at(mhz + d)
    assert found.rate_slope(mhz) == pytest.approx((high_rps - low_rps) / (2 * d), rel=0.15, abs=2e-5)
    assert found.power_slope(mhz) == pytest.approx((high_w - low_w) / (2 * d), rel=0.15, abs=0.05)
    assert found.rate(mhz) == pytest.approx(at(mhz)[0], rel=0.02)
    assert found.power_w(mhz) == pytest.approx(at(mhz)[1], rel=0.02)


def test_slopes_are_exact_where_the_profile_is_a_parabola():
    mhz = np.linspace(800.0, 1400.0, 13)
    found = Curves(mhz, 0.01 * mhz, 100.0 + 2e-4 * mhz**2, np.full(13, 0.1), np.full(13, 0.05))
    for f in (850.0, 1000.0, 1123.0, 1350.0):
        assert found.rate_slope(f) == pytest.approx(0.01)
        assert found.power_slope(f) == pytest.approx(4e-4 * f)
    one = Curves(mhz[:1], mhz[:1], mhz[:1], mhz[:1], mhz[:1])
    assert (one.rate_slope(900.0), one.power_slope(900.0)) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        (Limits(), 800.0),
        (Limits(tpot_s=0.05), 1000.0),
        (Limits(ttft_s=0.1), 1200.0),
        (Limits(ttft_s=0.1, tpot_s=0.01), 1400.0),  # no clock keeps it
    ],
)
def test_lowest_clock_keeps_the_limits_and_so_do_all_above(limits, expected):
    mhz, ones = np.array([800.0, 1000.0, 1200.0, 1400.0]), np.ones(4)
    found = Curves(mhz, ones, ones, np.array([0.3, 0.2, 0.1, 0.08]), np.array([0.06, 0.05, 0.04, 0.03]))
    assert found.least_mhz(limits) == expected


@settings(max_examples=examples(10), deadline=None)
@given(st.integers(1, 64), st.floats(800.0, TOP))
def test_clock_settles_at_least_energy_a_token_when_the_profile_is_known(requests, start_mhz):
    found, config = engine_curves(float(requests)), PrimalDualConfig()
    mhz, prices = start_mhz, None
    for _ in range(60):
        mhz, prices = primal_dual.next_clock_mhz(mhz, prices, requests, False, LOW, TOP, config, found)
    best = min(found.power_w(f) / found.rate(f) for f in np.linspace(800.0, TOP, 200))
    assert found.power_w(mhz) / found.rate(mhz) <= 1.02 * best
    for _ in range(5):
        mhz, prices = primal_dual.next_clock_mhz(mhz, prices, requests, True, LOW, TOP, config, found)
    assert mhz >= 0.98 * TOP  # while somebody waits or is late


def test_condition_of_proposition_1_holds_with_an_engines_own_curves():
    found, mhz, prices = engine_curves(16.0), TOP, None
    for _ in range(100):
        mhz, prices = primal_dual.next_clock_mhz(mhz, prices, 16, False, LOW, TOP, PrimalDualConfig(), found)
    worth = found.power_w(mhz) / found.rate(mhz)  # of a token, in watts for each request/s
    assert found.power_slope(mhz) == pytest.approx(worth * found.rate_slope(mhz), rel=0.02)
    assert prices.gamma == pytest.approx(worth * found.rate(TOP) / found.power_w(TOP), rel=0.02)


def test_loop_says_when_it_goes_by_constants_and_keeps_limits_when_it_does_not():
    late = replace(OBSERVED, limits=Limits(0.3, 0.033))
    known, state = frequency.profiled(late, engine_curves(8.0)), None
    for _ in range(30):
        state, effects = step(state, known, PrimalDualConfig())
    assert state.target_mhz >= engine_curves(8.0).least_mhz(late.limits) > 800.0
    assert "constants" not in effects.rationale.summary
    rationale = step(None, OBSERVED, PrimalDualConfig())[1].rationale
    assert "By constants: nobody has a profile of it." in rationale.summary
    assert "constants" not in step(None, OBSERVED, PrimalDualConfig(by_profile=False))[1].rationale.summary


@given(st.lists(st.tuples(st.floats(200.0, 2000.0), st.booleans(), st.floats(100.0, 900.0), st.floats(900.0, 2000.0))))
def test_many_clocks_move_like_one_when_miad_is_vectorised(gpus):
    mhz, congested, low, high = (np.array(column) for column in zip(*gpus, strict=True)) if gpus else [np.zeros(0)] * 4
    together = miad_clocks_mhz(mhz, congested.astype(bool), low, high, MiadConfig())
    assert together.tolist() == [miad.next_clock_mhz(*gpu, MiadConfig()) for gpu in gpus]

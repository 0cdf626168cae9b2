"""Eq. 1 of DynamoLLM: both solvers against trying every count, clock and piece."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.algorithms.fleet import dynamo_milp
from core.algorithms.fleet.dynamo_mix import power_w, solve
from core.algorithms.fleet.highs import SolverStatus
from core.algorithms.fleet.power_curve import Piece, pieces
from core.engine.engine_model import engine_model
from core.engine.load_profile import clocks, modelled
from core.types import Limits, Mode
from tests.fakes.load_profiles import measured

H2, H4, H8 = (Mode("H100-SXM-80GB", tp) for tp in (2, 4, 8))
LIMITS = Limits(ttft_s=0.4, tpot_s=0.1)


def of_engine(tp: int, limits: Limits = LIMITS) -> tuple[Piece, ...]:
    worker = engine_model("Llama2-70B", "H100-SXM-80GB", tp)
    profile = modelled(worker, 640.0, 200.0, clocks(worker.gpu_params))
    assert profile is not None
    return pieces(profile, limits)


CURVES = {mode: of_engine(mode.tp) for mode in (H2, H4, H8)}


@st.composite
def drawn_curve(draw):
    """Straight pieces from 0 on, not convex; the next clock may begin with a jump upwards."""
    x, w, found = 0.0, draw(st.floats(50.0, 300.0)), []
    for mhz in range(draw(st.integers(1, 3))):
        high, gain = x + draw(st.floats(0.5, 4.0)), draw(st.floats(0.0, 500.0))
        found.append(Piece(800.0 + 200.0 * mhz, x, high, w, w + gain))
        x, w = high, w + gain + draw(st.sampled_from([0.0, 0.0, 120.0]))
    return tuple(found)


def tried(curves, gpus, load, need):
    """Least power over all counts and all choices of a piece each; the load goes to the cheapest slopes first."""
    modes, best = list(curves), None
    for counts in itertools.product(*(range(gpus // mode.tp + 1) for mode in modes)):
        if sum(mode.tp * n for mode, n in zip(modes, counts, strict=True)) > gpus:
            continue
        most = [max(piece.high_rps for piece in curves[mode]) for mode in modes]
        if sum(n * rps for n, rps in zip(counts, most, strict=True)) < max(load, need):
            continue
        for chosen in itertools.product(
            *(curves[mode] if n else (None,) for mode, n in zip(modes, counts, strict=True))
        ):
            total, left, room = 0.0, load, []
            for n, piece in zip(counts, chosen, strict=True):
                if piece is not None:
                    total += n * piece.low_w
                    left -= n * piece.low_rps
                    room.append((piece.slope, n * (piece.high_rps - piece.low_rps)))
            if left < -1e-9 or left > sum(width for _, width in room) + 1e-9:
                continue
            for slope, width in sorted(room):
                take = min(left, width)
                total, left = total + take * slope, left - take
            best = total if best is None else min(best, total)
    return best


@settings(max_examples=40, deadline=None)
@given(st.lists(drawn_curve(), min_size=1, max_size=3), st.floats(0.0, 12.0), st.floats(1.0, 1.4))
def test_mix_is_the_best_of_all_when_all_are_tried(drawn, load, alpha):
    curves = dict(zip((H2, H4, H8), drawn, strict=False))
    found = solve({"H100-SXM-80GB": 8}, curves, load, alpha * load)
    best = tried(curves, 8, load, alpha * load)
    if best is None:
        assert found is None
        return
    assert found is not None
    assert found.power_w == pytest.approx(best, rel=1e-6)
    assert sum(mode.tp * own.count for mode, own in found.operations.items()) <= 8
    assert sum(own.count * own.each_rps for own in found.operations.values()) == pytest.approx(load, abs=1e-6)
    fixed = power_w(found.workers, curves, load)
    assert fixed == pytest.approx(best, rel=1e-6)


@settings(max_examples=12, deadline=None)
@given(st.lists(drawn_curve(), min_size=2, max_size=3), st.floats(0.1, 12.0), st.floats(1.0, 1.4))
def test_program_and_count_agree_when_both_solve(drawn, load, alpha):
    curves = dict(zip((H2, H4, H8), drawn, strict=False))
    counted = solve({"H100-SXM-80GB": 8}, curves, load, alpha * load)
    program = dynamo_milp.solve({"H100-SXM-80GB": 8}, curves, load, alpha * load, gap=1e-7)
    assert (counted is None) == (program is None)
    if counted is not None and program is not None:
        assert program.power_w == pytest.approx(counted.power_w, rel=1e-5)


def test_program_takes_over_when_there_are_more_modes_than_can_be_counted():
    line = (Piece(1000.0, 0.0, 4.0, 100.0, 500.0),)
    curves = {Mode(gpu, tp): line for gpu in ("A", "B") for tp in (1, 2)}
    found = solve({"A": 2, "B": 2}, curves, 10.0, 11.0)
    assert found is not None
    assert found.status is SolverStatus.OPTIMAL
    assert found.power_w == pytest.approx(3 * 100.0 + 10.0 * 100.0)
    used = {"A": 0, "B": 0}
    for mode, own in found.operations.items():
        used[mode.gpu] += mode.tp * own.count
    assert max(used.values()) <= 2


@pytest.mark.parametrize("load", [5.0, 60.0, 240.0])
def test_clocks_save_power_when_they_may_be_chosen(load):
    """The full eq. 1 is never worse than its simplified form, and its clocks keep the limits."""
    tops = {}
    for mode in CURVES:
        worker = engine_model("Llama2-70B", mode.gpu, mode.tp)
        profile = modelled(worker, 640.0, 200.0, clocks(worker.gpu_params))
        tops[mode] = pieces(profile.top(), LIMITS)
    full = solve({"H100-SXM-80GB": 128}, CURVES, load, 1.1 * load)
    simple = solve({"H100-SXM-80GB": 128}, tops, load, 1.1 * load)
    assert full.power_w < 0.95 * simple.power_w
    assert {own.mhz for own in simple.operations.values()} == {1980.0}
    for mode, own in full.operations.items():
        steady = engine_model("Llama2-70B", mode.gpu, mode.tp).steady_state(own.each_rps, 640.0, 200.0, own.mhz)
        assert steady.stable
        assert steady.ttft_s <= LIMITS.ttft_s * 1.02
        assert steady.tpot_s <= LIMITS.tpot_s * 1.02


@settings(max_examples=30, deadline=None)
@given(st.floats(0.0, 300.0), st.floats(0.0, 40.0))
def test_power_hardly_ever_falls_when_the_load_rises(load, more):
    """At one clock larger batches can draw a little less: the model's curves fall by less than 1 % anywhere."""
    first = solve({"H100-SXM-80GB": 64}, CURVES, load, load)
    second = solve({"H100-SXM-80GB": 64}, CURVES, load + more, load + more)
    if second is not None:
        assert first is not None
        assert first.power_w <= second.power_w * 1.01


def test_a_clock_is_left_out_when_it_breaks_the_limit_at_that_load():
    profile = measured(
        [800.0, 1600.0],
        [
            [(0.0, 0.1, 0.05, 100.0), (2.0, 0.1, 0.05, 300.0), (4.0, 0.1, 0.20, 400.0)],
            [(0.0, 0.1, 0.02, 200.0), (3.0, 0.1, 0.03, 500.0), (6.0, 0.1, 0.09, 800.0)],
        ],
    )
    found = pieces(profile, Limits(tpot_s=0.125), levels=3)
    assert found[0].low_rps == 0.0
    assert found[-1].high_rps == pytest.approx(6.0)
    slow = [piece for piece in found if piece.mhz == 800.0]
    assert max(piece.high_rps for piece in slow) == pytest.approx(3.0)  # 0.05 + 0.15 (x - 2) / 2 = 0.125 at x = 3
    for before, after in itertools.pairwise(found):
        assert before.high_rps == after.low_rps
    assert pieces(profile, Limits(tpot_s=0.01)) == ()
    assert pieces(profile, Limits(ttft_s=0.05)) == ()


def test_there_is_no_mix_when_it_cannot_be():
    assert solve({"H100-SXM-80GB": 1}, CURVES, 1.0, 1.0) is None
    assert solve({}, CURVES, 1.0, 1.0) is None
    assert solve({"H100-SXM-80GB": 8}, {H2: ()}, 1.0, 1.0) is None
    assert solve({"H100-SXM-80GB": 8}, CURVES, 1e6, 1e6) is None


def test_power_is_unknown_when_a_mix_cannot_carry_the_load():
    assert power_w({H2: 1}, CURVES, 1e4) is None
    assert power_w({Mode("X", 1): 1}, CURVES, 1.0) is None
    assert power_w({}, CURVES, 0.0) == 0.0
    idle = power_w({H8: 1}, CURVES, 0.0)
    assert idle == pytest.approx(CURVES[H8][0].low_w)
    assert np.isfinite(idle)

"""The lowest clock that keeps the limits of what is there; beside it a walk in plain Python."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.algorithms.clock.deadline_clock import (
    CATCH_UP,
    DEVIATIONS,
    NO_SLACK_S,
    PROMPT,
    SPARE,
    hurried_mhz,
    left_of_limits,
    lowest_after_switch,
    lowest_mhz,
    next_iteration_mhz,
)
from core.engine.compiled_model import F_V, iteration, model_row
from core.engine.engine_model import engine_model
from core.engine.steady_state import SPARE_DEVIATIONS
from tests.unit.laws import examples

ROW = model_row(engine_model("Llama2-70B", "H100-SXM-80GB", 8, "vllm-v1"))
FLOOR, STEP, TOP = 210.0, 60.0, 1980.0
CLOCKS = sorted({max(FLOOR, TOP - STEP * n) for n in range(31)})
BUDGET, CHUNK, SEATS = 2048, 1024, 256


def prompts(*rows):
    return np.array([(left, done, due_s) for left, done, due_s in rows], dtype=PROMPT)


def found(waiting=(), decodes=0, context=0, slack_s=NO_SLACK_S, tpot_s=0.1, now_s=100.0):
    return lowest_mhz(
        ROW, FLOOR, STEP, prompts(*waiting), decodes, context, slack_s, tpot_s, now_s, BUDGET, CHUNK, SEATS
    )


def keeps(mhz, waiting, decodes, context, slack_s, tpot_s, now_s=100.0):
    """Walks as the engine would: chunks in order while there is budget; who is done decodes from then on."""
    left, done = [row[0] for row in waiting], [row[1] for row in waiting]
    at_s, batch, kv, begun, walked = 0.0, decodes, context, 0, 0
    while any(left):
        room, new, cached, pairs, count = BUDGET - batch, 0, 0, 0.0, 0
        for n, rest in enumerate(left):
            take = min(room, CHUNK, rest)
            if take > 0:
                room, new, cached, count = room - take, new + take, cached + done[n], count + 1
                pairs += take * (done[n] + take / 2.0)
                left[n], done[n] = rest - take, done[n] + take
        t_s = iteration(ROW, mhz, float(new), float(cached), pairs, float(count), float(batch), float(kv))[0]
        at_s, walked = at_s + t_s, walked + 1
        if (decodes and at_s > slack_s + tpot_s * walked) or (begun and t_s > tpot_s):
            return False
        for n, rest in enumerate(left):
            if rest == 0 and done[n] >= 0:
                if now_s + at_s > waiting[n][2]:
                    return False
                batch, begun, kv, done[n] = batch + 1, begun + 1, kv + done[n], -1
    return True


def test_floor_is_enough_when_nothing_is_to_be_done():
    assert found() == FLOOR


def test_answers_alone_take_the_lowest_clock_that_keeps_their_pace():
    mhz = found(decodes=32, context=40_000, tpot_s=0.03)
    takes_s = [
        iteration(ROW, f, 0.0, 0.0, 0.0, 0.0, 32.0, 40_000.0 + 32 * CATCH_UP)[0]
        for f in (mhz, CLOCKS[CLOCKS.index(mhz) - 1])
    ]
    assert takes_s[0] <= 0.03 < takes_s[1]


def test_answers_that_are_behind_hurry():
    on_time = found(decodes=32, context=40_000, slack_s=0.0, tpot_s=0.05)
    assert found(decodes=32, context=40_000, slack_s=-0.6, tpot_s=0.05) > on_time
    assert found(decodes=32, context=40_000, slack_s=5.0, tpot_s=0.05) == on_time


@pytest.mark.parametrize(
    ("waiting", "tpot_s"),
    [
        ([(4000, 0, 99.0)], 0.1),  # late already
        ([(4000, 0, 100.9)] * 20, 0.1),  # a heap
        ([(4000, 0, 1e9)], 0.001),  # no clock keeps it
    ],
)
def test_top_clock_is_taken_when_none_keeps_every_limit(waiting, tpot_s):
    assert found(waiting, decodes=4, context=4000, slack_s=0.0, tpot_s=tpot_s) == TOP


def test_a_prompt_without_a_limit_waits_at_the_pace_of_the_answers_alone():
    assert found([(500, 0, np.inf)], decodes=0, tpot_s=0.1) == FLOOR


@given(
    st.lists(
        st.tuples(st.integers(1, 6000), st.sampled_from([0, 700]), st.floats(100.2, 103.0)), min_size=1, max_size=6
    ),
    st.integers(0, 60),
    st.floats(0.0, 1.0),
    st.sampled_from([0.05, 0.1, 0.2]),
)
@settings(max_examples=examples(30), deadline=None)
def test_the_clock_keeps_the_limits_and_the_next_lower_one_does_not(waiting, decodes, slack_s, tpot_s):
    context = 900 * decodes
    mhz = found(waiting, decodes, context, slack_s, tpot_s)
    given_ = waiting, decodes, context, slack_s, tpot_s
    if mhz < TOP:
        assert keeps(mhz, *given_)
    if mhz > FLOOR:
        assert not keeps(CLOCKS[CLOCKS.index(mhz) - 1], *given_)


MANY = 10**9  # answers, of which chance takes nothing


@pytest.mark.parametrize(
    ("cache", "seats", "share"),
    [
        (0.0, 0.0, 1.0),
        (1.0 - SPARE, 1.0 - SPARE, 1.0),
        (1.0 - SPARE / 2, 0.0, 0.5),
        (0.0, 1.0 - SPARE / 2, 0.5),
        (1.0, 0.0, 0.0),
        (1.1, 0.0, 0.0),
    ],
)
def test_less_is_left_of_limits_as_the_room_shrinks(cache, seats, share):
    assert left_of_limits(cache, seats, MANY) == pytest.approx(share, abs=1e-3)


def test_chance_takes_a_larger_share_of_a_small_cache():
    assert left_of_limits(0.7, 0.0, 9) < left_of_limits(0.7, 0.0, 100) < left_of_limits(0.7, 0.0, MANY)
    most = 9 / (9 + DEVIATIONS * 3)  # of nine answers, the share at which their deviations reach the rest
    assert left_of_limits(0.99 * most, 0.0, 9) > 0.0
    assert left_of_limits(most, 0.0, 9) == pytest.approx(0.0, abs=1e-9)


def hurried(share, waiting=(), decodes=200, context=200_000, slack_s=0.05, tpot_s=0.1):
    now = prompts(*waiting), decodes, context, slack_s, tpot_s, 100.0, BUDGET, CHUNK, SEATS
    needed = lowest_mhz(ROW, FLOOR, STEP, *now)
    return needed, hurried_mhz(ROW, needed, FLOOR, STEP, *now, share)


KNEE = max(mhz for mhz in CLOCKS if mhz <= ROW[F_V])


@pytest.mark.parametrize("waiting", [(), ((300, 0, 101.0),)])
def test_answers_are_hurried_to_where_the_voltage_rises_and_to_the_top_where_nothing_is_left(waiting):
    needed, unhurried = hurried(1.0, waiting)
    assert needed == unhurried < KNEE
    clocks = [hurried(share, waiting)[1] for share in (1.0, 0.7, 0.4, 0.1, 0.0)]
    assert clocks == sorted(clocks)
    assert len(set(clocks)) > 3
    assert clocks[-2:] == [KNEE, TOP]


def test_a_clock_that_limits_need_is_not_lowered_by_room():
    needed, mhz = hurried(0.5, ((1500, 0, 100.12),), slack_s=5.0)
    assert mhz == needed > KNEE


def test_nobody_is_hurried_where_no_answer_is_under_way():
    assert hurried(0.0, (), decodes=0, context=0)[1] == FLOOR


def test_deviations_are_those_that_plans_leave_room_for():
    assert DEVIATIONS == SPARE_DEVIATIONS


def switched(present_mhz, switch_s, waiting=(), decodes=0, context=0, slack_s=NO_SLACK_S, tpot_s=0.1):
    now = prompts(*waiting), decodes, context, slack_s, tpot_s, 100.0, BUDGET, CHUNK, SEATS
    return lowest_after_switch(ROW, present_mhz, switch_s, FLOOR, STEP, *now)


def test_higher_clock_makes_up_for_the_time_until_it_is_there():
    waiting = [(1000, 0, 100.12)]
    needed = found(waiting)
    assert FLOOR < needed < TOP
    assert switched(FLOOR, 0.0, waiting) == needed
    late = switched(FLOOR, 0.1, waiting)
    lost_s = 0.1 * (1.0 - FLOOR / needed)
    assert late == found([(1000, 0, 100.12 - lost_s)]) > needed


def test_clock_that_is_there_already_or_is_lower_does_not_wait_for_a_switch():
    waiting = [(1000, 0, 100.12)]
    needed = found(waiting)
    assert switched(needed, 0.1, waiting) == needed
    assert switched(TOP, 0.1, waiting) == needed


def test_next_iteration_keeps_its_limit_however_far_ahead_answers_are():
    now = prompts(), 32, 40_000
    mhz = next_iteration_mhz(ROW, FLOOR, STEP, *now, 0.03, 100.0, BUDGET, CHUNK, SEATS)
    assert mhz == found(decodes=32, context=40_000, slack_s=0.0, tpot_s=0.03)
    with_a_prompt = prompts((500, 0, 200.0)), 32, 40_000
    beside = next_iteration_mhz(ROW, FLOOR, STEP, *with_a_prompt, 0.06, 100.0, BUDGET, CHUNK, SEATS)
    assert beside == found([(500, 0, 200.0)], decodes=32, context=40_000, slack_s=0.0, tpot_s=0.06)
    assert beside > found([(500, 0, 200.0)], decodes=32, context=40_000, slack_s=5.0, tpot_s=0.06)


@pytest.mark.parametrize(
    ("waiting", "decodes"),
    [
        ([(CHUNK + 1, 0, 1e9)], 0),  # more than an iteration takes of a prompt
        ([(1000, 0, 1e9)] * 3, 0),  # more than it takes of all
        ([(10, 0, 1e9)], SEATS),  # no seat
    ],
)
def test_prompt_that_waits_behind_the_next_iteration_takes_the_top_clock(waiting, decodes):
    now = prompts(*waiting), decodes, 100 * decodes, 9.0, 100.0, BUDGET, CHUNK, SEATS
    assert next_iteration_mhz(ROW, FLOOR, STEP, *now) == TOP
    few = prompts(*waiting[:1]), 0, 0, 9.0, 100.0, BUDGET, BUDGET, SEATS
    assert next_iteration_mhz(ROW, FLOOR, STEP, *few) == FLOOR

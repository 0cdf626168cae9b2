from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.algorithms.clock.projection import project
from core.algorithms.clock.speed_table import EngineShape, SpeedTable
from core.controllers.request.admission import (
    AdmissionConfig,
    AdmissionObservation,
    AdmissionState,
    Requests,
    RequestView,
    Verdict,
    board_after,
    judge,
    scoreboard,
    step,
)
from core.types import Admit, Reason
from tests.unit.core.boards import CLOCKS_MHZ, ROW, Row, Walk, board, rows, table, walk

TABLE = table()
EXACT = AdmissionConfig(tbt_s=None, predictor_error=0.0)
SHAPE = EngineShape(1, 1000, 4, 16, 32)
NEW = RequestView("new", prompt_tokens=8, predicted_tokens=10, max_tokens=100, deadline_s=None)
OLD = RequestView("old", 8, 10, 100, None, computed_tokens=8, generated_tokens=1)


def observe(
    running: list[RequestView], waiting: list[RequestView], speed: SpeedTable = TABLE, now_s: float = 0.0
) -> AdmissionObservation:
    return AdmissionObservation(now_s, "i1", Requests.of(running), Requests.of(waiting), speed)


# -- the scoreboard -------------------------------------------------------------------------------------


def rows_of(view: RequestView, error: float = 0.0, shape: EngineShape = SHAPE) -> tuple[int, int, int]:
    found = scoreboard(Requests.of([view]), frozenset(), shape, error)
    return int(found.kv_tokens[0]), int(found.prompt_tokens[0]), int(found.remaining_tokens[0])


def test_prediction_is_raised_by_the_error_and_bounded_by_the_maximum() -> None:
    assert rows_of(NEW, 0.3) == (0, 8, 13)
    assert rows_of(replace(NEW, predicted_tokens=90), 0.3) == (0, 8, 100)
    assert rows_of(OLD, 0.3) == (8, 0, 12)


def test_rest_runs_to_the_maximum_when_the_raised_prediction_is_outgrown() -> None:
    before = replace(OLD, computed_tokens=19, generated_tokens=12)
    assert rows_of(before, 0.3) == (19, 0, 1)
    assert rows_of(replace(before, computed_tokens=20, generated_tokens=13), 0.3) == (20, 0, 87)


def test_rest_is_bounded_by_the_cache_when_the_maximum_is_larger() -> None:
    assert rows_of(replace(NEW, predicted_tokens=90), 0.0, EngineShape(1, 5, 4))[2] == 12


def test_tokens_are_taken_in_again_when_a_request_was_preempted() -> None:
    assert rows_of(replace(OLD, computed_tokens=0, generated_tokens=5)) == (0, 13, 5)
    assert rows_of(replace(NEW, computed_tokens=3)) == (3, 5, 10)


# -- one request ----------------------------------------------------------------------------------------


def test_request_waits_when_the_cache_would_overflow_later_on() -> None:
    """Both fit at first: 2 x 8 tokens in 2 x 2 blocks of 4; in iteration 10 they hold 18 and 17, in 5 each."""
    tight = table(kv_blocks=9)
    newcomer = board(Row(prompt=8, remaining=10))
    found = judge(board(Row(kv=8, remaining=10)), newcomer, 0.0, tight, None)
    assert (found.verdict, found.failed, found.peak_kv_blocks) == (Verdict.WAIT, "kv", 10)
    assert found.reason is Reason.WOULD_VIOLATE
    fits = judge(board(Row(kv=8, remaining=10)), newcomer, 0.0, table(kv_blocks=10), None)
    assert fits.verdict is Verdict.ADMIT


def test_request_can_never_be_served_when_it_alone_overflows_the_cache() -> None:
    huge = board(Row(prompt=37, remaining=1))
    for others in (board(), board(Row(kv=8, remaining=9))):
        found = judge(others, huge, 0.0, table(kv_blocks=9), None)
        assert (found.verdict, found.reason, found.failed) == (Verdict.WAIT, Reason.INFEASIBLE, "kv")


def test_request_waits_when_the_batch_is_full() -> None:
    one = Row(kv=4, remaining=3)
    speed = table(max_sequences=2)
    assert judge(board(one), board(one), 0.0, speed, None).verdict is Verdict.ADMIT
    found = judge(board(one, one), board(one), 0.0, speed, None)
    assert (found.verdict, found.failed) == (Verdict.WAIT, "sequences")


def test_request_waits_when_the_mean_time_between_tokens_breaks_its_limit() -> None:
    """At 1500 MHz two rows of one block and one iteration take (10 + 1 + 0.2) / 1.5 ms."""
    one = Row(kv=1, remaining=1)
    mean_s = (0.010 + 0.001 + 0.0002) / 1.5
    found = judge(board(one), board(one), 0.0, TABLE, mean_s * 0.999)
    assert (found.verdict, found.failed) == (Verdict.WAIT, "tbt")
    assert found.mean_tbt_s == pytest.approx(mean_s)
    assert judge(board(one), board(one), 0.0, TABLE, mean_s * 1.001).verdict is Verdict.ADMIT


def test_request_waits_when_it_would_make_another_miss_its_deadline() -> None:
    alone_s = (0.010 + 0.0001) / 1.5
    hurried = board(Row(kv=1, remaining=1, deadline_s=alone_s * 1.01))
    found = judge(hurried, board(Row(kv=1, remaining=1)), 0.0, TABLE, None)
    assert (found.verdict, found.failed, found.harmed) == (Verdict.WAIT, "e2e", 1)


def test_request_is_lost_when_only_its_own_deadline_cannot_be_met() -> None:
    found = judge(board(Row(kv=1, remaining=5)), board(Row(prompt=8, remaining=9, deadline_s=0.01)), 0.0, TABLE, None)
    assert (found.verdict, found.reason, found.failed) == (Verdict.LOST, Reason.LOST, "e2e")


def test_nobody_is_held_up_when_a_running_request_misses_its_deadline_anyway() -> None:
    hopeless = board(Row(kv=1, remaining=500, deadline_s=0.5))
    assert judge(hopeless, board(Row(prompt=8)), 0.0, TABLE, None).verdict is Verdict.ADMIT


def test_lone_request_is_served_as_lost_when_it_breaks_the_limit_between_tokens() -> None:
    assert judge(board(), board(Row(prompt=8)), 0.0, TABLE, 1e-4).verdict is Verdict.LOST


def by_walking(others: list[Row], new: Row, speed: SpeedTable, tbt_s: float | None) -> Verdict:
    """The three checks, on a walk token by token at the top clock."""
    top_mhz = CLOCKS_MHZ[-1]

    def missed(walked: Walk, all_rows: list[Row]) -> list[bool]:
        seconds = walked.seconds(top_mhz)
        pairs = zip(all_rows, walked.ends, strict=True)
        return [not row.lost and sum(seconds[:end]) >= row.deadline_s for row, end in pairs]

    together = walk([*others, new], speed.shape.block_tokens, speed.shape.chunk_tokens)
    if max(together.kv_blocks) > speed.shape.kv_blocks or len(others) + 1 > speed.shape.max_sequences:
        return Verdict.WAIT
    seconds = together.seconds(top_mhz)
    slow = tbt_s is not None and sum(seconds) / len(seconds) > tbt_s
    before = missed(walk(others, speed.shape.block_tokens, speed.shape.chunk_tokens), others)
    after = missed(together, [*others, new])
    harmed = any(now and not then for now, then in zip(after, before, strict=False))
    if others and (slow or harmed):
        return Verdict.WAIT
    return Verdict.LOST if slow or after[-1] else Verdict.ADMIT


@settings(deadline=None, max_examples=200)
@given(
    rows(max_size=4),
    ROW,
    st.integers(5, 80),
    st.integers(2, 6),
    st.sampled_from([None, 0.008, 0.011, 0.02]),
)
def test_verdict_is_that_of_a_walk_when_anything_runs(
    others: list[Row], new: Row, kv_blocks: int, max_sequences: int, tbt_s: float | None
) -> None:
    speed = table(kv_blocks=kv_blocks, max_sequences=max_sequences)
    newcomer = replace(new, lost=False)
    found = judge(board(*others), board(newcomer), 0.0, speed, tbt_s)
    assert found.verdict is by_walking(others, newcomer, speed, tbt_s)


@settings(deadline=None, max_examples=60)
@given(rows(max_size=4), ROW, st.integers(5, 80))
def test_cache_never_overflows_when_a_request_is_admitted(others: list[Row], new: Row, kv_blocks: int) -> None:
    speed = table(kv_blocks=kv_blocks)
    newcomer = board(new)
    if judge(board(*others), newcomer, 0.0, speed, None).verdict is not Verdict.WAIT:
        assert project(board(*others).plus(newcomer), 4, 32).peak_kv_blocks <= kv_blocks


# -- the queue ------------------------------------------------------------------------------------------


def test_queue_is_admitted_in_order_until_one_must_wait() -> None:
    speed = table(max_sequences=3)
    waiting = [replace(NEW, request=n) for n in range(4)]
    state, effects = step(None, observe([OLD], waiting, speed), EXACT)
    assert effects.commands == (Admit("i1", 0), Admit("i1", 1))
    assert effects.next_tick_s == pytest.approx(0.1)
    assert effects.rationale.reason is Reason.WOULD_VIOLATE
    assert "2 waits" in effects.rationale.summary
    assert state == AdmissionState()


def test_smaller_request_does_not_overtake_when_the_head_waits() -> None:
    speed = table(kv_blocks=10)
    large, small = replace(NEW, request="large", prompt_tokens=24), replace(NEW, request="small", predicted_tokens=1)
    _, effects = step(None, observe([OLD], [large, small], speed), EXACT)
    assert effects.commands == ()


def test_impossible_request_lets_others_by() -> None:
    speed = table(kv_blocks=10)
    huge = replace(NEW, request="huge", prompt_tokens=41)
    _, effects = step(None, observe([], [huge, NEW], speed), EXACT)
    assert effects.commands == (Admit("i1", "new"),)
    assert effects.rationale.reason is Reason.INFEASIBLE
    assert effects.next_tick_s is not None


def test_earlier_admissions_count_when_the_next_is_judged() -> None:
    """The cache has room for one of them: 17 tokens in 5 blocks."""
    speed = table(kv_blocks=9)
    waiting = [replace(NEW, request=n) for n in range(2)]
    _, effects = step(None, observe([], waiting, speed), EXACT)
    assert effects.commands == (Admit("i1", 0),)


def test_lost_request_is_remembered_until_it_ends() -> None:
    late_one = replace(NEW, deadline_s=1e-3)
    state, effects = step(None, observe([], [late_one]), EXACT)
    assert effects.commands == (Admit("i1", "new", lost=True),)
    assert effects.rationale.reason is Reason.LOST
    assert state.lost == {"new"}
    running = replace(late_one, computed_tokens=8, generated_tokens=1)
    obs = observe([OLD, running], [])
    state, effects = step(state, obs, EXACT)
    assert state.lost == {"new"}
    assert board_after(state, obs, EXACT, effects).lost.tolist() == [False, True]
    state, _ = step(state, observe([OLD], []), EXACT)
    assert state.lost == frozenset()


def test_nothing_is_asked_when_nothing_waits() -> None:
    _, effects = step(None, observe([OLD], []), EXACT)
    assert (effects.commands, effects.next_tick_s) == ((), None)
    assert effects.rationale.reason is Reason.NO_CHANGE


def test_board_has_the_admitted_behind_the_running() -> None:
    late_one = replace(NEW, request="late", deadline_s=1e-3)
    obs = observe([OLD], [NEW, late_one])
    state, effects = step(None, obs, EXACT)
    found = board_after(state, obs, EXACT, effects)
    assert found.prompt_tokens.tolist() == [0, 8, 8]
    assert found.remaining_tokens.tolist() == [9, 10, 10]
    assert found.lost.tolist() == [False, False, True]
    assert np.isinf(found.deadline_s[:2]).all()


@pytest.mark.parametrize("knobs", [{"predictor_error": -0.1}, {"retry_s": 0.0}, {"tbt_s": 0.0}])
def test_configuration_is_refused_when_a_knob_makes_no_sense(knobs: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="admission needs"):
        AdmissionConfig(**knobs)

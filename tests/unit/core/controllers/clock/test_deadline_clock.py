from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from core.algorithms.clock.deadline_clock import MOST_PROMPTS, PROMPT
from core.controllers.clock.deadline_clock import (
    BETWEEN_TOKENS,
    FIRST_TOKEN,
    ROOM,
    DeadlineConfig,
    DeadlineObservation,
    DeadlineState,
    kept_at,
    step,
)
from core.engine.compiled_model import model_row
from core.engine.engine_model import engine_model
from core.engine.iteration import Totals
from core.engine.measured import Basis
from core.ports import EngineLimits
from core.types import Reason, SetSmClock, Source

MODEL = engine_model("Llama3-70B", "A100-80GB", 4, "vllm-v1")
FLOOR, TOP = 600.0, 1410.0
CONFIG = DeadlineConfig(model_row(MODEL), EngineLimits(chunk_tokens=512), FLOOR, 60.0)
NOW_S = 1000.0


def see(prompts: Sequence[tuple[int, float]] = (), **fields: float) -> DeadlineObservation:
    """`prompts`: tokens, and in how many seconds the first one of the answer is due."""
    rows = np.array([(tokens, 0, NOW_S + in_s) for tokens, in_s in prompts], PROMPT)
    return DeadlineObservation(NOW_S, "i1", rows, **fields)  # type: ignore[arg-type]


def clock(obs: DeadlineObservation, config: DeadlineConfig = CONFIG) -> float:
    state, _ = step(None, obs, config)
    assert state.target_mhz is not None
    return state.target_mhz


def prefill_s(tokens: int, mhz: float) -> float:
    """One prompt's chunk by itself, by the engine model that is not compiled."""
    return MODEL.iteration_of(mhz, Totals.plain(tokens, 0.0, 0.0)).t_s


def test_clock_is_the_floor_when_nothing_is_to_be_done() -> None:
    state, effects = step(DeadlineState(TOP), see(), CONFIG)
    assert effects.commands == (SetSmClock("i1", FLOOR),)
    assert (state.target_mhz, effects.next_tick_s) == (FLOOR, None)
    assert effects.rationale.reason is Reason.WITHIN_LIMITS
    assert effects.rationale.summary == "Nothing is to be done: 1410 MHz -> 600 MHz."


def test_clock_is_the_lowest_that_gives_the_first_token_in_time() -> None:
    due_s = prefill_s(500, 1000.0)
    obs = see([(500, due_s)], tpot_s=1.0)
    mhz = clock(obs)
    assert prefill_s(500, mhz) <= due_s < prefill_s(500, mhz - 60.0)
    assert 1000.0 <= mhz < 1060.0


def test_clock_is_the_top_when_a_heap_of_prompts_waits() -> None:
    one, heap = see([(500, 0.9)], tpot_s=1.0), see([(500, 0.9)] * 12, tpot_s=1.0)
    assert clock(one) < TOP
    _, effects = step(DeadlineState(clock(one)), heap, CONFIG)
    assert effects.commands == (SetSmClock("i1", TOP),)
    assert effects.rationale.reason is Reason.AT_LIMIT
    assert effects.rationale.inputs["binds"] == FIRST_TOKEN
    assert [it.failed for it in effects.rationale.alternatives if it.chosen] == [FIRST_TOKEN]


@pytest.mark.parametrize(
    "late",
    [
        see([(100, -0.1)], tpot_s=0.2),  # its first token was due
        see(decodes=1, context_tokens=500, slack_s=-5.0, tpot_s=0.05),  # an answer is far behind
        see([(100, 10.0)], decodes=1, context_tokens=500, slack_s=-5.0, tpot_s=0.05),
    ],
)
def test_clock_is_the_top_when_requests_are_late(late: DeadlineObservation) -> None:
    state, effects = step(None, late, CONFIG)
    assert (state.target_mhz, effects.rationale.reason) == (TOP, Reason.AT_LIMIT)


def test_prompts_ask_for_nothing_by_themselves_when_there_is_no_limit_on_ttft() -> None:
    endless = see([(500, inf)] * 12, tpot_s=10.0)
    assert clock(endless) == FLOOR
    _, effects = step(None, endless, CONFIG)
    assert effects.rationale.inputs["first_due_in_s"] is None


def test_answers_ask_for_their_mean_time_between_tokens_when_no_prompt_waits() -> None:
    def token_s(mhz: float) -> float:
        return MODEL.iteration_of(mhz, Totals.plain(0, 64, 64 * 1000.0)).t_s

    limit_s = (token_s(FLOOR) + token_s(TOP)) / 2.0
    obs = see(decodes=64, context_tokens=64 * 1000, slack_s=10.0, tpot_s=limit_s)
    mhz = clock(obs)
    assert FLOOR < mhz < TOP
    assert kept_at(mhz - 60.0, obs, CONFIG) == BETWEEN_TOKENS
    assert clock(replace(obs, tpot_s=2.0 * limit_s)) == FLOOR
    assert clock(replace(obs, slack_s=-3.0 * limit_s)) > mhz, "it is to catch up"


def test_answers_that_are_ahead_leave_time_for_a_prompt() -> None:
    def at(slack_s: float) -> float:
        return clock(see([(2000, 30.0)], decodes=8, context_tokens=8000, slack_s=slack_s, tpot_s=0.1))

    assert at(0.0) > at(0.5) >= at(5.0)


REQUESTS = st.lists(st.tuples(st.integers(1, 4000), st.floats(-1.0, 8.0)), max_size=20)


@given(
    prompts=REQUESTS,
    decodes=st.integers(0, 200),
    context=st.integers(1, 2000),
    slack_s=st.floats(-2.0, 5.0),
    tpot_s=st.floats(0.01, 0.3),
)
@example(prompts=[(100, 1.0)] * MOST_PROMPTS, decodes=0, context=1, slack_s=0.0, tpot_s=0.2)
@example(prompts=[(100, 3.0)], decodes=255, context=1, slack_s=1.0, tpot_s=0.2)
@settings(deadline=None)
def test_clock_keeps_every_limit_and_the_next_lower_one_does_not(
    prompts: list[tuple[int, float]], decodes: int, context: int, slack_s: float, tpot_s: float
) -> None:
    obs = see(prompts, decodes=decodes, context_tokens=context * decodes, slack_s=slack_s, tpot_s=tpot_s)
    state, effects = step(None, obs, CONFIG)
    mhz = state.target_mhz
    assert mhz is not None
    assert FLOOR <= mhz <= TOP
    broken = kept_at(mhz, obs, CONFIG)
    assert broken is None or mhz == TOP
    assert (effects.rationale.reason is Reason.AT_LIMIT) == (broken is not None)
    if mhz > FLOOR:
        lower_mhz = max(FLOOR, mhz - 60.0)
        binds = kept_at(lower_mhz, obs, CONFIG)
        assert binds is not None
        assert effects.rationale.inputs["binds"] == (broken or binds)
        assert {it.label: it.failed for it in effects.rationale.alternatives}[f"{lower_mhz:.0f} MHz"] is not None


def test_nothing_is_asked_for_when_the_clock_stays() -> None:
    obs = see([(500, 3.0)], tpot_s=0.2)
    state, first = step(None, obs, CONFIG)
    again, second = step(state, obs, CONFIG)
    assert first.commands
    assert second.commands == ()
    assert second.rationale.reason is Reason.NO_CHANGE
    assert again == state


def test_decision_says_what_it_saw_and_the_basis_of_its_figures() -> None:
    config = replace(CONFIG, basis=Basis(Source.MEASURED, 5.0))
    obs = see([(500, 2.0), (300, 3.0)], decodes=3, context_tokens=900, slack_s=0.25, tpot_s=0.1)
    _, effects = step(DeadlineState(TOP), obs, config)
    inputs = effects.rationale.inputs
    assert (inputs["prompts"], inputs["prompt_tokens"], inputs["decodes"], inputs["slack_s"]) == (2, 800, 3, 0.25)
    assert (inputs["first_due_in_s"], inputs["tpot_limit_s"], inputs["from_mhz"]) == (2.0, 0.1, TOP)
    assert (inputs["source"], inputs["measured_at_s"]) == ("measured", 5.0)


def test_engines_limits_count() -> None:
    """With chunks of 128 tokens the same prompt takes more iterations."""
    obs = see([(2000, prefill_s(2000, 1000.0))], tpot_s=1.0)
    whole = replace(CONFIG, limits=EngineLimits())
    assert whole.bounds == (2048, 2048, 256)
    assert clock(obs, whole) < clock(obs, replace(CONFIG, limits=EngineLimits(chunk_tokens=128)))


def test_clocks_that_are_not_apart_are_refused() -> None:
    with pytest.raises(ValueError, match="no 0 MHz apart"):
        replace(CONFIG, step_mhz=0.0)


def test_decision_says_that_answers_leave_room_where_cache_or_batch_fill_up() -> None:
    many = see(decodes=220, context_tokens=40_000, slack_s=5.0, tpot_s=0.15)
    _, calm = step(None, many, CONFIG)
    state, effects = step(None, replace(many, share=0.4), CONFIG)
    assert state.target_mhz is not None
    assert state.target_mhz > calm.rationale.inputs["to_mhz"]
    assert effects.rationale.inputs["binds"] == ROOM
    assert effects.rationale.inputs["share_of_limits"] == 0.4
    assert "leaves 40% of the limits to 0 prompts that wait and 220 answers" in effects.rationale.summary

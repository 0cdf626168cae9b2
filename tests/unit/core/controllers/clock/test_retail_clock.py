"""ReTail's clock rule: the lowest clock at which a straight line keeps every deadline."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.algorithms.clock.speed_table import EngineShape, speed_table
from core.controllers.clock import retail_clock
from core.controllers.clock.retail_clock import LinearLatency, RetailConfig, RetailObservation
from core.controllers.clock.throttllem_clock import ThrottleState
from core.predictors.ips import EngineIps
from core.types import Reason, SetSmClock

CLOCKS = np.arange(210.0, 1411.0, 60.0)
LINE = LinearLatency(np.array([1.0, -0.002, 0.05, 0.001, 0.001, 0.03]), 0.4)


def seen(left_s, output=200.0, share_left=1.0):
    size = len(left_s)
    return RetailObservation(
        10.0,
        "i1",
        500.0,
        np.full(size, 1000.0),
        np.full(size, output),
        np.full(size, share_left),
        10.0 + np.array(left_s, dtype=np.float64),
    )


def test_lowest_clock_that_keeps_all_is_taken():
    # 1 + 0.1 + 0.5 + 1 + 6 - 0.002 MHz < 7.5 for both
    state, effects = retail_clock.step(None, seen([7.5, 30.0]), RetailConfig(CLOCKS, LINE))
    assert state.target_mhz == 570.0
    assert effects.commands == (SetSmClock("i1", 570.0),)
    assert effects.rationale.reason is Reason.WITHIN_LIMITS


def test_top_clock_is_taken_when_none_keeps_all():
    state, effects = retail_clock.step(None, seen([1.0, 30.0]), RetailConfig(CLOCKS, LINE))
    assert state.target_mhz == CLOCKS[-1]
    assert effects.rationale.reason is Reason.AT_LIMIT


def test_nothing_is_commanded_when_the_clock_stays():
    _, effects = retail_clock.step(ThrottleState(210.0), seen([300.0]), RetailConfig(CLOCKS, LINE))
    assert effects.commands == ()


def test_less_is_left_to_wait_for_when_part_is_generated():
    whole, half = (
        retail_clock.step(None, seen([7.0], share_left=share), RetailConfig(CLOCKS, LINE)) for share in (1, 0.5)
    )
    assert half[0].target_mhz < whole[0].target_mhz


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.floats(1, 3000), st.floats(1, 800), st.floats(0, 1), st.floats(-5, 60)), min_size=1))
def test_answer_is_that_of_trying_every_clock(requests):
    prompt, output, share, left_s = np.array(requests).T
    obs = RetailObservation(0.0, "i1", 700.0, prompt, output, share, left_s)
    state, _ = retail_clock.step(None, obs, RetailConfig(CLOCKS, LINE))
    w = LINE.weights
    good = []
    for mhz in CLOCKS:
        takes = w[0] + w[1] * mhz + w[2] * len(requests) + w[3] * 700.0 + w[4] * prompt + w[5] * output
        if all(max(0.0, t) * s < left for t, s, left in zip(takes, share, left_s, strict=True)):
            good.append(mhz)
    assert state.target_mhz == (good[0] if good else CLOCKS[-1])


def test_line_learns_what_costs_time_and_misses_what_bends():
    engine = EngineIps("Llama2-13B", "A100-40GB", "trtllm")
    table = speed_table(engine, engine, EngineShape(4, engine.shape(4).kv_blocks, chunk_tokens=2048), CLOCKS.tolist())
    found = retail_clock.fit(table, 1155.0, 211.0)
    _, per_mhz, per_request, per_block, per_prompt, per_output = found.weights
    assert per_mhz < 0.0
    assert min(per_request, per_block, per_prompt, per_output) > 0.0
    assert 0.3 < found.r2 < 0.95  # a product of clock and length is no line
    assert found.seconds(CLOCKS, 8, 100.0, np.array([1155.0]), np.array([211.0])).shape == (CLOCKS.size, 1)
    assert retail_clock.fit(table, 1155.0, 211.0).weights == pytest.approx(found.weights)

"""The fit of an engine model's steps: what the simulator composes batches by, and what vLLM with the plug-in learns."""

from __future__ import annotations

import random

import numpy as np
import pytest

from core.algorithms.split.step_fit import FIT, MARGIN, MHZ, fit_of, prompt_budget
from core.algorithms.split.step_times import StepLoad, StepTimes, pairs, prompt_tokens_within
from core.engine.compiled_model import iteration, model_row
from core.engine.engine_model import engine_model

TOKENS, SEQUENCES = 2048, 256
MODEL = engine_model("Qwen2.5-14B", "A100-80GB", 1)
ROW, CAPACITY = model_row(MODEL), int(MODEL.kv_capacity_tokens)
CLOCKS = [1410.0, 705.0]


def step_s(mhz: float, prompt: int, cached: int, decodes: int, context: int) -> float:
    return float(
        iteration(ROW, mhz, float(prompt), float(cached), pairs(prompt, cached), 1.0, float(decodes), float(context))[0]
    )


def some_steps(count: int, seed: int) -> list[tuple[int, int, int, int]]:
    """Returns steps as (prompt tokens, tokens of that prompt computed before, decodes, context tokens of all)."""
    rng, found = random.Random(seed), []
    while len(found) < count:
        prompt, decodes, context = rng.randrange(16, TOKENS), rng.randrange(1, SEQUENCES), rng.randrange(64, 8192)
        if decodes * context <= CAPACITY:
            found.append((prompt, rng.choice((0, rng.randrange(8192))), decodes, decodes * context))
    return found


@pytest.mark.parametrize("mhz", CLOCKS)
def test_steps_take_no_longer_than_the_fit_and_its_margin(mhz: float) -> None:
    fit = fit_of(ROW, mhz, TOKENS, SEQUENCES, CAPACITY, 0.1)
    assert fit.shape == (FIT,)
    assert fit[MHZ] == mhz
    over = []
    for prompt, cached, decodes, context in some_steps(500, 1):
        predicted_s = fit[0] + fit[1] * prompt + fit[2] * pairs(prompt, cached) + fit[3] * decodes + fit[4] * context
        over.append(step_s(mhz, prompt, cached, decodes, context) / predicted_s - 1.0)
    assert np.quantile(over, 0.98) <= fit[MARGIN] + 0.01
    assert fit[MARGIN] < 0.1


@pytest.mark.parametrize("mhz", CLOCKS)
@pytest.mark.parametrize("limit_s", [0.03, 0.05, 0.1])
@pytest.mark.parametrize("cached", [0, 6000])
def test_steps_keep_the_limit_and_use_it(mhz: float, limit_s: float, cached: int) -> None:
    fit = fit_of(ROW, mhz, TOKENS, SEQUENCES, CAPACITY, limit_s)
    took = []
    for _, _, decodes, context in some_steps(200, 2):
        budget = prompt_budget(fit, decodes, context, cached, limit_s, TOKENS)
        if 0 < budget < TOKENS:
            took.append(step_s(mhz, budget, cached, decodes, context) / limit_s)
    assert len(took) > 5
    assert np.mean(np.array(took) <= 1.0) >= 0.9  # of all kinds of steps 0.98 do
    assert max(took) < 1.02
    assert np.median(took) > 0.85


def test_compiled_budget_is_the_plug_ins() -> None:
    fit = fit_of(ROW, 1410.0, TOKENS, SEQUENCES, CAPACITY, 0.1)
    costs = fit[:5].tolist()
    for _, _, decodes, context in some_steps(200, 3):
        plain = prompt_tokens_within(costs, decodes, context, 512, 0.05 / (1.0 + float(fit[MARGIN])), TOKENS)
        assert prompt_budget(fit, decodes, context, 512, 0.05, TOKENS) == plain


def test_engine_that_learns_composes_as_the_fit_does() -> None:
    """The plug-in, after some hundred steps of the model's, gives prompts about as much room."""
    fit, times = fit_of(ROW, 1410.0, TOKENS, SEQUENCES, CAPACITY, 0.1), StepTimes()
    for prompt, cached, decodes, context in some_steps(600, 4):
        load = StepLoad(prompt, pairs(prompt, cached), decodes, context)
        times.observe(load, step_s(1410.0, prompt, cached, decodes, context))
    for decodes, context, cached in ((8, 4000, 0), (32, 32_000, 4000), (64, 64_000, 8000)):
        learned = times.prompt_budget(decodes, context, cached, 0.095, TOKENS)
        assert learned == pytest.approx(prompt_budget(fit, decodes, context, cached, 0.095, TOKENS), rel=0.1)

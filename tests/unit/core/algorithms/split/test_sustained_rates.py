"""The rates that instances sustain, against loads on a fine grid, and the choice between whole and cut requests."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.algorithms.split.request_mix import RequestMix
from core.algorithms.split.split_point import (
    PROMPT,
    WHOLE,
    Cut,
    SplitConfig,
    SplitPolicy,
    best_cut,
    pass_costs,
)
from core.algorithms.split.sustained_rates import Steady, pass_s, rate_of, work_s
from core.algorithms.split.virtual_passes import KV_CAPACITY, MAX_SEQUENCES, TOKEN_BUDGET, parts
from core.engine.engine_model import engine_model
from tests.unit.laws import examples

A100 = engine_model("Qwen2.5-14B", "A100-80GB", 1)
COSTS = pass_costs(A100, 1410.0, 2048).values
SHAPES = [(8192, 32), (2048, 512), (219, 1467), (1024, 1024), (5120, 272)]  # DynaServe's tables, and its mix's mean
Lengths = tuple[int, int]
lengths = st.tuples(st.integers(16, 8192), st.integers(2, 1500))


def steady(limit_s: float = 0.095) -> Steady:
    return Steady(COSTS, limit_s)


def mix(prompt: int, output: int) -> RequestMix:
    return RequestMix().after(prompt, output)


def cut_of(shape: Lengths, limit_s: float, policy: SplitPolicy = SplitPolicy.DYNAMIC) -> Cut:
    return best_cut(steady(limit_s), steady(limit_s), (1, 1), mix(*shape), SplitConfig(policy))


def on_a_grid(part: tuple[int, int, int], limit_s: float) -> float:
    """Returns the largest rate of so many decodes a pass, on a grid of 4,000."""
    prefill, decode, cached = part
    context, found = cached + prefill + decode / 2.0, 0.0
    for n in np.linspace(0.05, COSTS[MAX_SEQUENCES], 4000).tolist():
        chunk = n * prefill / decode
        if n + chunk > COSTS[TOKEN_BUDGET] or n * context + cached + prefill > COSTS[KV_CAPACITY]:
            break
        took_s = pass_s(COSTS, prefill, cached, chunk, n, context)
        if took_s > limit_s:
            break
        found = n / (decode * took_s)
    return found


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("limit_s", [0.095, 0.05])
def test_rate_is_the_largest_of_all_loads_of_a_pass_when_decodes_are_many(shape: Lengths, limit_s: float) -> None:
    part = (shape[0], shape[1] - 1, 0)
    assert rate_of(steady(limit_s), part) == pytest.approx(on_a_grid(part, limit_s), rel=0.05)


def test_pass_keeps_its_limit_and_the_cache_its_room_at_the_rate() -> None:
    rps = rate_of(steady(), (4096, 127, 0))
    n = rps * 127 * 0.095
    assert pass_s(COSTS, 4096, 0, n * 4096 / 127, n, 4096 + 63.5) == pytest.approx(0.095, rel=1e-3)
    n = (COSTS[KV_CAPACITY] - 219) / (219 + 1466 / 2)  # as many as the cache holds, where no limit comes before it
    took_s = pass_s(COSTS, 219, 0, n * 219 / 1466, n, 219 + 1466 / 2)
    assert rate_of(steady(0.0), (219, 1466, 0)) == pytest.approx(n / (1466 * took_s), rel=1e-3)


def test_rate_of_few_decodes_is_that_of_passes_of_two_kinds() -> None:
    """Eight decode passes beside chunks; the rest of the prompt in passes that no limit holds up."""
    rps = rate_of(steady(0.03), (8192, 8, 0))
    alone = rate_of(steady(), (8192, 0, 0))
    assert 1.0 / rps == pytest.approx(8 * 0.03 + (8192 - 8 * 100) / 8192 / alone, rel=0.05)
    assert rate_of(steady(), (0, 0, 100)) == math.inf
    assert rate_of(steady(0.005), (2048, 100, 0)) == rate_of(steady(0.005), (0, 100, 2048)) == 0.0


@settings(deadline=None, max_examples=examples(40))
@given(lengths, st.sampled_from([0.0, 0.03, 0.05, 0.095]))
def test_cut_sustains_what_its_slower_instance_does_and_more_than_whole_requests(
    shape: Lengths, limit_s: float
) -> None:
    prompt, total = shape[0], sum(shape)
    found, one = cut_of(shape, limit_s), steady(limit_s)
    whole_rps = 2.0 * rate_of(one, (prompt, total - prompt - 1, 0))
    assert found.whole_rps == pytest.approx(whole_rps)
    assert found.probes <= 6
    if found.whole:
        assert found.rps == found.whole_rps
        first, second = parts(prompt, total, prompt)  # disaggregation is in the choice
        assert min(rate_of(one, first), rate_of(one, second)) <= 1.1 * whole_rps
    else:
        first, second = parts(prompt, total, found.tokens(prompt, total))
        assert found.rps == pytest.approx(min(rate_of(one, first), rate_of(one, second)), rel=0.02)
        assert found.rps > 1.1 * whole_rps


@settings(deadline=None, max_examples=examples(30))
@given(lengths)
def test_no_cut_gains_a_tenth_when_the_limit_is_the_papers(shape: Lengths) -> None:
    """Of every cut on a grid: chunks beside decodes leave nothing to gain that the paper's 1.15 would need."""
    prompt, total, one = shape[0], sum(shape), steady()
    whole_rps = 2.0 * rate_of(one, (prompt, total - prompt - 1, 0))
    for split in np.unique(np.linspace(1, total - 1, 40).astype(int)).tolist():
        first, second = parts(prompt, total, split)
        assert min(rate_of(one, first), rate_of(one, second)) < 1.1 * whole_rps


def test_requests_are_cut_when_the_limit_is_short_beside_a_pass() -> None:
    assert cut_of((4096, 128), 0.095).whole
    found = cut_of((4096, 128), 0.0285)
    assert 0.5 < found.prompt_share < 1.0
    assert found.output_share == 0.0
    assert found.rps > 1.2 * found.whole_rps
    assert cut_of((4096, 128), 0.005).whole  # nothing keeps it


def test_policies_fix_the_cut_and_shares_go_to_each_request() -> None:
    assert cut_of((2048, 512), 0.095, SplitPolicy.COLOCATED) == WHOLE
    assert cut_of((2048, 512), 0.095, SplitPolicy.DISAGGREGATED) == PROMPT
    assert (WHOLE.tokens(100, 150), PROMPT.tokens(100, 150)) == (150, 100)
    assert Cut(0.6, 0.0, 1.0, 1.0, 1).tokens(100, 150) == 60
    assert Cut(1.0, 0.2, 1.0, 1.0, 1).tokens(100, 150) == 110


def test_more_instances_on_one_side_take_more_of_each_request() -> None:
    config = SplitConfig(max_probes=30)
    few, many = (best_cut(steady(0.0285), steady(0.0285), n, mix(4096, 128), config) for n in ((1, 3), (2, 2)))
    assert few.prompt_share < many.prompt_share


def test_work_is_of_tokens_and_not_of_the_time_that_passes_take() -> None:
    long_answer, prompts = np.array([(0, 1400, 300)]), np.array([(2048, 1, 0)] * 4)
    assert work_s(COSTS, long_answer) < 0.5 * work_s(COSTS, prompts)  # alone it takes 28 s, they take one
    assert work_s(COSTS, np.zeros((0, 3), np.int64)) == 0.0


def test_mix_is_the_mean_until_there_are_many_and_then_forgets() -> None:
    found = mix(100, 10).after(300, 30)
    assert (found.prompt_tokens, found.output_tokens) == (200.0, 20.0)
    for _ in range(2000):
        found = found.after(50, 5)
    assert found.prompt_tokens == pytest.approx(50.0, rel=0.01)
    assert found.requests == 200

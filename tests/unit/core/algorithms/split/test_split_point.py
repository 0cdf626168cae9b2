"""DynaServe's virtual passes against walks, pass by pass."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.algorithms.split import virtual_passes
from core.algorithms.split.split_point import (
    Backlog,
    PassCosts,
    SplitConfig,
    burden_s,
    calibrated,
    finish_s,
    first_token_s,
    pass_costs,
    total_tokens,
)
from core.engine.corrections import KNOTS, Correction
from core.engine.engine_model import EngineModel, engine_model
from tests.unit.laws import examples


def unthrottled(*configuration: Any) -> EngineModel:
    """Virtual passes know no TDP: the instance's measured scale stands for it."""
    made = EngineModel(*configuration)
    object.__setattr__(made, "gpu_params", replace(made.gpu_params, tdp_w=1e9))
    return made


A100 = unthrottled("Qwen2.5-14B", "A100-80GB", 1)
MIXTRAL = unthrottled("Mixtral-8x7B", "A100-80GB", 2, "vllm-2024")  # experts, all-reduces, held up by launches
MHZ = 1410.0
Row = tuple[int, int, int]

rows = st.tuples(st.integers(0, 60), st.integers(0, 40), st.integers(0, 500))


def walk(instance: EngineModel, work: list[Row], admitted: int, budget: int, cap: int, kv_capacity: float) -> float:
    """The passes over a queue, one token at a time, timed by the engine model itself."""
    active = [list(row) for row in work[:admitted] if row[0] + row[1] > 0]
    waiting = [list(row) for row in work[admitted:] if row[0] + row[1] > 0]
    total_s = 0.0
    while active or waiting:
        decodes = [row for row in active if row[0] == 0]
        left = budget - len(decodes)
        chunks = []
        for row in active:
            if row[0] > 0:
                chunks.append((row, min(row[0], max(1, left))))
                left -= chunks[-1][1]
        while waiting and left > 0:
            full = len(active) >= cap or sum(map(sum, active)) + sum(waiting[0]) > kv_capacity
            if full and active:
                break
            row = waiting.pop(0)
            left -= min(left, max(1, row[0])) if row[0] == 0 else 0
            if row[0] > 0:
                chunks.append((row, min(row[0], left)))
                left -= chunks[-1][1]
            elif row[1] > 0:
                decodes.append(row)
            active.append(row)
        active = [row for row in active if row[0] + row[1] > 0]
        if not active:
            continue
        found = instance.iteration(
            MHZ, [(chunk, row[2]) for row, chunk in chunks], len(decodes), sum(row[2] + 1 for row in decodes)
        )
        total_s += found.t_s
        for row in decodes:
            row[1] -= 1
            row[2] += 1
        for row, chunk in chunks:
            row[0] -= chunk
            row[2] += chunk
        active = [row for row in active if row[0] + row[1] > 0]
    return total_s


def costs(budget: int = 64, cap: int = 8, instance: EngineModel = A100) -> PassCosts:
    return pass_costs(instance, MHZ, budget, cap)


@settings(deadline=None, max_examples=examples(50))
@given(st.lists(rows, max_size=14), st.integers(0, 8), st.sampled_from([5, 16, 64]), st.sampled_from([A100, MIXTRAL]))
def test_finish_time_is_that_of_a_walk_when_the_queue_is_any(
    work: list[Row], admitted: int, budget: int, instance: EngineModel
) -> None:
    admitted = min(admitted, len(work))
    found = finish_s(Backlog.of(costs(budget, 8, instance), work, admitted))
    assert found == pytest.approx(walk(instance, work, admitted, budget, 8, instance.kv_capacity_tokens), rel=1e-9)


@settings(deadline=None, max_examples=examples(40))
@given(st.lists(rows, max_size=12), st.integers(0, 8), rows)
def test_finish_time_with_a_new_request_is_that_of_a_walk(work: list[Row], admitted: int, part: Row) -> None:
    admitted = min(admitted, len(work))
    more = [part] if part[0] + part[1] else []
    expected = walk(A100, [*work, *more], admitted, 64, 8, A100.kv_capacity_tokens)
    assert finish_s(Backlog.of(costs(), work, admitted), part) == pytest.approx(expected, rel=1e-9, abs=1e-12)


@settings(deadline=None, max_examples=examples(40))
@given(st.lists(rows, max_size=12), st.integers(0, 8), st.integers(1, 200))
def test_first_token_is_that_of_a_walk_to_the_end_when_nothing_decodes_longer(
    work: list[Row], admitted: int, prompt: int
) -> None:
    """With a single token of answer the walk ends where the prompt does, if all else has ended before."""
    admitted = min(admitted, len(work))
    backlog = Backlog.of(costs(), work, admitted)
    found, end_s = first_token_s(backlog, prompt), finish_s(backlog, (prompt, 0, 0))
    assert found <= end_s * (1 + 1e-12)
    prompts = [(prefill, 0, cached) for prefill, _, cached in work if prefill]
    alone = Backlog.of(costs(), prompts, min(admitted, len(prompts)))
    assert first_token_s(alone, prompt) == pytest.approx(finish_s(alone, (prompt, 0, 0)), rel=1e-9)


def test_burden_is_less_where_a_queue_is_shorter_and_where_less_is_decoded() -> None:
    c = pass_costs(A100, MHZ, 2048)
    idle, busy = Backlog.of(c, [], 0), Backlog.of(c, [(0, 300, 800)] * 30, 30)
    queue = Backlog.of(c, [(0, 300, 800)] * 30 + [(4096, 100, 0)] * 3, 30)
    assert burden_s(idle, 500) < burden_s(busy, 500) < burden_s(queue, 500)
    few_long, many = Backlog.of(c, [(0, 1400, 300)], 1), Backlog.of(c, [(0, 100, 800)] * 40, 40)
    assert finish_s(few_long) > finish_s(many)
    assert burden_s(few_long, 500) < burden_s(many, 500)  # it ends late, and is less work


def test_requests_wait_when_the_kv_cache_has_no_room() -> None:
    small = unthrottled("Llama3-70B", "A100-80GB", 2)
    capacity = int(small.kv_capacity_tokens)
    work = [(64, 30, capacity - 200), (64, 30, 100)]  # together more than fits
    found = finish_s(Backlog.of(pass_costs(small, MHZ, 256, 8), work, 0))
    assert found == pytest.approx(walk(small, work, 0, 256, 8, small.kv_capacity_tokens), rel=1e-9)
    assert found > finish_s(Backlog.of(pass_costs(small, MHZ, 256, 8), [(64, 30, capacity - 400), (64, 30, 100)], 0))


@settings(deadline=None, max_examples=examples(30))
@given(st.integers(1, 200), st.integers(1, 200), st.integers(0, 400))
def test_parts_are_the_whole_request_when_cut_anywhere(prompt: int, output: int, at: int) -> None:
    total = prompt + output
    one, two = virtual_passes.parts(prompt, total, min(at, total))
    assert one[0] + two[0] == prompt
    assert one[1] + two[1] == output - 1  # the prompt's last pass brings the first token
    if two[0] + two[1]:
        assert two[2] == min(at, total) == one[0] + one[1]  # its cache is what the first part has computed


def test_margin_is_added_when_the_limit_allows_it() -> None:
    assert total_tokens(10, 30, SplitConfig()) == 60
    assert total_tokens(10, 30, SplitConfig(), max_tokens=35) == 45


def test_scale_converges_when_measurements_are_steady() -> None:
    scale = 1.0
    for _ in range(100):
        scale = calibrated(scale, 0.02, 0.026)
    assert scale == pytest.approx(1.3, rel=1e-3)
    assert calibrated(scale, 0.02, 5.0) == scale  # a stall
    assert calibrated(1.0, 0.02, 0.01) < 1.0


@pytest.mark.parametrize(
    "wrong",
    [
        lambda c: Backlog.of(c, [(1, 2, -3)], 0),
        lambda c: Backlog.of(c, [(1, 2, 3)], 2),
        lambda c: Backlog.of(c, [(0, 2, 3)] * 9, 9),
        lambda c: Backlog.of(c, [], 0, scale=0.0),
        lambda _: total_tokens(0, 5, SplitConfig()),
        lambda _: pass_costs(A100, MHZ, 0),
        lambda _: pass_costs(engine_model("Llama3-70B", "A100-40GB", 1), MHZ, 64),
        lambda _: SplitConfig(max_probes=0),
        lambda _: calibrated(1.0, 0.0, 1.0),
    ],
)
def test_values_are_refused_when_they_mean_nothing(wrong) -> None:
    with pytest.raises(ValueError, match=r"need|from 0|more than|longer|at least one"):
        wrong(costs())


@pytest.mark.parametrize(
    "instance",
    [
        replace(A100, correction=Correction((1.3,) * KNOTS, (1.0,) * KNOTS)),
        EngineModel("Qwen3-30B-A3B", "H100-SXM-80GB", 2, "vllm-2025"),
    ],
)
def test_passes_take_what_the_engine_model_says_of_a_typical_one(instance: EngineModel) -> None:
    mhz = instance.gpu_params.f_max
    backlog = Backlog.of(pass_costs(instance, mhz, 2048), [(0, 1, 1260)] * 16 + [(512, 1, 0)], 16)
    one = instance.iteration(mhz, [(512, 0)], 16, 16 * 1260.0)
    after = instance.iteration(mhz, (), 1, 513.0)
    assert finish_s(backlog) == pytest.approx(one.t_s + after.t_s, rel=0.12)

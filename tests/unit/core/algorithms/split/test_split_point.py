"""DynaServe's split against walks, pass by pass, and against every split there is."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.algorithms.split import virtual_passes
from core.algorithms.split.split_point import (
    Backlog,
    PassCosts,
    Split,
    SplitConfig,
    SplitPolicy,
    calibrated,
    finish_s,
    pass_costs,
    split_at,
    split_request,
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


def parts(found: Split) -> tuple[Row, Row]:
    """Both micro-requests as rows of a backlog."""
    return virtual_passes.parts(found.prompt, found.total, found.tokens)


def grown(backlog: Backlog, part: Row) -> Backlog:
    """With a micro-request more, last in the queue; an empty one changes nothing."""
    rows = [part] if part[0] + part[1] else []
    return Backlog.of(backlog.costs, [*map(tuple, backlog.work.tolist()), *rows], backlog.admitted)


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
def test_finish_time_with_a_new_request_is_that_of_a_walk_when_the_prefix_is_shared(
    work: list[Row], admitted: int, part: Row
) -> None:
    """`split_request` walks what comes before the new request once, for all probes."""
    admitted = min(admitted, len(work))
    prompt, output = max(1, part[0]), max(1, part[1])
    one, two = Backlog.of(costs(), work, admitted), Backlog.of(costs(), work[: admitted // 2], admitted // 2)
    found = split_request(prompt, output, one, two, SplitConfig(margin_tokens=0))
    for backlog, part_, seen_s in zip((one, two), parts(found), (found.first_s, found.second_s), strict=True):
        grown = [tuple(row) for row in backlog.work.tolist()] + ([part_] if part_[0] + part_[1] else [])
        expected = walk(A100, grown, backlog.admitted, 64, 8, A100.kv_capacity_tokens)
        assert seen_s == pytest.approx(expected, rel=1e-9, abs=1e-12)


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
    idle = Backlog.of(costs(), [], 0)
    one, two = parts(split_at(min(at, total), prompt, total, idle, idle))
    assert one[0] + two[0] == prompt
    assert one[1] + two[1] == output - 1  # the prompt's last pass brings the first token
    if two[0] + two[1]:
        assert two[2] == min(at, total) == one[0] + one[1]  # its cache is what the first part has computed


def brute_force(prompt: int, total: int, one: Backlog, two: Backlog) -> float:
    found = (split_at(s, prompt, total, one, two) for s in range(total + 1))
    return min(max(split.first_s, split.second_s) for split in found)


def backlog(rng: np.random.Generator, most: int) -> Backlog:
    n = int(rng.integers(0, most + 1))
    decoding = [(0, int(rng.integers(1, 400)), int(rng.integers(50, 2000))) for _ in range(n)]
    waiting = [(int(rng.integers(50, 2000)), int(rng.integers(1, 400)), 0) for _ in range(n // 4)]
    return Backlog.of(pass_costs(A100, MHZ, 2048), decoding + waiting, n)


@pytest.mark.parametrize("seed", range(24))
def test_split_is_within_one_percent_of_every_other_when_queues_are_random(seed: int) -> None:
    rng = np.random.default_rng(seed)
    one, two = backlog(rng, 24), backlog(rng, 24)
    prompt, output = int(rng.integers(1, 1500)), int(rng.integers(1, 500))
    found = split_request(prompt, output, one, two, SplitConfig(margin_tokens=0))
    assert found.probes <= 6
    best_s = brute_force(prompt, prompt + output, one, two)
    assert best_s <= max(found.first_s, found.second_s) * (1 + 1e-12)
    assert max(found.first_s, found.second_s) <= 1.01 * best_s


@pytest.mark.parametrize("lengths", [(219, 1467), (2048, 512), (8192, 32), (1024, 1024)])  # the paper's shapes
def test_stream_throughput_is_within_one_percent_when_the_oracle_tries_all_joint_splits(
    lengths: tuple[int, int],
) -> None:
    """Requests one after another, none known before it comes; the oracle knows them all (on a grid of 25 ratios)."""
    prompt, output = lengths
    sizes = [(prompt, output), (prompt // 2 + 1, output), (prompt, output // 2 + 1)]
    idle = Backlog.of(pass_costs(A100, MHZ, 2048), [], 0)
    one = two = idle
    for p, d in sizes:
        first, second = parts(split_request(p, d, one, two, SplitConfig(margin_tokens=0)))
        one, two = grown(one, first), grown(two, second)
    made_s = max(finish_s(one), finish_s(two))
    grid = [[parts(split_at(round(k * (p + d) / 24), p, p + d, idle, idle)) for k in range(25)] for p, d in sizes]
    best_s = min(
        max(finish_s(Backlog.of(idle.costs, [part[side] for part in chosen], 0)) for side in (0, 1))
        for chosen in itertools.product(*(row[::2] for row in grid))
    )
    assert made_s <= 1.01 * best_s  # the same tokens, so throughputs are as times are


def test_request_stays_whole_when_the_other_instance_is_busy_for_longer() -> None:
    busy = Backlog.of(pass_costs(A100, MHZ, 2048), [(0, 2000, 500)] * 8, 8)
    idle = Backlog.of(pass_costs(A100, MHZ, 2048), [], 0)
    assert split_request(300, 100, busy, idle).tokens == 0
    assert split_request(300, 100, idle, busy).tokens == 420  # with the margin
    assert split_request(300, 100, idle, busy).whole


def test_split_moves_away_from_an_instance_when_its_work_or_scale_grows() -> None:
    c = pass_costs(A100, MHZ, 2048)
    even = [(0, 300, 800)] * 6
    base = split_request(1024, 1024, Backlog.of(c, even, 6), Backlog.of(c, even, 6)).tokens
    more = split_request(1024, 1024, Backlog.of(c, [*even, (600, 100, 0)], 6), Backlog.of(c, even, 6)).tokens
    slow = split_request(1024, 1024, Backlog.of(c, even, 6, scale=1.3), Backlog.of(c, even, 6)).tokens
    late = split_request(1024, 1024, Backlog.of(c, even, 6, lead_s=2.0), Backlog.of(c, even, 6)).tokens
    assert max(more, slow, late) < base


def test_split_balances_beyond_the_prompt_when_output_is_long() -> None:
    """Figure 5: with 1024 and 1024 tokens the instances are level when the first one decodes too."""
    idle = Backlog.of(pass_costs(A100, MHZ, 2048), [], 0)
    found = split_request(1024, 1024, idle, idle)
    assert 1024 < found.tokens < 2048
    assert found.first_s == pytest.approx(found.second_s, rel=0.01)


def test_ends_are_disaggregation_and_colocation_when_asked_for() -> None:
    c = pass_costs(A100, MHZ, 2048)
    idle, busy = Backlog.of(c, [], 0), Backlog.of(c, [(0, 50, 100)], 1)
    apart = split_request(500, 200, idle, idle, SplitConfig(SplitPolicy.DISAGGREGATED))
    assert parts(apart)[0] == (500, 0, 0)
    assert parts(apart)[1] == (0, 219, 500)
    whole = SplitConfig(SplitPolicy.COLOCATED, margin_tokens=0)
    assert parts(split_request(500, 200, idle, busy, whole)) == ((500, 199, 0), (0, 0, 700))
    assert split_request(500, 200, busy, idle, whole).tokens == 0


def test_margin_is_added_when_the_limit_allows_it() -> None:
    idle = Backlog.of(costs(), [], 0)
    assert split_request(10, 30, idle, idle).total == 60
    assert split_request(10, 30, idle, idle, max_tokens=35).total == 45


def test_first_probe_is_the_end_of_the_prompt_when_one_is_allowed() -> None:
    idle = Backlog.of(costs(), [], 0)
    assert split_request(77, 30, idle, idle, SplitConfig(max_probes=1)).tokens == 77


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
        lambda c: split_request(0, 5, Backlog.of(c, [], 0), Backlog.of(c, [], 0)),
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

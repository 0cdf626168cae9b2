"""Exposed time of KV transfers: the closed forms against a link walked chunk by chunk."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.algorithms.split.kv_transfer import Link, exposed_s, exposure
from core.algorithms.split.split_point import pass_costs
from core.algorithms.split.sustained_rates import Steady, best_cut
from core.algorithms.split.virtual_passes import parts
from core.engine.engine_model import engine_model

seconds = st.floats(0.0, 10.0)


@settings(deadline=None)
@given(st.lists(st.tuples(seconds, seconds), min_size=1, max_size=30))
def test_exposed_time_is_that_of_a_walk_when_chunks_are_any(chunks: list[tuple[float, float]]) -> None:
    computed = np.cumsum([c for c, _ in chunks])
    free_s = 0.0
    for at_s, (_, x) in zip(computed, chunks, strict=True):
        free_s = max(free_s, at_s) + x
    assert exposed_s(computed, [x for _, x in chunks]) == pytest.approx(free_s - computed[-1], abs=1e-9)


@settings(deadline=None)
@given(st.integers(1, 50), seconds, seconds)
def test_closed_form_agrees_when_chunks_are_equal(chunks: int, compute_s: float, transfer_s: float) -> None:
    computed = compute_s * np.arange(1, chunks + 1)
    expected_s = transfer_s + (chunks - 1) * max(0.0, transfer_s - compute_s)
    assert exposed_s(computed, [transfer_s] * chunks) == pytest.approx(expected_s, abs=1e-9)


def test_everything_is_exposed_when_all_is_computed_in_one_pass() -> None:
    found = exposure([512], [0.1], 64, 200_000.0, Link(25e9))
    assert found.chunks == 8
    assert found.chunked_s == pytest.approx(found.whole_s) == pytest.approx(512 * 200_000 / 25e9)


def test_chunks_cost_more_when_latency_outweighs_overlap() -> None:
    assert exposure([512], [0.1], 8, 200_000.0, Link(25e9, 0.01)).removed < 0


def test_chunking_removes_94_percent_when_a_reasoning_request_is_split() -> None:
    """Section 6.6: Mini Reasoning (219 prompt, 1467 output tokens), Qwen2.5-14B, 94 % less exposed transfer.

    On one 200 Gb/s link, beside 40 other sequences. The size of a chunk is not in the paper; 60 tokens cut the first
    part into 17 or 18, which gives its figure, and the 16 tokens of a block of vLLM's give more.
    """
    engine = engine_model("Qwen2.5-14B", "A100-80GB", 1)
    link, kv_bytes = Link(25e9, 20e-6), engine.constants.kv_bytes
    alike = Steady(pass_costs(engine, 1410.0, 2048).values, 0.095)
    cut, *_ = best_cut(alike, alike, (1, 1), 219, 219 + 1467, 6)  # of cuts: whole requests sustain more
    prompt, passes, _ = parts(219, 219 + 1467, cut)[0]
    assert prompt == 219  # decodes go along with the prompt: a split beyond it
    tokens = np.arange(prompt, prompt + passes + 1)
    step_s = engine.iteration(1410.0, decodes=40, context_tokens=40 * 800.0).t_s
    ends = step_s * np.arange(1, len(tokens) + 1)
    found = exposure(tokens, ends, 60, kv_bytes, link)
    assert found.chunks in (17, 18)
    assert found.removed >= 0.94
    even = exposure(tokens[: 17 * 60 - prompt + 1], ends[: 17 * 60 - prompt + 1], 60, kv_bytes, link)
    assert even.removed == pytest.approx(0.94, abs=0.005)  # no short chunk at the end
    assert exposure(tokens, ends, 16, kv_bytes, link).removed > even.removed
    assert exposure(tokens, ends, int(tokens[-1]), kv_bytes, link).removed == pytest.approx(0.0)


def test_values_are_refused_when_they_mean_nothing() -> None:
    with pytest.raises(ValueError, match="link"):
        Link(0.0)
    with pytest.raises(ValueError, match="chunk"):
        exposure([3, 2], [0.1, 0.2], 4, 1.0, Link(1.0))
    assert exposed_s([], []) == 0.0

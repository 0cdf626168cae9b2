"""Limits of an iteration that change while the engine runs."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.ports import EngineLimits, EngineOptions
from tests.unit.pools.simnode.engine.engine_bench import PREFILL_S_PER_TOKEN, STEP_S, Bench


def prefills(bench: Bench) -> list[int]:
    return [sum(new for new, _ in prefill) for _, prefill, _, _ in bench.cost.asked if prefill]


def test_new_token_budget_holds_from_the_next_iteration_when_it_is_changed() -> None:
    bench = Bench()
    bench.ask("a", prompt=5000, output=1)
    bench.batcher.limits = EngineLimits(max_num_batched_tokens=64)
    bench.run(0.23)
    bench.batcher.limits = EngineLimits(max_num_batched_tokens=1000)
    bench.run()
    assert prefills(bench) == [2048, 64, 1000, 1000, 888]


def test_iteration_takes_a_chunk_of_each_prompt_when_there_is_a_limit_for_one() -> None:
    bench = Bench(limits=EngineLimits(chunk_tokens=512))
    bench.ask("long", prompt=1200, output=1)
    bench.ask("short", prompt=100, output=1, at_s=0.001)
    bench.run()
    made = [tuple(new for new, _ in prefill) for _, prefill, _, _ in bench.cost.asked if prefill]
    assert made == [(512,), (512, 100), (176,)]
    bench.batcher.limits = EngineLimits()
    bench.ask("again", prompt=1200, output=1, at_s=9.0)
    bench.run()
    assert prefills(bench)[-1] == 1200


def test_decodes_beyond_the_budget_wait_when_it_is_smaller_than_the_batch() -> None:
    bench = Bench()
    for number in range(10):
        bench.ask(str(number), prompt=1, output=100)
    bench.run(0.05)
    bench.batcher.limits = EngineLimits(max_num_batched_tokens=4)
    bench.run(0.5)
    assert bench.cost.asked[-1][2] == 4
    bench.run()
    assert all(len(bench.tokens[str(number)]) == 100 for number in range(10))


def test_nobody_comes_in_until_places_are_free_when_max_num_seqs_is_lowered() -> None:
    bench = Bench()
    for number in range(4):
        bench.ask(str(number), prompt=1, output=10 + 10 * number)
    bench.run(0.05)
    bench.batcher.limits = EngineLimits(max_num_seqs=2)
    bench.ask("late", prompt=1, output=5, at_s=0.05)
    assert bench.batcher.running == 4
    while bench.batcher.next_s is not None and not bench.tokens["late"]:
        bench.run(bench.batcher.next_s)
    assert bench.batcher.running <= 2
    assert [len(bench.tokens[str(number)]) for number in range(3)] == [10, 20, 30]  # three had to end first
    assert len(bench.tokens["3"]) < 40


def learned() -> Bench:
    """Returns an engine with a request that decodes, and that knows how long its steps take."""
    bench = Bench()
    bench.ask("decoding", prompt=1, output=10_000)
    at_s = 0.0
    for number, prompt in enumerate([100, 400, 900, 50, 1500, 200, 700, 1200]):
        at_s += 0.5
        bench.run(at_s)
        bench.ask(f"earlier-{number}", prompt, 1, at_s=at_s)
    bench.run(10.0)
    return bench


@given(
    prompts=st.lists(st.integers(50, 1500), min_size=1, max_size=4),
    limit_s=st.floats(STEP_S + 50 * PREFILL_S_PER_TOKEN, 0.2),
)
@settings(max_examples=25, deadline=None)
def test_iteration_keeps_the_itl_limit_and_uses_it_when_somebody_decodes(prompts: list[int], limit_s: float) -> None:
    bench = learned()
    bench.batcher.limits = EngineLimits(itl_limit_s=limit_s)
    begun = len(bench.gpus.iterations_s)
    for number, prompt in enumerate(prompts):
        bench.ask(str(number), prompt, 1, at_s=10.0)
    while any(not bench.tokens[str(number)] for number in range(len(prompts))):
        assert bench.batcher.next_s is not None
        bench.run(bench.batcher.next_s)
    taken_s = bench.gpus.iterations_s[begun:]
    assert max(taken_s) <= limit_s + 1e-9
    if sum(prompts) * PREFILL_S_PER_TOKEN + STEP_S > limit_s:
        assert max(taken_s) > 0.9 * limit_s  # the margin is 5 %


def test_prompts_have_the_whole_budget_until_enough_steps_are_known() -> None:
    bench = Bench(limits=EngineLimits(itl_limit_s=STEP_S + 10 * PREFILL_S_PER_TOKEN))
    bench.ask("decoding", prompt=1, output=100)
    bench.ask("a", prompt=1000, output=1, at_s=0.03)
    bench.run()
    assert prefills(bench) == [1, 1000]


def test_prompts_have_the_whole_budget_when_nobody_decodes() -> None:
    bench = Bench(limits=EngineLimits(itl_limit_s=STEP_S + 10 * PREFILL_S_PER_TOKEN))
    bench.ask("a", prompt=2000, output=1)
    assert prefills(bench) == [2000]


def test_prompts_still_come_to_their_end_when_the_decodes_alone_break_the_itl_limit() -> None:
    bench = learned()
    bench.batcher.limits = EngineLimits(itl_limit_s=STEP_S / 2)
    begun = len(prefills(bench))
    bench.ask("b", prompt=100, output=1, at_s=10.0)
    bench.run(11.0)
    assert prefills(bench)[begun:] == [16, 16, 16, 16, 16, 16, 4]
    assert bench.tokens["b"] == [(0, "stop")]


@pytest.mark.parametrize(
    "bad",
    [{"max_num_batched_tokens": 0}, {"max_num_seqs": 0}, {"itl_limit_s": 0.0}, {"itl_limit_s": float("nan")}],
)
def test_limits_are_refused_when_nothing_could_run_within_them(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"at least 1|above 0"):
        EngineLimits(**bad)  # type: ignore[arg-type]


def test_options_are_refused_when_they_contradict_each_other() -> None:
    with pytest.raises(ValueError, match="fcfs, priority"):
        EngineOptions("lifo")
    with pytest.raises(ValueError, match="needs scheduling_policy priority"):
        EngineOptions("fcfs", preempt_for_waiting=True)

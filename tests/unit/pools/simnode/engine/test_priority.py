"""Priorities as vLLM has them, and the preemption of those who run for those who wait."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.ports import EngineLimits, EngineOptions
from tests.unit.pools.simnode.engine.engine_bench import Bench

PRIORITY = EngineOptions("priority")
PREEMPTING = EngineOptions("priority", preempt_for_waiting=True)
ONE = EngineLimits(max_num_seqs=1)
AT_ONCE = {"preempts_s": 0.001, "margin_s": 0.0}  # whoever waits may displace at any time


def order_of_ends(bench: Bench, step_s: float = 0.01) -> str:
    """Who ended after whom."""
    names, ended = list(bench.tokens), list[str]()
    for step in range(1, 2000):
        bench.run(step * step_s)
        ended += [name for name in names if name not in ended and bench.tokens[name] and bench.tokens[name][-1][1]]
    return "".join(ended)


@pytest.mark.parametrize(
    ("options", "order"), [(EngineOptions(), "abcd"), (PRIORITY, "acdb")], ids=["fcfs", "priority"]
)
def test_waiting_requests_come_in_by_priority_then_arrival_when_the_engine_heeds_it(
    options: EngineOptions, order: str
) -> None:
    bench = Bench(options=options, limits=ONE)
    bench.ask("a", 10, 10, priority=9)  # runs when the others come, and is not disturbed
    for name, priority, at_s in (("b", 5, 0.01), ("c", -1, 0.02), ("d", -1, 0.03)):
        bench.ask(name, 10, 10, at_s, priority=priority)
    assert order_of_ends(bench) == order
    assert bench.batcher.counters.preemptions == 0


def test_worst_priority_is_preempted_and_computed_again_when_decodes_outgrow_the_cache() -> None:
    bench = Bench(1000, PRIORITY)
    bench.ask("worst", 450, 100, priority=3)
    bench.ask("best", 500, 200, priority=1)
    bench.run()
    assert bench.batcher.counters.preemptions >= 1
    assert [index for index, _ in bench.tokens["worst"]] == list(range(100))
    again = [prefills for _, prefills, _, _ in bench.cost.asked if prefills and prefills[0][0] > 500]
    assert not again  # "best" was never computed twice, though it is the newest
    assert any(prefills and 450 < prefills[0][0] < 500 for _, prefills, _, _ in bench.cost.asked)


def test_newest_of_equals_is_preempted_when_decodes_outgrow_the_cache() -> None:
    bench = Bench(1000, PRIORITY)
    bench.ask("old", 450, 100, priority=1)
    bench.ask("new", 500, 100, at_s=0.001, priority=1)
    bench.run()
    assert bench.batcher.counters.preemptions >= 1
    assert not [prefills for _, prefills, _, _ in bench.cost.asked if prefills and 450 < prefills[0][0] < 500]


def test_running_request_gives_way_to_a_waiting_one_when_that_is_switched_on() -> None:
    bench = Bench(options=PREEMPTING, limits=replace(ONE, **AT_ONCE))
    bench.ask("batch", 10, 100, priority=5)
    bench.ask("urgent", 10, 5, at_s=0.5, priority=1)
    assert order_of_ends(bench) == "urgentbatch"
    assert bench.batcher.counters.preemptions == 1
    assert [index for index, _ in bench.tokens["batch"]] == list(range(100))


@pytest.mark.parametrize(
    ("limits", "at_s"),
    [
        ({"preempts_s": 2.0, "margin_s": 0.5}, 2.0),  # at the next stretch, not at 1.5 s, when it comes
        ({"preempts_s": 0.25, "margin_s": 0.5}, 1.5),
        ({"preempts_s": 0.25, "margin_s": 1.0}, None),  # it is not that much ahead
        ({}, None),  # never
    ],
)
def test_requests_give_way_each_stretch_to_those_that_are_ahead_by_the_margin(
    limits: dict[str, float], at_s: float | None
) -> None:
    bench = Bench(options=PREEMPTING, limits=EngineLimits(max_num_seqs=1, **limits))
    bench.ask("batch", 10, 150, priority=5000)
    bench.ask("early", 10, 1, at_s=0.5, priority=6000)  # it waits, so that the first stretch has been looked at
    bench.ask("urgent", 10, 1, at_s=1.5, priority=4000)
    while not bench.tokens["urgent"]:
        assert bench.batcher.next_s is not None
        bench.run(bench.batcher.next_s)
    now_s = bench.batcher._begun_s
    assert bench.batcher.counters.preemptions == (at_s is not None)
    assert now_s == pytest.approx(3.05 if at_s is None else at_s + 0.04, abs=0.03)


@pytest.mark.parametrize(
    ("prompt", "priority"), [(500, 2), (900, 1)], ids=["equal", "no room even without the worse one"]
)
def test_nobody_gives_way_when_priorities_are_equal_or_it_would_not_make_room(prompt: int, priority: int) -> None:
    bench = Bench(1000, PREEMPTING, EngineLimits(**AT_ONCE))
    bench.ask("worse", 600, 50, priority=2)
    bench.ask("better", 300, 50, priority=0)
    bench.run(0.3)
    bench.ask("late", prompt, 5, at_s=0.3, priority=priority)
    bench.run(0.5)
    assert bench.batcher.counters.preemptions == 0
    bench.run()
    assert bench.batcher.empty


REQUESTS = st.lists(
    st.tuples(st.integers(1, 400), st.integers(1, 40), st.integers(-2, 2), st.floats(0.0, 2.0)),
    min_size=1,
    max_size=20,
)


@given(requests=REQUESTS, capacity=st.integers(440, 2000), seqs=st.integers(1, 6), preempting=st.booleans())
@settings(max_examples=60, deadline=None)
def test_every_token_comes_once_and_the_cache_is_empty_at_the_end_when_load_is_random(
    requests: list[tuple[int, int, int, float]], capacity: int, seqs: int, preempting: bool
) -> None:
    bench = Bench(capacity, PREEMPTING if preempting else PRIORITY, EngineLimits(max_num_seqs=seqs, **AT_ONCE))
    requests.sort(key=lambda request: request[3])
    for number, (prompt, output, priority, at_s) in enumerate(requests):
        bench.ask(str(number), prompt, output, at_s, priority=priority)
        assert bench.batcher.running <= seqs
        assert 0.0 <= bench.batcher.kv_usage <= 1.0
    bench.run()
    for number, (_, output, _, _) in enumerate(requests):
        assert [index for index, _ in bench.tokens[str(number)]] == list(range(output))
    assert bench.batcher.empty
    assert bench.batcher.kv_usage == 0.0

"""Continuous batching on its own timeline: a made-up cost model, no event loop."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.ports import EngineLimits
from pools.simnode.engine.generation import Generation
from tests.unit.laws import examples
from tests.unit.pools.simnode.engine.engine_bench import STEP_S, Bench, Cost


def test_tokens_come_when_the_cost_model_says_when_one_request_runs() -> None:
    bench = Bench()
    generation = bench.ask("a", prompt=100, output=3)
    bench.run(0.029)
    assert bench.tokens["a"] == []
    bench.run(0.03)  # 20 ms and 100 tokens of 0.1 ms
    assert bench.tokens["a"] == [(0, None)]
    bench.run(0.0501)
    assert bench.tokens["a"] == [(0, None), (1, None)]
    bench.run(0.071)
    assert bench.tokens["a"][-1] == (2, "stop")
    assert generation.ended
    assert bench.batcher.empty
    assert bench.batcher.kv_usage == 0.0
    assert bench.batcher.next_s is None


def test_late_calls_do_not_slow_the_engine_when_the_event_loop_lags() -> None:
    prompt, lagging = Bench(), Bench()
    for bench in (prompt, lagging):
        bench.ask("a", prompt=100, output=50)
    for step in range(1, 200):
        prompt.run(step * 0.01)
    lagging.run(2.0)  # one call at the end
    assert prompt.tokens == lagging.tokens
    assert prompt.gpus.draws == lagging.gpus.draws
    assert lagging.gpus.draws[-1] == (pytest.approx(0.03 + 49 * STEP_S), "idle")


def test_request_joins_the_next_iteration_when_one_is_in_flight() -> None:
    bench = Bench()
    bench.ask("a", prompt=100, output=10)
    bench.ask("b", prompt=50, output=2, at_s=0.01)
    assert bench.batcher.waiting == 1
    bench.run(0.031)
    assert bench.cost.asked[1][1:] == (((50, 0),), 1, 101.0)  # b's prompt beside a's token
    assert bench.batcher.running == 2


def test_request_is_not_served_before_it_arrived_when_the_loop_catches_up() -> None:
    bench = Bench()
    bench.ask("a", prompt=100, output=100)
    late = Generation(10, 1, "stop", lambda *_: None, arrived_s=0.5)
    bench.batcher.submit(late, 0.1)  # as if the clock of the arrival ran ahead of the timeline
    bench.run(0.4)
    assert late.generated == 0
    bench.run(0.6)
    assert late.generated == 1


def test_prompt_is_cut_into_chunks_when_it_exceeds_the_token_budget() -> None:
    bench = Bench()
    bench.ask("a", prompt=5000, output=1)
    bench.run()
    assert [prefills for _, prefills, _, _ in bench.cost.asked] == [((2048, 0),), ((2048, 2048),), ((904, 4096),)]
    assert bench.tokens["a"] == [(0, "stop")]


def test_decodes_go_first_when_the_budget_is_short() -> None:
    bench = Bench()
    bench.ask("a", prompt=10, output=50)
    bench.run(0.022)
    bench.ask("b", prompt=4000, output=1, at_s=0.022)
    bench.run(0.3)
    chunks = [(prefills, decodes) for _, prefills, decodes, _ in bench.cost.asked if prefills and decodes]
    assert chunks == [(((2047, 0),), 1), (((1953, 2047),), 1)]


def test_request_waits_when_its_prompt_does_not_fit_in_the_free_cache() -> None:
    bench = Bench(capacity_tokens=1000)
    bench.ask("a", prompt=700, output=20)
    bench.ask("b", prompt=400, output=5)
    bench.run(0.2)
    assert bench.batcher.waiting == 1
    assert bench.tokens["b"] == []
    bench.run()
    assert bench.tokens["b"][-1] == (4, "stop")


def test_newest_is_preempted_and_computed_again_when_decodes_outgrow_the_cache() -> None:
    bench = Bench(capacity_tokens=1000)
    bench.ask("old", prompt=500, output=200)
    bench.ask("new", prompt=450, output=100)
    bench.run()
    assert bench.batcher.counters.preemptions >= 1
    assert [index for index, _ in bench.tokens["old"]] == list(range(200))
    assert [index for index, _ in bench.tokens["new"]] == list(range(100))
    again = [prefills for _, prefills, _, _ in bench.cost.asked if prefills and prefills[0][0] > 450]
    assert again[-1][0][0] == 450 + 25  # prompt and what it had generated when the cache was full
    assert bench.batcher.counters.prompt_tokens == 950  # a prompt counts once


def test_sequences_beyond_the_limit_wait_when_the_batch_is_full() -> None:
    bench = Bench()
    for number in range(EngineLimits().max_num_seqs + 10):
        bench.ask(str(number), prompt=1, output=50)
    bench.run(0.1)
    assert bench.batcher.running == EngineLimits().max_num_seqs
    assert bench.batcher.waiting == 10


def test_cache_is_freed_and_nothing_more_is_sent_when_a_client_goes() -> None:
    bench = Bench()
    running = bench.ask("a", prompt=100, output=1000)
    bench.run(0.5)
    waiting = bench.ask("b", prompt=10, output=10, at_s=0.5)
    sent = len(bench.tokens["a"])
    bench.batcher.abort(waiting, 0.5)
    bench.batcher.abort(running, 0.5)
    bench.batcher.abort(running, 0.5)  # twice does no harm
    assert bench.batcher.kv_usage == 0.0
    bench.run()
    assert len(bench.tokens["a"]) == sent
    assert bench.tokens["b"] == []
    assert bench.batcher.counters.finished["abort"] == 2
    assert bench.batcher.empty


def test_new_clock_takes_effect_with_the_next_iteration_when_it_changes() -> None:
    bench = Bench()
    bench.ask("a", prompt=100, output=3)
    bench.gpus.clock_mhz = 500.0
    bench.batcher.clock_changed(0.01)
    bench.run()
    assert [asked[0] for asked in bench.cost.asked] == [1000.0, 500.0, 500.0]
    assert bench.gpus.draws[-1] == (pytest.approx(0.03 + 2 * 0.04), "idle")


def test_latencies_are_those_of_the_timeline_when_requests_end() -> None:
    bench = Bench()
    bench.ask("a", prompt=100, output=11)
    bench.run()
    counters = bench.batcher.counters
    assert counters.time_to_first_token_s.total == pytest.approx(0.03)
    assert counters.inter_token_latency_s.total == pytest.approx(10 * STEP_S)
    assert sum(counters.inter_token_latency_s.counts) == 10
    assert counters.time_per_output_token_s.total == pytest.approx(STEP_S)
    assert counters.e2e_s.total == pytest.approx(0.03 + 10 * STEP_S)
    assert counters.finished == {"stop": 1, "length": 0, "abort": 0}


REQUESTS = st.lists(st.tuples(st.integers(1, 400), st.integers(1, 60), st.floats(0.0, 3.0)), min_size=1, max_size=25)


@given(requests=REQUESTS, capacity=st.integers(460, 3000), steps=st.lists(st.floats(0.001, 0.7), max_size=30))
@settings(max_examples=examples(40), deadline=None)
def test_every_token_comes_once_and_in_order_when_load_is_random(
    requests: list[tuple[int, int, float]], capacity: int, steps: list[float]
) -> None:
    bench = Bench(capacity)
    now_s = 0.0
    pauses = iter(steps)
    for number, (prompt, output, at_s) in enumerate(sorted(requests, key=lambda request: request[2])):
        now_s = max(now_s + next(pauses, 0.0), at_s)
        bench.ask(str(number), prompt, output, now_s)
        assert 0.0 <= bench.batcher.kv_usage <= 1.0
    bench.run()
    outputs = [output for _, output, _ in sorted(requests, key=lambda request: request[2])]
    for number, output in enumerate(outputs):
        assert [index for index, _ in bench.tokens[str(number)]] == list(range(output))
        assert [finish for _, finish in bench.tokens[str(number)]] == [None] * (output - 1) + ["stop"]
    assert bench.batcher.kv_usage == 0.0
    assert bench.batcher.counters.generation_tokens == sum(outputs)
    assert bench.batcher.counters.prompt_tokens == sum(prompt for prompt, _, _ in requests)
    times = [at_s for at_s, _ in bench.gpus.draws]
    assert times == sorted(times)


def test_requests_keep_their_cache_and_go_on_elsewhere_when_the_engine_is_halted() -> None:
    bench, after = Bench(capacity_tokens=1000), Cost()
    running = bench.ask("running", prompt=100, output=20)
    bench.run(0.1)
    bench.batcher.halt(0.1)
    ends_s = bench.batcher.iteration_ends_s
    assert ends_s is not None
    bench.ask("late", prompt=100, output=5, at_s=0.11)
    bench.run(3.0)
    assert (bench.batcher.iteration_ends_s, bench.tokens["late"]) == (None, [])
    begun, room = len(bench.tokens["running"]), running.kv_tokens
    assert room == 99 + begun  # the last token is yet to be computed
    bench.batcher.turn_to(after, 5000, 3.0)
    bench.run(9.0)
    assert bench.tokens["running"][-1] == (19, "stop")
    assert bench.tokens["late"][-1] == (4, "stop")
    assert bench.batcher.counters.preemptions == 0
    assert after.asked[0][1:] == (((100, 0),), 1, room + 1)


def test_requests_are_computed_again_when_the_next_engine_has_no_room_for_them() -> None:
    bench, after = Bench(capacity_tokens=1000), Cost()
    for name in ("first", "second"):
        bench.ask(name, prompt=400, output=30)
    bench.run(0.2)
    bench.batcher.halt(0.2)
    bench.run(0.3)
    bench.batcher.turn_to(after, 500, 0.3)
    bench.run(9.0)
    assert bench.batcher.counters.preemptions == 1
    assert [own[-1] for own in bench.tokens.values()] == [(29, "stop")] * 2

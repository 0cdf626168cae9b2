"""A request's cache goes from one engine to another: how long that takes, and that nothing of it is left behind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.algorithms.split.kv_transfer import Link, exposure
from pools.simnode.engine.generation import Generation
from pools.simnode.engine.hand_over import Arriving, HandOver, KvLink
from pools.simnode.engine.kv import LEASE_S
from tests.unit.pools.simnode.engine.engine_bench import PREFILL_S_PER_TOKEN, STEP_S, Bench

BYTES = 1000.0  # a token's
LINK = KvLink(bytes_per_s=1e6, latency_s=0.002)  # 1 ms a token


@dataclass
class Pair:
    """Two engines, and what the second does when it needs the first one's copy no more."""

    first: Bench
    second: Bench

    def begin(self, prompt: int, output: int, chunk_tokens: int | None = None) -> Generation:
        kept = HandOver("r", BYTES, LINK, chunk_tokens)
        begun = self.first.ask("a", prompt, output, finish="length", hand_over=kept)
        self.first.run(1e6 if not self.first.batcher.next_s else 60.0)
        assert begun.ended
        return begun

    def go_on(self, begun: Generation, prompt: int, output: int, at_s: float) -> Generation:
        kept = begun.hand_over
        assert kept is not None
        tokens = min(kept.tokens, prompt - 1)
        size_bytes = tokens * BYTES
        done = self._let_go
        return self.second.ask(
            "b",
            prompt,
            output,
            at_s,
            arriving=Arriving(tokens, size_bytes, LINK.transfer_s(size_bytes), kept.there_at_s, done),
        )

    def _let_go(self) -> None:
        assert self.first.batcher.let_go("r", 60.0)


def pair() -> Pair:
    return Pair(Bench(), Bench())


@given(prompt=st.integers(1, 6000), before=st.integers(1, 50), after=st.integers(1, 50))
@settings(max_examples=60, deadline=None)
def test_tokens_are_those_of_one_engine_and_no_prompt_is_computed_twice_when_split_anywhere(
    prompt: int, before: int, after: int
) -> None:
    engines = pair()
    begun = engines.begin(prompt, before)
    kept = begun.hand_over
    assert kept is not None
    assert kept.tokens == prompt + before - 1  # the last token has not been through the model
    assert engines.first.batcher.cache.used == kept.tokens
    engines.go_on(begun, prompt + before, after, 60.0)
    engines.second.run(2000.0)
    assert [index for index, _ in engines.second.tokens["b"]] == list(range(after))
    assert [prefills for _, prefills, _, _ in engines.second.cost.asked if prefills] == [((1, kept.tokens),)]
    assert engines.first.batcher.empty
    assert engines.first.batcher.kv_usage == engines.second.batcher.kv_usage == 0.0
    assert engines.second.batcher.counters.transferred_tokens == kept.tokens


def test_cache_of_part_of_a_prompt_is_handed_over_when_no_token_was_asked_for() -> None:
    engines = pair()
    begun = engines.begin(300, 0)
    assert engines.first.tokens["a"] == [(None, "length")]
    engines.go_on(begun, 1000, 2, 60.0)
    engines.second.run(2000.0)
    assert [prefills for _, prefills, _, _ in engines.second.cost.asked if prefills] == [((700, 300),)]
    assert engines.first.batcher.counters.generation_tokens == 0


def test_pulled_cache_takes_its_bytes_and_the_latency_when_there_is_room_for_it() -> None:
    engines = pair()
    begun = engines.begin(100, 11)
    engines.go_on(begun, 111, 1, 60.0)
    assert (engines.second.batcher.waiting, engines.second.batcher.loading) == (1, 1)
    assert engines.second.batcher.cache.used == 111  # its room is taken from the beginning
    there_s = 60.0 + 0.110 + 0.002
    assert engines.second.batcher.next_s == pytest.approx(there_s)
    engines.second.run(there_s + STEP_S)
    assert engines.second.tokens["b"] == []
    engines.second.run(there_s + STEP_S + PREFILL_S_PER_TOKEN + 1e-6)
    assert engines.second.tokens["b"] == [(0, "stop")]


def test_others_run_on_when_a_cache_is_on_its_way() -> None:
    engines = pair()
    begun = engines.begin(5000, 1)
    engines.second.ask("other", 10, 100, 60.0)
    engines.go_on(begun, 5001, 1, 60.01)
    engines.second.run(62.0)
    assert len(engines.second.tokens["other"]) == pytest.approx(2.0 / STEP_S, rel=0.02)
    assert engines.second.tokens["b"] == []


def test_caches_come_one_after_another_when_two_are_pulled_at_once() -> None:
    bench = Bench()
    for name in "ab":
        coming = Arriving(1000, 1e6, 1.002, None, lambda: None)
        bench.ask(name, 1001, 1, arriving=coming)
    bench.run(1.5)
    assert [bool(bench.tokens[name]) for name in "ab"] == [True, False]
    bench.run(2.1)
    assert bench.tokens["b"] == [(0, "stop")]


@given(prompt=st.integers(1, 9000), output=st.integers(0, 30), chunk=st.integers(1, 3000))
@settings(max_examples=60, deadline=None)
def test_pushed_chunks_arrive_when_the_law_of_exposure_says(prompt: int, output: int, chunk: int) -> None:
    """The engine's running account of its link against the closed form of DynaServe's section 4.3."""
    engines = pair()
    begun = engines.begin(prompt, output, chunk)
    kept = begun.hand_over
    assert kept is not None
    done, ends, computed, at_s = [], [], 0, 0.0
    for _, prefills, decodes, _ in engines.first.cost.asked:
        new = sum(tokens for tokens, _ in prefills) + decodes
        at_s += STEP_S + PREFILL_S_PER_TOKEN * sum(tokens for tokens, _ in prefills)
        computed += new
        done.append(computed)
        ends.append(at_s)
    law = exposure(done, ends, chunk, BYTES, Link(LINK.bytes_per_s, LINK.latency_s))
    assert kept.there_at_s == pytest.approx(at_s + law.chunked_s)
    assert kept.sent_tokens == kept.tokens == computed


def test_pushed_cache_costs_no_time_of_its_own_when_it_is_there_before_it_is_needed() -> None:
    engines = pair()
    begun = engines.begin(4000, 1, chunk_tokens=512)
    engines.go_on(begun, 4001, 1, 60.0)
    engines.second.run(60.0 + STEP_S + 2 * PREFILL_S_PER_TOKEN)
    assert engines.second.tokens["b"] == [(0, "stop")]


def test_cache_is_let_go_when_nobody_fetches_it_within_the_lease() -> None:
    bench = Bench(capacity_tokens=1000)
    bench.ask("a", 900, 1, finish="length", hand_over=HandOver("r", BYTES, LINK))
    bench.run(1.0)
    bench.ask("b", 500, 2, at_s=1.0)  # has no room until then
    bench.run(LEASE_S)
    assert bench.tokens["b"] == []
    assert not bench.batcher.empty
    assert bench.batcher.cache.renew("r", 100.0) is not None
    bench.run(LEASE_S + 99.0)
    assert bench.tokens["b"] == []
    bench.run(LEASE_S + 101.0)
    assert bench.tokens["b"][-1] == (1, "stop")
    assert bench.batcher.cache.expired == 1
    assert bench.batcher.empty


def test_waiting_request_comes_in_at_once_when_a_kept_cache_is_fetched() -> None:
    bench = Bench(capacity_tokens=1000)
    bench.ask("a", 900, 1, finish="length", hand_over=HandOver("r", BYTES, LINK))
    bench.run(1.0)
    bench.ask("b", 500, 1, at_s=1.0)
    assert bench.batcher.let_go("r", 2.0)
    assert not bench.batcher.let_go("r", 2.0)
    bench.run(2.1)
    assert bench.tokens["b"] == [(0, "stop")]


def test_running_request_is_computed_again_when_kept_caches_leave_no_room_for_its_next_token() -> None:
    bench = Bench(capacity_tokens=1000)
    bench.ask("kept", 500, 1, finish="length", hand_over=HandOver("r", BYTES, LINK))
    bench.ask("long", 490, 100)
    bench.run(10.0)
    assert bench.batcher.counters.preemptions == 1
    assert bench.batcher.waiting == 1
    bench.batcher.let_go("r", 10.0)
    bench.run(20.0)
    assert [index for index, _ in bench.tokens["long"]] == list(range(100))
    assert bench.batcher.empty


def test_request_whose_cache_has_come_runs_when_the_only_other_one_had_to_give_way() -> None:
    bench = Bench(capacity_tokens=1000)
    bench.ask("long", 490, 300)
    bench.ask("b", 509, 1, 0.01, arriving=Arriving(508, 508.0, 0.011, None, lambda: None))
    bench.run(0.2)
    assert bench.tokens["b"] == [(0, "stop")]
    bench.run()
    assert len(bench.tokens["long"]) == 300


@pytest.mark.parametrize("finish", ["stop", "length"])
def test_cache_is_kept_only_when_the_answer_is_not_at_its_end(finish: str) -> None:
    bench = Bench()
    asked = bench.ask("a", 10, 5, finish=finish, hand_over=HandOver("r", BYTES, LINK))
    bench.run(10.0)
    assert (asked.hand_over is not None) == (finish == "length") == bool(bench.batcher.cache.kept)


@pytest.mark.parametrize("when_s", [60.0, 60.05, 61.5], ids=["waiting", "on its way", "running"])
def test_both_copies_are_freed_when_the_client_goes(when_s: float) -> None:
    engines = pair()
    if when_s == 60.0:
        engines.second.ask("all of it", 100_000, 0, 59.0)
    begun = engines.begin(1000, 1)
    going_on = engines.go_on(begun, 1001, 500, 60.0)
    engines.second.batcher.abort(going_on, when_s)
    assert engines.first.batcher.empty
    if when_s > 60.0:
        assert engines.second.batcher.empty
        assert engines.second.batcher.kv_usage == 0.0
    assert engines.second.tokens["b"] == [] or when_s == 61.5


def test_chain_goes_on_when_the_second_engine_hands_over_too() -> None:
    engines, third = pair(), Bench()
    begun = engines.begin(100, 5)
    fetched: list[str] = []

    def coming(kept: HandOver, let_go: Callable[[], None]) -> Arriving:
        return Arriving(kept.tokens, kept.tokens * BYTES, 0.1, None, let_go)

    assert begun.hand_over is not None
    kept = HandOver("second", BYTES, LINK)
    engines.second.ask(
        "b", 105, 5, 60.0, finish="length", hand_over=kept, arriving=coming(begun.hand_over, lambda: None)
    )
    engines.second.run(100.0)
    third.ask("c", 110, 5, 100.0, arriving=coming(kept, lambda: fetched.append("second")))
    third.run(200.0)
    assert kept.tokens == 109
    assert len(third.tokens["c"]) == 5
    assert fetched == ["second"]

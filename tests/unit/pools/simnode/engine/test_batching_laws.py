"""Whatever is asked of an engine, in whatever order: its cache's account is right, and every request ends once."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from core.ports import EngineLimits, EngineOptions
from pools.simnode.engine.generation import Generation
from pools.simnode.engine.hand_over import Arriving, HandOver, KvLink
from tests.unit.laws import examples
from tests.unit.pools.simnode.engine.engine_bench import Bench

CAPACITY = 600
LINK = KvLink(1e6, 0.001)
STEPS_S = st.floats(0.0, 0.5)


class Engine(RuleBasedStateMachine):
    @initialize(options=st.sampled_from([("fcfs", False), ("priority", False), ("priority", True)]))
    def start(self, options: tuple[str, bool]) -> None:
        self.bench = Bench(CAPACITY, EngineOptions(*options))
        self.asked: list[Generation] = []
        self.let_go: list[str] = []
        self.coming = 0
        self.now_s = 0.0

    @rule(
        prompt=st.integers(1, 400),
        output=st.integers(0, 60),
        priority=st.integers(-1, 1),
        keep=st.booleans(),
        comes=st.floats(0.0, 1.0),
        pushed=st.booleans(),
    )
    def ask(self, prompt: int, output: int, priority: int, keep: bool, comes: float, pushed: bool) -> None:
        name = str(len(self.asked))
        kept = HandOver(name, 10.0, LINK, 100 if pushed else None) if keep else None
        arriving = None
        if comes > 0.5:
            self.coming += 1
            tokens = int(comes * (prompt - 1))
            there_at_s = self.now_s + comes if pushed else None
            arriving = Arriving(tokens, tokens * 10.0, comes, there_at_s, lambda: self.let_go.append(name))
        finish = "length" if keep or not output else "stop"
        more = {"priority": priority, "hand_over": kept, "arriving": arriving}
        self.asked.append(self.bench.ask(name, prompt, output, self.now_s, finish, **more))

    @rule(step_s=STEPS_S)
    def wait(self, step_s: float) -> None:
        self.now_s += step_s
        self.bench.run(self.now_s)

    @rule(which=st.integers(0, 50))
    def abort(self, which: int) -> None:
        if which < len(self.asked):
            self.bench.batcher.abort(self.asked[which], self.now_s)

    @rule(which=st.integers(0, 50))
    def fetch(self, which: int) -> None:
        self.bench.batcher.let_go(str(which), self.now_s)

    @rule(tokens=st.integers(1, 300), seqs=st.integers(1, 5), itl=st.none() | st.floats(0.021, 0.1))
    def tune(self, tokens: int, seqs: int, itl: float | None) -> None:
        self.bench.batcher.limits = EngineLimits(tokens, seqs, itl)

    @rule(mode=st.sampled_from(["abort", "wait", "keep"]), sleep_s=STEPS_S)
    def sleep(self, mode: str, sleep_s: float) -> None:
        batcher = self.bench.batcher
        batcher.pause(mode, self.now_s)
        self.wait(sleep_s)
        if batcher.settled:
            batcher.forget()
            assert batcher.cache.used == 0
        batcher.resume(self.now_s)

    @invariant()
    def account_is_right(self) -> None:
        if not hasattr(self, "bench"):
            return
        batcher = self.bench.batcher
        holders = sum(sequence.kv_tokens for sequence in self.asked)
        kept = sum(leaving.tokens for leaving in batcher.cache.kept.values())
        assert batcher.cache.used == holders + kept
        assert 0 <= batcher.cache.used <= CAPACITY
        assert len(self.let_go) == len(set(self.let_go))

    def teardown(self) -> None:
        if not hasattr(self, "bench"):
            return
        batcher = self.bench.batcher
        for _ in range(200):  # what is kept is fetched, so that all can come to their end
            for name in list(batcher.cache.kept):
                batcher.let_go(name, self.now_s)
            self.wait(5.0)
            if batcher.empty:
                break
        assert batcher.empty
        assert batcher.cache.used == 0
        assert len(self.let_go) == self.coming
        for number, sequence in enumerate(self.asked):
            tokens = self.bench.tokens[str(number)]
            indices = [index for index, _ in tokens if index is not None]
            assert sequence.ended
            assert indices == list(range(len(indices)))
            assert [finish for _, finish in tokens[:-1]] == [None] * len(tokens[:-1])
        draws = [at_s for at_s, _ in self.bench.gpus.draws]
        assert draws == sorted(draws)


TestEngine = Engine.TestCase
TestEngine.settings = settings(max_examples=examples(30), stateful_step_count=25, deadline=None)

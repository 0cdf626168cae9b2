"""Continuous batching as vLLM's V1 engine does it, on a timeline of its own.

Each iteration takes a token budget: the decoding sequences first, one token each, then chunks of prompts, first come
first served or in order of priority. A request is admitted when its prompt fits in the free KV cache; when the decoding
sequences outgrow it, the newest one (or the one of the worst priority) is preempted and later computed again. How long
an iteration takes and what it draws says the engine model, at the clock of that moment.

An iteration begins where the one before ended, not when the process got round to it, so a busy event loop delays
tokens without slowing the engine; and no token is given before its time. No I/O here, time is passed in (monotonic
seconds): it is tested without a loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from core.algorithms.split.step_times import LEAST_PROMPT_TOKENS, StepLoad, StepTimes, pairs
from core.engine.iteration import Iteration
from core.ports import EngineLimits, EngineOptions

from .generation import Generation
from .kv import KvCache
from .request_queues import RequestQueues
from .sim_metrics import EngineCounters


class CostModel(Protocol):
    """The part of the engine model that an engine needs."""

    def iteration(
        self, mhz: float, prefills: Sequence[tuple[int, int]] = (), decodes: int = 0, context_tokens: float = 0.0
    ) -> Iteration: ...


class Accelerator(Protocol):
    """The GPUs of the instance as the engine sees them."""

    @property
    def clock_mhz(self) -> float: ...

    def work(self, at_s: float, iteration: Iteration) -> None:
        """From `at_s` on they run `iteration`."""

    def idle(self, at_s: float) -> None:
        """From `at_s` on they have nothing to do."""


@dataclass(slots=True)
class _Running:
    """The iteration in flight."""

    start_s: float
    end_s: float
    decodes: list[Generation]
    prefills: list[tuple[Generation, int]] = field(default_factory=list)


class Batcher:
    """One engine's scheduler. Call `advance` with the time, at `next_s` or whenever an exact state is needed.

    `limits` and `cost` may be replaced at any time; the next iteration goes by them.
    """

    def __init__(
        self,
        cost: CostModel,
        gpus: Accelerator,
        kv_capacity_tokens: float,
        now_s: float,
        options: EngineOptions | None = None,
        limits: EngineLimits | None = None,
    ) -> None:
        self.counters = EngineCounters()
        self.limits = limits or EngineLimits()
        self.cache = KvCache(int(kv_capacity_tokens))
        self._options = options or EngineOptions()
        self._queues = RequestQueues(self.cache, self._options, self.counters)
        self.cost = cost
        self._gpus = gpus
        self._current: _Running | None = None
        self._begun_s = now_s  # when it was last seen what there is to do
        self._paused: str | None = None
        self._steps = StepTimes()
        self._looked = -1  # the last stretch of `preempts_s` in which somebody may have given way
        gpus.idle(now_s)

    @property
    def next_s(self) -> float | None:
        """When something happens by itself: the iteration in flight ends, or else a cache arrives or is let go."""
        if self._current is not None:
            return self._current.end_s
        head = self._queues.waiting.head
        times = [ready_s for ready_s, _ in self._queues.loading]
        times += [head.arrived_s] if head is not None else []
        times += [expiry_s] if (expiry_s := self.cache.next_expiry_s) is not None else []
        return min((at_s for at_s in times if at_s > self._begun_s), default=None)

    @property
    def running(self) -> int:
        return len(self._queues.active)

    @property
    def waiting(self) -> int:
        """Those that wait for their cache from another engine included."""
        return len(self._queues.waiting) + self.loading

    @property
    def loading(self) -> int:
        return len(self._queues.loading)

    @property
    def kv_usage(self) -> float:
        return self.cache.usage

    @property
    def empty(self) -> bool:
        """Whether nobody needs this engine any more: no request is here, and it keeps no cache for others."""
        return not self.running and not self.waiting and not self.cache.kept

    @property
    def settled(self) -> bool:
        """Whether a pause has come into force: nothing runs."""
        return self._paused is not None and self._current is None and not self.running

    def submit(self, sequence: Generation, now_s: float) -> None:
        """Queues a request; prompt and output together must fit in the KV cache (the surface sees to it)."""
        self.advance(now_s)
        self._queues.add(sequence)
        self._stir(now_s)

    def abort(self, sequence: Generation, now_s: float) -> None:
        """Ends a request early: its client has gone. Its share of the iteration in flight is still paid for."""
        self.advance(now_s)
        if not sequence.ended:
            self._queues.drop(sequence)
            self._stir(now_s)

    def abort_all(self, now_s: float) -> None:
        """Ends every request early and tells those who wait for them."""
        self.advance(now_s)
        for sequence in list(self._queues):
            self._queues.drop(sequence)
            sequence.on_token(None, "abort")

    def let_go(self, request_id: str, now_s: float) -> bool:
        """Another engine has fetched a cache that was kept for it. False: there is no such."""
        self.advance(now_s)
        found = self.cache.let_go(request_id)
        self._stir(now_s)
        return found

    def advance(self, now_s: float) -> None:
        """Lives through everything that has happened by `now_s`."""
        while (at_s := self.next_s) is not None and at_s <= now_s:
            if (current := self._current) is not None:
                self._current = None
                self._complete(current)
            self._begin(at_s)

    def clock_changed(self, now_s: float) -> None:
        """An iteration in flight goes on as it began; an idle engine draws the new clock's idle power at once."""
        if self._current is None:
            self._gpus.idle(now_s)

    # -- sleep -------------------------------------------------------------------------------------

    def pause(self, mode: str, now_s: float) -> None:
        """Ends iterations, in one of vLLM's ways: see `settled`, and `resume`.

        `abort` ends what was asked for; `wait` lets those that run end first; `keep` stops them, to be computed again.
        What waits, or is asked for later, waits until `resume`.
        """
        self.advance(now_s)
        self._paused = mode
        if mode == "abort":
            self.abort_all(now_s)
        self._stir(now_s)

    def forget(self) -> None:
        """Loses the KV cache, what was kept in it for others included. Only when `settled`."""
        self._queues.forget()

    def resume(self, now_s: float) -> None:
        self.advance(now_s)
        self._paused = None
        self._stir(now_s)

    # -- other GPUs --------------------------------------------------------------------------------

    @property
    def iteration_ends_s(self) -> float | None:
        """Returns when the iteration in flight ends; None: there is none."""
        return None if self._current is None else self._current.end_s

    def halt(self, now_s: float) -> None:
        """Begins no iteration until `resume` or `turn_to`. What runs keeps its place and its cache."""
        self.advance(now_s)
        self._paused = "halt"

    def turn_to(self, cost: CostModel, kv_capacity_tokens: float, now_s: float) -> None:
        """Goes on as another engine, which took over all requests and the cache: what it has no room for is preempted.

        Only between two iterations.
        """
        assert self._current is None
        self.cost, self.cache.capacity, self._steps = cost, int(kv_capacity_tokens), StepTimes()
        self.resume(now_s)

    # -- one iteration -----------------------------------------------------------------------------

    def _stir(self, now_s: float) -> None:
        if self._current is None:
            self._begin(now_s)

    def _begin(self, at_s: float) -> None:
        self._begun_s = at_s
        self.cache.expire(at_s)
        if self._paused == "halt":
            self._gpus.idle(at_s)
            return
        if self._paused == "keep":
            while self._queues.active:
                self._queues.preempt(self._queues.active[-1])
        elif self._paused is None and self._options.preempt_for_waiting:
            self._give_way(at_s)
        preemptions = self.counters.preemptions
        decodes = self._decodes()
        budget = self._prefill_budget(decodes)
        prefills = list(self._prefills(budget))
        # Where the cache is so short that some were preempted, admitting now would only preempt again.
        short = self.counters.preemptions > preemptions and bool(decodes or prefills)
        if self._paused is None and not short:
            prefills += self._admissions(budget - sum(tokens for _, tokens in prefills), at_s)
        if not decodes and not prefills:
            self._gpus.idle(at_s)
            return
        chunks = [(tokens, sequence.computed) for sequence, tokens in prefills]
        context_tokens = _context_tokens(decodes)
        iteration = self.cost.iteration(self._gpus.clock_mhz, chunks, len(decodes), context_tokens)
        prompt_tokens, pair_count = sum(tokens for tokens, _ in chunks), sum(pairs(*chunk) for chunk in chunks)
        self._steps.observe(StepLoad(prompt_tokens, pair_count, len(decodes), context_tokens), iteration.t_s)
        self._gpus.work(at_s, iteration)
        self._current = _Running(at_s, at_s + iteration.t_s, decodes, prefills)
        self.counters.iteration_tokens.observe(len(decodes) + prompt_tokens)

    def _give_way(self, at_s: float) -> None:
        """Once in each stretch of `preempts_s` in which somebody waits: running requests make room."""
        limits, head = self.limits, self._queues.waiting.head
        if limits.preempts_s <= 0.0 or head is None or head.arrived_s > at_s:
            return
        stretch = int(at_s / limits.preempts_s)
        if stretch != self._looked:
            self._looked = stretch
            self._queues.displace(at_s, limits.max_num_seqs, limits.margin_s)

    def _decodes(self) -> list[Generation]:
        """Returns the sequences that decode, each with a KV slot for its token; preempts others until they fit."""
        decodes = [sequence for sequence in self._queues.active if not sequence.to_prefill]
        del decodes[self.limits.max_num_batched_tokens :]
        while decodes and self.cache.free < len(decodes):
            victim = self._queues.worst()
            self._queues.preempt(victim)
            if victim in decodes:
                decodes.remove(victim)
        self.cache.take_one_each(decodes)
        return decodes

    def _prefill_budget(self, decodes: Sequence[Generation]) -> int:
        """Tokens of prompts beside these decodes: within the token budget, and within the limit on ITL if there is one.

        Of the latter as many as vLLM with the plug-in finds room for, by the times of the steps so far (DynaServe,
        section 4.2). Without decodes nobody waits between tokens.
        """
        budget = self.limits.max_num_batched_tokens - len(decodes)
        limit_s = self.limits.itl_limit_s
        cached = [sequence.computed for sequence in self._queues.active if sequence.to_prefill]
        if limit_s is None or not decodes or not (cached or self.waiting):
            return budget
        context_tokens, most_cached = _context_tokens(decodes), max(cached, default=0)
        room = self._steps.prompt_budget(len(decodes), context_tokens, most_cached, limit_s, budget)
        return min(budget, max(LEAST_PROMPT_TOKENS, room))

    def _prefills(self, budget: int) -> Iterator[tuple[Generation, int]]:
        """Yields the next chunks of the prompts that are under way."""
        for sequence in self._queues.active:
            if sequence.to_prefill and budget > 0:
                tokens = self._chunk(sequence, budget)
                budget -= tokens
                yield sequence, tokens

    def _admissions(self, budget: int, at_s: float) -> Iterator[tuple[Generation, int]]:
        """Yields the first chunks of requests that come in now: first those with a cache from another engine."""
        while budget > 0 and self.running < self.limits.max_num_seqs:
            sequence = self._queues.loaded(at_s)
            if sequence is None:
                sequence = self._queues.waiting.head
                if sequence is None or sequence.arrived_s > at_s or sequence.to_prefill > self.cache.free:
                    return
                if not self._queues.admit(sequence, at_s):
                    continue
            tokens = self._chunk(sequence, budget)
            budget -= tokens
            yield sequence, tokens

    def _chunk(self, sequence: Generation, budget: int) -> int:
        return min(budget, sequence.to_prefill, self.limits.chunk_tokens or budget)

    def _complete(self, iteration: _Running) -> None:
        steady = 0  # sequences whose last token came with the iteration before: one observation for all
        for sequence in iteration.decodes:
            if sequence.ended:
                continue
            if sequence.last_token_s == iteration.start_s:
                steady += 1
            else:
                self.counters.inter_token_latency_s.observe(iteration.end_s - sequence.last_token_s)
            sequence.computed += 1
            if sequence.hand_over is not None:
                self.cache.push(sequence, iteration.end_s)
            self._emit(sequence, iteration.end_s)
        if steady:
            self.counters.inter_token_latency_s.observe(iteration.end_s - iteration.start_s, steady)
        for sequence, tokens in iteration.prefills:
            if sequence.ended:
                continue
            sequence.computed += tokens
            sequence.to_prefill -= tokens
            if sequence.hand_over is not None:
                self.cache.push(sequence, iteration.end_s)
            if sequence.to_prefill:
                continue
            if sequence.first_token_s is not None:  # computed again after a preemption
                self.counters.inter_token_latency_s.observe(iteration.end_s - sequence.last_token_s)
            self._emit(sequence, iteration.end_s)

    def _emit(self, sequence: Generation, at_s: float) -> None:
        if sequence.first_token_s is None:
            sequence.first_token_s = at_s
            self.counters.prompt(sequence.prompt_tokens, sequence.loaded)
            if sequence.target_tokens:
                self.counters.time_to_first_token_s.observe(at_s - sequence.arrived_s)
        if not sequence.target_tokens:  # only its prompt was to be computed
            self._end(sequence, at_s)
            sequence.on_token(None, sequence.finish)
            return
        sequence.last_token_s = at_s
        index = sequence.generated
        sequence.generated = index + 1
        self.counters.generation_tokens += 1
        if sequence.generated < sequence.target_tokens:
            sequence.on_token(index, None)
            return
        self._end(sequence, at_s)
        sequence.on_token(index, sequence.finish)

    def _end(self, sequence: Generation, at_s: float) -> None:
        assert sequence.first_token_s is not None
        self._queues.finish(sequence, at_s)
        self.counters.e2e_s.observe(at_s - sequence.arrived_s)
        self.counters.request_prompt_tokens.observe(sequence.prompt_tokens)
        self.counters.request_generation_tokens.observe(sequence.generated)
        if sequence.generated > 1:
            mean_s = (at_s - sequence.first_token_s) / (sequence.generated - 1)
            self.counters.time_per_output_token_s.observe(mean_s)


def _context_tokens(decodes: Sequence[Generation]) -> int:
    return sum(sequence.kv_tokens for sequence in decodes)

"""Continuous batching as vLLM's V1 engine does it, on a timeline of its own.

Each iteration takes a token budget: the decoding sequences first, one token each, then chunks of prompts, first come
first served. A request is admitted when its prompt fits in the free KV cache; when the decoding sequences outgrow it,
the newest one is preempted and later computed again. How long an iteration takes and what it draws says the engine
model, at the clock of that moment.

An iteration begins where the one before ended, not when the process got round to it, so a busy event loop delays
tokens without slowing the engine; and no token is given before its time. No I/O here, time is passed in (monotonic
seconds): it is tested without a loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from scheduler.core.engine_model import Iteration

from .metrics import EngineCounters

TOKENS_PER_ITERATION = 2048  # vLLM's long-standing default of max_num_batched_tokens with chunked prefill
MAX_SEQUENCES = 256  # vLLM's max_num_seqs


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


@dataclass(slots=True, eq=False)
class Generation:
    """A request in the engine. `target_tokens` is how many it will generate; `finish`: length | stop.

    `on_token(index, finish)` is called for each token with its index from 0; `finish` is None but for the last.
    """

    prompt_tokens: int
    target_tokens: int
    finish: str
    on_token: Callable[[int, str | None], None]
    arrived_s: float
    generated: int = 0
    computed: int = 0  # tokens in the KV cache
    to_prefill: int = 0  # tokens that must be computed before the next one comes; 0 when decoding
    kv_tokens: int = 0  # reserved in the cache
    first_token_s: float | None = None
    last_token_s: float = 0.0
    ended: bool = False


@dataclass(slots=True)
class _Running:
    """The iteration in flight."""

    start_s: float
    end_s: float
    decodes: list[Generation]
    prefills: list[tuple[Generation, int]] = field(default_factory=list)


class Batcher:
    """One engine's scheduler. Call `advance` with the time, at `next_s` or whenever an exact state is needed."""

    def __init__(self, cost: CostModel, gpus: Accelerator, kv_capacity_tokens: float, now_s: float) -> None:
        self.counters = EngineCounters()
        self._cost = cost
        self._gpus = gpus
        self._capacity = int(kv_capacity_tokens)
        self._kv_tokens = 0
        self._waiting: deque[Generation] = deque()
        self._active: list[Generation] = []  # in order of admission
        self._current: _Running | None = None
        gpus.idle(now_s)

    @property
    def next_s(self) -> float | None:
        """When the iteration in flight ends; None: nothing to do."""
        return None if self._current is None else self._current.end_s

    @property
    def running(self) -> int:
        return len(self._active)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def kv_usage(self) -> float:
        return self._kv_tokens / self._capacity

    @property
    def empty(self) -> bool:
        return not self._active and not self._waiting

    def submit(self, sequence: Generation, now_s: float) -> None:
        """Queues a request; prompt and output together must fit in the KV cache (the surface sees to it)."""
        self.advance(now_s)
        sequence.to_prefill = sequence.prompt_tokens
        self._waiting.append(sequence)
        if self._current is None:
            self._begin(now_s)

    def abort(self, sequence: Generation, now_s: float) -> None:
        """Ends a request early: its client has gone. Its share of the iteration in flight is still paid for."""
        self.advance(now_s)
        if sequence.ended:
            return
        sequence.ended = True
        self.counters.finished["abort"] += 1
        if sequence in self._active:
            self._release(sequence)
        else:
            self._waiting.remove(sequence)

    def advance(self, now_s: float) -> None:
        """Lives through every iteration that has ended by `now_s`."""
        while (current := self._current) is not None and current.end_s <= now_s:
            self._current = None
            self._complete(current)
            self._begin(current.end_s)

    def clock_changed(self, now_s: float) -> None:
        """An iteration in flight goes on as it began; an idle engine draws the new clock's idle power at once."""
        if self._current is None:
            self._gpus.idle(now_s)

    # -- one iteration -----------------------------------------------------------------------------

    def _begin(self, at_s: float) -> None:
        preemptions = self.counters.preemptions
        decodes = self._decodes()
        budget = TOKENS_PER_ITERATION - len(decodes)
        prefills = list(self._prefills(budget))
        if self.counters.preemptions == preemptions:  # the cache is short: admitting now would only preempt again
            prefills += self._admissions(budget - sum(tokens for _, tokens in prefills), at_s)
        if not decodes and not prefills:
            self._gpus.idle(at_s)
            return
        iteration = self._cost.iteration(
            self._gpus.clock_mhz,
            prefills=[(tokens, sequence.computed) for sequence, tokens in prefills],
            decodes=len(decodes),
            context_tokens=float(sum(sequence.kv_tokens for sequence in decodes)),
        )
        self._gpus.work(at_s, iteration)
        self._current = _Running(at_s, at_s + iteration.t_s, decodes, prefills)

    def _decodes(self) -> list[Generation]:
        """The sequences that decode, each with a KV slot for its token; preempts the newest until they fit."""
        decodes = [sequence for sequence in self._active if not sequence.to_prefill]
        while decodes and self._kv_tokens + len(decodes) > self._capacity:
            victim = self._active[-1]
            self._preempt(victim)
            if victim in decodes:
                decodes.remove(victim)
        for sequence in decodes:
            sequence.kv_tokens += 1
        self._kv_tokens += len(decodes)
        return decodes

    def _preempt(self, sequence: Generation) -> None:
        self._release(sequence)
        sequence.computed = 0
        sequence.to_prefill = sequence.prompt_tokens + sequence.generated
        self._waiting.appendleft(sequence)
        self.counters.preemptions += 1

    def _prefills(self, budget: int) -> Iterator[tuple[Generation, int]]:
        """The next chunks of the prompts that are under way."""
        for sequence in self._active:
            if sequence.to_prefill and budget > 0:
                tokens = min(budget, sequence.to_prefill)
                budget -= tokens
                yield sequence, tokens

    def _admissions(self, budget: int, at_s: float) -> Iterator[tuple[Generation, int]]:
        """The first chunks of the requests that come in now."""
        while self._waiting and budget > 0 and len(self._active) < MAX_SEQUENCES:
            sequence = self._waiting[0]
            if sequence.arrived_s > at_s or self._kv_tokens + sequence.to_prefill > self._capacity:
                return
            self._waiting.popleft()
            self._active.append(sequence)
            sequence.kv_tokens = sequence.to_prefill
            self._kv_tokens += sequence.kv_tokens
            tokens = min(budget, sequence.to_prefill)
            budget -= tokens
            yield sequence, tokens

    def _complete(self, iteration: _Running) -> None:
        steady = 0  # sequences whose last token came with the iteration before: one observation for all
        for sequence in iteration.decodes:
            if sequence.ended:
                continue
            if sequence.last_token_s == iteration.start_s:
                steady += 1
            else:
                self.counters.inter_token_latency_s.observe(iteration.end_s - sequence.last_token_s)
            self._emit(sequence, iteration.end_s)
        if steady:
            self.counters.inter_token_latency_s.observe(iteration.end_s - iteration.start_s, steady)
        for sequence, tokens in iteration.prefills:
            if sequence.ended:
                continue
            sequence.computed += tokens
            sequence.to_prefill -= tokens
            if sequence.to_prefill:
                continue
            if sequence.first_token_s is not None:  # computed again after a preemption
                self.counters.inter_token_latency_s.observe(iteration.end_s - sequence.last_token_s)
            self._emit(sequence, iteration.end_s)

    def _emit(self, sequence: Generation, at_s: float) -> None:
        if sequence.first_token_s is None:
            sequence.first_token_s = at_s
            self.counters.prompt_tokens += sequence.prompt_tokens
            self.counters.time_to_first_token_s.observe(at_s - sequence.arrived_s)
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
        sequence.ended = True
        self._release(sequence)
        self.counters.finished[sequence.finish] += 1
        self.counters.e2e_s.observe(at_s - sequence.arrived_s)
        if sequence.generated > 1:
            mean_s = (at_s - sequence.first_token_s) / (sequence.generated - 1)
            self.counters.time_per_output_token_s.observe(mean_s)

    def _release(self, sequence: Generation) -> None:
        self._active.remove(sequence)
        self._kv_tokens -= sequence.kv_tokens
        sequence.kv_tokens = 0

"""The simulator's rules, token by token in plain Python: the oracle that the compiled kernel is held against.

An instance composes an iteration, waits until it ends, books it, and composes the next (vLLM's continuous batching
with chunked prefill; the simulated node does the same in real time):

1. Each decoding sequence gets one token and needs one more token of KV cache. While the cache is short of it, the
   newest sequence is preempted: it loses its KV cache, goes to the head of the queue and is computed again later.
2. What the token budget leaves goes to prompts under way, in order of admission, and then to the queue, first come
   first served, while there is a place in the batch and room in the cache for the whole prompt. After a preemption
   nothing is admitted.
3. A request that arrives meanwhile waits for the next iteration.

Energy: the decoding sequences of an iteration share equally what it would have cost without its prefills; the prefills
pay the rest in proportion to their new tokens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from scheduler.simulator.fleet import FleetSpec, InstanceSpec, Load, PoolSpec
from scheduler.simulator.kernel import ADMITTED, FINISHED, FIRST_TOKEN, PREEMPTED, TIE_S

Log = Callable[[int, int, int, float], None]  # kind, request, instance, time


@dataclass(slots=True, eq=False)
class Sequence:
    """A request and all that is known of it. Never admitted: `instance` is None and it is rejected."""

    number: int
    arrival_s: float
    prompt: int
    output: int
    cached: int
    deadline_s: float
    instance: int | None = None
    generated: int = 0
    computed: int = 0
    to_prefill: int = 0
    kv: int = 0
    preemptions: int = 0
    timely: int = 0
    token_s: list[float] = field(default_factory=list)  # when each token came
    energy_j: float = 0.0


@dataclass(slots=True)
class InFlight:
    start_s: float
    end_s: float
    decodes: list[Sequence]
    prefills: list[tuple[Sequence, int]]
    prefill_j: float
    decode_j: float


class ReferenceInstance:
    """One engine, from iteration to iteration."""

    def __init__(self, index: int, spec: InstanceSpec, log: Log) -> None:
        self.spec = spec
        self.mhz = spec.mhz
        self.active: list[Sequence] = []  # in order of admission
        self.queue: deque[Sequence] = deque()
        self.in_flight: InFlight | None = None
        self.idle_since_s = 0.0
        self.prefill_j = self.decode_j = self.idle_j = 0.0
        self.largest_kv = 0
        self.iterations = 0
        self._index = index
        self._log = log

    @property
    def kv_booked(self) -> int:
        """Tokens in the cache, without those that the iteration in flight is writing."""
        return self.kv_used - (len(self.in_flight.decodes) if self.in_flight else 0)

    @property
    def kv_used(self) -> int:
        return sum(sequence.kv for sequence in self.active)

    def submit(self, sequence: Sequence) -> None:
        self.advance(sequence.arrival_s)
        sequence.instance = self._index
        sequence.computed = sequence.cached
        sequence.to_prefill = sequence.prompt - sequence.cached
        self.queue.append(sequence)
        if self.in_flight is None:
            self.settle_idle(sequence.arrival_s)
            self._begin(sequence.arrival_s)

    def advance(self, to_s: float) -> None:
        while (ended := self.in_flight) is not None and ended.end_s <= to_s + TIE_S:
            self.in_flight = None
            self._complete(ended)
            self._begin(ended.end_s)

    def set_clock(self, mhz: float, now_s: float) -> None:
        self.settle_idle(now_s)
        self.mhz = mhz

    def settle_idle(self, now_s: float) -> None:
        if self.in_flight is None:
            self.idle_j += self.spec.idle_w(self.mhz) * (now_s - self.idle_since_s)
            self.idle_since_s = now_s

    def _begin(self, now_s: float) -> None:
        decodes = [sequence for sequence in self.active if not sequence.to_prefill]
        preempted = False
        while decodes and self.kv_used + len(decodes) > self.spec.kv_capacity:
            victim = self.active.pop()
            self._preempt(victim, now_s)
            decodes = [sequence for sequence in decodes if sequence is not victim]
            preempted = True
        for sequence in decodes:
            sequence.kv += 1
        budget = self.spec.tokens_per_iteration - len(decodes)
        prefills: list[tuple[Sequence, int]] = []
        for sequence in self.active:
            if sequence.to_prefill and budget > 0:
                prefills.append((sequence, min(budget, sequence.to_prefill)))
                budget -= prefills[-1][1]
        while not preempted and self.queue and budget > 0 and len(self.active) < self.spec.max_sequences:
            need = self.queue[0].to_prefill + self.queue[0].computed
            if self.kv_used + need > self.spec.kv_capacity:
                break
            sequence = self.queue.popleft()
            sequence.kv = need
            self.active.append(sequence)
            prefills.append((sequence, min(budget, sequence.to_prefill)))
            budget -= prefills[-1][1]
            self._log(ADMITTED, sequence.number, self._index, now_s)
        self.largest_kv = max(self.largest_kv, self.kv_used)
        if decodes or prefills:
            self._run(now_s, decodes, prefills)
        else:
            self.idle_since_s = now_s

    def _run(self, now_s: float, decodes: list[Sequence], prefills: list[tuple[Sequence, int]]) -> None:
        costs = self.spec.engine_costs
        context = float(sum(sequence.kv for sequence in decodes))
        chunks = [(tokens, sequence.computed) for sequence, tokens in prefills]
        whole = costs.iteration(self.mhz, chunks, len(decodes), context)
        alone_j = costs.iteration(self.mhz, (), len(decodes), context).energy_j if decodes else 0.0
        prefill_j = max(0.0, whole.energy_j - alone_j) if prefills else 0.0
        end_s = now_s + whole.t_s
        self.in_flight = InFlight(now_s, end_s, decodes, prefills, prefill_j, whole.energy_j - prefill_j)

    def _preempt(self, victim: Sequence, now_s: float) -> None:
        victim.kv = 0
        victim.computed = victim.cached
        victim.to_prefill = victim.prompt + victim.generated - victim.cached
        victim.preemptions += 1
        self.queue.appendleft(victim)
        self._log(PREEMPTED, victim.number, self._index, now_s)

    def _complete(self, ended: InFlight) -> None:
        self.iterations += 1
        self.prefill_j += ended.prefill_j
        self.decode_j += ended.decode_j
        for sequence in ended.decodes:
            sequence.energy_j += ended.decode_j / len(ended.decodes)
            self._token(sequence, ended.end_s)
        new = sum(tokens for _, tokens in ended.prefills)
        for sequence, tokens in ended.prefills:
            sequence.energy_j += ended.prefill_j * tokens / new
            sequence.computed += tokens
            sequence.to_prefill -= tokens
            if not sequence.to_prefill:
                self._token(sequence, ended.end_s)

    def _token(self, sequence: Sequence, at_s: float) -> None:
        if not sequence.token_s:
            self._log(FIRST_TOKEN, sequence.number, self._index, at_s)
        sequence.token_s.append(at_s)
        sequence.generated += 1
        sequence.timely += at_s <= sequence.deadline_s + TIE_S
        if sequence.generated == sequence.output:
            sequence.kv = 0
            self.active.remove(sequence)
            self._log(FINISHED, sequence.number, self._index, at_s)


class ReferenceFleet:
    """All instances, and the router before them."""

    def __init__(self, fleet: FleetSpec, load: Load) -> None:
        self.events: list[tuple[int, int, int, float]] = []
        self.instances = [ReferenceInstance(i, spec, self._log) for i, spec in enumerate(fleet.instances)]
        self.sequences = [
            Sequence(n, *row)
            for n, row in enumerate(
                zip(
                    load.arrival_s.tolist(),
                    load.prompt_tokens.tolist(),
                    load.output_tokens.tolist(),
                    load.cached_tokens.tolist(),
                    load.deadline_s.tolist(),
                    strict=True,
                )
            )
        ]
        self.next_arrival = 0
        self._fleet = fleet
        self._class = load.request_class.tolist()
        self._turn = [0] * len(fleet.pools)

    def _log(self, kind: int, request: int, instance: int, at_s: float) -> None:
        self.events.append((kind, request, instance, at_s))

    def run_until(self, to_s: float) -> None:
        """All arrivals before `to_s`, then every iteration that ends by it."""
        while self.next_arrival < len(self.sequences):
            sequence = self.sequences[self.next_arrival]
            if sequence.arrival_s >= to_s:
                break
            for instance in self.instances:
                instance.advance(sequence.arrival_s)
            chosen = self._choose(sequence)
            if chosen is not None:
                self.instances[chosen].submit(sequence)
            self.next_arrival += 1
        for instance in self.instances:
            instance.advance(to_s)

    def _choose(self, sequence: Sequence) -> int | None:
        """Among the instances of the class's pool that the request fits into; None: it never fits."""
        number = self._fleet.class_pool[self._class[sequence.number]]
        pool = self._fleet.pools[number]
        if pool.routing == "round_robin":
            return self._by_turns(number, pool, sequence)
        fitting = [i for i in pool.members if self._fits(i, sequence)]
        loads = [len(self.instances[i].active) + len(self.instances[i].queue) for i in fitting]
        return fitting[loads.index(min(loads))] if fitting else None

    def _by_turns(self, number: int, pool: PoolSpec, sequence: Sequence) -> int | None:
        for k in range(len(pool.members)):
            turn = (self._turn[number] + k) % len(pool.members)
            if self._fits(pool.members[turn], sequence):
                self._turn[number] = turn + 1
                return pool.members[turn]
        return None

    def _fits(self, instance: int, sequence: Sequence) -> bool:
        return sequence.prompt + sequence.output <= self._fleet.instances[instance].kv_capacity

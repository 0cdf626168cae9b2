"""The simulator's rules, token by token in plain Python: the oracle that the compiled kernel is held against.

An instance composes an iteration, waits until it ends, accounts for it, and composes the next (vLLM's continuous
batching with chunked prefill; the simulated node does the same in real time):

1. Each decoding sequence gets one token and needs one more token of KV cache. While the cache is short of it, the
   newest sequence is preempted: it loses its KV cache, goes to the head of the queue and is computed again later.
2. What the token budget leaves goes to prompts under way, in order of admission, and then to the queue, first come
   first served, while there is a place in the batch and room in the cache for the whole prompt. After a preemption
   nothing is admitted.
3. A request that arrives meanwhile waits for the next iteration.

4. A request that is to be handed over leaves when its cache holds `split` tokens, and lands elsewhere when they have
   been sent, with those tokens computed: it comes before all that wait without a cache. If nothing but its last token
   is left to compute, it goes on decoding: it needs a place and room, but no token of budget is kept from it.

Energy: the decoding sequences of an iteration share equally what it would have cost without its prefills; the prefills
pay the rest in proportion to their new tokens.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from core.algorithms.split.step_fit import fit_of
from core.algorithms.split.step_times import LEAST_PROMPT_TOKENS, prompt_tokens_within
from core.engine.engine_model import EngineModel
from core.engine.iteration import Iteration
from core.simulator.kernel import kernel
from core.simulator.kernel.commands import (
    DRAINING,
    OFF,
    SERVING,
    STARTING,
    STRETCH_S,
    FleetView,
    RequestView,
    Sequences,
)
from core.simulator.kernel.driver import Stepping
from core.simulator.kernel.kernel import ADMITTED, FINISHED, FIRST_TOKEN, HANDED_OVER, NONE, PREEMPTED, TIE_S
from core.simulator.kernel.outcome import Floats, Ints, Outcome, Sink
from core.simulator.kernel.simulated import FixedCosts, FleetSpec, InstanceSpec, Load
from core.simulator.kernel.worlds import KNOWN, cost_row, lined_up, request_rows

_GIVEN = ("number", "arrival_s", "prompt", "output", "cached", "deadline_s", "due_s", "predicted")


@dataclass(slots=True, eq=False)
class Request:
    """A request and all that is known of it; `given` is its row as it came."""

    given: Any
    number: int
    arrival_s: float
    prompt: int
    output: int
    cached: int
    deadline_s: float
    due_s: float
    predicted: int
    status: int = kernel.AHEAD
    pool: int = NONE
    instance: int = NONE
    generated: int = 0
    computed: int = 0
    to_prefill: int = 0
    kv: int = 0
    preemptions: int = 0
    retries: int = 0
    timely: int = 0
    split: int = 0
    handed: int = 0
    sent: int = 0
    sent_s: float = 0.0
    lands_s: float = 0.0
    target: int = NONE
    token_s: list[float] = field(default_factory=list)  # when each token came
    energy_j: float = 0.0

    @property
    def to_compute(self) -> int:
        if 0 < self.split < self.prompt:
            return self.split - self.computed
        return self.prompt + self.generated - self.computed

    @property
    def landed(self) -> bool:
        """Of one that waits: whether it has its cache here."""
        return self.computed > self.cached

    @property
    def goes_on(self) -> bool:
        """Of one that waits: whether it has only to decode."""
        return self.landed and self.generated > 0 and self.to_prefill == 1

    def row(self) -> Any:
        """As the kernel would hand it to a sink."""
        row = self.given.copy()
        for name in ("status", "pool", "instance", "generated", "preemptions", "retries", "timely", "handed"):
            row[name] = getattr(self, name)
        row["energy_j"] = self.energy_j
        gaps = np.diff(self.token_s)
        if self.token_s:
            row["first_token_s"] = self.token_s[0]
        if self.status == kernel.DONE:
            row["finish_s"] = self.token_s[-1]
            row["itl_p50_s"], row["itl_p99_s"] = _nearest_rank(gaps, 50), _nearest_rank(gaps, 99)
        row["itl_max_s"] = gaps.max(initial=0.0)
        return row


def iteration(
    costs: EngineModel | FixedCosts,
    mhz: float,
    prefills: Sequence[tuple[int, int]],
    decodes: int,
    context_tokens: float,
) -> Iteration:
    """Of so many new tokens on top of cached ones for each prompt under way, beside so many sequences that decode."""
    if isinstance(costs, EngineModel):
        return costs.iteration(mhz, prefills, decodes, context_tokens)
    t_s = costs.base_s + costs.prefill_token_s * sum(tokens for tokens, _ in prefills) + costs.decode_s * decodes
    return Iteration(t_s, costs.busy_w, costs.busy_w, mhz, costs.busy_w * t_s)


@dataclass(slots=True)
class InFlight:
    start_s: float
    end_s: float
    decodes: list[Request]
    prefills: list[tuple[Request, int]]
    prefill_j: float
    decode_j: float


class ReferenceInstance:
    """One engine, from iteration to iteration."""

    def __init__(self, index: int, spec: InstanceSpec, fleet: ReferenceWorld) -> None:
        self.spec = spec
        self.mhz = spec.mhz
        self.state = OFF
        self.capacity = spec.kv_capacity
        self.weight, self.credit = 1.0, 0.0
        self.active: list[Request] = []  # in order of admission
        self.queue: deque[Request] = deque()
        self.in_flight: InFlight | None = None
        self.idle_since_s = self.on_since_s = self.on_s = self.mhz_s = 0.0
        self.successors: tuple[int, ...] = ()
        self.successors_ready_s = 0.0
        self.looked = -1
        self.spent_j = {"prefill": 0.0, "decode": 0.0, "idle": 0.0, "transition": 0.0}
        self.seen: dict[str, list[float]] = {"ttft": [], "tpot": [], "e2e": []}  # since a control looked last
        self.iterations = 0
        self.index = index
        self._fleet = fleet

    @property
    def kv_allocated(self) -> int:
        """Tokens in the cache, without those that the iteration in flight is writing."""
        return self.kv_used - (len(self.in_flight.decodes) if self.in_flight else 0)

    @property
    def kv_used(self) -> int:
        return sum(request.kv for request in self.active)

    def enqueue(self, request: Request, now_s: float) -> None:
        request.instance = self.index
        if self.spec.scheduling.order != "fcfs":
            self._put(request, now_s)
        else:  # with a cache before all that have none
            others = () if not request.landed else self.queue
            place = next((n for n, other in enumerate(others) if not other.landed), len(self.queue))
            self.queue.insert(place, request)
        self.stir(now_s)

    def stir(self, now_s: float) -> None:
        """The queue has changed."""
        if self.in_flight is None:
            self.settle_idle(now_s)
            self.begin(now_s)

    def call_back(self, request: Request, now_s: float) -> None:
        """Takes a request out of the queue."""
        self.queue.remove(request)
        request.instance = NONE
        self.stir(now_s)

    def step(self) -> None:
        """Ends the iteration in flight and begins the next."""
        ended = self.in_flight
        assert ended is not None
        self.in_flight = None
        self._complete(ended)
        self.begin(ended.end_s)

    def settle_idle(self, now_s: float) -> None:
        if self.in_flight is None and now_s > self.idle_since_s:
            if self.state != OFF:
                kind = "transition" if self.state == STARTING else "idle"
                self.spent_j[kind] += self.spec.idle_w(self.mhz) * (now_s - self.idle_since_s)
            self.idle_since_s = now_s

    def switch_on(self, now_s: float) -> None:
        self.state, self.mhz = STARTING, self.spec.mhz
        self.idle_since_s = self.on_since_s = now_s

    def switch_off(self, now_s: float) -> None:
        self.settle_idle(now_s)
        self.account_time(now_s)
        self.state = OFF

    def account_time(self, now_s: float) -> None:
        """How long it has been on, and at what clock."""
        if self.state != OFF:
            self.on_s += now_s - self.on_since_s
            self.mhz_s += self.mhz * (now_s - self.on_since_s)
            self.on_since_s = now_s

    def begin(self, now_s: float) -> None:
        if self.successors:
            self.leave(now_s)
            return
        self._sort(now_s)
        self._give_way(now_s)
        decodes = [request for request in self.active if not request.to_prefill]
        preempted = False
        while decodes and self.kv_used + len(decodes) > self.capacity:
            victim = self._last_running(now_s)
            self._preempt(victim, now_s)
            decodes = [request for request in decodes if request is not victim]
            preempted = True
        if not preempted:
            decodes += self._resume(len(decodes), now_s)
        for request in decodes:
            request.kv += 1
        budget = self._budget(decodes)
        prefills: list[tuple[Request, int]] = []
        for request in self.active:
            if request.to_prefill and budget > 0:
                prefills.append((request, min(budget, self.spec.chunk_tokens, request.to_prefill)))
                budget -= prefills[-1][1]
        while not preempted and self.queue and budget > 0 and len(self.active) < self.spec.max_sequences:
            request = self.queue[0]
            need = request.to_prefill + request.computed
            if self.kv_used + need > self.capacity:
                break
            self.queue.remove(request)
            request.kv = need
            self.active.append(request)
            prefills.append((request, min(budget, self.spec.chunk_tokens, request.to_prefill)))
            budget -= prefills[-1][1]
            self._fleet.log(ADMITTED, request.number, self.index, now_s)
        if decodes or prefills:
            self._run(now_s, decodes, prefills)
            return
        self.idle_since_s = now_s
        if self.state == DRAINING and not self.queue:
            self.switch_off(now_s)

    def _resume(self, decodes: int, now_s: float) -> list[Request]:
        """Those that go on decoding, in the queue's order, while there is a place and room for their next token."""
        resumed: list[Request] = []
        for request in [request for request in self.queue if request.goes_on]:
            need = decodes + len(resumed) + request.computed + 1
            if len(self.active) == self.spec.max_sequences or self.kv_used + need > self.capacity:
                break
            self.queue.remove(request)
            self.active.append(request)
            request.kv, request.to_prefill = request.computed, 0
            resumed.append(request)
            self._fleet.log(ADMITTED, request.number, self.index, now_s)
        return resumed

    def _rank(self, request: Request) -> float:
        return self._rank_with(request, request.to_prefill)

    def _rank_displaced(self, request: Request) -> float:
        """The rank of a running request once it has lost its cache."""
        return self._rank_with(request, request.to_compute + request.computed - request.cached)

    def _left_s(self, request: Request, to_prefill: int | None = None) -> float:
        rules = self.spec.scheduling
        left = max(1, request.predicted - request.generated)
        return left * rules.token_s + (request.to_prefill if to_prefill is None else to_prefill) * rules.prefill_token_s

    def _rank_with(self, request: Request, to_prefill: int) -> float:
        rules = self.spec.scheduling
        if rules.order == "edf":
            return request.due_s
        if rules.order == "sjf":
            return request.predicted + rules.aging * request.arrival_s
        work_s = self._left_s(request, to_prefill)
        return request.due_s - work_s if rules.order == "llf" else work_s

    def _place(self, request: Request, now_s: float) -> tuple[bool, float, int]:
        """In the queue, under an order. Under LLF those that are late come first, by the work left."""
        rank = self._rank(request)
        if self.spec.scheduling.order == "llf" and rank + TIE_S < now_s:
            return False, self._left_s(request), request.number
        return True, rank, request.number

    def _put(self, request: Request, now_s: float) -> None:
        self.queue.append(request)
        self._sort(now_s)

    def _sort(self, now_s: float) -> None:
        """Orders the queue as it is now, but for one that is served as they came or were put."""
        if self.spec.scheduling.order != "fcfs":
            self.queue = deque(sorted(self.queue, key=lambda request: self._place(request, now_s)))

    def _last_running(self, now_s: float) -> Request:
        """Who is to give way first: the newest, or under an order that preempts the last in that order."""
        if not self.spec.scheduling.preempts_s:
            return self.active[-1]
        return max(self.active, key=lambda request: self._place(request, now_s))

    def _gives_way(self, request: Request, first: Request, now_s: float) -> bool:
        rules = self.spec.scheduling
        ahead, behind = self._rank(first), min(self._rank(request), self._rank_displaced(request))
        if rules.order == "llf":
            other_s, own_s = self._left_s(first), self._left_s(request)
            lost_s = self._left_s(request, request.to_compute + request.computed - request.cached) - own_s
            if other_s + max(0.0, lost_s) >= own_s:
                return False
            ahead = max(ahead, now_s) + other_s
        return ahead + rules.margin < behind

    def _give_way(self, now_s: float) -> None:
        rules = self.spec.scheduling
        if not rules.preempts_s or not self.queue:
            return
        stretch = int((now_s + TIE_S) / rules.preempts_s)
        if stretch == self.looked:
            return
        self.looked = stretch
        while self.queue and self.active:
            first = self.queue[0]
            decodes = sum(not request.to_prefill for request in self.active)
            seat = len(self.active) < self.spec.max_sequences
            over = self.kv_used + decodes + first.to_prefill + first.computed - self.capacity
            if seat and over <= 0:
                return
            able = [request for request in self.active if self._gives_way(request, first, now_s)]
            if not able or sum(request.kv + (not request.to_prefill) for request in able) < over:
                return  # in vain
            self._preempt(max(able, key=lambda request: self._place(request, now_s)), now_s)

    def _budget(self, decodes: list[Request]) -> int:
        """Tokens to prefill: as many as the token budget leaves, within the limit of an iteration with decodes."""
        budget = self.spec.tokens_per_iteration - len(decodes)
        limit_s = self.spec.scheduling.itl_limit_s
        under_way = [request for request in self.active if request.to_prefill] or list(self.queue)[:1]
        if not limit_s or not decodes or not under_way or budget <= 0:
            return budget
        context, cached = float(sum(request.kv for request in decodes)), under_way[0].computed
        *costs, margin, _ = self._fit().tolist()
        room = prompt_tokens_within(costs, len(decodes), context, cached, limit_s / (1.0 + margin), budget)
        return min(budget, max(LEAST_PROMPT_TOKENS, room))

    def _fit(self) -> Floats:
        """Returns the fit of step times at its clock."""
        spec = self.spec
        bounds = spec.tokens_per_iteration, spec.max_sequences, spec.kv_capacity
        return fit_of(cost_row(spec), self.mhz, *bounds, spec.scheduling.itl_limit_s)

    def leave(self, now_s: float) -> None:
        """Everything goes to the successors by turns, the running ones first."""
        lands_s = max(now_s, self.successors_ready_s)
        for count, request in enumerate([*self.active, *self.queue]):
            self._move(request, now_s, lands_s, self.successors[count % len(self.successors)])
            request.kv = 0
        self.active, self.queue, self.successors = [], deque(), ()
        self.idle_since_s = now_s
        self.state = STARTING if now_s < self.successors_ready_s else self.state
        if self.state != STARTING:
            self.switch_off(now_s)

    def _run(self, now_s: float, decodes: list[Request], prefills: list[tuple[Request, int]]) -> None:
        costs = self.spec.engine_costs
        context = float(sum(request.kv for request in decodes))
        chunks = [(tokens, request.computed) for request, tokens in prefills]
        whole = iteration(costs, self.mhz, chunks, len(decodes), context)
        alone_j = iteration(costs, self.mhz, (), len(decodes), context).energy_j if decodes else 0.0
        prefill_j = max(0.0, whole.energy_j - alone_j) if prefills else 0.0
        end_s = now_s + whole.t_s
        self.in_flight = InFlight(now_s, end_s, decodes, prefills, prefill_j, whole.energy_j - prefill_j)

    def _preempt(self, victim: Request, now_s: float) -> None:
        self.active.remove(victim)
        victim.kv = 0
        victim.computed = victim.cached
        victim.to_prefill = victim.to_compute
        victim.preemptions += 1
        if self.spec.scheduling.order == "fcfs":
            self.queue.appendleft(victim)
        else:
            self._put(victim, now_s)
        self._fleet.log(PREEMPTED, victim.number, self.index, now_s)

    def _complete(self, ended: InFlight) -> None:
        self.iterations += 1
        self.spent_j["prefill"] += ended.prefill_j
        self.spent_j["decode"] += ended.decode_j
        for request in ended.decodes:
            request.energy_j += ended.decode_j / len(ended.decodes)
            self._token(request, ended.end_s)
        new = sum(tokens for _, tokens in ended.prefills)
        for request, tokens in ended.prefills:
            request.energy_j += ended.prefill_j * tokens / new
            request.computed += tokens
            request.to_prefill -= tokens
            if request.split and self._fleet.fleet.pools[request.pool].handover.chunked:  # type: ignore[union-attr]
                self._send(request, request.computed, ended.end_s)
            if not request.to_prefill:
                if request.computed < request.prompt:
                    self._hand_over(request, ended.end_s)
                else:
                    self._token(request, ended.end_s)

    def _token(self, request: Request, at_s: float) -> None:
        if not request.token_s:
            self._fleet.log(FIRST_TOKEN, request.number, self.index, at_s)
            self.seen["ttft"].append(at_s - request.arrival_s)
        else:
            self.seen["tpot"].append(at_s - request.token_s[-1])
        request.token_s.append(at_s)
        request.generated += 1
        request.timely += at_s <= request.deadline_s + TIE_S
        if request.generated == request.output:
            request.kv = 0
            request.status = kernel.DONE
            self.active.remove(request)
            self.seen["e2e"].append(at_s - request.arrival_s)
            self._fleet.log(FINISHED, request.number, self.index, at_s)
        elif request.split and request.kv >= request.split:
            self._hand_over(request, at_s)

    def _send(self, request: Request, tokens: int, now_s: float) -> None:
        handover = self._fleet.fleet.pools[request.pool].handover
        assert handover is not None
        if tokens > request.sent:
            request.sent_s = max(request.sent_s, now_s) + (tokens - request.sent) * handover.token_s
            request.sent = tokens

    def _hand_over(self, request: Request, now_s: float) -> None:
        handover = self._fleet.fleet.pools[request.pool].handover
        assert handover is not None
        self._send(request, request.kv if request.generated else request.computed, now_s)
        request.split = 0
        request.pool = self._fleet.fleet.pool_number(handover.to)
        self._move(request, now_s, max(now_s, request.sent_s) + handover.latency_s, request.target)
        request.kv = 0
        self.active.remove(request)

    def _move(self, request: Request, now_s: float, lands_s: float, target: int) -> None:
        if request.generated and not request.to_prefill:
            request.computed = request.kv
        request.to_prefill = request.to_compute
        request.instance, request.lands_s, request.target = NONE, lands_s, target
        self._fleet.log(HANDED_OVER, request.number, self.index, now_s)
        self._fleet.fly(request)


class ReferenceWorld:
    """A World (see `driver`): all instances, and the router before them.

    One bin holds all its energy, it keeps all events and no segments, whatever it is asked to keep.
    """

    def __init__(
        self,
        fleet: FleetSpec,
        blocks: Iterator[Load],
        sink: Sink,
        *,
        bin_s: float,
        keep_events: int,
        keep_segments: int,
    ) -> None:
        self.fleet = fleet
        self.events: list[tuple[int, int, int, float]] = []
        self.instances: list[ReferenceInstance] = []
        self.requests: list[Request] = []
        for block in blocks:
            for row in request_rows(block, len(self.requests)):
                self.requests.append(Request(row.copy(), *(row[name].item() for name in _GIVEN)))
        self._sink = sink
        self._next = 0
        self._flights: list[Request] = []
        self._members: list[list[int]] = [[] for _ in fleet.pools]
        self._unplaced: list[list[Request]] = [[] for _ in fleet.pools]
        self._turn = [0] * len(fleet.pools)
        self._cell_pool = list(fleet.cell_pool)
        self._pool: list[int] = []
        self._seen = np.zeros((len(fleet.cell_pool), 1, 3), np.int64)
        weights = fleet.weights or (1.0,) * len(fleet.instances)
        for spec in fleet.instances:
            self.add(spec)
        for number, pool in enumerate(fleet.pools):
            for i in pool.members:
                self.switch_on(i, 0.0)
                self.serve(i, number, weights[i], 0.0)

    def log(self, kind: int, request: int, instance: int, at_s: float) -> None:
        self.events.append((kind, request, instance, at_s))

    # -- time --------------------------------------------------------------------------------------

    @property
    def arrived(self) -> int:
        return self._next

    @property
    def _in_flight(self) -> int:
        return sum(request.status == kernel.IN_FLIGHT for request in self.requests[: self._next])

    @property
    def pending(self) -> bool:
        return self._next < len(self.requests) or self._in_flight > 0

    @property
    def stuck(self) -> bool:
        return self._next == len(self.requests) and self._in_flight == sum(map(len, self._unplaced))

    def run_until(self, to_s: float) -> None:
        while self._next < len(self.requests) and self.requests[self._next].arrival_s < to_s:
            request = self.requests[self._next]
            self._settle(request.arrival_s, True)
            self._arrive(request)
            self._next += 1
        self._settle(to_s, False)

    def _settle(self, to_s: float, landings_too: bool) -> None:
        while True:
            busy = [i for i in self.instances if i.in_flight is not None and i.in_flight.end_s <= to_s + TIE_S]
            first = min(busy, key=lambda i: i.in_flight.end_s, default=None)  # type: ignore[union-attr]
            flight = self._flights[0] if self._flights else None
            if flight is not None and not (flight.lands_s < to_s or (landings_too and flight.lands_s <= to_s)):
                flight = None
            if first is not None and first.in_flight is not None:
                soonest_s = first.in_flight.end_s
                if flight is None or flight.lands_s + TIE_S >= soonest_s:
                    first.step()
                    continue
            if flight is None:
                return
            self._land(self._flights.pop(0))

    def fly(self, request: Request) -> None:
        """In order of landing; who lands within TIE_S of another one goes by number."""
        place = 0
        while place < len(self._flights) and _lands_before(self._flights[place], request):
            place += 1
        self._flights.insert(place, request)

    def _land(self, request: Request) -> None:
        target = self.instances[request.target] if request.target != NONE else None
        request.target = NONE
        serving = target is not None and target.state in (SERVING, DRAINING) and not target.successors
        if target is not None and serving and self._fits(target.index, request):
            target.enqueue(request, request.lands_s)
        else:
            self._dispatch(request, request.lands_s)

    # -- requests ----------------------------------------------------------------------------------

    def _receive(self, request: Request) -> None:
        cell, stretch = int(request.given["cell"]), int(request.arrival_s / STRETCH_S)
        if stretch >= self._seen.shape[1]:
            self._seen = np.pad(self._seen, ((0, 0), (0, stretch + 1 - self._seen.shape[1]), (0, 0)))
        self._seen[cell, stretch] += (1, request.prompt, request.predicted)
        request.status, request.pool = kernel.IN_FLIGHT, self._cell_pool[cell]
        request.computed = request.cached
        request.to_prefill = request.to_compute

    def _split(self, request: Request, tokens: int) -> None:
        request.handed = 1
        request.split = tokens
        request.to_prefill = request.to_compute

    def _arrive(self, request: Request) -> None:
        self._receive(request)
        self._enter(request, request.arrival_s)

    def _enter(self, request: Request, now_s: float) -> None:
        handover = self.fleet.pools[request.pool].handover
        if handover is not None and handover.at == "prompt":
            self._split(request, request.prompt)
        elif handover is not None and not isinstance(handover.at, str):
            share = int(handover.at * (request.prompt + request.predicted))
            self._split(request, max(request.cached + 1, share))
        self._dispatch(request, now_s)

    @property
    def next_arrival_s(self) -> float:
        return self.requests[self._next].arrival_s if self._next < len(self.requests) else math.inf

    def receive(self, now_s: float) -> RequestView:
        self._settle(now_s, True)
        request = self.requests[self._next]
        self._next += 1
        self._receive(request)
        return _view_of(request)

    def place(self, number: int, i: int, split: int, second: int, now_s: float) -> None:
        request = self.requests[number]
        if split == 0 and not self._fits(i, request):
            self.refuse(number)
            return
        if split > 0:
            request.target = second
            self._split(request, max(request.cached + 1, split))
        self.instances[i].enqueue(request, now_s)

    def refuse(self, number: int) -> None:
        self.requests[number].status = kernel.REJECTED

    # -- emergencies -------------------------------------------------------------------------------

    def reorder(self, i: int, numbers: Sequence[int], now_s: float) -> bool:
        instance = self.instances[i]
        waiting = {request.number: request for request in instance.queue}
        if instance.spec.scheduling.order != "fcfs" or waiting.keys().isdisjoint(numbers):
            return False
        instance.queue = deque(waiting[number] for number in lined_up(list(waiting), numbers))
        instance.stir(now_s)
        return True

    def resteer(self, number: int, i: int, to: int, now_s: float) -> bool:
        request, target = self._waiting(number, i), self.instances[to]
        if request is None or request.landed or request.generated > 0 or to == i:
            return False
        pool = self._pool[to]
        if target.state != SERVING or pool == NONE or not self._fits(to, request):
            return False
        if request.split and pool != request.pool:
            return False
        self.instances[i].call_back(request, now_s)
        request.pool = pool
        target.enqueue(request, now_s)
        return True

    def squash(self, number: int, i: int, now_s: float) -> bool:
        request = self._waiting(number, i)
        if request is None or request.generated > 0:
            return False
        self.instances[i].call_back(request, now_s)
        request.split, request.sent, request.sent_s, request.target = 0, 0, 0.0, NONE
        request.computed = request.cached
        request.to_prefill = request.to_compute
        request.retries += 1
        return True

    def come_again(self, number: int) -> RequestView:
        request = self.requests[number]
        request.pool = self._cell_pool[int(request.given["cell"])]
        return _view_of(request)

    def enter(self, number: int, now_s: float) -> None:
        self._enter(self.requests[number], now_s)

    def _waiting(self, number: int, i: int) -> Request | None:
        """A request, if it waits in the queue of that instance."""
        return next((request for request in self.instances[i].queue if request.number == number), None)

    # -- pools -------------------------------------------------------------------------------------

    def _dispatch(self, request: Request, now_s: float) -> None:
        chosen = self._anywhere(request)
        if chosen is None and not self._members[request.pool]:
            self._unplaced[request.pool].append(request)
        elif chosen is None:
            request.status = kernel.REJECTED
        else:
            self.instances[chosen].enqueue(request, now_s)

    def _anywhere(self, request: Request) -> int | None:
        own = request.pool
        most = self.fleet.pools[own].most_unstarted
        others = [self.fleet.pool_number(name) for name in self.fleet.pools[own].spills]
        if not self._members[own]:
            asked = [(pool, limit) for limit in (most, 0) for pool in others]
        else:
            asked = [(own, most), *((pool, most) for pool in others if most), (own, 0)]
        return next((i for pool, limit in asked if (i := self._choose(request, pool, limit)) is not None), None)

    def _choose(self, request: Request, pool: int, most: int) -> int | None:
        """Among the instances of a pool that the request fits into and that are not full; None: there is none."""
        members = self._members[pool]
        routing = self.fleet.pools[pool].routing
        if routing == "round_robin":
            for k in range(len(members)):
                turn = (self._turn[pool] + k) % len(members)
                if self._may_take(members[turn], request, most):
                    self._turn[pool] = turn + 1
                    return members[turn]
            return None
        fitting = [self.instances[i] for i in members if self._may_take(i, request, most)]
        if not fitting:
            return None
        if routing == "least_loaded":
            return min(fitting, key=lambda i: (len(i.active) + len(i.queue) + 1) / i.weight).index
        for instance in fitting:
            instance.credit += instance.weight
        best = max(fitting, key=lambda i: i.credit)
        best.credit -= sum(i.weight for i in fitting)
        return best.index

    def _may_take(self, instance: int, request: Request, most: int) -> bool:
        own = self.instances[instance]
        unstarted = len(own.queue) + sum(other.to_prefill > 0 for other in own.active)
        return self._fits(instance, request) and (most == 0 or unstarted < most)

    def _fits(self, instance: int, request: Request) -> bool:
        return request.prompt + request.output <= self.instances[instance].spec.kv_capacity

    def reject_unplaced(self) -> None:
        for unplaced in self._unplaced:
            for request in unplaced:
                request.status = kernel.REJECTED
            unplaced.clear()

    # -- instances ---------------------------------------------------------------------------------

    def add(self, spec: InstanceSpec) -> int:
        self.instances.append(ReferenceInstance(len(self.instances), spec, self))
        self._pool.append(NONE)
        return len(self.instances) - 1

    def switch_on(self, i: int, now_s: float) -> None:
        self.instances[i].switch_on(now_s)

    def serve(self, i: int, pool: int, weight: float, now_s: float) -> None:
        instance = self.instances[i]
        instance.settle_idle(now_s)
        instance.state, instance.weight, instance.capacity = SERVING, weight, instance.spec.kv_capacity
        self._pool[i] = pool
        self._members[pool].append(i)
        unplaced, self._unplaced[pool] = self._unplaced[pool], []
        for request in unplaced:
            self._dispatch(request, now_s)

    def move(self, i: int, pool: int, weight: float, now_s: float) -> None:
        self._withdraw(i)
        self.serve(i, pool, weight, now_s)

    def drain(self, i: int, now_s: float) -> None:
        instance = self.instances[i]
        self._withdraw(i)
        starting = instance.state == STARTING
        instance.state = STARTING if starting else DRAINING
        if starting or (instance.in_flight is None and not instance.queue):
            instance.switch_off(now_s)

    def retire(self, i: int, successors: Sequence[int], ready_s: float, now_s: float) -> None:
        instance = self.instances[i]
        self._withdraw(i)
        instance.successors, instance.successors_ready_s = tuple(successors), ready_s
        for request in [*instance.active, *instance.queue]:
            request.handed = 1
        if instance.in_flight is None:
            instance.settle_idle(now_s)
            instance.leave(now_s)

    def leaves_s(self, i: int, now_s: float) -> float:
        instance = self.instances[i]
        if not instance.successors or instance.in_flight is None:
            return now_s
        return max(now_s, instance.in_flight.end_s)

    def _withdraw(self, i: int) -> None:
        if self._pool[i] != NONE:
            self._members[self._pool[i]].remove(i)
            self._pool[i] = NONE

    def switch_off(self, i: int, now_s: float) -> None:
        if self.instances[i].state == STARTING:
            self.instances[i].switch_off(now_s)

    def set_clock(self, i: int, mhz: float, now_s: float) -> None:
        self.instances[i].settle_idle(now_s)
        self.instances[i].account_time(now_s)
        self.instances[i].mhz = mhz

    def set_kv_share(self, i: int, share: float, now_s: float) -> None:
        self.instances[i].capacity = int(share * self.instances[i].spec.kv_capacity)

    def set_weight(self, i: int, weight: float) -> None:
        self.instances[i].weight = weight

    def assign(self, cell: int, pool: int) -> None:
        self._cell_pool[cell] = pool

    def state_of(self, i: int) -> int:
        return self.instances[i].state

    def pool_of(self, i: int) -> int:
        return self._pool[i]

    # -- what is seen ------------------------------------------------------------------------------

    def view(self, now_s: float) -> FleetView:
        own = self.instances
        means = {kind: np.array([_mean(i.seen[kind]) for i in own]) for kind in ("ttft", "tpot", "e2e")}
        stretches = int(now_s / STRETCH_S) + 1
        missing = max(0, stretches - self._seen.shape[1])
        return FleetView(
            now_s=now_s,
            instances=tuple(i.spec for i in own),
            state=np.array([i.state for i in own], np.int64),
            pool=np.array(self._pool, np.int64),
            mhz=np.array([i.mhz for i in own]),
            running=np.array([len(i.active) for i in own], np.int64),
            waiting=np.array([len(i.queue) for i in own], np.int64),
            kv_used_tokens=np.array([i.kv_allocated for i in own], np.int64),
            ttft_s=means["ttft"],
            tpot_s=means["tpot"],
            e2e_s=means["e2e"],
            cell_pool=tuple(self._cell_pool),
            unplaced=np.array([len(unplaced) for unplaced in self._unplaced], np.int64),
            arrived=np.pad(self._seen, ((0, 0), (0, missing), (0, 0)))[:, :stretches],
            sequences=self._sequences,
        )

    def _sequences(self, i: int) -> Sequences:
        own = self.instances[i]
        decoding = set() if own.in_flight is None else {request.number for request in own.in_flight.decodes}
        found = [*own.active, *own.queue]

        def column(values: list[int]) -> Ints:
            return np.array(values, np.int64)

        return Sequences(
            running=len(own.active),
            number=column([r.number for r in found]),
            kv_tokens=column([r.kv - (r.number in decoding) for r in found]),
            generated_tokens=column([r.generated for r in found]),
            to_prefill_tokens=column([r.to_prefill for r in found]),
            predicted_tokens=column([r.predicted for r in found]),
            arrival_s=np.array([r.arrival_s for r in found]),
            due_s=np.array([r.due_s for r in found]),
        )

    def begin_means(self, now_s: float) -> None:
        for instance in self.instances:
            instance.seen = {kind: [] for kind in instance.seen}

    def outcome(self, now_s: float, partial: bool) -> Outcome:
        rows = np.array([request.row() for request in self.requests[: self._next]], kernel.REQUEST)
        if rows.size:
            self._sink.take(rows)
        finished = rows["finish_s"][~np.isnan(rows["finish_s"])]
        idle_since_s = [instance.idle_since_s for instance in self.instances]
        end_s = float(max([now_s] if partial else [now_s, *rows["arrival_s"], *finished, *idle_since_s]))
        for instance in self.instances:
            instance.settle_idle(end_s)
            instance.account_time(end_s)
        spent = {kind: np.array([i.spent_j[kind] for i in self.instances]) for kind in ("prefill", "decode", "idle")}
        spent["transition"] = np.array([i.spent_j["transition"] for i in self.instances])
        gaps = [np.diff(request.token_s) for request in self.requests]
        return Outcome(
            instances=tuple(i.spec for i in self.instances),
            requests=self._next,
            spent_j=spent,
            series_j=np.sum(list(spent.values()), axis=0)[:, None],
            series_on_s=np.array([[i.on_s] for i in self.instances]),
            bin_s=math.inf,
            on_s=np.array([i.on_s for i in self.instances]),
            mhz_s=np.array([i.mhz_s for i in self.instances]),
            gaps=_binned(np.concatenate(gaps)),
            end_s=end_s,
            iterations=sum(i.iterations for i in self.instances),
            partial=partial,
            events=tuple(self.events),
        )


def _view_of(request: Request) -> RequestView:
    return RequestView(*(request.given[name].item() for name in KNOWN))


def _lands_before(a: Request, b: Request) -> bool:
    return a.number < b.number if abs(a.lands_s - b.lands_s) <= TIE_S else a.lands_s < b.lands_s


def _binned(gaps_s: Floats) -> Ints:
    place = kernel.GAP_BINS_PER_E * np.log(np.maximum(gaps_s, kernel.GAP_MIN_S) / kernel.GAP_MIN_S)
    return np.bincount(np.minimum(place.astype(np.int64), kernel.GAP_BINS - 1), minlength=kernel.GAP_BINS)


def _mean(latencies_s: list[float]) -> float:
    return sum(latencies_s) / len(latencies_s) if latencies_s else math.nan


def _nearest_rank(values: Floats, percent: int) -> float:
    """The smallest value that `percent` of them do not exceed; 0 when there are none."""
    return float(np.sort(values)[-(-values.size * percent // 100) - 1]) if values.size else 0.0


REFERENCE = Stepping("reference", ReferenceWorld)

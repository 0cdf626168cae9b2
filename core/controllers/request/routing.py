"""Routes a request to the instance where serving it costs the least and still keeps its latency limits.

What an instance would take and draw with one sequence more depends on the request in two numbers only (prompt and
output), so that everything else is worked out once per change of the instance, in `Candidate`; a choice among 64
instances is then a few multiplications each.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from core.algorithms.clock.deadline_clock import left_of_limits
from core.algorithms.queue.queueing import WINDOW_FACTOR
from core.engine.engine_model import MAX_SEQUENCES
from core.engine.step_tables import StepTable, round_up, step_table
from core.types import Limits

# Instances whose cost differs by less are as good as equal: the model is not more exact. Among them the prefix cache,
# then the load decides.
NEAR = 0.01
# Backlogs below are alike: to wait for less than an iteration or so is to wait for nothing. Then the load decides.
ALIKE_S = 0.02
# Of a TTFT limit. Backlogs below it are alike as well: the most loaded instance takes the prompt, and others may idle,
# since an iteration reads all weights, however few answers it has.
ALIKE_SHARE = 0.25


class Route(StrEnum):
    """The prediction by which the router chooses."""

    LEAST_ENERGY = "least_energy"
    LEAST_CARBON = "least_carbon"  # where an intensity is missing, least energy
    PREDICTED = "predicted"  # where it is predicted to end first


@dataclass(slots=True, eq=False)
class Candidate:
    """A ready instance as the router sees it now. Only `carrying` changes it, since making another one costs more.

    `kv_usage` is a share, None when the engine does not tell. `rtt_s` is the network's round trip, part of every TTFT.
    `weight`: what it can do beside others (`core.observations.request.routing_weights`), by which its load is divided.
    `token_budget`: of its iterations. What follows from the rest is worked out here, once.
    """

    uid: str
    pool_id: int
    site: str
    request_class: str
    class_rank: int
    model: str
    engine: str
    gpu: str
    tp: int
    mhz: float
    running: int
    waiting: int
    queued_prompt_tokens: int
    kv_usage: float | None
    pue: float
    intensity_g_per_kwh: float | None
    rtt_s: float = 0.0
    weight: float = 1.0
    token_budget: int = 2048  # vLLM's
    top_mhz: float | None = None  # to which its clock can go; None: no further than `mhz`
    load: int = field(init=False)
    table: StepTable | None = field(init=False, repr=False)
    top_token_s: float | None = field(init=False, repr=False)  # of a prompt, at the top clock; None: not known
    batch_bits: int = field(init=False, repr=False)
    queue_s: float = field(init=False, repr=False)  # of the prompts before it, and the network's
    tpot_s: float = field(init=False, repr=False)
    token_j: float = field(init=False, repr=False)  # a token of output more
    kv_room_tokens: float = field(init=False, repr=False)
    kv_wait_s: float = field(init=False, repr=False)  # per missing token of KV cache and token of output

    def __post_init__(self) -> None:
        self.table = top = step_table(self.model, self.gpu, self.tp, self.engine, self.mhz)
        if self.top_mhz is not None:
            top = step_table(self.model, self.gpu, self.tp, self.engine, self.top_mhz)
        self.top_token_s = None if top is None else top.prompt_token_s(self.token_budget)
        self._recompute()

    def carrying(self, running: int, waiting: int, queued_prompt_tokens: int) -> None:
        """Takes over another load."""
        self.running, self.waiting, self.queued_prompt_tokens = running, waiting, queued_prompt_tokens
        self._recompute()

    def _recompute(self) -> None:
        """Computes what follows from the load."""
        table = self.table
        self.load = self.running + self.waiting
        others = min(self.load, MAX_SEQUENCES - 1)
        self.batch_bits = others.bit_length()
        if table is None:
            self.queue_s = self.tpot_s = self.token_j = self.kv_room_tokens = self.kv_wait_s = math.nan
            return
        tpot_s, iteration_j = table.decode(others + 1)
        # Without the request an idle instance would draw idle power for as long; a busy one would iterate without it.
        self.token_j = iteration_j - (table.decode(others)[1] if others else table.idle_w * tpot_s)
        self.tpot_s = tpot_s
        self.queue_s = self.rtt_s + self.queued_prompt_tokens * table.prompt_token_s(self.token_budget)
        if self.kv_usage is None:
            self.kv_room_tokens, self.kv_wait_s = math.inf, 0.0
            return
        # Each of the running sequences is taken to be half-way through an output of the same length as the request's:
        # all of the cache is freed in the time of one such output.
        used = self.kv_usage * table.kv_capacity_tokens
        self.kv_room_tokens = table.kv_capacity_tokens - used - self.queued_prompt_tokens
        self.kv_wait_s = tpot_s / max(used, 1.0)


@dataclass(slots=True)  # this and Choice are made for every request: freezing them would double what they cost
class RouteRequest:
    prompt_tokens: int
    predicted_output_tokens: int
    class_rank: int
    limits: Limits


@dataclass(slots=True)
class Choice:
    """The instance that the request goes to, and the figures to expect there.

    The figures are None when the engine model does not know the instance's configuration. `window_s` is the fairness
    window W = 1.4 x Lat with Lat = predicted tokens x TPOT + TTFT (FREESH C.2).
    """

    uid: str
    predicted_energy_j: float | None
    ttft_s: float | None
    tpot_s: float | None
    e2e_s: float | None
    window_s: float | None
    meets_slo: bool
    reason: str
    token_energy_j: float | None = None  # of predicted_energy_j, what each predicted token of output is worth


class Estimate(NamedTuple):
    """The figures that one instance would give one request.

    A tuple, since one is made for every candidate of every request.
    """

    candidate: Candidate
    energy_j: float
    ttft_s: float
    e2e_s: float
    meets_slo: bool


_made = tuple.__new__  # a third of what a call of the class costs


def choose(
    candidates: Sequence[Candidate],
    request: RouteRequest,
    rng_tiebreak: Callable[[], float] | None = None,
    route: Route = Route.LEAST_ENERGY,
    warm_uid: str | None = None,
) -> Choice | None:
    """Chooses the instance for `request`; None only when there are no candidates. See `choose_of` for the rules."""
    own = [c for c in candidates if c.class_rank == request.class_rank]
    return choose_of(own, lambda: candidates, request, rng_tiebreak, route, warm_uid)


def choose_of(
    own: Sequence[Candidate],
    everybody: Callable[[], Sequence[Candidate]],
    request: RouteRequest,
    rng_tiebreak: Callable[[], float] | None = None,
    route: Route = Route.LEAST_ENERGY,
    warm_uid: str | None = None,
) -> Choice | None:
    """Chooses the instance for `request`, as a rule one of its `own` class; `everybody` is asked for only when it must
    spill.

    Instances of the request's class come first, then those of the next larger classes, then of the smaller ones. In the
    first class where any instance keeps the limits, the one of least energy (carbon, time) is taken. When none
    does anywhere, the one with the least end-to-end time is, and the reason says so. Of those within `NEAR` of the
    least, `warm_uid` (which has seen the beginning of the prompt) comes first, then the less loaded, the faster,
    `rng_tiebreak`, uid.
    """
    estimates = estimate(own, request)
    keeping = [v for v in estimates if v[4]]
    if keeping:
        return chosen(_best(keeping, route, warm_uid, rng_tiebreak), _REASONS[route])
    candidates = everybody()
    for rank in _ranks(candidates, request.class_rank):
        if own and rank == request.class_rank:
            continue
        found = estimate([c for c in candidates if c.class_rank == rank], request)
        keeping = [v for v in found if v[4]]
        if keeping:
            best = _best(keeping, route, warm_uid, rng_tiebreak)
            return chosen(best, f"spilled to {best.candidate.request_class}: its own class cannot keep the limits")
        estimates += found
    if estimates:
        return chosen(_fastest(estimates, rng_tiebreak), "no instance keeps the limits: fastest")
    return _unpredicted(candidates)


_REASONS = {
    Route.LEAST_ENERGY: "least energy within the limits",
    Route.LEAST_CARBON: "least carbon within the limits",
    Route.PREDICTED: "first to end within the limits",
}


def estimate(candidates: Sequence[Candidate], request: RouteRequest) -> list[Estimate]:
    """Estimates TTFT, E2E and extra energy of one more sequence at each candidate that the engine model knows."""
    prompt_tokens, output = request.prompt_tokens, request.predicted_output_tokens
    prompt = round_up(prompt_tokens)
    limits = request.limits
    ttft_limit_s = math.inf if limits.ttft_s is None else limits.ttft_s
    tpot_limit_s = math.inf if limits.tpot_s is None else limits.tpot_s
    e2e_limit_s = math.inf if limits.e2e_s is None else limits.e2e_s
    found: list[Estimate] = []
    for c in candidates:
        table = c.table
        if table is None:
            continue
        prefill_s, prefill_j = table.prefill(prompt, c.batch_bits)
        tpot_s = c.tpot_s
        ttft_s = prefill_s + c.queue_s
        if prompt_tokens > c.kv_room_tokens:
            ttft_s += (prompt_tokens - c.kv_room_tokens) * max(1, output) * c.kv_wait_s
        e2e_s = ttft_s + output * tpot_s
        keeps = ttft_s <= ttft_limit_s and tpot_s <= tpot_limit_s and e2e_s <= e2e_limit_s
        energy_j = (prefill_j + output * c.token_j) * c.pue
        found.append(_made(Estimate, (c, energy_j, ttft_s, e2e_s, keeps)))
    return found


def holds(kv_capacity_tokens: float, prompt_tokens: int, output_tokens: int) -> bool:
    """Says whether an instance's whole KV cache has room for a request; else it is no choice for it."""
    return prompt_tokens + output_tokens <= kv_capacity_tokens


def that_hold(candidates: Sequence[Candidate], request: RouteRequest) -> list[Candidate]:
    """Returns those that hold the request, or that the engine model does not know."""
    prompt, output = request.prompt_tokens, request.predicted_output_tokens
    return [c for c in candidates if c.table is None or holds(c.table.kv_capacity_tokens, prompt, output)]


def least_loaded(
    candidates: Sequence[Candidate], rng_tiebreak: Callable[[], float] | None = None, warm_uid: str | None = None
) -> Candidate:
    """Returns the one with the fewest requests for its weight, whatever limits it keeps, as simulated pools do.

    Of several `warm_uid` comes first, then `rng_tiebreak`, uid. Raises ValueError: there are none.
    """
    draw = rng_tiebreak or _no_draw
    return min(candidates, key=lambda c: (weighed_load(c), c.uid != warm_uid, draw(), c.uid))


def least_backlog(
    candidates: Sequence[Candidate],
    prompt_tokens: int,
    rng_tiebreak: Callable[[], float] | None = None,
    warm_uid: str | None = None,
    ttft_s: float = math.inf,
) -> Candidate:
    """Returns the most loaded one where the prompts that wait and the request's own are done with in good time; where
    they nowhere are, the one where they are done with first, whatever limits it keeps.

    Where the engine model does not know one of them no backlogs can be compared: then it is the least loaded. Of
    several `warm_uid` comes first, then `rng_tiebreak`, uid. Raises ValueError: there are none.

    Args:
        ttft_s: The limit that clocks keep of the request's TTFT; infinite: none, and no time is a good one.
    """
    if any(c.top_token_s is None for c in candidates):
        return least_loaded(candidates, rng_tiebreak, warm_uid)
    draw = rng_tiebreak or _no_draw
    return min(candidates, key=lambda c: (_backlog_score(c, prompt_tokens, ttft_s), c.uid != warm_uid, draw(), c.uid))


def backlog_s(candidate: Candidate, prompt_tokens: int) -> float:
    """Returns what the prompts that wait there and one more take at the top clock, in s; infinite: not known."""
    token_s = candidate.top_token_s
    return math.inf if token_s is None else (candidate.queued_prompt_tokens + prompt_tokens) * token_s


def _backlog_score(candidate: Candidate, prompt_tokens: int, ttft_s: float) -> float:
    """Returns what routing by backlog compares, as the simulator's kernel does: below 0 where a prompt is done with in
    good time. Else a hundredth of `ALIKE_S` for each request is too little to weigh against a backlog, and enough to
    tell those that are alike apart."""
    behind_s, load = backlog_s(candidate, prompt_tokens), weighed_load(candidate)
    if math.isfinite(ttft_s) and behind_s <= ALIKE_SHARE * ttft_s and _has_room(candidate):
        return -load
    return max(ALIKE_S, behind_s) + ALIKE_S / 100.0 * load


def _has_room(candidate: Candidate) -> bool:
    """Says whether answers need not be hurried there, so that cache and batch do not fill up."""
    seats, cache = candidate.load / MAX_SEQUENCES, candidate.kv_usage or 0.0
    return bool(left_of_limits(cache, seats, candidate.load) >= 1.0)


def weighed_load(candidate: Candidate) -> float:
    """Returns what routing by load compares, as the simulator's kernel does: the requests with one more, by weight."""
    return (candidate.load + 1) / candidate.weight


def _ranks(candidates: Sequence[Candidate], wanted: int) -> list[int]:
    return sorted({c.class_rank for c in candidates}, key=lambda rank: class_order(rank, wanted))


def class_order(rank: int, wanted: int) -> tuple[bool, int]:
    """Returns the key that puts classes in the order in which they are asked for a request: its own, larger ones
    upwards, then smaller ones downwards."""
    return rank < wanted, abs(rank - wanted)


def _best(
    keeping: list[Estimate], route: Route, warm_uid: str | None, rng_tiebreak: Callable[[], float] | None
) -> Estimate:
    if len(keeping) == 1:
        return keeping[0]
    if route is Route.PREDICTED:
        costs = [v[3] for v in keeping]
    elif route is Route.LEAST_CARBON and all(v[0].intensity_g_per_kwh is not None for v in keeping):
        costs = [v[1] * (v[0].intensity_g_per_kwh or 0.0) for v in keeping]
    else:
        costs = [v[1] for v in keeping]
    least = min(costs)
    bound = least + NEAR * abs(least)
    near: list[Estimate] = []  # enough, and of these the least loaded
    least_load = sys.maxsize
    for v, cost in zip(keeping, costs, strict=True):
        if cost <= bound:
            candidate = v[0]
            if candidate.uid == warm_uid:
                return v
            if candidate.load < least_load:
                least_load, near = candidate.load, [v]
            elif candidate.load == least_load:
                near.append(v)
    return near[0] if len(near) == 1 else _fastest(near, rng_tiebreak)


def _fastest(estimates: list[Estimate], rng_tiebreak: Callable[[], float] | None) -> Estimate:
    draw = rng_tiebreak or _no_draw
    return estimates[min([(v[3], draw(), v[0].uid, n) for n, v in enumerate(estimates)])[3]]


def _no_draw() -> float:
    return 0.0


def chosen(v: Estimate, reason: str) -> Choice:
    """Returns an estimate as the choice, with the fairness window W (FREESH C.2); energies are at the facility."""
    c, energy_j, ttft_s, e2e_s, meets_slo = v
    window_s = WINDOW_FACTOR * e2e_s
    return Choice(c.uid, energy_j, ttft_s, c.tpot_s, e2e_s, window_s, meets_slo, reason, c.token_j * c.pue)


def _unpredicted(candidates: Sequence[Candidate]) -> Choice | None:
    if not candidates:
        return None
    uid = least_loaded(candidates).uid
    reason = "no instance has a configuration that the engine model knows: least loaded"
    return Choice(uid, None, None, None, None, None, False, reason)

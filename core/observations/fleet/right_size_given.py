"""Builds what GreenServe's scale loop is given: the load of a pool, kinds of instance for it, and limits for them.

A profile's TTFT is that of the worst iteration, with the prompts of several requests. Plans keep a share of a limit,
since a request also waits for the iteration under way, and since the 99th of 100 requests has more than the mean.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from core.algorithms.fleet.arrival_replay import Again, Arrivals, EngineLoad, Replay, allowed_late, alone_s
from core.algorithms.fleet.site_mix import Offer, SiteMode, in_time
from core.algorithms.split.request_mix import RequestMix
from core.controllers.fleet.error_budget import ErrorBudget, ErrorBudgetConfig
from core.controllers.fleet.right_size import RightSizeObservation, ahead_rps
from core.engine.compiled_model import model_row
from core.engine.engine_model import EngineModel, UnknownConfiguration, engine_model
from core.engine.load_profile import LoadProfile
from core.engine.parameter_caches import cached
from core.engine.steady_state import SPARE_DEVIATIONS, largest_batch, with_spare
from core.observations.clock_given import ProfileClocks, taken_in
from core.observations.demand.class_arrivals import STRETCH_S
from core.observations.demand.class_view import ENOUGH
from core.observations.limits import LONG_ANSWER, left_for_tokens_s, planned
from core.observations.load_profiles import full_load_profile
from core.observations.mode_profile import Lengths, mean_context
from core.observations.request.phase_share import PhaseRates, phase_rates
from core.observations.request.request_configs import TBT_S
from core.ports import EngineLimits
from core.types import Limits, Mode, PoolKey

AHEAD_STEP_S, AHEAD_STEPS = 300.0, 6  # of carbon: a move should pay for longer than it takes
BUDGET, UNSPENT = ErrorBudgetConfig(), ErrorBudget()
LATE_SHARE = BUDGET.late_share / 2.0  # of what came may be late when it comes again, or less, by the budget
HOPELESS_SHARE = 0.8 * LATE_SHARE  # of what came may be late on whatever fleet, without taking from what others may be
MEMORY_S, LEAST_SEEN = 3600.0, 256  # what came in it comes again, and no fewer than so many
_ROUNDED_TOKENS = 64
_FULL_TOKENS = EngineLimits().max_num_batched_tokens  # of an iteration at most


@dataclass(frozen=True, slots=True)
class SeenLengths:
    """Mean lengths of the requests that come to a pool, and of those of each of its classes."""

    pool: Lengths
    classes: tuple[Lengths, ...]

    def renewed(self, came: NDArray[np.float64], class_of: Sequence[int]) -> SeenLengths:
        """Returns them by what came in the look-back; each stays where too little came to tell.

        Args:
            came: Requests, prompt and output tokens of each range of lengths, (ranges, 3).
            class_of: The class of each range, by its number.
        """
        own = np.asarray(class_of)
        classes = tuple(_trusted(came[own == number], before) for number, before in enumerate(self.classes))
        return SeenLengths(_trusted(came, self.pool), classes)


def _trusted(came: NDArray[np.float64], before: Lengths) -> Lengths:
    requests, prompt, output = came.sum(axis=0).tolist()
    if requests < ENOUGH:
        return before
    return Lengths(prompt / requests, max(1.0, output / requests), mean_context(*came.T) or before.context_tokens)


def load_rps(requests: Sequence[float], declared_rps: float | None) -> tuple[float, ...]:
    """Returns the load that the loop goes by, in requests/s: that of each stretch of the look-back, oldest first.

    Where none was seen yet the declared load counts; None: nothing is declared, and nothing is known.
    """
    if len(requests):
        return tuple(float(count) / STRETCH_S for count in requests)
    return () if declared_rps is None else (declared_rps,)


@dataclass(frozen=True, slots=True)
class ClassLengths:
    """A class among those that share a pool: the limits that its requests are to keep, and their mean lengths."""

    limits: Limits
    lengths: Lengths


@dataclass(frozen=True, slots=True)
class PoolLoad:
    """The requests that come to a pool.

    `lengths`: the means of all of them. `chunk_tokens`: tokens of one prompt that engines take into an iteration at
    most; 0: all. `mhz`: what is profiled. `ttft_pace`: the part of a TTFT limit within which clocks have a lone prompt
    done; 0: as soon as can be. `apart`: the parts of TTFT and TPOT limits that prompts and answers keep on instances of
    their own; None: whole requests share instances.
    """

    model: str
    engine: str
    lengths: Lengths
    classes: tuple[ClassLengths, ...]
    chunk_tokens: int
    mhz: ProfileClocks
    ttft_pace: float = 0.0
    apart: tuple[float, float] | None = None

    @property
    def worst_case(self) -> tuple[float | None, int]:
        """Returns the TTFT limit of the class with the least time for the prompt tokens of its worst iteration, and
        these tokens.

        The worst iteration has the request's own prompt and one of the longest class's. Without classes to
        distinguish them, both are whole chunks.
        """
        most = self.chunk_tokens or _FULL_TOKENS
        several = len(self.classes) > 1
        chunks = [min(own.lengths.prompt_tokens, most) if several else most for own in self.classes]
        full = [_rounded(min(_FULL_TOKENS, own + max(chunks))) for own in chunks]
        limits = [own.limits.ttft_s for own in self.classes]
        known = [(limit, tokens) for limit, tokens in zip(limits, full, strict=True) if limit is not None]
        return min(known, key=lambda one: one[0] / one[1], default=(None, max(full)))

    @property
    def full_tokens(self) -> int:
        """The prompt tokens of the iteration that gives a first token: the worst case's, or two chunks of mean
        prompts."""
        two = 2 * (self.chunk_tokens or _FULL_TOKENS)
        return max(self.worst_case[1], _rounded(min(self.lengths.prompt_tokens, two, _FULL_TOKENS)))

    @property
    def taken_in(self) -> int:
        """Requests whose prompts the iteration that profiles are made with (`worst_case`) takes in."""
        return taken_in(self.worst_case[1], self.lengths.prompt_tokens)

    def largest_batch(self, engine: EngineModel) -> float:
        """Returns the requests that an engine runs at a time, with room for chance."""
        own = self.lengths
        batch = largest_batch(engine, own.prompt_tokens, own.output_tokens, own.running_tokens)
        return max(1.0, with_spare(batch, SPARE_DEVIATIONS))

    def profile(self, mode: Mode, full_iteration: bool = True) -> LoadProfile | None:
        """None: not even one such request fits its KV cache, or nothing is known of it.

        `full_iteration`: TTFT is that of an iteration with `full_tokens`, and not with the request's own prompt.
        """
        lengths = replace(self.lengths, context_tokens=self.lengths.running_tokens).rounded
        full = self.full_tokens if full_iteration else None
        found = full_load_profile(self.model, self.engine, mode, lengths, full, self.mhz)
        if found is None or self.apart is None:
            return found
        with contextlib.suppress(UnknownConfiguration):  # then as if of whole requests
            found = replace(found, rps=found.rps * self.phases(mode).apart)
        return found

    def phases(self, mode: Mode) -> PhaseRates:
        """Returns what one instance sustains of prompts and of answers. Raises UnknownConfiguration, ValueError."""
        engine, limits = engine_model(self.model, mode.gpu, mode.tp, self.engine), EngineLimits()
        mix = RequestMix(self.lengths.rounded.prompt_tokens, self.lengths.rounded.output_tokens, 1)
        strictest_s = (
            min((limit_s for limit_s in own if limit_s is not None), default=None)
            for own in zip(*((one.limits.ttft_s, one.limits.tpot_s) for one in self.classes), strict=True)
        )
        return phase_rates(engine, limits, mix, planned(Limits(*strictest_s), *(self.apart or (1.0, 1.0))))

    def planned(
        self,
        offers: Sequence[Offer],
        ttft_share: float,
        tpot_share: float,
        answers: Sequence[float] = (LONG_ANSWER, 1.0),
    ) -> Limits:
        """Returns limits for a profile's latencies, so that requests that wait as well keep the real ones.

        TTFT is that of the class whose prompts have the least time (`worst_case`). An E2E limit counts as the TPOT that
        an answer of its class has left. It counts for the first of the `answers` for which an offer keeps it, and for
        none where no offer does.

        Args:
            answers: Their lengths, in means of the class.
        """
        tpot_s = min((own.limits.tpot_s for own in self.classes if own.limits.tpot_s is not None), default=None)
        plain = planned(Limits(self.worst_case[0], tpot_s), ttft_share, tpot_share)
        for means in answers:
            left_s = (left_for_tokens_s(own.limits, means * own.lengths.output_tokens) for own in self.classes)
            found = in_time(offers, plain, [own for own in left_s if own is not None])
            if found != plain:
                return found
        return plain

    def without_e2e_s(self, limits: Limits) -> float | None:
        """Returns the strictest E2E limit, in s, that `planned` limits are without; None: they are without none."""
        plan_s = math.inf if limits.tpot_s is None else limits.tpot_s
        e2e_s = (
            own.limits.e2e_s
            for own in self.classes
            if (left_s := left_for_tokens_s(own.limits, own.lengths.output_tokens)) is not None and left_s < plan_s
        )
        return min((own for own in e2e_s if own is not None), default=None)


class CappedSite(Protocol):
    """A site, and the most that its pools may draw, in W; None: as much as there is."""

    @property
    def name(self) -> str: ...
    @property
    def pue(self) -> float: ...
    @property
    def power_cap_w(self) -> float | None: ...


@dataclass(frozen=True, slots=True)
class PoolNow:
    """A pool's instances and requests, and its room.

    `room`: instances of each kind that there is room for now. `caps_w`: what they may draw, by site. `standing`: those
    that draw power, also while they drain. `waiting`: requests that no instance runs. `came`: its last requests one by
    one; None: they are not known so. `budget`: what was spent of its error budget. `expected_rps`: the load to have
    capacity for though it was not seen (`still_expected_rps`). `least`: how many kept TTFT by the last turn.
    `first_s`: when the first request of the look-back came; None: none did.
    """

    room: Mapping[SiteMode, int]
    caps_w: Mapping[str, float]
    standing: Mapping[SiteMode, int]
    waiting: int
    came: Arrivals | None = None
    budget: ErrorBudget = field(default_factory=ErrorBudget)
    expected_rps: float = 0.0
    least: Mapping[SiteMode, int | None] | None = None
    first_s: float | None = None


def offers(load: PoolLoad, room: Mapping[SiteMode, int], weights: Mapping[str, float]) -> tuple[Offer, ...]:
    """Returns the kinds of instance that the sites have room for.

    Args:
        room: Instances of each kind.
        weights: Of a watt, by site (`core.observations.demand.carbon_ahead.worths`).
    """
    found = ((site, mode, count, load.profile(mode)) for (site, mode), count in room.items() if count)
    return tuple(Offer(mode, own, count, site, weights[site]) for site, mode, count, own in found if own is not None)


def caps_w(sites: Iterable[CappedSite], drawn_w: Mapping[str, float]) -> dict[str, float]:
    """Returns the watts that a pool's instances may draw at sites with a cap, beside what others draw at most."""
    capped = {site.name: site.power_cap_w / site.pue for site in sites if site.power_cap_w is not None}
    return {name: max(0.0, cap_w - drawn_w.get(name, 0.0)) for name, cap_w in capped.items()}


def observation(
    now_s: float,
    key: PoolKey,
    rates_rps: Sequence[float],
    kinds: Sequence[Offer],
    limits: Limits,
    pool: PoolNow,
    load: PoolLoad | None = None,
) -> RightSizeObservation:
    """Returns what one turn of the loop is given.

    Args:
        rates_rps: Of the stretches of the look-back, the newest last.
        kinds: What the sites could have, whoever has it now.
        limits: What `kinds` are to keep (`PoolLoad.planned`).
        pool: What there is of them.
        load: What the replay of what came goes by.
    """
    left = tuple(replace(offer, room=count) for offer in kinds if (count := pool.room.get(offer.kind, 0)))
    least = None
    if left and load is not None and rates_rps and pool.came is not None and pool.came.at_s.size:
        with contextlib.suppress(UnknownConfiguration):  # then profiles say what keeps TTFT
            ahead = max(pool.expected_rps, ahead_rps(rates_rps)[1])
            least = least_instances(now_s, load, left, pool.came, ahead, pool.budget, pool.least)
    without_e2e_s = None if load is None else load.without_e2e_s(limits)
    seen = tuple(rates_rps), left, limits, pool.caps_w, dict(pool.standing), pool.waiting
    asked = least, pool.budget.headroom, pool.expected_rps, without_e2e_s, pool.first_s
    return RightSizeObservation(now_s, key, *seen, *asked)


@dataclass(frozen=True, slots=True, eq=False)
class Ended:
    """Requests of a pool that ended: their prompts, the limits of their TTFT (infinite: none), and which of them missed
    one of their limits. All (requests,)."""

    prompt_tokens: NDArray[np.float64]
    limit_s: NDArray[np.float64]
    late: NDArray[np.bool_]


def spent(budget: ErrorBudget, now_s: float, load: PoolLoad, kinds: Sequence[Offer], ended: Ended) -> ErrorBudget:
    """Returns an error budget after another look, since which some requests ended.

    Prompts that have no time to wait, on whatever kind of instance, do not count: more instances hardly help them. Time
    to wait is what clocks keep of the limit, if they go by deadlines.
    """
    chunk_tokens, share = load.chunk_tokens or _FULL_TOKENS, load.ttft_pace or 1.0
    can = np.zeros(ended.late.size, np.bool_)
    try:
        for mode in {own.mode for own in kinds}:
            can |= alone_s(_costs(load, mode), ended.prompt_tokens, chunk_tokens) <= share * ended.limit_s
    except UnknownConfiguration:  # then all count
        can[:] = True
    return budget.renewed(now_s, int(can.sum()), int((ended.late & can).sum()), BUDGET)


def least_instances(
    now_s: float,
    load: PoolLoad,
    kinds: Sequence[Offer],
    came: Arrivals,
    ahead_rps: float,
    budget: ErrorBudget = UNSPENT,
    before: Mapping[SiteMode, int | None] | None = None,
) -> dict[SiteMode, int | None]:
    """Returns how many instances of each kind keep TTFT when what came comes again as fast as `ahead_rps`
    (`core.algorithms.fleet.arrival_replay`) and faster by the budget's head-room, be there room for them or not; None:
    no number of them does. Where no kind has room for enough, the best of them says what can be kept. Less may be late
    as the budget is spent.

    Args:
        before: The answer of the turn before, near which this one is looked for.

    Raises:
        UnknownConfiguration: The engine model does not know one of the kinds.
    """
    tpots_s = [own.limits.tpot_s for own in load.classes if own.limits.tpot_s is not None]
    seen = came.since(now_s - MEMORY_S, LEAST_SEEN)
    does = EngineLoad(
        answer_tokens=load.lengths.output_tokens,
        context_tokens=load.lengths.running_tokens,
        chunk_tokens=load.chunk_tokens or _FULL_TOKENS,
        tpot_s=min(tpots_s, default=TBT_S),
        ttft_share=load.ttft_pace,
    )
    nearer = budget.headroom * seen.nearer(now_s, ahead_rps)
    room: Counter[Mode] = Counter()
    for own in kinds:
        room[own.mode] += own.room
    engines = {mode: engine_model(load.model, mode.gpu, mode.tp, load.engine) for mode in room}
    costs = {mode: _costs(load, mode) for mode in room}
    again = Again(seen, does, nearer, costs.values())
    replays = {mode: Replay(costs[mode], again, load.largest_batch(engine)) for mode, engine in engines.items()}
    hopeless = min(LATE_SHARE / 2.0, max(0.0, again.hopeless_share - HOPELESS_SHARE))
    left = min(LATE_SHARE, budget.share_left(seen.rps(now_s), BUDGET)) - hopeless
    whole = bool(now_s - seen.at_s[0] >= MEMORY_S)
    allowed, most = allowed_late(seen.at_s.size, left, whole), max(room.values())
    near = {mode: count for (_, mode), count in (before or {}).items()}
    found = {mode: own.fewest(most, allowed, near.get(mode)) for mode, own in replays.items()}
    if all(count is None or count > room[mode] for mode, count in found.items()):
        allowed += min(own.late_on(room[mode]) for mode, own in replays.items())
        found = {mode: own.fewest(most, allowed, near.get(mode)) for mode, own in replays.items()}
    return {own.kind: found[own.mode] for own in kinds}


def _costs(load: PoolLoad, mode: Mode) -> NDArray[np.float64]:
    return _row(load.model, mode.gpu, mode.tp, load.engine)


@cached(maxsize=256)
def _row(model: str, gpu: str, tp: int, engine: str) -> NDArray[np.float64]:
    return model_row(engine_model(model, gpu, tp, engine))


def _rounded(tokens: float) -> int:
    """Rounds up, so that a profile is made once and not each time that means have moved a little."""
    return max(_ROUNDED_TOKENS, math.ceil(tokens / _ROUNDED_TOKENS) * _ROUNDED_TOKENS)

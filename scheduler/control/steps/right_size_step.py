"""GreenServe's fleet loop on the live fleet: each class's instances over all its sites, looked at every few seconds.

What the simulator's policy `greenserve` does with one pool is done here for each class of the partition, smallest
first; GPUs that a class has taken are not there for the next. A power cap is a site's, so that what the classes before
have asked for counts against it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from core.algorithms.fleet.arrival_replay import Arrivals
from core.algorithms.fleet.fleet_problem import Objective
from core.algorithms.fleet.site_mix import Mix, Offer, Part, SiteMode
from core.controllers.fleet import right_size
from core.controllers.fleet.error_budget import ErrorBudget
from core.controllers.fleet.explain import gravest, workers_text
from core.controllers.fleet.pool_loop import pool_name
from core.controllers.fleet.right_size import RightSizeObservation, RightSizeState
from core.observations import asking, step_configs
from core.observations.clock_given import ProfileClocks
from core.observations.demand.carbon_ahead import worths
from core.observations.demand.class_arrivals import STRETCH_S
from core.observations.fleet import right_size_given
from core.observations.fleet.right_size_given import ClassLengths, Ended, PoolLoad, PoolNow, SeenLengths, load_rps
from core.observations.fleet.site_room import room
from core.observations.limits import class_limits
from core.observations.recording import RecordingError, recall, record
from core.observations.request import routing_weights
from core.types import Effects, Mode, PoolKey, Rationale, ScaleTo
from pools.models import Instance, Pool
from scheduler import agents
from scheduler.control import service_policy
from scheduler.control.snapshot import recorded_demand, snapshot
from scheduler.control.snapshot.offered_nodes import offered_nodes
from scheduler.control.snapshot.recorded_demand import CameLast, DemandWindow, Floats, arrivals
from scheduler.control.snapshot.snapshot import ClassNow
from scheduler.control.steps import recent_load
from scheduler.control.steps.policy_steps import LoopTurn, Result, nothing_to_do
from scheduler.control.turn_context import TurnContext
from scheduler.json_values import to_json, workers_from_json

T = TypeVar("T")


def scale(turn: LoopTurn) -> Result:
    """Takes one period of every class."""
    context = turn.context
    pools = [pool for pool in context.pools if pool.gpu_budget]
    if not pools:
        return nothing_to_do()
    seen = arrivals(context.service, context.now, context.times.look_back_s)
    classes = snapshot.classes_now(context, context.service.partition, seen, 1)
    look_s = context.tuning.right_size.look_s
    stretches = recent_load.stretches(turn, seen, {own.request_class.name: own for own in classes}, look_s)
    waiting = recent_load.waiting(turn)
    came_last = _came_last(turn)
    came = seen.recent(look_s, [own.request_class for own in classes])
    declared_rps = _declared_rps(seen, classes, 0.0 if seen.declared is None else seen.declared.rps)
    expected_rps = _declared_rps(seen, classes, context.service.expected_rps or 0.0)
    first_s = seen.first_s(look_s, [own.request_class for own in classes])
    fleet = _Fleet(context, pools, recent_load.known_until_s(turn))
    config = step_configs.right_size_config(context.knobs, context.tuning, context.times.scale_s)
    before = turn.state.get("classes", {})
    stored: dict[str, Any] = {}
    weights: dict[PoolKey, dict[Mode, float]] = defaultdict(dict)
    effects_by_class: list[Effects] = []
    for own in classes:
        name = own.request_class.name
        stored_of = before.get(name, {})
        lengths = (
            _recalled(stored_of.get("lengths"), SeenLengths) or SeenLengths(own.lengths, (own.lengths,))
        ).renewed(came[name], [0] * len(came[name]))
        rates_rps = load_rps(_since_begun(seen, stretches[name], recent_load.known_until_s(turn)), declared_rps[name])
        pool = fleet.load(own, lengths)
        budget = _recalled(stored_of.get("budget"), ErrorBudget) or ErrorBudget()
        present = _as_it_is(_recalled(stored_of.get("state"), RightSizeState), fleet.asked(name))
        still_rps = right_size.still_expected_rps(present, context.now.timestamp(), expected_rps[name])
        least = None if present is None else present.least
        known = Known(rates_rps, waiting.get(name, 0), came_last.get(name), still_rps, least, first_s[name])
        obs, budget = fleet.observed(own, pool, known, budget)
        state, effects = asking.step(right_size.step, present, obs, config)
        fleet.take(state, obs.offers)
        for part in () if state is None else state.mix.parts:
            profile, output_tokens = pool.profile(part.mode), lengths.pool.output_tokens
            mhz = None if context.knobs.by_deadlines else part.mhz
            batch = routing_weights.by_batch(profile, mhz, part.load_rps, output_tokens)
            weights[PoolKey(part.site, name)][part.mode] = batch
        stored[name] = {"lengths": record(lengths), "state": record(state), "budget": record(budget)}
        effects_by_class.append(effects)
    state_then = {"classes": stored, service_policy.WEIGHTS: to_json(weights)}
    return _answer(pools, effects_by_class, state_then)


def _came_last(turn: LoopTurn) -> dict[str, CameLast]:
    """Returns the last requests of each class that has any; none of any where counts do not go by them."""
    tuning = turn.context.tuning.right_size
    if not (tuning.replay or tuning.error_budget):
        return {}
    return recorded_demand.came_last(turn.context.service.name, recent_load.known_until_s(turn))


def _limit_s(load: PoolLoad, came: CameLast) -> Floats:
    """Returns the limit on the TTFT of each of the requests of a class, (requests,); infinite: none."""
    ttft_s = load.classes[0].limits.ttft_s
    return np.full(came.at_s.size, np.inf if ttft_s is None else ttft_s)


def _ended(load: PoolLoad, came: CameLast, since_s: float, until_s: float) -> Ended:
    """Returns those of a class that ended in a time and can be judged."""
    mine = (came.ended_s > since_s) & (came.ended_s <= until_s) & ~np.isnan(came.late)
    return Ended(came.prompt_tokens[mine], _limit_s(load, came)[mine], came.late[mine] > 0.0)


def _declared_rps(seen: DemandWindow, classes: Sequence[ClassNow], rps: float) -> dict[str, float]:
    """Returns the part of a declared load that each class has, in requests/s: the class of its lengths all of it."""
    found = dict.fromkeys((own.request_class.name for own in classes), 0.0)
    if seen.declared is not None:
        found[seen.declared.class_name([own.request_class for own in classes])] = rps
    return found


def _since_begun(seen: DemandWindow, stretches: Sequence[float], until_s: float) -> Sequence[float]:
    """Returns the stretches, which end at `until_s`, since a new service had its first request: before it nothing is
    known, not even silence."""
    if seen.declared is None or not seen.declared.rps:
        return stretches
    known = 0 if seen.begun_s is None else max(0, round((until_s - seen.begun_s) / STRETCH_S))
    return stretches[max(0, len(stretches) - known) :]


def _recalled(stored: Any, kind: type[T]) -> T | None:
    """Reads what is stored of a class.

    Returns None also where another version stored it: only since when less would do, the changes counted, and lengths
    of requests before the last half hour are lost.
    """
    try:
        found = recall(stored)
    except RecordingError:
        return None
    return found if isinstance(found, kind) else None


def _as_it_is(state: RightSizeState | None, asked: Mapping[SiteMode, int]) -> RightSizeState | None:
    """Returns the state with the workers that the pools are to have now, be it by another policy, a person or a smaller
    budget.
    """
    if state is not None and state.workers == asked:
        return state
    if not asked:
        return None
    mix = Mix(tuple(Part(site, mode, count, 0.0, 0.0, 0.0) for (site, mode), count in sorted(asked.items())))
    if state is None:
        return RightSizeState(mix)
    return RightSizeState(mix, changed=state.changed, since_s=state.since_s, begun=state.begun)


@dataclass(frozen=True, slots=True)
class Known:
    """Holds what is known of the load of a class: the rates of the look-back, the requests that wait, the last ones
    that ended, the rate that is expected of it, in requests/s, how many instances kept TTFT by the last turn, and when
    the first request of the look-back came."""

    rates_rps: tuple[float, ...]
    waiting: int
    came: CameLast | None
    expected_rps: float
    least: Mapping[SiteMode, int | None] | None
    first_s: float | None


class _Fleet:
    """The fleet as it is offered to one class after the other."""

    def __init__(self, context: TurnContext, pools: Sequence[Pool], until_s: float) -> None:
        self._context = context
        self._pools = pools
        self._until_s = until_s  # of what is known
        self._sites = list({pool.site_id: pool.site for pool in pools}.values())
        self._per_watt = self._worths()
        self._slo = context.service.limits()
        states = agents.states(agents.connect(), context.reporting).values()
        self._chunk_tokens = service_policy.chunk_in_force(context.service, states)
        self._nodes = offered_nodes(context)
        self._envelope: Counter[tuple[str, str]] = Counter()  # GPUs, by (site, type)
        for pool in pools:
            self._envelope |= Counter({(pool.site.name, gpu): count for gpu, count in pool.gpu_budget.items()})
        self._taken: Counter[tuple[str, str]] = Counter()  # likewise
        self._drawn_w: defaultdict[str, float] = defaultdict(float)
        self._standing = self._stands()
        self._apart = context.knobs.split == "prompt" and context.tuning.split.by_rates

    def _worths(self) -> dict[str, float]:
        """Returns what a watt at a GPU is worth by site."""
        objective = Objective(self._context.knobs.objective)
        ahead = snapshot.an_epoch_ahead(self._context, self._sites, prices=objective is Objective.COST)
        return worths(ahead, objective)

    def _stands(self) -> dict[str, Counter[SiteMode]]:
        """Counts the instances of each class that draw power, those that drain among them."""
        rows = Instance.objects.filter(pool__service=self._context.service, node__isnull=False)
        live = rows.exclude(state=Instance.State.STOPPED)
        found: dict[str, Counter[SiteMode]] = {}
        keys = ("pool__request_class__name", "pool__site__name", "gpu_type", "tp")
        for name, site, gpu_type, tp in live.values_list(*keys):
            found.setdefault(name, Counter())[site, Mode(gpu_type, tp)] += 1
        return found

    def asked(self, name: str) -> dict[SiteMode, int]:
        """Returns the workers that the pools of a class are to have at present."""
        own = [pool for pool in self._pools if pool.request_class.name == name]
        return {(p.site.name, mode): n for p in own for mode, n in workers_from_json(p.workers).items() if n}

    def load(self, own: ClassNow, lengths: SeenLengths) -> PoolLoad:
        knobs, card = self._context.knobs, self._context.service.model_card
        return PoolLoad(
            card.engine_model_name,
            card.engine,
            lengths.pool,
            (ClassLengths(class_limits(self._slo, own.request_class.thresholds, knobs), lengths.classes[0]),),
            self._chunk_tokens,
            ProfileClocks(self._context.tuning.profile.step_mhz, knobs.clock_floor, knobs.clock_floor_mhz),
            knobs.clock_ttft_share if knobs.by_deadlines else 0.0,
            (knobs.clock_ttft_share, knobs.clock_tpot_share) if self._apart else None,
        )

    def observed(
        self,
        own: ClassNow,
        load: PoolLoad,
        known: Known,
        budget: ErrorBudget,
    ) -> tuple[RightSizeObservation, ErrorBudget]:
        """Returns what a class's turn is given, and its error budget by now."""
        name, came = own.request_class.name, known.came
        knobs, tuning = self._context.knobs, self._context.tuning.right_size
        kinds = right_size_given.offers(load, self._room(own, {}), self._per_watt)
        limits = load.planned(kinds, knobs.plan_ttft_share, knobs.plan_tpot_share)
        if tuning.error_budget and came is not None:
            ended = _ended(load, came, budget.looked_s or 0.0, self._until_s)
            budget = right_size_given.spent(budget, self._until_s, load, kinds, ended)
        again = None
        if tuning.replay and came is not None:
            again = Arrivals(came.at_s, came.prompt_tokens, _limit_s(load, came))
        pool = PoolNow(
            self._room(own, self._taken),
            right_size_given.caps_w(self._sites, self._drawn_w),
            self._standing.get(name, {}),
            known.waiting,
            again,
            budget,
            known.expected_rps,
            known.least,
            known.first_s,
        )
        now_s, key = self._context.now.timestamp(), PoolKey("", name)
        return right_size_given.observation(now_s, key, known.rates_rps, kinds, limits, pool, load), budget

    def _room(self, own: ClassNow, taken: Mapping[tuple[str, str], int]) -> dict[SiteMode, int]:
        """Counts the instances of each kind that the nodes have room for, within what the carbon epoch lets the pools
        have; other classes took GPUs from the smallest nodes."""
        modes = [mode for mode in sorted(own.profiles) if mode.tp <= self._context.knobs.tp]
        found = {}
        for site in self._sites:
            for mode in modes:
                place = site.name, mode.gpu
                used = taken.get(place, 0)
                least = max(0, self._envelope[place] - used) // mode.tp
                found[site.name, mode] = min(least, room(self._nodes, site.name, mode, used))
        return found

    def take(self, state: RightSizeState | None, offers: Sequence[Offer]) -> None:
        """Takes a class's instances, present or about to start, off what the next may have; a cap counts their highest
        power.
        """
        most_w = {offer.kind: float(offer.profile.watts.max()) for offer in offers}
        for (site, mode), count in ({} if state is None else state.workers).items():
            self._taken[site, mode.gpu] += count * mode.tp
            self._drawn_w[site] += count * most_w.get((site, mode), 0.0)


def _answer(pools: Sequence[Pool], effects_by_class: Sequence[Effects], state: dict[str, Any]) -> Result:
    present = {PoolKey(pool.site.name, pool.request_class.name): workers_from_json(pool.workers) for pool in pools}
    commands: list[ScaleTo] = []
    decisions = []
    for effects in effects_by_class:
        for own in effects.decisions:
            if own.pool in present:
                move = f"{workers_text(present[own.pool])} -> {workers_text(own.workers)}"
                text = f"{pool_name(own.pool)}: {move}. {own.rationale.summary}"
                decisions.append(replace(own, rationale=replace(own.rationale, summary=text)))
                commands.append(ScaleTo(own.pool, own.workers))
    whys = [effects.rationale for effects in effects_by_class]
    inputs = {why.summary.partition(":")[0]: dict(why.inputs) for why in whys}
    summary = Rationale(gravest(why.reason for why in whys), " ".join(why.summary for why in whys), inputs)
    return Result(Effects(tuple(commands), None, summary, tuple(decisions)), state, no_op=not commands)

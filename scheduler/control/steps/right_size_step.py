"""GreenServe's fleet loop on the live fleet: each class's instances over all its sites, looked at every few seconds.

What the simulator's policy `greenserve` does with one pool is done here for each class of the partition, smallest
first; GPUs that a class has taken are not there for the next. A power cap is a site's, so that what the classes before
have asked for counts against it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from core.algorithms.fleet.site_mix import Mix, Offer, Part, SiteMode, in_time, worth_per_watt
from core.controllers.fleet import right_size
from core.controllers.fleet.explain import gravest, workers_text
from core.controllers.fleet.pool_loop import pool_name
from core.controllers.fleet.right_size import RightSizeObservation, RightSizeState
from core.observations import asking, routing_weights, step_configs
from core.observations.recording import RecordingError, recall, record
from core.types import Effects, Limits, Mode, PoolKey, Rationale, ScaleTo
from pools.models import Instance, Pool, Site
from scheduler.control import service_policy
from scheduler.control.snapshot import snapshot
from scheduler.control.snapshot.offered_nodes import offered_nodes
from scheduler.control.snapshot.recorded_demand import arrivals
from scheduler.control.snapshot.snapshot import ClassNow
from scheduler.control.steps import dynamollm_steps, recent_load
from scheduler.control.steps.policy_steps import LoopTurn, Result, nothing_to_do
from scheduler.control.turn_context import TurnContext
from scheduler.json_values import to_json, workers_from_json
from telemetry.carbon.site_signals import for_decisions

AHEAD_S, AHEAD_STEPS = 1800.0, 6  # of carbon: a move should pay for longer than it takes
# Parts of the limits that a profile's latencies may take, so that requests that wait keep the whole (docs/policies.md).
# The simulator plans TTFT to more of it: its profiles' TTFT is that of an iteration that others' prompts fill as well.
WAIT_SHARE, TPOT_SHARE = 0.42, 0.45


def scale(turn: LoopTurn) -> Result:
    """Takes one period of every class."""
    context = turn.context
    pools = [pool for pool in context.pools if pool.gpu_budget]
    if not pools:
        return nothing_to_do()
    seen = arrivals(context.service, context.now, context.times.look_back_s)
    classes = snapshot.classes_now(context, context.service.partition, seen, 1)
    load = recent_load.measure(turn, {own.request_class.name: own for own in classes}, seen.declared)
    fleet = _Fleet(context, pools)
    config = step_configs.right_size_config(context.knobs, context.tuning, context.times.scale_s)
    steps = max(1, round(context.tuning.right_size.look_s / context.times.scale_s))
    before = turn.state.get("classes", {})
    stored: dict[str, Any] = {}
    weights: dict[PoolKey, dict[Mode, float]] = defaultdict(dict)
    effects_by_class: list[Effects] = []
    for own in classes:
        name = own.request_class.name
        known = before.get(name, {})
        recent_rps = [*known.get("rates_rps", ()), load.rates_rps[name]][-steps:]
        obs = fleet.observed(own, tuple(recent_rps), load.waiting.get(name, 0))
        present = _as_it_is(_recalled(known), fleet.asked(name))
        state, effects = asking.step(right_size.step, present, obs, config)
        fleet.take(state, obs.offers)
        for part in () if state is None else state.mix.parts:
            profile = next((offer.profile for offer in obs.offers if offer.kind == part.kind), None)
            batch = routing_weights.by_batch(profile, part.mhz, part.load_rps, own.lengths.output_tokens)
            weights[PoolKey(part.site, name)][part.mode] = batch
        stored[name] = {"rates_rps": recent_rps, "state": record(state)}
        effects_by_class.append(effects)
    state_then = {"classes": stored, recent_load.MEMORY: load.memory, service_policy.WEIGHTS: to_json(weights)}
    return _answer(pools, effects_by_class, state_then)


def _recalled(known: Mapping[str, Any]) -> RightSizeState | None:
    """Reads the stored state.

    Returns None also where another version stored it: only since when less would do, and the changes counted, are lost.
    """
    try:
        found = recall(known.get("state"))
    except RecordingError:
        return None
    return found if isinstance(found, RightSizeState) else None


def _as_it_is(state: RightSizeState | None, asked: Mapping[SiteMode, int]) -> RightSizeState | None:
    """Returns the state with the workers that the pools are to have now, be it by another policy, a person or a smaller
    budget.
    """
    if state is not None and state.workers == asked:
        return state
    if not asked:
        return None
    mix = Mix(tuple(Part(site, mode, count, 0.0, 0.0, 0.0) for (site, mode), count in sorted(asked.items())))
    return RightSizeState(mix, changed=() if state is None else state.changed)


class _Fleet:
    """The fleet as it is offered to one class after the other."""

    def __init__(self, context: TurnContext, pools: Sequence[Pool]) -> None:
        self._context = context
        self._pools = pools
        self._sites = {pool.site_id: pool.site for pool in pools}
        self._nodes = offered_nodes(context)
        self._taken: Counter[tuple[str, str]] = Counter()  # GPUs, by (site, type)
        self._drawn_w: defaultdict[str, float] = defaultdict(float)
        self._worth = self._worths()
        self._standing = self._stands()

    def _worths(self) -> dict[str, float]:
        """Returns what a watt at a GPU is worth by site. Carbon is only weighed where it is known of all sites."""
        sites, now = list(self._sites.values()), self._context.now
        if self._context.knobs.objective != "carbon":
            return {site.name: worth_per_watt(site.pue, None) for site in sites}
        curves = for_decisions(sites, now, now + timedelta(seconds=AHEAD_S))
        found: dict[str, float] = {}
        for site in sites:
            steps = curves.steps(site, now, AHEAD_S / AHEAD_STEPS, AHEAD_STEPS)
            known = [value for value in steps if value is not None]
            if not known:
                return {site.name: worth_per_watt(site.pue, None) for site in sites}
            found[site.name] = worth_per_watt(site.pue, sum(known) / len(known))
        return found

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

    def observed(self, own: ClassNow, rates_rps: tuple[float, ...], waiting: int) -> RightSizeObservation:
        offers = tuple(offer for site in self._sites.values() for offer in self._offers(own, site))
        caps = {site.name: site.power_cap_w / site.pue for site in self._sites.values() if site.power_cap_w is not None}
        return RightSizeObservation(
            self._context.now.timestamp(),
            PoolKey("", own.request_class.name),
            rates_rps,
            offers,
            _planned(own, offers),
            {site: max(0.0, cap_w - self._drawn_w[site]) for site, cap_w in caps.items()},
            dict(self._standing.get(own.request_class.name, {})),
            waiting,
        )

    def _offers(self, own: ClassNow, site: Site) -> list[Offer]:
        card = self._context.service.model_card
        found = []
        for mode in sorted(own.profiles):
            profile = dynamollm_steps.load_profile(card.name, card.engine, mode, own.lengths.rounded)
            room = self._room(site.name, mode) if mode.tp <= self._context.knobs.tp else 0
            if profile is not None and room:
                found.append(Offer(mode, profile, room, site.name, self._worth[site.name]))
        return found

    def _room(self, site: str, mode: Mode) -> int:
        """Counts the instances that the site's nodes have room for; other classes took GPUs from the smallest nodes."""
        less, room = self._taken[site, mode.gpu], 0
        for node in self._nodes:
            if (node.site, node.gpu) == (site, mode.gpu):
                gone = min(less, node.gpus)
                less -= gone
                room += (node.gpus - gone) // mode.tp
        return room

    def take(self, state: RightSizeState | None, offers: Sequence[Offer]) -> None:
        """Takes a class's instances, present or about to start, off what the next may have; a cap counts their highest
        power.
        """
        most_w = {offer.kind: float(offer.profile.watts.max()) for offer in offers}
        for (site, mode), count in ({} if state is None else state.workers).items():
            self._taken[site, mode.gpu] += count * mode.tp
            self._drawn_w[site] += count * most_w.get((site, mode), 0.0)


def _planned(own: ClassNow, offers: Sequence[Offer]) -> Limits:
    limits = own.demand.limits
    ttft_s = None if limits.ttft_s is None else WAIT_SHARE * limits.ttft_s
    kept = Limits(ttft_s, None if limits.tpot_s is None else TPOT_SHARE * limits.tpot_s)
    if limits.e2e_s is None:
        return kept
    return in_time(offers, kept, [(limits.e2e_s - (limits.ttft_s or 0.0)) / max(1.0, own.lengths.output_tokens)])


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

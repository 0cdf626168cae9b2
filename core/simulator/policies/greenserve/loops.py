"""GreenServe's own policy in the simulator: one pool, as many instances as the load needs now, at the clock it needs,
where the grid is cleanest for what they draw.

The ideas of the five papers, where they pay off here: count and TP degree follow the load each ten seconds
(`right_size`, instead of DynamoLLM's half hour and five minutes), clocks each half second by profile
(`clock_profile`, DynamoLLM's, at 60 MHz instead of 200), new instances warm up while the old ones serve (throttLL'eM's
shadows), prompts wait in the order of their length (mu-Serve's shortest first, of the part that holds others up).
Classes share a pool: nine pools would each be sized for a peak of their own.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

import numpy as np

from core.algorithms.fleet.sharing import Claims, Lack, ServiceNeed
from core.algorithms.fleet.site_mix import Offer, SiteMode, kept_by_some, most_load_rps
from core.controllers.clock import clock_profile
from core.controllers.clock.clock_profile import InstanceLoad
from core.controllers.fleet import right_size
from core.controllers.fleet.error_budget import ErrorBudget
from core.engine.engine_model import gpu
from core.engine.overheads import Overheads, clock_switch_s
from core.observations import asking
from core.observations.clock_given import SeenShares, instance_load, least_mhz
from core.observations.fleet.right_size_given import PoolNow, caps_w, observation, spent
from core.observations.request.request_configs import first_parts
from core.observations.request.routing_weights import LEAST_RPS, by_batch
from core.simulator.kernel.commands import DRAINING, OFF, SERVING, STARTING, FleetView, SimCommand
from core.simulator.kernel.simulated import InstanceSpec, Pacing
from core.simulator.policies import loops
from core.simulator.policies.change_round import Want
from core.simulator.policies.fleet_changes import Fleet
from core.simulator.policies.greenserve.config import GreenserveConfig
from core.simulator.policies.greenserve.demand import ServiceDemand
from core.simulator.policies.loops import Decisions, LoopControl
from core.simulator.policies.view_observations import clock_seen, first_view
from core.simulator.policies.world import Plan, PoolPlan, World
from core.types import ChangeKind, Effects, Limits, Loop, Mode, SetSmClock

SECOND = "/second"  # the end of the name of a pool that does the answers after others' prompts


@dataclass(slots=True, eq=False)
class _Service:
    """A service, its pools, and what the plan gave it.

    `pools`: by number; the second one is that of the answers, where requests are split after their prompt.
    `peak_rps`: the load that was last asked for. `wanted`: instances by kind. `shares`: the requests/s that the plan
    gave one instance of a kind; of those that go as well.
    """

    pools: tuple[int, ...]
    demand: ServiceDemand
    offers: tuple[Offer, ...] = ()
    clock_limits: Limits = field(default_factory=Limits)
    peak_rps: float = 0.0
    size: right_size.RightSizeState | None = None
    budget: ErrorBudget = field(default_factory=ErrorBudget)
    wanted: dict[SiteMode, int] = field(default_factory=dict)
    shares: dict[SiteMode, float] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.demand.service.name

    def look(self, now_s: float) -> None:
        self.offers = self.demand.offers(now_s)
        shares = self.demand.config.clock_shares
        self.clock_limits = self.demand.load.planned(self.offers, *shares, answers=(1.0,))  # agents go by the mean one

    def share(self, kind: SiteMode) -> float:
        return self.shares.get(kind, 1.0)

    def slots(self, view: FleetView, *states: int) -> list[int]:
        """Returns the service's instances in one of the states; those in no pool are known by their model."""
        wanted = np.logical_or.reduce([view.state == state for state in states])
        found = np.flatnonzero(wanted & (np.isin(view.pool, self.pools) | (view.pool < 0))).tolist()
        return [
            slot
            for slot in found
            if view.pool[slot] in self.pools or view.instances[slot].model == self.demand.service.model
        ]

    def parts(self) -> dict[Want, int]:
        """Returns the instances that it wants, by pool and kind: where requests are split some do prompts alone."""
        every = [(site, mode) for (site, mode), count in sorted(self.wanted.items()) for _ in range(count)]
        split = self.demand.config.split
        firsts = len(every)
        if split is not None and firsts > 1:
            share = split.first_share
            if split.by_rates:
                rates = {mode: self.demand.load.phases(mode) for _, mode in every}
                every.sort(key=lambda kind: -rates[kind[1]].leaning)
                share = rates[every[0][1]].first_share
            firsts = first_parts(firsts, share)
        kinds = [loops.kind(self.demand.service, *kind) for kind in every]
        return Counter((self.pools[0 if n < firsts else 1], kind) for n, kind in enumerate(kinds))

    def standing(self, view: FleetView) -> Counter[SiteMode]:
        return Counter(_kind(view, slot) for slot in self.slots(view, STARTING, SERVING, DRAINING))

    def need(self) -> ServiceNeed:
        """Returns what the service wants already, and what it lacks of its load."""
        used: Counter[tuple[str, str, str]] = Counter()
        limits = kept_by_some(self.offers, self.demand.load.planned(self.offers, *self.demand.config.plan_shares))
        carries = {offer.kind: most_load_rps(offer, limits) for offer in self.offers}
        lack_rps = max(LEAST_RPS, self.peak_rps)
        for (site, mode), count in self.wanted.items():
            used[site, "", mode.gpu] += count * mode.tp
            lack_rps -= count * carries.get((site, mode), 0.0)
        return ServiceNeed(self.name, used, (Lack(lack_rps, carries),), self.demand.service.share)

    def highest_w(self, site: str, view: FleetView) -> float:
        """Returns the watts that its instances at a site draw at most."""
        each = {offer.kind: float(offer.profile.watts.max()) for offer in self.offers}
        return sum(n * each.get(kind, 0.0) for kind, n in self.standing(view).items() if kind[0] == site)


class Greenserve:
    """State of both loops. Services plan in the order of their names, each beside what the others have and need."""

    def __init__(self, config: GreenserveConfig, world: World) -> None:
        world = replace(world, templates=tuple(_with_rules(spec, config, world.overheads) for spec in world.templates))
        self.config, self.world = config, world
        self.services = [
            _Service((n,) if config.split is None else (n, len(world.services) + n), ServiceDemand(config, world, info))
            for n, info in enumerate(sorted(world.services, key=lambda info: info.name))
        ]
        names = [own.name for own in self.services]
        if config.split is not None:
            names += [name + SECOND for name in names]
        self.fleet = Fleet(world, names, config.starting, ChangeKind.IN_PLACE)
        for own in self.services:
            own.look(0.0)
            own.peak_rps = own.demand.declared_rps
        self._clock_config = clock_profile.ProfileClockConfig(config.clock_period_s, config.clock_min_saving)

    def begin(self) -> Plan:
        """Plans the fleet of the first second: what the declared load needs; without scale, or a load, all there is."""
        view = first_view(self.world)
        cell_pool = [""] * self.world.cells
        for own in self.services:
            if Loop.SCALE in self.config.loops and own.demand.declared_rps:
                self._ask(own, view, own.demand.look(view))
            else:
                self._want_all(own)
            for cell in own.demand.cells:
                cell_pool[cell] = own.name
        members = loops.first_members(self.fleet, view)
        c = self.config
        steps = {Loop.SCALE: (c.fleet.period_s, self.scale)}
        if c.clock == "profile":
            steps[Loop.CLOCK] = (c.clock_period_s, self.clock)
        limits = {cell: own for service in self.services for cell, own in service.demand.cell_limits.items()}
        return Plan(
            members,
            self._pool_plans(),
            tuple(cell_pool),
            tuple(LoopControl(str(k), s, step, self.fleet) for k, (s, step) in steps.items() if k in c.loops),
            cell_limits=tuple(limits[cell] for cell in range(self.world.cells)),
        )

    def _pool_plans(self) -> tuple[PoolPlan, ...]:
        """Returns the plan of each pool. Where one of a service's two has no instance, the other's do all."""
        names, route, split = [own.name for own in self.services], self.config.route, self.config.split
        if split is None:
            return loops.plans(names, route)
        answers = tuple(PoolPlan(name + SECOND, route, spills=(name,)) for name in names)
        by_turns = "round_robin" if route == "least_energy" else route  # VoltanaLLM's EcoRoute is for answers
        handed_over = [
            loops.handover(self.world, own.demand.service, own.name + SECOND, split) for own in self.services
        ]
        prompts = zip(names, handed_over, strict=True)
        return (*(PoolPlan(name, by_turns, to, spills=(name + SECOND,)) for name, to in prompts), *answers)

    def _claims(self) -> Claims:
        """Returns what each service has and needs of the nodes."""
        return self.world.claims(each.need() for each in self.services)

    def _caps_w(self, own: _Service, view: FleetView) -> dict[str, float]:
        """Returns the most that the service's instances may draw at sites with a cap, beside those of others."""
        others = [other for other in self.services if other is not own]
        sites = self.world.sites
        return caps_w(sites, {site.name: sum(other.highest_w(site.name, view) for other in others) for site in sites})

    def scale(self, view: FleetView, decisions: Decisions) -> list[SimCommand]:
        for own in self.services:
            why = self._ask(own, view, own.demand.look(view)).rationale
            summary = why.summary + self._claims().short(own.name)
            decisions.append(loops.decision(view, Loop.SCALE, why.reason, summary))
        return self.fleet.reweigh(view)

    def _ask(self, own: _Service, view: FleetView, rates_rps: tuple[float, ...]) -> Effects:
        d = own.demand
        own.look(view.now_s)
        own.peak_rps = max(rates_rps, default=own.peak_rps)
        mine = own.slots(view, OFF, STARTING, SERVING, DRAINING)
        if self.config.error_budget:
            own.budget = spent(own.budget, view.now_s, d.load, own.offers, d.ended(view))
        pool = PoolNow(
            d.room(self._claims().left(own.name)),
            self._caps_w(own, view),
            own.standing(view),
            int(
                view.waiting[mine].sum()
                + view.unplaced[[pool for pool in own.pools if pool < view.unplaced.size]].sum()
            ),
            d.came(view) if self.config.replay else None,
            own.budget,
            right_size.still_expected_rps(own.size, view.now_s, d.expected_rps),
            None if own.size is None else own.size.least,
            d.first_s,
        )
        limits = d.load.planned(own.offers, *self.config.plan_shares)
        obs = observation(view.now_s, d.key, rates_rps, own.offers, limits, pool, d.load)
        own.size, effects = asking.step(right_size.step, own.size, obs, self.config.fleet)
        if own.size is not None:
            for part in own.size.mix.parts:
                own.shares[part.kind] = max(LEAST_RPS, part.load_rps)
                mhz = None if self.config.by_deadlines else part.mhz
                batch = by_batch(d.load.profile(part.mode), mhz, part.load_rps, d.lengths.output_tokens)
                for number in own.pools:
                    self.fleet.weights[number, loops.kind(d.service, *part.kind)] = batch
            own.wanted = dict(own.size.workers)
            self._want()
        return effects

    def _want(self) -> None:
        self.fleet.want({want: count for own in self.services for want, count in own.parts().items()})

    def _want_all(self, own: _Service) -> None:
        """Asks for every GPU that others leave: on each node the largest instances, and smaller ones on the rest."""
        wanted: Counter[SiteMode] = Counter()
        for node in self._claims().left(own.name):
            gpus = node.gpus
            for mode in sorted(self.world.modes(own.demand.service, node.site), key=lambda mode: -mode.tp):
                if mode.gpu == node.gpu:
                    count, gpus = divmod(gpus, mode.tp)
                    wanted[node.site, mode] += count
        own.wanted = dict(+wanted)
        self._want()

    def clock(self, view: FleetView, decisions: Decisions) -> list[SimCommand]:
        return [command for own in self.services for command in self._clocks(own, view, decisions)]

    def _clocks(self, own: _Service, view: FleetView, decisions: Decisions) -> list[SimCommand]:
        """Every instance carries its share of the load, as the plan has it: requests go by these shares."""
        rps = own.demand.recent_rps(view, self.config.clock_memory_s)
        serving = [own.share(_kind(view, slot)) for slot in own.slots(view, SERVING)]
        if rps is None or not serving:
            return []
        each = rps / sum(serving)
        load, full = own.demand.load, self.config.full_iteration
        taken_in = load.taken_in if full else 0
        items = [
            (slot, self._load(own, taken_in, slot, each * own.share(_kind(view, slot)), view))
            for slot in own.slots(view, SERVING, DRAINING)
        ]
        made = {offer.mode: offer.profile if full else load.profile(offer.mode, False) for offer in own.offers}
        profiles = {mode.name: profile for mode, profile in made.items() if profile is not None}
        obs = clock_profile.ProfileClockObservation(view.now_s, tuple(item for _, item in items), profiles)
        state = clock_profile.ProfileClockState({item.instance: float(view.mhz[slot]) for slot, item in items})
        _, effects = asking.step(clock_profile.step, state, obs, self._clock_config)
        commands: list[SimCommand] = [command for command in effects.commands if isinstance(command, SetSmClock)]
        if commands:
            why = effects.rationale
            decisions.append(loops.decision(view, Loop.CLOCK, why.reason, why.summary, len(commands)))
        return commands

    def _load(self, own: _Service, taken_in: int, slot: int, rps: float, view: FleetView) -> InstanceLoad:
        spec, c = view.instances[slot], self.config
        params = gpu(spec.gpu)
        least = least_mhz(spec.gpu, params.f_min, params.f_max, c.clock_floor, c.clock_floor_mhz)
        seen = clock_seen(view, slot, least, params.f_max, own.clock_limits)
        shares = SeenShares(*c.clock_shares, c.clock_counts_ttft)
        return instance_load(seen, Mode(spec.gpu, spec.tp).name, rps, taken_in, shares)


def _with_rules(spec: InstanceSpec, config: GreenserveConfig, overheads: Overheads) -> InstanceSpec:
    """Returns a kind of instance with the order of its queue, and with how its clock is set."""
    params = gpu(spec.gpu)
    least = least_mhz(spec.gpu, params.f_min, params.f_max, config.clock_floor, config.clock_floor_mhz)
    pacing = None
    if config.by_deadlines and Loop.CLOCK in config.loops:
        switch_s = clock_switch_s(overheads, spec.gpu, spec.tp)
        pacing = Pacing(least, config.clock_step_mhz, switch_s, ahead=config.clock == "deadline")
    return replace(spec, scheduling=config.scheduling, pacing=pacing)


def _kind(view: FleetView, slot: int) -> SiteMode:
    spec = view.instances[slot]
    return spec.site, Mode(spec.gpu, spec.tp)


def begin(config: GreenserveConfig, world: World) -> Plan:
    """Begins the policy in a world, and returns its plan."""
    return Greenserve(config, world).begin()

"""GreenServe's own policy in the simulator: one pool, as many instances as the load needs now, at the clock it needs,
where the grid is cleanest for what they draw.

The ideas of the five papers, where they pay off here: count and TP degree follow the load each ten seconds
(`right_size`, instead of DynamoLLM's half hour and five minutes), clocks each half second by profile
(`clock_profile`, DynamoLLM's, at 60 MHz instead of 200), new instances warm up while the old ones serve (throttLL'eM's
shadows), prompts wait in the order of their length (mu-Serve's shortest first, of the part that holds others up).
Classes share a pool: nine pools would each be sized for a peak of their own.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from core.algorithms.fleet.site_mix import SiteMode
from core.controllers.clock import clock_profile
from core.controllers.clock.clock_profile import InstanceLoad
from core.controllers.fleet import right_size
from core.engine.engine_model import gpu
from core.simulator.kernel.commands import DRAINING, OFF, SERVING, FleetView, SimCommand
from core.simulator.policies import loops
from core.simulator.policies.fleet_changes import Fleet
from core.simulator.policies.greenserve.config import GreenserveConfig
from core.simulator.policies.greenserve.demand import ServiceDemand
from core.simulator.policies.loops import Decisions, LoopControl
from core.simulator.policies.view_observations import first_view
from core.simulator.policies.world import Plan, World
from core.types import Effects, Loop, Mode, PoolKey, SetSmClock

_RECENT_S = 15.0  # the load that the clock loop goes by
_LEAST_RPS = 1e-3  # of an instance that is there for nobody yet


class Greenserve:
    """State of both loops."""

    def __init__(self, config: GreenserveConfig, world: World) -> None:
        world = replace(world, templates=tuple(replace(s, scheduling=config.scheduling) for s in world.templates))
        self.config, self.world = config, world
        self.demand = ServiceDemand(config, world)
        self.pool = PoolKey(world.sites[0].name, self.demand.service.name)
        self.fleet = Fleet(world, [self.demand.service.name], config.starting)
        self._size: right_size.RightSizeState | None = None
        self._shares: dict[SiteMode, float] = {}  # requests/s that the plan gave one instance; of those that go as well
        self._look(0.0)
        self._clock_config = clock_profile.ProfileClockConfig(config.clock_period_s, margin=1.0)

    def begin(self) -> Plan:
        """Plans the fleet of the first second: what the declared load needs; without scale, or a load, all there is."""
        view = first_view(self.world)
        if Loop.SCALE in self.config.loops and self.demand.declared_rps:
            self._ask(view, (self.demand.declared_rps,))
        else:
            self._want_all()
        members = loops.first_members(self.fleet, view)
        c = self.config
        steps = {Loop.SCALE: (c.fleet.period_s, self.scale), Loop.CLOCK: (c.clock_period_s, self.clock)}
        name = self.demand.service.name
        return Plan(
            members,
            loops.plans((name,), "least_loaded"),
            (name,) * self.world.cells,
            tuple(LoopControl(str(k), s, step, self.fleet) for k, (s, step) in steps.items() if k in c.loops),
        )

    def _look(self, now_s: float) -> None:
        self._offers = self.demand.offers(now_s)
        self._clock_limits = self.demand.planned(self.config.clock_margin, self._offers)

    def scale(self, view: FleetView, decisions: Decisions) -> list[SimCommand]:
        effects = self._ask(view, tuple(self.demand.look(view).tolist()))
        decisions.append(loops.decision(view, Loop.SCALE, effects.rationale.reason, effects.rationale.summary))
        return self.fleet.reweigh(view)

    def _ask(self, view: FleetView, rates_rps: tuple[float, ...]) -> Effects:
        d = self.demand
        self._look(view.now_s)
        obs = right_size.RightSizeObservation(
            view.now_s,
            self.pool,
            rates_rps,
            self._offers,
            d.planned(self.config.margin, self._offers),
            {site.name: site.power_cap_w / site.pue for site in self.world.sites if site.power_cap_w is not None},
            Counter(_kind(view, slot) for slot in np.flatnonzero(view.state != OFF).tolist()),
            int(view.waiting.sum() + view.unplaced.sum()),
        )
        self._size, effects = right_size.step(self._size, obs, self.config.fleet)
        if self._size is not None:
            for part in self._size.mix.parts:
                self._shares[part.kind] = max(_LEAST_RPS, part.load_rps)
                batch = self._shares[part.kind] * d.service_s(part.mode, part.mhz, part.load_rps)
                self.fleet.weights[0, loops.kind(d.service, *part.kind)] = batch
            self._want(self._size.workers)
        return effects

    def _want(self, wanted: Mapping[tuple[str, Mode], int]) -> None:
        self.fleet.want({(0, loops.kind(self.demand.service, site, mode)): n for (site, mode), n in wanted.items()})

    def _want_all(self) -> None:
        """Asks for every GPU, in the largest instances."""
        d = self.demand
        wanted: dict[tuple[str, Mode], int] = {}
        for site in self.world.sites:
            largest = {mode.gpu: mode for mode in d.world.modes(d.service, site.name)}  # of each type the last
            wanted |= {(site.name, mode): d.room(site, mode) for mode in largest.values()}
        self._want(wanted)

    def clock(self, view: FleetView, decisions: Decisions) -> list[SimCommand]:
        """Every instance carries its share of the load, as the plan has it: requests go by these shares."""
        rps = self.demand.recent_rps(view, _RECENT_S)
        serving = [self._share(_kind(view, slot)) for slot in np.flatnonzero(view.state == SERVING).tolist()]
        if rps is None or not serving:
            return []
        each = rps / sum(serving)
        active = np.flatnonzero((view.state == SERVING) | (view.state == DRAINING)).tolist()
        items = [(slot, self._load(slot, each * self._share(_kind(view, slot)), view)) for slot in active]
        profiles = {offer.mode.name: offer.profile for offer in self._offers}
        obs = clock_profile.ProfileClockObservation(view.now_s, tuple(item for _, item in items), profiles)
        state = clock_profile.ProfileClockState({item.instance: float(view.mhz[slot]) for slot, item in items})
        _, effects = clock_profile.step(state, obs, self._clock_config)
        commands: list[SimCommand] = [command for command in effects.commands if isinstance(command, SetSmClock)]
        if commands:
            why = effects.rationale
            decisions.append(loops.decision(view, Loop.CLOCK, why.reason, why.summary, len(commands)))
        return commands

    def _share(self, kind: SiteMode) -> float:
        return self._shares.get(kind, 1.0)

    def _load(self, slot: int, rps: float, view: FleetView) -> InstanceLoad:
        """A TPOT seen is held against its limit; a TTFT is not, since the worst one may be of a class with a wider.

        Of those that wait only so many are a queue as the iteration that is planned with does not take in.
        """
        spec, c = view.instances[slot], self.config
        params = gpu(spec.gpu)
        tpot_s = float(view.worst_tpot_s[slot])
        return InstanceLoad(
            instance=spec.name,
            profile=Mode(spec.gpu, spec.tp).name,
            load_rps=rps,
            waiting=max(0, int(view.waiting[slot]) - self.demand.taken_in),
            min_mhz=max(params.f_v, params.f_min),
            max_mhz=params.f_max,
            limits=self._clock_limits,
            ttft_s=None,
            tpot_s=None if math.isnan(tpot_s) else tpot_s * c.clock_margin,
        )


def _kind(view: FleetView, slot: int) -> SiteMode:
    spec = view.instances[slot]
    return spec.site, Mode(spec.gpu, spec.tp)


def begin(config: GreenserveConfig, world: World) -> Plan:
    """Raises SimulationError when the world is not one that the policy knows."""
    return Greenserve(config, world).begin()

"""The loops that the product runs live, on the simulated fleet: the same `step` functions, fed from views.

carbon (FREESH eq. 1) chooses the partition and the GPUs of each pool; scale follows at once and at its own epochs;
shard chooses the mix of TP degrees; MIAD sets the clocks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from core.algorithms.clock.primal_dual import PrimalDualConfig
from core.algorithms.fleet.fleet_problem import NegativeIntensity, Objective
from core.algorithms.fleet.sharing import Claims, Lack, NodeGpus, ServiceNeed
from core.controllers.clock import frequency
from core.controllers.fleet import scale, shard
from core.controllers.fleet.carbon import CarbonConfig
from core.controllers.fleet.explain import gpus_of
from core.controllers.fleet.pool_loop import PoolLoopConfig
from core.engine.engine_model import gpu
from core.engine.overheads import cold_start_s
from core.observations import asking
from core.observations.clock_given import ProfileClocks, curves, least_mhz, shared, tighter
from core.observations.demand.class_view import ClassView, partition_option
from core.observations.demand.loop_windows import loop_steps
from core.observations.fleet.change_kinds import change_kinds
from core.observations.fleet.first_plan import planned
from core.observations.fleet.pool_views import PoolFacts, carried_rps, pool_views, serving_class
from core.observations.load_profiles import full_load_profile
from core.observations.mode_profile import Lengths
from core.observations.request.routing_weights import by_capacity
from core.simulator.kernel.commands import DRAINING, SERVING, Assign, FleetView, SimCommand
from core.simulator.kernel.simulated import InstanceSpec, SimulationError
from core.simulator.policies import loops
from core.simulator.policies.change_round import Want
from core.simulator.policies.config import FreeshConfig
from core.simulator.policies.energy_router import EnergyRouter
from core.simulator.policies.fleet_changes import Fleet
from core.simulator.policies.loops import Decisions, LoopControl
from core.simulator.policies.scheduling import Served, queue_of, served_by_model
from core.simulator.policies.view_observations import cells_of, class_view, clock_seen, first_view, site_ahead
from core.simulator.policies.world import PartitionInfo, Plan, ServiceInfo, World
from core.types import (
    CarbonObservation,
    CarbonPlan,
    ChangeKind,
    ClockObservation,
    Effects,
    Limits,
    Loop,
    Mode,
    PoolKey,
    PoolView,
    Reason,
    ScaleObservation,
    ScaleTo,
    SetSmClock,
    SetTpDegrees,
    ShardObservation,
    SiteView,
)


@dataclass(slots=True)
class _Service:
    """A service and what the loops decided for it. `unknown`: no site has had an intensity yet."""

    info: ServiceInfo
    partition: PartitionInfo
    plan: CarbonPlan | None = None
    unknown: bool = True
    budgets: dict[PoolKey, dict[str, int]] = field(default_factory=dict)
    workers: dict[PoolKey, dict[Mode, int]] = field(default_factory=dict)


class Freesh:
    """State of all loops of the policy, and their epochs."""

    def __init__(self, config: FreeshConfig, world: World) -> None:
        served = served_by_model((info, _first_partition(config, info)) for info in world.services)
        ruled = tuple(scheduled(spec, config, served[spec.model]) for spec in world.templates)
        world = replace(world, templates=ruled)
        self.config, self.world = config, world
        known = sorted({partition.name for info in world.services for partition in info.partitions})
        if config.partition is not None and config.partition not in known:
            raise SimulationError(f"policy.partition: unknown '{config.partition}'; known: {', '.join(known)}")
        in_order = sorted(world.services, key=lambda info: info.name)  # plans are the same whatever order is given
        self.services = [_Service(info, _first_partition(config, info)) for info in in_order]
        self._names = [
            list(dict.fromkeys(loops.pool_name(world, info, c.name) for own in info.partitions for c in own.classes))
            for info in world.services
        ]
        self.pools = tuple(name for names in self._names for name in names)
        self.fleet = Fleet(world, self.pools, config.starting, config.change)
        self.carbon_config = CarbonConfig(
            config.alpha,
            Objective(config.objective),
            NegativeIntensity(config.negative_intensity),
            config.time_limit_s,
            floor_rps=config.floor_rps,
            min_saving=config.min_saving,
            best_effort=True,
        )
        self.pool_config = PoolLoopConfig(config.alpha, config.floor_rps, min(5.0, config.time_limit_s))
        self._clocks: dict[int, frequency.ClockState] = {}
        self._lengths: dict[int, Lengths] = {}  # of the pools, as they were last seen
        self._ranges: dict[str, tuple[float, float]] = {}
        self._limits: list[Limits] = []

    def begin(self) -> Plan:
        """Plans the fleet of the first second, from the declared load: as after the first epochs of a live start."""
        view, decisions = first_view(self.world), Decisions()
        self.carbon(view, decisions)
        if Loop.SHARD in self.config.loops:
            self.shard(view, decisions)
        members = loops.first_members(self.fleet, view)
        cell_pool = [""] * self.world.cells
        for service in self.services:
            for cell, pool in self._cell_pools(service).items():
                cell_pool[cell] = pool
        c = self.config
        steps = {
            Loop.CARBON: (c.carbon_period_s, self.carbon),
            Loop.SCALE: (c.scale_period_s, self.scale),
            Loop.SHARD: (c.shard_period_s, self.shard),
            Loop.CLOCK: (c.clock_period_s, self.clock),
        }
        found = [
            LoopControl(str(loop), period_s, decide, self.fleet)
            for loop, (period_s, decide) in steps.items()
            if loop in c.loops
        ]
        controls = loops.controls(found, self.fleet)
        if c.routing != "energy":
            pools = loops.class_plans(self._names, c.routing, c.engine_queue)
            return Plan(members, pools, tuple(cell_pool), controls)
        return Plan(members, loops.plans(self.pools, "least_loaded"), tuple(cell_pool), controls, self._router())

    def _router(self) -> EnergyRouter:
        """Routes by the limits of the classes themselves, whose margins are for clocks alone."""
        limits = [Limits()] * len(self.pools)
        for info in self.world.services:
            for item in (item for partition in info.partitions for item in partition.classes):
                limits[self.pools.index(loops.pool_name(self.world, info, item.name))] = item.limits
        cells = [sorted(info.partitions[0].cell_class) for info in self.world.services]
        return EnergyRouter(limits, cells, {site.name: site.pue for site in self.world.sites})

    # -- epochs ----------------------------------------------------------------------------------------

    def carbon(self, view: FleetView, decisions: Decisions) -> list[SimCommand]:
        """Runs the carbon epoch of every service, one after another within what the others leave, and scale
        after it."""
        commands: list[SimCommand] = []
        for service in self.services:
            obs, failed, short = self._carbon_observation(service, view)
            plan, effects, service.unknown = planned(service.plan, obs, self.carbon_config, unknown=service.unknown)
            reason, summary = effects.rationale.reason, effects.rationale.summary
            if failed:
                reason = Reason.INFEASIBLE
                summary = " ".join([summary, *failed])
            decisions.append(loops.decision(view, Loop.CARBON, reason, summary + short))
            if plan is not None and (plan is not service.plan or not service.workers):
                commands += self._adopt(service, plan)
            service.plan = plan
            self._scale(service, view, decisions)
        self._want()
        return commands

    def _adopt(self, service: _Service, plan: CarbonPlan) -> list[SimCommand]:
        """Adopts partition and budgets of a plan.

        Workers that do not fit their pool's new budget are no longer wanted.
        """
        before = self._cell_pools(service)
        service.partition = next(p for p in service.info.partitions if p.name == plan.partition)
        planned: dict[PoolKey, dict[Mode, int]] = {}
        for (site, name, mode), count in sorted(plan.workers.items()):
            if count:
                planned.setdefault(PoolKey(site, name), {})[mode] = count
        service.budgets = {key: gpus_of(workers) for key, workers in planned.items()}
        service.workers = {
            key: workers
            for key, workers in service.workers.items()
            if key in service.budgets and _within(gpus_of(workers), service.budgets[key])
        }
        pools = self._cell_pools(service)
        return [Assign(pools)] if pools != before else []

    def scale(self, view: FleetView, decisions: Decisions) -> list[SimCommand]:
        for service in self.services:
            self._scale(service, view, decisions)
        self._want()
        return self.fleet.reweigh(view)

    def _scale(self, service: _Service, view: FleetView, decisions: Decisions) -> None:
        period_s, step_s = self.config.scale_period_s, self.config.step_s
        views = self._class_views(service, view, period_s, loop_steps(period_s, step_s))
        self._weigh(service, views)
        shared = Loop.CARBON not in self.config.loops and bool(service.workers)
        short = self._claims(view).short(service.info.name) if shared else ""
        keys = sorted(service.budgets)
        for group in [[key] for key in keys] if shared else [keys]:
            if shared:
                service.budgets[group[0]] = self._own_and_free(service, group[0], view)
            pools = self._pool_views(service, views, group)
            if not pools:
                reason, summary = Reason.NO_DATA, f"{service.info.name}: no pool has GPUs: there is no plan yet."
            else:
                obs = ScaleObservation(view.now_s, step_s, pools)
                _, effects = asking.step(scale.step, None, obs, self.pool_config)
                self._take(service, effects)
                reason, summary = effects.rationale.reason, effects.rationale.summary
            decisions.append(loops.decision(view, Loop.SCALE, reason, summary + short))

    def shard(self, view: FleetView, decisions: Decisions) -> list[SimCommand]:
        period_s = self.config.shard_period_s
        for service in self.services:
            # The peak that scale planned for: with a shorter memory a lull would take GPUs that scale has given.
            views = self._class_views(service, view, max(period_s, self.config.scale_period_s), 1)
            starting = self.config.starting
            transition_s = cold_start_s(
                self.world.overheads, weights_cached=starting.weights_cached, model_name=service.info.model
            )
            pools = self._pool_views(service, views, sorted(service.budgets))
            starts_s = {mode: transition_s for pool in pools for mode in pool.profiles}
            free = self.fleet.free(view) if self.config.change is ChangeKind.SHADOW else {}
            changes = change_kinds(free, {pool.key: pool.workers for pool in pools})
            obs = ShardObservation(view.now_s, period_s, pools, transition_s, starts_s, changes)
            _, effects = asking.step(shard.step, None, obs, self.pool_config)
            self._take(service, effects)
            decisions.append(loops.decision(view, Loop.SHARD, effects.rationale.reason, effects.rationale.summary))
        self._want()
        return []

    def clock(self, view: FleetView, decisions: Decisions) -> list[SimCommand]:
        """Applies the rule to each instance that serves. An instance that went off begins anew at its top clock."""
        rule = self.config.clock
        assert rule is not None, "the loop runs only where a rule does"
        commands: list[SimCommand] = []
        reasons: list[Reason] = []
        active = ((view.state == SERVING) | (view.state == DRAINING)).nonzero()[0].tolist()
        self._clocks = {slot: state for slot, state in self._clocks.items() if slot in set(active)}
        for slot in active:
            before = self._clocks.get(slot) or frequency.ClockState(float(view.mhz[slot]))
            state, effects = asking.step(frequency.step, before, self._clock_observation(view, slot), rule)
            self._clocks[slot] = state
            for command in effects.commands:
                if isinstance(command, SetSmClock) and command.mhz != before.target_mhz:
                    commands.append(command)
                    reasons.append(effects.rationale.reason)
        decisions += loops.clocked(view, reasons)
        return commands

    # -- observations ----------------------------------------------------------------------------------

    def _class_views(self, service: _Service, view: FleetView, period_s: float, steps: int) -> dict[str, ClassView]:
        """Returns the classes of the partition in force."""
        return self._views_of(service, service.partition, view, period_s, steps)

    def _views_of(
        self, service: _Service, partition: PartitionInfo, view: FleetView, period_s: float, steps: int
    ) -> dict[str, ClassView]:
        modes = self.world.modes(service.info)
        return {
            info.name: class_view(self.world, service.info, info, cells_of(partition, n), view, period_s, steps, modes)
            for n, info in enumerate(partition.classes)
        }

    def _carbon_observation(self, service: _Service, view: FleetView) -> tuple[CarbonObservation, list[str], str]:
        """Returns what the carbon loop is given; why classes of a partition find no mode, and what GPUs are short."""
        c = self.config
        steps = max(1, round(c.carbon_period_s / c.step_s))
        found = self._claims(view)
        left = found.left(service.info.name)
        ahead = [site_ahead(self.world, site, view.now_s, c.step_s, steps) for site in self.world.sites]
        sites = tuple(
            SiteView(own.name, self._offered(service, own.name, left), own.pue, own.g_per_kwh, own.usd_per_kwh)
            for own in ahead
        )
        options, failed = [], []
        free = c.partition is None and c.name != "freesh_baseline"
        offered = service.info.partitions if free else (service.partition,)
        for partition in offered:
            views = self._views_of(service, partition, view, c.carbon_period_s, steps)
            failed += [f"{partition.name} {seen.input_faults}" for seen in views.values() if seen.input_faults]
            options.append(partition_option(partition.name, list(views.values())))
        return CarbonObservation(view.now_s, c.step_s, sites, tuple(options)), failed, found.short(service.info.name)

    def _claims(self, view: FleetView) -> Claims:
        """Returns what each service has and needs of the nodes."""
        return self.world.claims(self._need(own, view) for own in self.services)

    def _need(self, service: _Service, view: FleetView) -> ServiceNeed:
        """Returns what the service's plan may use, and what each of its classes lacks of instances."""
        used: Counter[tuple[str, str, str]] = Counter()
        envelope = service.budgets if Loop.CARBON in self.config.loops else _gpus(service.workers)
        for key, budget in envelope.items():
            used.update({(key.site, "", gpu_name): count for gpu_name, count in budget.items()})
        lacks = []
        views = self._class_views(service, view, self.config.carbon_period_s, 1)
        sites = [site.name for site in self.world.sites]
        carried = dict.fromkeys(views, 0.0)
        for key in envelope:
            carried[key.request_class] += carried_rps(self._pool(service, key), views[key.request_class])
        for name, seen in views.items():
            rps = max(self.config.floor_rps, self.config.alpha * max(seen.demand.demand_rps)) - carried[name]
            carries = {
                (site, mode): seen.profiles[mode].max_rps
                for site in sites
                for mode in self.world.modes(service.info, site)
            }
            lacks.append(Lack(rps, carries))
        return ServiceNeed(service.info.name, used, tuple(lacks), service.info.share)

    def _offered(self, service: _Service, site: str, left: Sequence[NodeGpus]) -> dict[str, int]:
        """Returns the site's GPUs by type that the service has templates for, of the nodes left to it."""
        usable = {mode.gpu for mode in self.world.modes(service.info, site)}
        gpus = {name: 0 for name in self.world.site(site).gpus if name in usable}
        for node in left:
            if node.site == site and node.gpu in gpus:
                gpus[node.gpu] += node.gpus
        return gpus

    def _own_and_free(self, service: _Service, key: PoolKey, view: FleetView) -> dict[str, int]:
        """Counts GPUs by type, without a carbon loop: those of the pool's workers, and those that no pool of its site
        wants."""
        free = self._offered(service, key.site, self._claims(view).left(service.info.name))
        for other, workers in service.workers.items():
            if other.site == key.site and other != key:
                for name, count in gpus_of(workers).items():
                    free[name] = max(0, free.get(name, 0) - count)
        return free

    def _pool_views(
        self, service: _Service, views: Mapping[str, ClassView], keys: Sequence[PoolKey]
    ) -> tuple[PoolView, ...]:
        pools = [self._pool(service, key) for key in service.budgets]
        return pool_views(pools, views, keys, freeze_tp=self.config.freeze_tp)

    def _pool(self, service: _Service, key: PoolKey) -> PoolFacts:
        """Returns a pool with the share that its plan has it carry; without a carbon loop, that its workers carry."""
        workers = planned = service.workers.get(key, {})
        if Loop.CARBON in self.config.loops and service.plan is not None:
            planned = {m: n for (site, name, m), n in service.plan.workers.items() if PoolKey(site, name) == key}
        modes = self.world.modes(service.info, key.site)
        return PoolFacts(key, service.budgets[key], workers, planned, modes)

    def _clock_observation(self, view: FleetView, slot: int) -> ClockObservation:
        spec = view.instances[slot]
        if spec.gpu not in self._ranges:
            own, c = gpu(spec.gpu), self.config
            lowest = least_mhz(spec.gpu, own.f_min, own.f_max, c.clock_floor, c.clock_floor_mhz)
            self._ranges[spec.gpu] = lowest, own.f_max
        low, high = self._ranges[spec.gpu]
        pool = int(view.pool[slot])
        found = clock_seen(view, slot, low, high, self._limits[pool] if pool >= 0 else Limits())
        lengths = self._lengths.get(pool)
        if not isinstance(self.config.clock, PrimalDualConfig) or lengths is None:
            return found
        mhz = ProfileClocks(floor=self.config.clock_floor, floor_mhz=self.config.clock_floor_mhz)
        profile = full_load_profile(spec.model, spec.engine, Mode(spec.gpu, spec.tp), lengths, None, mhz)
        if profile is None:
            return found
        return frequency.profiled(found, curves(profile, lengths.output_tokens, float(found.running)))

    # -- what follows ----------------------------------------------------------------------------------

    def _take(self, service: _Service, effects: Effects) -> None:
        for command in effects.commands:
            if isinstance(command, (ScaleTo, SetTpDegrees)):
                service.workers[command.pool] = dict(command.workers)

    def _want(self) -> None:
        wanted: dict[Want, int] = {}
        limits = [Limits()] * len(self.pools)
        for service in self.services:
            for key, workers in service.workers.items():
                for mode, count in workers.items():
                    wanted[self._key(service, key, mode)] = count
            for info in service.partition.classes:
                number = self.pools.index(loops.pool_name(self.world, service.info, info.name))
                kept = shared(info.limits, self.config.ttft_share, self.config.tpot_share)
                limits[number] = tighter(kept, info.thresholds)
        self._limits = limits
        self.fleet.want(wanted)

    def _weigh(self, service: _Service, views: Mapping[str, ClassView]) -> None:
        """Notes what the classes are like now: their lengths, and what an instance of each kind carries.

        The latter are shares, under routing by weights.
        """
        for name, seen in views.items():
            self._lengths[self.pools.index(loops.pool_name(self.world, service.info, name))] = seen.lengths.rounded
        for site in self.world.sites:
            for name, seen in views.items():
                for mode, weight in by_capacity(seen.profiles).items():
                    self.fleet.weights[self._key(service, PoolKey(site.name, name), mode)] = weight

    def _key(self, service: _Service, key: PoolKey, mode: Mode) -> Want:
        pool = loops.pool_name(self.world, service.info, key.request_class)
        return self.pools.index(pool), loops.kind(service.info, key.site, mode)

    def _cell_pools(self, service: _Service) -> dict[int, str]:
        """Returns the pool of each cell: its class's, or of the class that serves it, where it has no GPUs."""
        names = [own.name for own in service.partition.classes]
        serving = serving_class(names, {key.request_class for key in service.budgets})
        return {
            cell: loops.pool_name(self.world, service.info, serving[names[number]])
            for cell, number in service.partition.cell_class.items()
        }


def scheduled(spec: InstanceSpec, config: FreeshConfig, served: Served) -> InstanceSpec:
    """Returns the template with the policy's order of its queue."""
    c = config
    return replace(spec, scheduling=queue_of(spec, c.order, c.aging_tokens_per_s, served, c.preempts_s, c.margin_s))


def _first_partition(config: FreeshConfig, info: ServiceInfo) -> PartitionInfo:
    named = [partition for partition in info.partitions if partition.name == config.partition]
    if not named and config.name == "freesh_baseline":
        return min(info.partitions, key=lambda partition: len(partition.classes))
    return named[0] if named else info.partitions[0]


def _gpus(workers: Mapping[PoolKey, Mapping[Mode, int]]) -> dict[PoolKey, dict[str, int]]:
    return {key: gpus_of(mix) for key, mix in workers.items()}


def _within(gpus: Mapping[str, int], budget: Mapping[str, int]) -> bool:
    return all(count <= budget.get(name, 0) for name, count in gpus.items())

"""DynamoLLM (HPCA 2025) in the simulator: a pool for each class, nodes by forecast, TP mix and clocks by profile.

Every decision is the core's: `scale_dynamo.step` (30 min, and ahead of the next epoch), `shard_dynamo.step` (5 min,
and between epochs the next wave), `clock_profile.step` (5 s), `emergency.step` (1 s), `routing.choose` (each request).
Here observations are built, and commands become those of the simulator. The baselines of section V-A are settings of
the same knobs: see `config`.

Several sites and types of GPU are dealt with as on the live fleet: servers are all of one kind (`dynamo_servers`),
wherever they are. Without the scale loop all GPUs serve: what is of another kind stands beside the servers.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import count

from core.algorithms.placement.node_layouts import Layout
from core.controllers.fleet import scale_dynamo, shard_dynamo, shared_out
from core.controllers.fleet.shared_out import NodeView
from core.engine.overhead_table import OverheadTable
from core.observations import asking, step_configs
from core.observations.demand.class_view import partition_option
from core.observations.demand.loop_windows import LOOK_S
from core.observations.fleet import dynamo_given, dynamo_servers, shared_out_given
from core.observations.fleet.dynamo_given import ServerKind
from core.observations.fleet.dynamo_servers import Servers
from core.policy.knobs import USUAL_S, Knobs
from core.simulator.kernel.commands import Answer, Decision, FleetView, SimCommand
from core.simulator.kernel.simulated import InstanceSpec, SimulationError
from core.simulator.policies import gpu_cut, loops
from core.simulator.policies.change_round import WarmServers
from core.simulator.policies.dynamollm.clock_and_emergencies import FastLoops
from core.simulator.policies.dynamollm.config import ROUTINGS, DynamollmConfig
from core.simulator.policies.dynamollm.demand import TEMPLATE, ClassDemands
from core.simulator.policies.dynamollm.pool_nodes import Nodes, Place
from core.simulator.policies.dynamollm.pool_profiles import PoolProfiles
from core.simulator.policies.dynamollm.router import DynamoRouter
from core.simulator.policies.loops import Decisions
from core.simulator.policies.scheduling import Served, queue_of
from core.simulator.policies.view_observations import first_view
from core.simulator.policies.world import Member, Plan, PoolPlan, World
from core.types import ChangeKind, Effects, Loop, Mode, PoolKey, ReshardNode, ScaleTo

CHANGE = ChangeKind.IN_PLACE  # weights move between GPUs, as in the paper (IV-C)
_EPS = 1e-9


@dataclass(frozen=True, slots=True)
class PlainControl:
    """One loop as a Control."""

    name: str
    period_s: float
    decide: Callable[[FleetView, Decisions], list[SimCommand]]

    def step(self, view: FleetView) -> Answer:
        decisions: Decisions = []
        commands = self.decide(view, decisions)
        if decisions:
            decisions[-1] = replace(decisions[-1], commands=len(commands))
        return Answer(tuple(commands), tuple(decisions))


class Dynamollm:
    """State of all loops of the policy, and its slow epochs."""

    def __init__(self, config: DynamollmConfig, world: World) -> None:
        self.config, self.world = config, world
        self.demand = ClassDemands(config, world)
        self._offered = gpu_cut.offered(world, self.demand.service, world.nodes)
        self.cluster = self._servers() if config.knobs.in_servers else None
        served = Served(list(self.demand.limits), self.demand.service.long_tokens)
        templates = {
            (spec.site, Mode(spec.gpu, spec.tp)): _queued(spec, config.knobs, served)
            for spec in world.templates
            if spec.model == self.demand.service.model
        }
        best = None if self.cluster is None else self.cluster.mode
        warm = WarmServers(world.overheads, config.starting)
        self.nodes = Nodes(best, self.demand.service.name, templates, warm)
        self.router = DynamoRouter(self.demand, self.nodes, ROUTINGS[config.knobs.route])
        self.profiles = PoolProfiles(self.demand, self.router, config.shard.epoch_s)
        self.fast = FastLoops(config, self.demand, self.nodes, self.router, self.profiles)
        self._scale: scale_dynamo.ScaleDynamoState | None = None
        self._begun: Decision | None = None  # the first one, taken before time began
        self._scale_s = self._shard_s = 0.0  # when they are next due
        self._shard: shard_dynamo.ShardDynamoState | None = None

    def begin(self) -> Plan:
        """Plans the first nodes: those that scale asks for under the declared load; without either, all are
        shared out."""
        view = first_view(self.world)
        if Loop.SCALE in self.config.loops and any(self.world.declared):
            _, effects = self._ask_scale(view)
            made = loops.decision(view, Loop.SCALE, effects.rationale.reason, effects.rationale.summary)
            self._begun = loops.with_faults(made, self.demand.seen)
            workers = self._workers(self._spread(effects, {key: [] for key in self.keys}))
        else:
            workers = self._shared_out(view)
        pool = self.demand.service.name
        members = tuple(Member(spec, pool) for spec in self._first(workers))
        c, slow_s = self.config, max(LOOK_S, self.config.clock.period_s)
        controls = [
            PlainControl(str(loop), period_s, decide)
            for loop, period_s, decide in (
                (Loop.SCALE, slow_s, self.scale),
                (Loop.SHARD, slow_s, self.shard),
                (Loop.CLOCK, c.clock.period_s, self.fast.clock),
            )
            if loop in c.loops
        ]
        if c.knobs.emergencies:
            controls.append(PlainControl("emergency", c.ladder.period_s, self.fast.ladder))
        if not controls:
            raise SimulationError(f"{c.name}: no loop runs; take policy multi_pool for a fleet that nothing changes")
        self.profiles.renew(view)
        return Plan(
            members,
            (PoolPlan(pool, "least_loaded"),),
            (pool,) * self.world.cells,
            tuple(controls),
            self.router,
        )

    def _servers(self) -> Servers:
        """Returns the cluster. Raises SimulationError: no node has room for a server."""
        modes, most_tp, service = self.demand.modes, self.config.knobs.tp, self.demand.service
        found = dynamo_servers.servers(self._offered, self._offered, lambda mode: mode in modes and mode.tp <= most_tp)
        there = (
            {} if found is None else {s: n for s, n in found.at.items() if self.world.template(service, s, found.mode)}
        )
        if found is None or not any(there.values()):
            degrees = ", ".join(str(tp) for tp in sorted({mode.tp for mode in modes}))
            raise SimulationError(
                f"{self.config.name} gives servers to pools, and no node has GPUs for one (TP {degrees}, at most "
                f"{most_tp}): give sites larger nodes (sites.NAME.gpus_per_node), groups other tp_choices, or raise tp"
            )
        return replace(found, at=there)

    @property
    def keys(self) -> list[PoolKey]:
        """The pools of every site, those of the smallest class first."""
        return [PoolKey(site.name, name) for name in self.demand.names for site in self.world.sites]

    def _place(self, key: PoolKey) -> Place:
        return key.site, self.demand.names.index(key.request_class)

    def _shared_out(self, view: FleetView) -> dict[PoolKey, dict[Mode, int]]:
        """Shares out all GPUs, or where the scale loop runs all servers; pools that get none hand everything on."""
        demand, knobs, period_s, cluster = self.demand, self.config.knobs, USUAL_S[Loop.CARBON], self.cluster
        option = partition_option(demand.partition.name, demand.class_views(view, period_s))
        nodes = self._offered
        if cluster is not None and Loop.SCALE in self.config.loops:
            nodes = [NodeView(site, cluster.mode.gpu, cluster.size) for site, n in cluster.at.items() for _ in range(n)]
        obs = shared_out_given.shared_out_observation(view.now_s, period_s, nodes, option)
        own = step_configs.shared_out_config(knobs, knobs.tp if cluster is None else cluster.size)
        plan, effects = asking.step(shared_out.step, None, obs, own)
        if plan is None:
            raise SimulationError(f"{self.config.name}: {demand.service.name}: {effects.rationale.summary}")
        found: dict[PoolKey, dict[Mode, int]] = {key: {} for key in self.keys}
        for (site, name, mode), n in sorted(plan.workers.items()):
            if self.world.template(demand.service, site, mode) is not None:
                found[PoolKey(site, name)][mode] = n
        spilled = dynamo_given.spilled(demand.names, {key.request_class for key, own in found.items() if own})
        demand.shares[:] = [spilled.get(name, 0.0) for name in demand.names]
        return found

    def _first(self, workers: Mapping[PoolKey, Mapping[Mode, int]]) -> list[InstanceSpec]:
        """Puts instances on servers, and those of other kinds beside them; returns them by slot."""
        numbers, cluster = count(), self.cluster
        layouts: dict[Place, Mapping[str, Layout]] = {}
        beside: dict[Place, Mapping[Mode, int]] = {}
        for key in sorted(workers, key=lambda key: (self.demand.names.index(key.request_class), key.site)):
            own, servers = workers[key], dict[str, Layout]()
            if cluster is not None:
                empty = {f"server-{next(numbers)}": () for _ in range(dynamo_servers.servers_used(cluster, own))}
                servers = dynamo_servers.layouts(cluster, own, empty)
                own = dynamo_servers.beside(cluster, own)
            layouts[self._place(key)], beside[self._place(key)] = servers, own
        found = self.nodes.first({} if cluster is None else cluster.at, layouts, beside)
        modes = {Mode(spec.gpu, spec.tp) for spec in found}
        if cluster is not None:
            modes |= {mode for mode in self.demand.modes if cluster.holds(mode)}
        self.profiles.modes = tuple(sorted(modes))
        return found

    # -- scale -----------------------------------------------------------------------------------------

    def scale(self, view: FleetView, decisions: Decisions) -> list[SimCommand]:
        self.nodes.sync(view)
        if self._begun is not None:
            decisions.append(self._begun)
            self._begun = None
        if view.now_s >= self._scale_s - _EPS:
            epoch = self._scale.epoch if self._scale is not None else -1
            self.demand.look(view)
            state, effects = self._ask_scale(view)
            if any(isinstance(command, ScaleTo) for command in effects.commands):
                owned = {key: self.nodes.owned(self._place(key), view) for key in self.keys}
                self.nodes.wanted |= {self._place(key): len(own) for key, own in self._spread(effects, owned).items()}
            if effects.commands:
                self.profiles.renew(view)
            if effects.commands or state.epoch != epoch:
                why = effects.rationale
                made = loops.decision(view, Loop.SCALE, why.reason, why.summary)
                decisions.append(loops.with_faults(made, self.demand.seen))
        return self.nodes.settle(view)

    def _ask_scale(self, view: FleetView) -> tuple[scale_dynamo.ScaleDynamoState, Effects]:
        keys = [dynamo_given.cluster_key(name) for name in self.demand.names]
        cluster, kind = self._kind()
        cached, look_s = self.config.starting.weights_cached, max(LOOK_S, self.config.clock.period_s)
        starts_s = dynamo_given.starts_s(OverheadTable(), self.world.overheads, kind, cached, look_s)
        steps = dynamo_given.steps_ahead(self.config.scale.epoch_s, starts_s[1], TEMPLATE.step_s)
        obs = dynamo_given.scale_observation(
            view.now_s,
            TEMPLATE.step_s,
            kind,
            self.demand.class_loads(view.now_s, steps, kind),
            dict(zip(keys, self.nodes.counts(len(keys)), strict=True)),
            sum(cluster.at.values()),
            starts_s,
        )
        found, effects = asking.step(scale_dynamo.step, self._scale, obs, self.config.scale)
        self._scale = found
        self._scale_s = effects.next_tick_s or math.inf
        self.demand.shares[:] = [found.shares.get(key, 0.0) for key in keys]
        return found, effects

    def _spread(self, effects: Effects, owned: Mapping[PoolKey, list[Layout]]) -> dict[PoolKey, list[Layout]]:
        """Returns the servers of each pool, so that every class has as many as scale asks for, or asked for before."""
        cluster, _ = self._kind()
        wanted = Counter(dict.fromkeys(self.demand.names, 0))
        for (_, pool), n in self.nodes.wanted.items():
            wanted[self.demand.names[pool]] += n
        for command in effects.commands:
            if isinstance(command, ScaleTo):
                wanted[command.pool.request_class] = sum(command.workers.values())
        return dynamo_servers.spread(cluster, owned, wanted)

    def _workers(self, layouts: Mapping[PoolKey, list[Layout]]) -> dict[PoolKey, dict[Mode, int]]:
        gpu = self._kind()[0].mode.gpu
        return {key: dict(Counter(Mode(gpu, tp) for layout in own for tp in layout)) for key, own in layouts.items()}

    def _kind(self) -> tuple[Servers, ServerKind]:
        assert self.cluster is not None, "scale and shard deal in servers"
        return self.cluster, ServerKind(self.demand.service.model, self.demand.service.engine, self.cluster.mode)

    # -- shard -----------------------------------------------------------------------------------------

    def shard(self, view: FleetView, decisions: Decisions) -> list[SimCommand]:
        self.nodes.sync(view)
        if view.now_s < self._shard_s - _EPS:
            return []
        before = self._shard.epoch if self._shard is not None else -1
        self.profiles.renew_if_old(view)
        obs = self._shard_observation(view)
        found, effects = asking.step(shard_dynamo.step, self._shard, obs, self.config.shard)
        self._shard = found
        self._shard_s = effects.next_tick_s or math.inf
        commands: list[SimCommand] = []
        for command in effects.commands:
            if isinstance(command, ReshardNode):
                commands += self.nodes.reshard(command, view)
        if commands or found.epoch != before:
            decisions.append(loops.decision(view, Loop.SHARD, effects.rationale.reason, effects.rationale.summary))
        return commands

    def _shard_observation(self, view: FleetView) -> shard_dynamo.ShardDynamoObservation:
        (cluster, kind), overheads, service = self._kind(), self.world.overheads, self.demand.service
        cached, pools = self.config.starting.weights_cached, []
        start_s = dynamo_given.published_start_s(overheads, kind.model, warm=True, weights_cached=cached)
        in_order = sorted(self.keys, key=lambda key: (self.demand.names.index(key.request_class), key.site))
        layouts = {key: self.nodes.layouts(self._place(key), view) for key in in_order}
        loads = dynamo_given.loads_of_servers(
            kind,
            dict(zip(self.demand.names, self.demand.pool_loads(view.now_s), strict=True)),
            {key: len(own) for key, own in layouts.items()},
            {key: self.nodes.beside(self._place(key), view) for key in in_order},
        )
        for key, load in loads.items():
            known, there = self.profiles.of[self._place(key)[1]], self.world.modes(service, key.site)
            own = {mode: known[mode] for mode in there if mode in known and cluster.holds(mode)}
            pools.append(dynamo_given.shard_pool(key, kind, layouts[key], load, own, start_s, CHANGE))
        return shard_dynamo.ShardDynamoObservation(
            view.now_s, tuple(pools), OverheadTable(), overheads.sync_s, overheads.link_bytes_per_s
        )


def _queued(spec: InstanceSpec, knobs: Knobs, served: Served) -> InstanceSpec:
    return replace(spec, scheduling=queue_of(spec, knobs.order, knobs.aging_tokens_per_s, served))

"""DynamoLLM (HPCA 2025) in the simulator: a pool for each class, nodes by forecast, TP mix and clocks by profile.

Every decision is the core's: `scale_dynamo.step` (30 min, and ahead of the next epoch), `shard_dynamo.step` (5 min,
and between epochs the next wave), `clock_profile.step` (5 s), `emergency.step` (1 s), `routing.choose` (each request).
Here observations are built, and commands become those of the simulator. The baselines of section V-A are settings of
the same knobs: see `config`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from core.controllers.fleet import scale_dynamo, shard_dynamo, shared_out
from core.controllers.fleet.shared_out import NodeView
from core.engine.overhead_table import OverheadTable
from core.observations import asking, step_configs
from core.observations.demand.class_view import partition_option
from core.observations.demand.loop_windows import LOOK_S
from core.observations.fleet import dynamo_given, shared_out_given
from core.policy.knobs import USUAL_S
from core.simulator.kernel.commands import Answer, Decision, FleetView, SimCommand
from core.simulator.kernel.simulated import InstanceSpec, Scheduling, SimulationError
from core.simulator.policies import loops
from core.simulator.policies.change_round import WarmServers
from core.simulator.policies.dynamollm.clock_and_emergencies import FastLoops
from core.simulator.policies.dynamollm.config import ROUTINGS, DynamollmConfig
from core.simulator.policies.dynamollm.demand import TEMPLATE, ClassDemands
from core.simulator.policies.dynamollm.pool_nodes import Nodes
from core.simulator.policies.dynamollm.pool_profiles import PoolProfiles
from core.simulator.policies.dynamollm.router import DynamoRouter
from core.simulator.policies.loops import Decisions
from core.simulator.policies.view_observations import first_view
from core.simulator.policies.world import Member, Plan, PoolPlan, World
from core.types import ChangeKind, Effects, Loop, ReshardNode, ScaleTo

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
        templates = {spec.tp: _queued(spec, config.knobs.order) for spec in world.templates}
        site, self._gpus = self.demand.site, max(templates)
        count = site.gpus.get(self.demand.gpu, 0) // site.gpus_per_node
        if self._gpus != site.gpus_per_node or count < 1:
            raise SimulationError(
                f"{config.name} gives whole nodes to pools: it needs a TP degree of all {site.gpus_per_node} GPUs of a "
                f"node (tp_choices, or sites.{site.name}.gpus_per_node) and at least one such node"
            )
        warm = WarmServers(world.overheads, config.starting)
        self.nodes = Nodes(count, self.demand.service.name, templates, warm)
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
            self._begun = loops.decision(view, Loop.SCALE, effects.rationale.reason, effects.rationale.summary)
            given = self._given(effects)
            counts = [given.get(n, 0) for n in range(len(self.demand.classes))]
        else:
            counts = self._shared_out(view)
        pool = self.demand.service.name
        members = tuple(Member(spec, pool) for spec in self.nodes.first(counts))
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

    def _shared_out(self, view: FleetView) -> list[int]:
        """Shares out all nodes; pools that get none hand everything on."""
        demand, knobs, period_s = self.demand, self.config.knobs, USUAL_S[Loop.CARBON]
        option = partition_option(demand.partition.name, demand.class_views(view, period_s))
        nodes = [NodeView(demand.site.name, demand.gpu, self._gpus) for _ in self.nodes.all]
        obs = shared_out_given.shared_out_observation(view.now_s, period_s, nodes, option)
        own = step_configs.shared_out_config(knobs, self._gpus if knobs.in_servers else knobs.tp)
        plan, _ = asking.step(shared_out.step, None, obs, own)
        given = Counter[str]()
        for (_, name, _), count in plan.workers.items() if plan is not None else ():
            given[name] += count
        spilled = dynamo_given.spilled(demand.names, given)
        demand.shares[:] = [spilled.get(name, 0.0) for name in demand.names]
        return [given[name] for name in demand.names]

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
            self.nodes.wanted |= self._given(effects)
            if effects.commands:
                self.profiles.renew(view)
            if effects.commands or state.epoch != epoch:
                why = effects.rationale
                decisions.append(loops.decision(view, Loop.SCALE, why.reason, why.summary))
        return self.nodes.settle(view)

    def _ask_scale(self, view: FleetView) -> tuple[scale_dynamo.ScaleDynamoState, Effects]:
        keys = [dynamo_given.cluster_key(name) for name in self.demand.names]
        cached, look_s = self.config.starting.weights_cached, max(LOOK_S, self.config.clock.period_s)
        starts_s = dynamo_given.starts_s(OverheadTable(), self.world.overheads, self.demand.servers, cached, look_s)
        steps = dynamo_given.steps_ahead(self.config.scale.epoch_s, starts_s[1], TEMPLATE.step_s)
        obs = dynamo_given.scale_observation(
            view.now_s,
            TEMPLATE.step_s,
            self.demand.servers,
            self.demand.class_loads(view.now_s, steps),
            dict(zip(keys, self.nodes.counts(len(keys)), strict=True)),
            len(self.nodes.all),
            starts_s,
        )
        found, effects = asking.step(scale_dynamo.step, self._scale, obs, self.config.scale)
        self._scale = found
        self._scale_s = effects.next_tick_s or math.inf
        self.demand.shares[:] = [found.shares.get(key, 0.0) for key in keys]
        return found, effects

    def _given(self, effects: Effects) -> dict[int, int]:
        """Returns how many nodes scale wants in which pools."""
        names = self.demand.names
        return {
            names.index(command.pool.request_class): sum(command.workers.values())
            for command in effects.commands
            if isinstance(command, ScaleTo)
        }

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
        kind, overheads = self.demand.servers, self.world.overheads
        loads, pools, cached = self.demand.pool_loads(view.now_s), [], self.config.starting.weights_cached
        start_s = dynamo_given.published_start_s(overheads, kind.model, warm=True, weights_cached=cached)
        for n, key in enumerate(self.demand.keys):
            layouts = self.nodes.layouts(n, view)
            if layouts:
                own = self.profiles.of[n]
                pools.append(dynamo_given.shard_pool(key, kind, layouts, loads[n], own, start_s, CHANGE))
        return shard_dynamo.ShardDynamoObservation(
            view.now_s, tuple(pools), OverheadTable(), overheads.sync_s, overheads.link_bytes_per_s
        )


def _queued(spec: InstanceSpec, order: str) -> InstanceSpec:
    return replace(spec, scheduling=Scheduling(order))

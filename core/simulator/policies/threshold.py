"""Thresholds in the simulator: views to the observations of the steps that live services take too, and the clocks.

The rules are `core.controllers.fleet.scale_threshold`, `shard_threshold` and, vectorised over the instances,
`core.algorithms.clock.busy_thresholds`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from core.algorithms.clock.busy_thresholds import next_clocks_mhz
from core.controllers.fleet import scale_threshold, shard_threshold
from core.controllers.fleet.scale_threshold import ScaleThresholdObservation, ScaleThresholdState, ThresholdPool
from core.controllers.fleet.shard_threshold import ShardThresholdObservation, ShardThresholdState
from core.engine.engine_model import gpu
from core.observations import asking
from core.observations.class_view import ClassView
from core.observations.loop_windows import window_s
from core.observations.routing_weights import by_capacity
from core.simulator.kernel.commands import DRAINING, SERVING, FleetView, SimCommand
from core.simulator.policies import loops
from core.simulator.policies.config import ThresholdConfig
from core.simulator.policies.fleet_changes import Fleet
from core.simulator.policies.loops import Decisions, LoopControl
from core.simulator.policies.view_observations import cells_of, class_view, first_view
from core.simulator.policies.world import ClassInfo, Plan, ServiceInfo, World
from core.types import Command, Limits, Loop, Mode, Reason, ScaleTo, SetSmClock, SetTpDegrees

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class _Pool:
    """A pool: what it serves, and the modes that its service may run in, at any site and at each."""

    name: str
    service: ServiceInfo
    info: ClassInfo
    cells: tuple[int, ...]
    modes: tuple[Mode, ...]
    offered: Mapping[str, tuple[Mode, ...]]


class Threshold:
    """State of the policy's loops, and their epochs."""

    def __init__(self, config: ThresholdConfig, world: World) -> None:
        self.config, self.world = config, world
        self.pools = tuple(pool for service in world.services for pool in _pools(config, world, service))
        names = [pool.name for pool in self.pools]
        self.fleet = Fleet(world, names, config.starting)
        self._gpus = {(site.name, name): count for site in world.sites for name, count in site.gpus.items()}
        self._workers: dict[str, dict[str, Mapping[Mode, int]]] = {  # by pool and site
            pool.name: {site: {} for site in pool.offered} for pool in self.pools
        }
        self._scale = ScaleThresholdState()
        self._shard: ShardThresholdState | None = None
        self._use_sum, self._use_count = np.zeros(len(names)), 0
        self._kv, self._seqs, self._top, self._floor = (np.zeros(0) for _ in range(4))
        self._limit = _limits([pool.info.limits for pool in self.pools], config.latency_margin)

    def begin(self) -> Plan:
        """Plans the fleet of the first second: what the declared load needs; without one, all that the sites have."""
        view = first_view(self.world)
        self._step_scale(view, [None] * len(self.pools))
        members = loops.first_members(self.fleet, view)
        c = self.config
        steps = {
            Loop.SCALE: (c.scale.period_s, self.scale),
            Loop.SHARD: (c.shard.period_s, self.shard),
            Loop.CLOCK: (c.clock.period_s, self.clock),
        }
        cell_pool = [""] * self.world.cells
        for pool in self.pools:
            for cell in pool.cells:
                cell_pool[cell] = pool.name
        return Plan(
            members,
            loops.plans((pool.name for pool in self.pools), c.routing),
            tuple(cell_pool),
            tuple(LoopControl(str(k), s, step, self.fleet) for k, (s, step) in steps.items() if k in c.loops),
        )

    # -- scale -----------------------------------------------------------------------------------------

    def scale(self, view: FleetView, decisions: Decisions) -> list[SimCommand]:
        use: Sequence[float | None] = [None] * len(self.pools)
        if self._observed(view):
            if not self._use_count:
                self._note_use(view)
            use = (self._use_sum / max(1, self._use_count)).tolist()
            self._use_sum, self._use_count = np.zeros(len(self.pools)), 0
        reason, summary = self._step_scale(view, use)
        decisions.append(loops.decision(view, Loop.SCALE, reason, summary))
        return self.fleet.reweigh(view) if self.config.routing == "weighted" and reason is not Reason.NO_DATA else []

    def _step_scale(self, view: FleetView, use: Sequence[float | None]) -> tuple[Reason, str]:
        """Takes one step of scale; its reason and words."""
        seen = self._seen(view, self.config.scale.period_s)
        pools = tuple(map(self._observation, self.pools, seen, use))
        obs = ScaleThresholdObservation(view.now_s, self._observed(view), self._gpus, pools)
        self._scale, effects = asking.step(scale_threshold.step, self._scale, obs, self.config.scale)
        if effects.rationale.reason is not Reason.NO_DATA:
            self._weigh(seen)
        self._take(effects.commands)
        return effects.rationale.reason, effects.rationale.summary

    def _observed(self, view: FleetView) -> bool:
        return view.now_s >= window_s(self.config.scale.period_s) or any(self.world.declared)

    def _observation(self, pool: _Pool, seen: ClassView, use: float | None) -> ThresholdPool:
        workers = self._workers[pool.name]
        return ThresholdPool(pool.name, seen.demand, seen.profiles, pool.offered, workers, use, seen.failed)

    def _seen(self, view: FleetView, period_s: float) -> list[ClassView]:
        """Observes the pools' classes over a loop's window."""
        return [
            class_view(self.world, pool.service, pool.info, pool.cells, view, period_s, 1, pool.modes)
            for pool in self.pools
        ]

    def _weigh(self, seen: Sequence[ClassView]) -> None:
        """Has an instance weigh in routing what it carries."""
        for number, (pool, own) in enumerate(zip(self.pools, seen, strict=True)):
            for site in self.world.sites:
                for mode, weight in by_capacity(own.profiles).items():
                    self.fleet.weights[number, loops.kind(pool.service, site.name, mode)] = weight

    def _take(self, commands: Sequence[Command]) -> None:
        """Has the fleet become what the steps want."""
        for command in commands:
            if isinstance(command, (ScaleTo, SetTpDegrees)):
                self._workers[command.pool.request_class][command.pool.site] = command.workers
        self.fleet.want(
            {
                (n, loops.kind(pool.service, site, mode)): count
                for n, pool in enumerate(self.pools)
                for site, own in self._workers[pool.name].items()
                for mode, count in own.items()
            }
        )

    # -- shard -----------------------------------------------------------------------------------------

    def shard(self, view: FleetView, decisions: Decisions) -> list[SimCommand]:
        """Chooses another TP degree where one is better, and help for a pool that the last minutes found too small."""
        seen = self._seen(view, self.config.scale.period_s)
        recent = self._seen(view, self.config.shard.period_s)
        self._weigh(recent)
        obs = ShardThresholdObservation(
            view.now_s,
            self._gpus,
            tuple(self._observation(pool, own, None) for pool, own in zip(self.pools, seen, strict=True)),
            {pool.name: max(own.demand.demand_rps) for pool, own in zip(self.pools, recent, strict=True)},
        )
        known = ShardThresholdState(self._scale.modes, {} if self._shard is None else self._shard.better)
        state, effects = asking.step(shard_threshold.step, known, obs, self.config.shard)
        self._shard, self._scale = state, ScaleThresholdState(state.modes)
        self._take(effects.commands)
        why = effects.rationale
        decisions.append(loops.decision(view, Loop.SHARD, why.reason, why.summary))
        return []

    # -- clock -----------------------------------------------------------------------------------------

    def clock(self, view: FleetView, decisions: Decisions) -> list[SimCommand]:
        use = self._note_use(view)
        active = (view.state == SERVING) | (view.state == DRAINING)
        late = (
            (view.worst_ttft_s > self._limit[0][view.pool])
            | (view.worst_tpot_s > self._limit[1][view.pool])
            | (view.worst_e2e_s > self._limit[2][view.pool])
        )
        congested = (view.waiting > 0) | late
        target = next_clocks_mhz(view.mhz, use, congested, self._floor, self._top, self.config.clock)
        up = active & (target > view.mhz + 0.5)
        down = active & (target < view.mhz - 0.5)
        commands: list[SimCommand] = [
            SetSmClock(view.instances[slot].name, float(target[slot])) for slot in np.flatnonzero(up | down).tolist()
        ]
        for reason, which, way in ((Reason.CONGESTED, up, "up"), (Reason.SLACK, down, "down")):
            if commands and (count := int(np.count_nonzero(which))):
                decisions.append(loops.decision(view, Loop.CLOCK, reason, f"{count} instances clocked {way}.", count))
        return commands

    def _note_use(self, view: FleetView) -> Floats:
        """Returns the share of each instance's busiest resource, KV cache or places in the batch; keeps means
        of pools."""
        if len(view.instances) != self._kv.size:
            self._learn(view)
        use: Floats = np.maximum(view.kv_used_tokens / self._kv, view.running / self._seqs)
        serving = view.state == SERVING
        pools = view.pool[serving]
        count = np.bincount(pools, minlength=len(self.pools))
        total = np.bincount(pools, use[serving], minlength=len(self.pools))
        self._use_sum += total / np.maximum(1, count)
        self._use_count += 1
        return use

    def _learn(self, view: FleetView) -> None:
        """Learns what the instances can hold, and their clocks. A place in the view is always for one kind."""
        specs = view.instances
        self._kv = np.array([float(spec.kv_capacity) for spec in specs])
        self._seqs = np.array([float(spec.max_sequences) for spec in specs])
        self._top = np.array([gpu(spec.gpu).f_max for spec in specs], dtype=np.float64)
        own = self.config.clock_floor_mhz
        self._floor = np.array(
            [gpu(spec.gpu).clamp_mhz(gpu(spec.gpu).f_v if own is None else own) for spec in specs], dtype=np.float64
        )


def _pools(config: ThresholdConfig, world: World, service: ServiceInfo) -> list[_Pool]:
    partition, modes = service.partition(config.partition), world.modes(service)
    offered = {site.name: world.modes(service, site.name) for site in world.sites}
    return [
        _Pool(loops.pool_name(world, service, info.name), service, info, cells_of(partition, n), modes, offered)
        for n, info in enumerate(partition.classes)
    ]


def _limits(limits: Sequence[Limits], margin: float) -> tuple[Floats, Floats, Floats]:
    """Returns TTFT, TPOT and E2E at which the clock goes up, for each pool; the last entry is of instances in none."""
    rows = [(own.ttft_s, own.tpot_s, own.e2e_s) for own in limits]
    table = np.array([[math.inf if v is None else v * margin for v in row] for row in rows] + [[math.inf] * 3])
    return table[:, 0], table[:, 1], table[:, 2]

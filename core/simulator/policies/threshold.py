"""Thresholds in the simulator: views to the observations of the steps that live services take too.

The rules are `core.controllers.fleet.scale_threshold`, `shard_threshold` and `core.controllers.clock.threshold_clock`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from core.controllers.clock import threshold_clock
from core.controllers.clock.frequency import ClockState
from core.controllers.fleet import scale_threshold, shard_threshold
from core.controllers.fleet.scale_threshold import ScaleThresholdObservation, ScaleThresholdState, ThresholdPool
from core.controllers.fleet.shard_threshold import ShardThresholdObservation, ShardThresholdState
from core.engine.engine_model import gpu
from core.observations import asking
from core.observations.clock_given import least_mhz, shared, tighter, with_use
from core.observations.demand.class_view import ClassView
from core.observations.demand.loop_windows import window_s
from core.observations.request.routing_weights import by_capacity
from core.simulator.kernel.commands import DRAINING, SERVING, FleetView, SimCommand
from core.simulator.policies import loops
from core.simulator.policies.config import ThresholdConfig
from core.simulator.policies.fleet_changes import Fleet
from core.simulator.policies.loops import Decisions, LoopControl
from core.simulator.policies.view_observations import cells_of, class_view, clock_seen, first_view
from core.simulator.policies.world import ClassInfo, Plan, ServiceInfo, World
from core.types import ClockObservation, Command, Limits, Loop, Mode, Reason, ScaleTo, SetSmClock, SetTpDegrees

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
        by_service = [_pools(config, world, service) for service in world.services]
        self.pools = tuple(pool for own in by_service for pool in own)
        self._names = [[pool.name for pool in own] for own in by_service]
        names = [pool.name for pool in self.pools]
        self.fleet = Fleet(world, names, config.starting, config.change)
        self._gpus = {(site.name, name): count for site in world.sites for name, count in site.gpus.items()}
        self._workers: dict[str, dict[str, Mapping[Mode, int]]] = {  # by pool and site
            pool.name: {site: {} for site in pool.offered} for pool in self.pools
        }
        self._scale = ScaleThresholdState()
        self._shard: ShardThresholdState | None = None
        self._use_sum, self._use_count = np.zeros(len(names)), 0
        self._kv, self._seqs = np.zeros(0), np.zeros(0)
        self._ranges: dict[str, tuple[float, float]] = {}  # of clocks, by type of GPU
        self._limits = [
            tighter(shared(pool.info.limits, config.ttft_share, config.tpot_share), pool.info.thresholds)
            for pool in self.pools
        ]

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
            loops.class_plans(self._names, c.routing, c.engine_queue),
            tuple(cell_pool),
            loops.controls(
                [LoopControl(str(k), s, step, self.fleet) for k, (s, step) in steps.items() if k in c.loops], self.fleet
            ),
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
        facts = (pool.name, seen.demand, seen.profiles, pool.offered, workers, use, seen.failed)
        return ThresholdPool(*facts, pool.service.name, pool.service.share)

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
        self._note_use(view)
        commands: list[SimCommand] = []
        reasons: list[Reason] = []
        for slot in ((view.state == SERVING) | (view.state == DRAINING)).nonzero()[0].tolist():
            kv_usage = float(view.kv_used_tokens[slot] / self._kv[slot])
            obs = with_use(self._clock_observation(view, slot), kv_usage, view.instances[slot].max_sequences)
            before = ClockState(float(view.mhz[slot]))
            _, effects = asking.step(threshold_clock.step, before, obs, self.config.clock)
            own = [command for command in effects.commands if isinstance(command, SetSmClock)]
            commands += own
            reasons += [effects.rationale.reason] * len(own)
        decisions += loops.clocked(view, reasons)
        return commands

    def _clock_observation(self, view: FleetView, slot: int) -> ClockObservation:
        kind, pool = view.instances[slot].gpu, int(view.pool[slot])
        if kind not in self._ranges:
            own, c = gpu(kind), self.config
            lowest = least_mhz(kind, own.f_min, own.f_max, c.clock_floor, c.clock_floor_mhz)
            self._ranges[kind] = lowest, own.f_max
        return clock_seen(view, slot, *self._ranges[kind], self._limits[pool] if pool >= 0 else Limits())

    def _note_use(self, view: FleetView) -> None:
        """Notes the mean share of the busiest resource of each pool's instances: scale goes by it."""
        if len(view.instances) != self._kv.size:
            self._learn(view)
        use: Floats = np.maximum(view.kv_used_tokens / self._kv, view.running / self._seqs)
        serving = view.state == SERVING
        pools = view.pool[serving]
        count = np.bincount(pools, minlength=len(self.pools))
        total = np.bincount(pools, use[serving], minlength=len(self.pools))
        self._use_sum += total / np.maximum(1, count)
        self._use_count += 1

    def _learn(self, view: FleetView) -> None:
        """Learns what the instances can hold. A place in the view is always for one kind."""
        self._kv = np.array([float(spec.kv_capacity) for spec in view.instances])
        self._seqs = np.array([float(spec.max_sequences) for spec in view.instances])


def _pools(config: ThresholdConfig, world: World, service: ServiceInfo) -> list[_Pool]:
    partition, modes = service.partition(config.partition), world.modes(service)
    offered = {site.name: world.modes(service, site.name) for site in world.sites}
    return [
        _Pool(loops.pool_name(world, service, info.name), service, info, cells_of(partition, n), modes, offered)
        for n, info in enumerate(partition.classes)
    ]

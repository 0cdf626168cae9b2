"""Thresholds: the plain policy that others are measured against. Its clock epoch is vectorised over the instances.

scale: capacity for alpha x the peak 5-second rate, more while the busiest resource is above `kv_high`, and no less than
there is unless it is below `kv_low`. shard: another TP degree once it would have drawn a tenth less three epochs in a
row, and more instances when the last window's peak is beyond what there is. clock: see `ThresholdConfig`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from core.algorithms.fleet.energy_mix import MixMode, power_w
from core.engine.engine_model import gpu
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
from core.types import Limits, Loop, Mode, Reason, SetSmClock

Floats = NDArray[np.float64]
_GAIN = 0.1  # share of its power that another TP degree must save
_STREAK = 3  # shard epochs in a row that must find it better


@dataclass(slots=True)
class _Pool:
    """A pool: what it serves, the mode it runs in at each site, and how its instances are used."""

    name: str
    service: ServiceInfo
    info: ClassInfo
    cells: tuple[int, ...]
    modes: dict[str, Mode]  # by site
    given: dict[str, int] = field(default_factory=dict)  # instances by site
    streak: int = 0
    better: Mode | None = None

    @property
    def count(self) -> int:
        return sum(self.given.values())

    def carries_rps(self, seen: ClassView) -> float:
        return sum(count * seen.profiles[self.modes[site]].max_rps for site, count in self.given.items())


class Threshold:
    """State of the policy's loops, and their epochs."""

    def __init__(self, config: ThresholdConfig, world: World) -> None:
        self.config, self.world = config, world
        self.pools = tuple(pool for service in world.services for pool in _pools(config, world, service))
        names = [pool.name for pool in self.pools]
        self.fleet = Fleet(world, names, config.starting)
        self._use_sum, self._use_count = np.zeros(len(names)), 0
        self._kv, self._seqs, self._top, self._floor = (np.zeros(0) for _ in range(4))
        self._limit = _limits([pool.info.limits for pool in self.pools], config.latency_margin)

    def begin(self) -> Plan:
        """Plans the fleet of the first second: what the declared load needs; without one, all that the sites have."""
        view = first_view(self.world)
        known = any(load is not None for load in self.world.declared)
        seen = [self._seen(pool, view, self.config.scale_period_s) for pool in self.pools]
        for pool, found in zip(self.pools, seen, strict=True):
            for site in self.world.sites:
                if modes := self.world.modes(pool.service, site.name):
                    pool.modes[site.name] = min(modes, key=lambda mode: (self._watts(found, mode), mode))
        self._allocate(seen, [self._need_rps(found) if known else math.inf for found in seen])
        members = loops.first_members(self.fleet, view)
        c = self.config
        steps = {
            Loop.SCALE: (c.scale_period_s, self.scale),
            Loop.SHARD: (c.shard_period_s, self.shard),
            Loop.CLOCK: (c.clock_period_s, self.clock),
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
        if view.now_s < window_s(self.config.scale_period_s) and not any(self.world.declared):
            decisions.append(loops.decision(view, Loop.SCALE, Reason.NO_DATA, "No whole window has been seen yet."))
            return []
        if not self._use_count:
            self._note_use(view)
        use = self._use_sum / max(1, self._use_count)
        self._use_sum, self._use_count = np.zeros(len(self.pools)), 0
        before = [pool.count for pool in self.pools]
        seen = [self._seen(pool, view, self.config.scale_period_s) for pool in self.pools]
        need_rps = [
            self._bounded(pool, found, float(use[n]))
            for n, (pool, found) in enumerate(zip(self.pools, seen, strict=True))
        ]
        short = self._allocate(seen, need_rps)
        failed = [
            f"{pool.name}: no mode keeps its limits ({found.failed})"
            for pool, found in zip(self.pools, seen, strict=True)
            if found.failed
        ]
        changed = before != [pool.count for pool in self.pools]
        reason = Reason.INFEASIBLE if failed or short else Reason.HEURISTIC if changed else Reason.NO_CHANGE
        parts = [f"{p.name} {b} -> {p.count} at {u:.0%} use" for p, b, u in zip(self.pools, before, use, strict=True)]
        decisions.append(loops.decision(view, Loop.SCALE, reason, "; ".join([*parts, *short, *failed])))
        return self.fleet.reweigh(view) if self.config.routing == "weighted" else []

    def _need_rps(self, seen: ClassView) -> float:
        return self.config.alpha * max(self.config.floor_rps, *seen.demand.demand_rps)

    def _bounded(self, pool: _Pool, seen: ClassView, use: float) -> float:
        """Returns the rate to have capacity for: the need, and no less than the use of what runs tells."""
        need_rps, has_rps = self._need_rps(seen), pool.carries_rps(seen)
        if use > self.config.kv_high:
            return max(need_rps, has_rps * use / self.config.kv_high)
        return max(need_rps, has_rps) if use > self.config.kv_low else need_rps

    def _allocate(self, seen: Sequence[ClassView], need_rps: Sequence[float]) -> list[str]:
        """Gives GPUs out one instance at a time, each to the pool that lacks the largest share; sites in order.

        Every pool gets at least one while there are GPUs. Returns what pools lack, in words.
        """
        free = {(site.name, name): count for site in self.world.sites for name, count in site.gpus.items()}
        for pool in self.pools:
            pool.given = {}
        waiting, short = set(range(len(self.pools))), []
        while waiting:
            n = min(waiting, key=lambda n: (self.pools[n].carries_rps(seen[n]) / need_rps[n], self.pools[n].count, n))
            pool = self.pools[n]
            room = [s for s, mode in pool.modes.items() if free.get((s, mode.gpu), 0) >= mode.tp]
            if room:
                free[room[0], pool.modes[room[0]].gpu] -= pool.modes[room[0]].tp
                pool.given[room[0]] = pool.given.get(room[0], 0) + 1
            carries_rps = pool.carries_rps(seen[n])
            if carries_rps >= need_rps[n] - 1e-9 or (room and not carries_rps):
                waiting.discard(n)
            elif not room:
                waiting.discard(n)
                short.append(f"{pool.name} needs {need_rps[n]:.3g} requests/s and gets {carries_rps:.3g}")
        self.fleet.want(
            {
                (n, loops.kind(pool.service, site, pool.modes[site])): count
                for n, pool in enumerate(self.pools)
                for site, count in pool.given.items()
            }
        )
        return short

    def _seen(self, pool: _Pool, view: FleetView, period_s: float) -> ClassView:
        modes = self.world.modes(pool.service)
        found = class_view(self.world, pool.service, pool.info, pool.cells, view, period_s, 1, modes)
        number, weights = self.pools.index(pool), by_capacity(found.profiles)
        for site in self.world.sites:
            for mode, weight in weights.items():
                self.fleet.weights[number, loops.kind(pool.service, site.name, mode)] = weight
        return found

    # -- shard -----------------------------------------------------------------------------------------

    def shard(self, view: FleetView, decisions: Decisions) -> list[SimCommand]:
        """Chooses another TP degree where one is better, and help for a pool that the last minutes found too small."""
        parts: list[str] = []
        reason = Reason.NO_CHANGE
        seen = [self._seen(pool, view, self.config.scale_period_s) for pool in self.pools]
        need_rps = [pool.carries_rps(found) for pool, found in zip(self.pools, seen, strict=True)]
        for n, pool in enumerate(self.pools):
            recent_rps = self._need_rps(self._seen(pool, view, self.config.shard_period_s))
            if recent_rps > need_rps[n]:
                parts.append(f"{pool.name} needs {recent_rps:.3g} requests/s before scale comes round")
                reason, need_rps[n] = Reason.HEURISTIC, recent_rps
            if self._better(pool, seen[n]):
                parts.append(f"{pool.name} -> {', '.join(sorted({mode.name for mode in pool.modes.values()}))}")
                reason, need_rps[n] = Reason.HEURISTIC, max(recent_rps, self._need_rps(seen[n]))
            elif pool.streak:
                parts.append(f"{pool.name} may change")
                reason = Reason.NOT_WORTH_IT if reason is Reason.NO_CHANGE else reason
        if reason is Reason.HEURISTIC:
            parts += self._allocate(seen, need_rps)
        decisions.append(loops.decision(view, Loop.SHARD, reason, "; ".join(parts) or "No other TP degree draws less."))
        return []

    def _better(self, pool: _Pool, seen: ClassView) -> bool:
        """Says whether the pool now takes another mode: one that was the best by far in each of the last epochs."""
        if not pool.modes:
            return False
        now = next(iter(pool.modes.values()))
        modes = [m for m in self.world.modes(pool.service) if m.gpu == now.gpu]
        best = min(modes, key=lambda m: (self._watts(seen, m), m))
        if self._watts(seen, best) > (1.0 - _GAIN) * self._watts(seen, now):
            pool.streak, pool.better = 0, None
            return False
        pool.streak = pool.streak + 1 if pool.better == best else 1
        pool.better = best
        if pool.streak < _STREAK:
            return False
        for site in pool.modes:
            if best in self.world.modes(pool.service, site):
                pool.modes[site] = best
        pool.streak, pool.better = 0, None
        return True

    def _watts(self, seen: ClassView, mode: Mode) -> float:
        """Returns the power of as many instances of a mode as the demand needs; infinite where it cannot be served."""
        profile = seen.profiles[mode]
        if profile.max_rps <= 0.0:
            return math.inf
        params = gpu(mode.gpu)
        idle_w = min(profile.power_w, mode.tp * params.loaded_idle_w(params.f_max))
        load_rps = max(seen.demand.demand_rps)
        count = max(1, math.ceil(self.config.alpha * load_rps / profile.max_rps - 1e-9))
        drawn = power_w({mode: count}, {mode: MixMode(profile.max_rps, idle_w, profile.power_w)}, load_rps)
        return math.inf if drawn is None else drawn

    # -- clock -----------------------------------------------------------------------------------------

    def clock(self, view: FleetView, decisions: Decisions) -> list[SimCommand]:
        use = self._note_use(view)
        active = (view.state == SERVING) | (view.state == DRAINING)
        late = (
            (view.worst_ttft_s > self._limit[0][view.pool])
            | (view.worst_tpot_s > self._limit[1][view.pool])
            | (view.worst_e2e_s > self._limit[2][view.pool])
        )
        up = active & ((view.waiting > 0) | (use > self.config.busy_high) | late)
        down = active & ~up & (use < self.config.busy_low)
        lower = np.maximum(view.mhz - self.config.clock_step_mhz, self._floor)
        target = np.where(up, self._top, np.where(down, lower, view.mhz))
        up &= target > view.mhz + 0.5
        down &= target < view.mhz - 0.5
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
    partition = service.partitions[0]
    if config.pools == "per_class":
        return [
            _Pool(loops.pool_name(world, service, info.name), service, info, cells_of(partition, n), {})
            for n, info in enumerate(partition.classes)
        ]
    return [
        _Pool(service.name, service, _strictest(service, partition.classes), tuple(sorted(partition.cell_class)), {})
    ]


def _strictest(service: ServiceInfo, classes: Sequence[ClassInfo]) -> ClassInfo:
    """All classes as one: every request is to keep the tightest limits, but for E2E, which goes with the length."""
    ttft = [c.limits.ttft_s for c in classes if c.limits.ttft_s is not None]
    tpot = [c.limits.tpot_s for c in classes if c.limits.tpot_s is not None]
    e2e = [c.limits.e2e_s for c in classes]
    longest = None if None in e2e else max(value for value in e2e if value is not None)
    return ClassInfo(service.name, Limits(min(ttft, default=None), min(tpot, default=None), longest))


def _limits(limits: Sequence[Limits], margin: float) -> tuple[Floats, Floats, Floats]:
    """Returns TTFT, TPOT and E2E at which the clock goes up, for each pool; the last entry is of instances in none."""
    rows = [(own.ttft_s, own.tpot_s, own.e2e_s) for own in limits]
    table = np.array([[math.inf if v is None else v * margin for v in row] for row in rows] + [[math.inf] * 3])
    return table[:, 0], table[:, 1], table[:, 2]

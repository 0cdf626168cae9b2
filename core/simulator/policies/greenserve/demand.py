"""The inputs of GreenServe's loops: the recent load, its lengths, and profiles at these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from core.algorithms.fleet.arrival_replay import Arrivals
from core.algorithms.fleet.fleet_problem import Objective
from core.algorithms.fleet.sharing import NodeGpus
from core.algorithms.fleet.site_mix import Offer, SiteMode
from core.observations.clock_given import ProfileClocks, pace_limits
from core.observations.demand.carbon_ahead import worths
from core.observations.demand.loop_windows import first_busy_s, recent_stretches
from core.observations.fleet import right_size_given
from core.observations.fleet.right_size_given import (
    AHEAD_STEPS,
    ClassLengths,
    Ended,
    PoolLoad,
    SeenLengths,
    load_rps,
)
from core.observations.fleet.site_room import room
from core.observations.limits import LONG_ANSWER
from core.observations.mode_profile import Lengths, mean_context
from core.policy.knobs import WHOLE
from core.simulator.kernel.commands import STRETCH_S, FleetView
from core.simulator.policies.greenserve.config import GreenserveConfig
from core.simulator.policies.loops import pool_name
from core.simulator.policies.view_observations import site_ahead
from core.simulator.policies.world import CellLoad, PartitionInfo, ServiceInfo, World
from core.types import Limits, PoolKey


def _mean(loads: Sequence[CellLoad], otherwise: Lengths) -> Lengths:
    total = sum(load.rps for load in loads)
    if not total:
        return otherwise
    return Lengths(
        sum(load.rps * load.prompt_tokens for load in loads) / total,
        sum(load.rps * load.output_tokens for load in loads) / total,
    )


def _partition(service: ServiceInfo) -> PartitionInfo:
    """Returns the partition of one class where the service has it; else all classes of its first one share the pool."""
    return next((own for own in service.partitions if own.name == WHOLE), service.partitions[0])


class ServiceDemand:
    """A service; all its classes share a pool, which keeps the limits of each."""

    def __init__(self, config: GreenserveConfig, world: World, service: ServiceInfo) -> None:
        self.config, self.world, self.service = config, world, service
        partition = _partition(service)
        self._classes = partition.classes
        self._class_of_cell = dict(sorted(partition.cell_class.items()))
        self.cells = list(self._class_of_cell)
        declared = {c: load for c, load in enumerate(world.declared) if load is not None and c in self._class_of_cell}
        self.declared_rps = sum(load.minute_rps or load.rps for load in declared.values())
        self.expected_rps = sum(load.rps for load in declared.values() if load.minute_rps is None)  # said, not seen
        classes = tuple(
            _mean([own for c, own in declared.items() if self._class_of_cell[c] == k], Lengths(*info.typical_tokens))
            for k, info in enumerate(self._classes)
        )
        loads = [(own.rps, own.rps * own.prompt_tokens, own.rps * own.output_tokens) for own in declared.values()]
        context_tokens = mean_context(*np.array(loads).reshape(-1, 3).T)
        pool = replace(_mean(list(declared.values()), classes[0]), context_tokens=context_tokens)
        self._seen = SeenLengths(pool, classes)
        self._load = self._at_seen()
        self._room = self.room(world.nodes)
        self.first_s: float | None = None  # when the first request of the look-back came; None: none did

    @property
    def key(self) -> PoolKey:
        """The pool, at any site: its class's, or the service's where several share it."""
        several = len(self._classes) > 1
        return PoolKey("", self.service.name if several else pool_name(self.world, self.service, self._classes[0].name))

    @property
    def lengths(self) -> Lengths:
        """Means of all requests, as now seen."""
        return self._seen.pool

    @property
    def load(self) -> PoolLoad:
        """The requests that come to the pool, at the lengths now seen."""
        return self._load

    def _at_seen(self) -> PoolLoad:
        classes = zip(self._classes, self._seen.classes, strict=True)
        return PoolLoad(
            self.service.model,
            self.service.engine,
            self._seen.pool,
            tuple(ClassLengths(info.limits, own) for info, own in classes),
            self.config.chunk_tokens,
            ProfileClocks(self.config.clock_step_mhz, self.config.clock_floor, self.config.clock_floor_mhz),
            self.config.clock_wait_share if self.config.by_deadlines else 0.0,
            self.config.clock_shares if self.config.split is not None and self.config.split.by_rates else None,
        )

    @property
    def cell_limits(self) -> dict[int, Limits]:
        """The limits that clocks by deadlines keep, by cell."""
        c = self.config
        of = [
            pace_limits(info.limits, LONG_ANSWER * own.output_tokens, c.clock_wait_share, c.clock_margin)
            for info, own in zip(self._classes, self._seen.classes, strict=True)
        ]
        return {cell: of[number] for cell, number in self._class_of_cell.items()}

    def look(self, view: FleetView) -> tuple[float, ...]:
        """Returns the load of the look-back, in requests/s; takes in the lengths of what came."""
        seen = self._recent(view, self.config.look_s)
        self._seen = self._seen.renewed(seen.sum(axis=1, dtype=float), list(self._class_of_cell.values()))
        self._load = self._at_seen()
        first, _ = recent_stretches(view.now_s, self.config.look_s)
        self.first_s = first_busy_s(max(0, first), seen[:, :, 0].sum(axis=0))
        declared_rps = self.declared_rps if self.declared_rps and view.now_s < STRETCH_S else None
        return load_rps(seen[:, :, 0].sum(axis=0).tolist(), declared_rps)

    def came(self, view: FleetView) -> Arrivals:
        """Returns its last requests."""
        rows = view.came()
        limit_s = np.full(self.world.cells, np.nan)
        for cell, number in self._class_of_cell.items():
            own_s = self._classes[number].limits.ttft_s
            limit_s[cell] = np.inf if own_s is None else own_s
        due_s = limit_s[rows[:, 2].astype(np.int64)]
        mine = ~np.isnan(due_s)
        return Arrivals(rows[mine, 0], rows[mine, 1], due_s[mine])

    def ended(self, view: FleetView) -> Ended:
        """Returns its requests that ended since the last look."""
        rows = view.ended()
        limits = np.full((self.world.cells, 3), np.nan)
        for cell, number in self._class_of_cell.items():
            own = self._classes[number].limits
            limits[cell] = [np.inf if limit is None else limit for limit in (own.ttft_s, own.tpot_s, own.e2e_s)]
        limits = limits[rows[:, 1].astype(np.int64)]
        mine = ~np.isnan(limits[:, 0])
        return Ended(rows[mine, 0], limits[mine, 0], (rows[mine, 2:5] > limits[mine]).any(axis=1))

    def recent_rps(self, view: FleetView, span_s: float) -> float | None:
        """Returns the largest of the last stretch and of the mean over `span_s`; None: nothing was seen yet."""
        seen = self._recent(view, span_s).sum(axis=0)[:, 0] / STRETCH_S
        return max(float(seen[-1]), float(seen.mean())) if seen.size else None

    def _recent(self, view: FleetView, span_s: float) -> NDArray[np.int64]:
        first, end = recent_stretches(view.now_s, span_s)
        found: NDArray[np.int64] = view.arrived[self.cells, max(0, first) : end]
        return found

    def room(self, nodes: Sequence[NodeGpus]) -> dict[SiteMode, int]:
        """Returns the instances of each kind that there is room for on some nodes."""
        sites = [site.name for site in self.world.sites]
        kinds = [(site, mode) for site in sites for mode in self.world.modes(self.service, site)]
        return {(site, mode): room(nodes, site, mode) for site, mode in kinds}

    def offers(self, now_s: float) -> tuple[Offer, ...]:
        """Offers every kind of instance at every site."""
        ahead = [
            site_ahead(self.world, site, now_s, self.config.ahead_step_s, AHEAD_STEPS) for site in self.world.sites
        ]
        weights = worths(ahead, Objective(self.config.objective))
        return right_size_given.offers(self.load, self._room, weights)

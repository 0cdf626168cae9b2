"""The inputs of GreenServe's loops: the recent load, its lengths, and profiles at these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from core.algorithms.fleet.fleet_problem import Objective
from core.algorithms.fleet.sharing import NodeGpus
from core.algorithms.fleet.site_mix import Offer, SiteMode
from core.observations import right_size_given
from core.observations.carbon_ahead import worths
from core.observations.clock_given import ProfileClocks
from core.observations.mode_profile import Lengths, mean_context
from core.observations.right_size_given import AHEAD_STEP_S, AHEAD_STEPS, ClassLengths, PoolLoad
from core.observations.site_room import room
from core.simulator.kernel.commands import STRETCH_S, FleetView
from core.simulator.policies.greenserve.config import GreenserveConfig
from core.simulator.policies.view_observations import site_ahead
from core.simulator.policies.world import CellLoad, ServiceInfo, World
from core.types import Limits

_ENOUGH = 64  # requests whose mean lengths are trusted over those before


def _mean(loads: Sequence[CellLoad], otherwise: Lengths) -> Lengths:
    total = sum(load.rps for load in loads)
    if not total:
        return otherwise
    return Lengths(
        sum(load.rps * load.prompt_tokens for load in loads) / total,
        sum(load.rps * load.output_tokens for load in loads) / total,
    )


def _recent_lengths(seen: NDArray[np.int64], otherwise: Lengths) -> Lengths:
    """Returns mean lengths of what came by (cell, stretch, [requests, prompt tokens, output tokens]), when it is
    enough."""
    requests, prompt, output = seen.sum(axis=(0, 1)).tolist()
    return Lengths(prompt / requests, max(1.0, output / requests)) if requests >= _ENOUGH else otherwise


class ServiceDemand:
    """A service; all its classes share a pool, which keeps the limits of each."""

    def __init__(self, config: GreenserveConfig, world: World, service: ServiceInfo) -> None:
        self.config, self.world, self.service = config, world, service
        partition = service.partitions[0]
        self._classes = partition.classes
        self._class_of_cell = dict(sorted(partition.cell_class.items()))
        self.cells = list(self._class_of_cell)
        declared = {c: load for c, load in enumerate(world.declared) if load is not None and c in self._class_of_cell}
        self.declared_rps = sum(load.minute_rps or load.rps for load in declared.values())
        self._seen = [Lengths(*info.typical_tokens) for info in self._classes]
        for k in range(len(self._classes)):
            self._seen[k] = _mean([own for c, own in declared.items() if self._class_of_cell[c] == k], self._seen[k])
        self.lengths = _mean(list(declared.values()), self._seen[0])
        loads = [(own.rps, own.rps * own.prompt_tokens, own.rps * own.output_tokens) for own in declared.values()]
        self._context_tokens = mean_context(*np.array(loads).reshape(-1, 3).T)

    @property
    def load(self) -> PoolLoad:
        """The requests that come to the pool, at the lengths now seen."""
        classes = zip(self._classes, self._seen, strict=True)
        return PoolLoad(
            self.service.model,
            self.service.engine,
            replace(self.lengths, context_tokens=self._context_tokens),
            tuple(ClassLengths(info.limits, own) for info, own in classes),
            self.config.chunk_tokens,
            ProfileClocks(self.config.clock_step_mhz, self.config.clock_floor, self.config.clock_floor_mhz),
        )

    def planned(self, tpot_share: float, offers: Sequence[Offer]) -> Limits:
        """Returns what the profiles of offers are to keep."""
        return self.load.planned(offers, self.config.wait_share, tpot_share)

    def look(self, view: FleetView) -> NDArray[np.float64]:
        """Returns the requests a second in each stretch of the look-back; takes in the lengths of what came."""
        seen = self._recent(view, self.config.look_s)
        for k in range(len(self._classes)):
            own = [n for n, c in enumerate(self.cells) if self._class_of_cell[c] == k]
            self._seen[k] = _recent_lengths(seen[own], self._seen[k])
        self.lengths = _recent_lengths(seen, self.lengths)
        came = seen.sum(axis=1, dtype=float)
        if came[:, 0].sum() >= _ENOUGH:
            self._context_tokens = mean_context(*came.T)
        return np.asarray(seen[:, :, 0].sum(axis=0) / STRETCH_S)

    def recent_rps(self, view: FleetView, span_s: float) -> float | None:
        """Returns the largest of the last stretch and of the mean over `span_s`; None: nothing was seen yet."""
        seen = self._recent(view, span_s).sum(axis=0)[:, 0] / STRETCH_S
        return max(float(seen[-1]), float(seen.mean())) if seen.size else None

    def _recent(self, view: FleetView, span_s: float) -> NDArray[np.int64]:
        now = int(view.now_s / STRETCH_S + 1e-9)
        found: NDArray[np.int64] = view.arrived[self.cells, max(0, now - round(span_s / STRETCH_S)) : now]
        return found

    def room(self, nodes: Sequence[NodeGpus]) -> dict[SiteMode, int]:
        """Returns the instances of each kind that there is room for on some nodes."""
        sites = [site.name for site in self.world.sites]
        kinds = [(site, mode) for site in sites for mode in self.world.modes(self.service, site)]
        return {(site, mode): room(nodes, site, mode) for site, mode in kinds}

    def offers(self, now_s: float) -> tuple[Offer, ...]:
        """Offers every kind of instance at every site."""
        ahead = [site_ahead(self.world, site, now_s, AHEAD_STEP_S, AHEAD_STEPS) for site in self.world.sites]
        weights = worths(ahead, Objective(self.config.objective))
        return right_size_given.offers(self.load, self.room(self.world.nodes), weights)

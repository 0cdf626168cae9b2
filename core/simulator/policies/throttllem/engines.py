"""The engines of a service under throttLL'eM: where the first ones stand, and what sizes they may have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle

from core.controllers.fleet.autoscale import AutoscaleConfig, EngineSize
from core.engine.overheads import cold_start_s
from core.simulator.kernel.simulated import InstanceSpec, SimulationError
from core.simulator.policies.throttllem.config import ThrottllemConfig
from core.simulator.policies.throttllem.router import Served
from core.simulator.policies.view_observations import class_view, first_view
from core.simulator.policies.world import ClassInfo, ServiceInfo, SiteInfo, World
from core.types import Limits, Mode

TBT_S = 0.2  # the paper's limit of the mean time between tokens (V-A)


class ServiceEngines:
    """`served` is what the router is to know of the service."""

    def __init__(self, config: ThrottllemConfig, world: World, number: int, service: ServiceInfo) -> None:
        self._config, self._world, self._service = config, world, service
        partition = service.partitions[0]
        limits = _strictest(config, partition.classes)
        self.pool = service.name
        self.cells = tuple(sorted(partition.cell_class))
        modes, info = world.modes(service), ClassInfo(service.name, limits)
        seen = class_view(world, service, info, self.cells, first_view(world), config.period_s, 1, modes)
        self._peak_rps = max(seen.demand.demand_rps)
        self._max_rps = {mode: config.max_rps.get(mode.tp, profile.max_rps) for mode, profile in seen.profiles.items()}
        e2e_s = {cell: partition.classes[k].limits.e2e_s for cell, k in partition.cell_class.items()}
        self.served = Served(number, limits.tpot_s or TBT_S, e2e_s, seen.lengths)

    def sizes(self, site: str) -> AutoscaleConfig:
        """Lists sizes of the first GPU type there, rising in what they carry: one that carries no more than a smaller
        one is left out.

        Raises:
            SimulationError: None carries anything.
        """
        modes = self._world.modes(self._service, site)
        cached = self._config.starting.weights_cached
        spawn_s = cold_start_s(self._world.overheads, weights_cached=cached, model_name=self._service.model)
        found: list[EngineSize] = []
        for mode in (mode for mode in modes if mode.gpu == modes[0].gpu):  # sorted by TP degree
            if self._max_rps[mode] > (found[-1].max_rps if found else 0.0):
                found.append(EngineSize(mode, self._max_rps[mode], spawn_s))
        if not found:
            raise self._error(f"no engine carries any load at {site}: give larger tp_choices, or max_rps")
        return AutoscaleConfig(tuple(found), self._config.period_s)

    def first(self) -> list[tuple[str, InstanceSpec]]:
        """Returns (site, instance) of each engine; the sites take turns.

        Raises:
            SimulationError: `tp` is not among the sizes, or there is no room for `engines` of them.
        """
        sites = [site for site in self._world.sites if self._world.modes(self._service, site.name)]
        sizes = {site.name: self._first_size(site.name) for site in sites}
        room = {site.name: _room(site, sizes[site.name].mode) for site in sites}
        found: list[tuple[str, InstanceSpec]] = []
        carried_rps = 0.0
        for name in cycle(sizes):
            if not any(room.values()) or self._enough(len(found), carried_rps):
                break
            spec = self._world.template(self._service, name, sizes[name].mode)
            if room[name] and spec is not None:
                room[name] -= 1
                carried_rps += sizes[name].max_rps
                found.append((name, replace(spec, name=f"{spec.name}-{len(found) + 1}")))
        if len(found) < (self._config.engines or 1):
            raise self._error(f"room for {len(found)} engines only: lower engines or tp, or give the sites more GPUs")
        return found

    def _enough(self, count: int, carried_rps: float) -> bool:
        if self._config.engines is not None:
            return count >= self._config.engines
        return count > 0 and carried_rps >= self._peak_rps - 1e-9

    def _first_size(self, site: str) -> EngineSize:
        sizes = self.sizes(site).sizes
        if self._config.tp is None:
            return sizes[-1]
        for size in sizes:
            if size.mode.tp == self._config.tp:
                return size
        known = ", ".join(str(size.mode.tp) for size in sizes)
        raise self._error(f"tp {self._config.tp} is not among the sizes at {site}: {known}")

    def _error(self, message: str) -> SimulationError:
        return SimulationError(f"policy {self._config.name}, service {self._service.name}: {message}")


def _room(site: SiteInfo, mode: Mode) -> int:
    """Counts the engines that fit on the site's nodes."""
    whole, rest = divmod(site.gpus.get(mode.gpu, 0), site.gpus_per_node)
    return whole * (site.gpus_per_node // mode.tp) + rest // mode.tp


def _strictest(config: ThrottllemConfig, classes: Sequence[ClassInfo]) -> Limits:
    """Returns the limits of all classes together; without any limit between tokens, the paper's."""
    tpot = [c.limits.tpot_s for c in classes if c.limits.tpot_s is not None]
    e2e = [c.limits.e2e_s for c in classes if c.limits.e2e_s is not None]
    return Limits(None, config.tbt_s or min(tpot, default=TBT_S), min(e2e, default=None))

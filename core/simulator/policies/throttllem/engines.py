"""The engines of a service under throttLL'eM: where the first ones stand, and what sizes they may have."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from core.controllers.fleet.autoscale import AutoscaleConfig, EngineSize
from core.engine.overheads import cold_start_s
from core.observations.autoscale_given import sizes
from core.observations.request_configs import tbt_limit_s
from core.simulator.kernel.simulated import InstanceSpec, SimulationError
from core.simulator.policies.node_occupancy import NodeOccupancy, shape_of
from core.simulator.policies.throttllem.config import ThrottllemConfig
from core.simulator.policies.throttllem.router import Served
from core.simulator.policies.view_observations import class_view, first_view
from core.simulator.policies.world import ClassInfo, ServiceInfo, World
from core.types import Limits

_EPS = 1e-9


class ServiceEngines:
    """`served` is what the router is to know of the service; `first` are its engines to begin with."""

    def __init__(self, config: ThrottllemConfig, world: World, number: int, service: ServiceInfo) -> None:
        self._config, self._world, self._service = config, world, service
        partition = service.partitions[0]
        tbt_s = tbt_limit_s(config.tbt_s, (c.limits for c in partition.classes))
        e2e = [c.limits.e2e_s for c in partition.classes if c.limits.e2e_s is not None]
        limits = Limits(None, tbt_s, min(e2e, default=None))
        self.pool = service.name
        self.cells = tuple(sorted(partition.cell_class))
        modes, info = world.modes(service), ClassInfo(service.name, limits)
        seen = class_view(world, service, info, self.cells, first_view(world), config.period_s, 1, modes)
        self._peak_rps = max(seen.demand.demand_rps)
        self._rates = {mode: profile.max_rps for mode, profile in seen.profiles.items()}
        e2e_s = {cell: partition.classes[k].limits.e2e_s for cell, k in partition.cell_class.items()}
        self.first: list[tuple[str, InstanceSpec]] = []  # (site, instance) of each engine to begin with
        self._carried_rps = 0.0
        self.served = Served(number, tbt_s, e2e_s, seen.lengths)
        sites = [site.name for site in world.sites if world.modes(service, site.name)]
        self._next = deque((site, self._first_size(site)) for site in sites)

    def sizes(self, site: str) -> AutoscaleConfig:
        """Lists sizes of the first GPU type there, rising in what they carry: one that carries no more than a smaller
        one is left out.

        Raises:
            SimulationError: None carries anything.
        """
        modes = self._world.modes(self._service, site)
        cached = self._config.starting.weights_cached
        spawn_s = cold_start_s(self._world.overheads, weights_cached=cached, model_name=self._service.model)
        rates = {mode: self._rates[mode] for mode in modes}
        found = sizes(rates, self._config.max_rps, self._config.tp, dict.fromkeys(modes, spawn_s))
        if modes[0].gpu not in found:
            raise self._error(f"no engine carries any load at {site}: give larger tp_choices, or max_rps")
        return AutoscaleConfig(found[modes[0].gpu], self._config.period_s)

    @property
    def turn(self) -> tuple[float, str]:
        """Its place among services that take engines by turns: the one of which the smallest part is carried first."""
        return self._carried_rps / max(self._peak_rps, _EPS), self.pool

    def take(self, occupancy: NodeOccupancy) -> bool:
        """Takes one more engine at the next of its sites that has room; False: it has enough, or there is none.

        Raises:
            SimulationError: There is no room for the engines that it needs at least.
        """
        if self._enough():
            return False
        for _ in range(len(self._next)):
            site, size = self._next[0]
            self._next.rotate(-1)
            spec = self._world.template(self._service, site, size.mode)
            if spec is not None and (node := occupancy.find(shape_of(spec))) is not None:
                occupancy.take(node, size.mode.tp)
                self._carried_rps += size.max_rps
                self.first.append((site, replace(spec, name=f"{spec.name}-{len(self.first) + 1}")))
                return True
        if len(self.first) < (self._config.engines or 1):
            raise self._error(
                f"room for {len(self.first)} engines only: lower engines or tp, or give the sites more GPUs"
            )
        return False

    def _enough(self) -> bool:
        if self._config.engines is not None:
            return len(self.first) >= self._config.engines
        return len(self.first) > 0 and self._carried_rps >= self._peak_rps - _EPS

    def _first_size(self, site: str) -> EngineSize:
        """Returns the size to begin with: the largest in an equal part of the site's GPUs for each of its services."""
        own = self.sizes(site).sizes
        gpu = own[0].mode.gpu
        services = {spec.model for spec in self._world.templates if (spec.site, spec.gpu) == (site, gpu)}
        part = self._world.site(site).gpus.get(gpu, 0) // len(services)
        return next((size for size in reversed(own) if size.mode.tp <= part), own[0])

    def _error(self, message: str) -> SimulationError:
        return SimulationError(f"policy {self._config.name}, service {self._service.name}: {message}")


def take_first(services: Sequence[ServiceEngines], world: World) -> None:
    """Takes the first engines of all services, who share the nodes: one at a time for the one that is carried least.

    Raises:
        SimulationError: There is no room for the engines of one.
    """
    occupancy, taking = NodeOccupancy(world.sites), list(services)
    while taking:
        service = min(taking, key=lambda service: service.turn)
        if not service.take(occupancy):
            taking.remove(service)

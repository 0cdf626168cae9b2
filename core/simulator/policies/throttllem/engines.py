"""The engines of a service under throttLL'eM: where the first ones stand, and what sizes they may have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from core.algorithms.fleet.sharing import NodeGpus, ServiceNeed
from core.controllers.fleet.autoscale import AutoscaleConfig
from core.engine.overheads import cold_start_s
from core.observations.demand.class_view import ClassView, partition_option
from core.observations.fleet.autoscale_given import bases, largest_tp, profiled, rates_rps, sizes
from core.observations.limits import batch_limits
from core.observations.step_configs import shared_out_config
from core.policy.knobs import USUAL_S, WHOLE, WHOLE_CLASS
from core.policy.presets import PRESETS
from core.simulator.kernel.commands import FleetView
from core.simulator.kernel.simulated import InstanceSpec, SimulationError
from core.simulator.policies import gpu_cut
from core.simulator.policies.throttllem.config import ThrottllemConfig
from core.simulator.policies.throttllem.router import Served
from core.simulator.policies.view_observations import class_view, first_view
from core.simulator.policies.world import ClassInfo, ServiceInfo, World
from core.types import Loop, Mode


class ServiceEngines:
    """`served` is what the router is to know of the service; `first` are its engines to begin with."""

    def __init__(self, config: ThrottllemConfig, world: World, number: int, service: ServiceInfo) -> None:
        self._config, self._world, self._service = config, world, service
        partition = service.partitions[0]
        limits = batch_limits(config.tbt_s, (own.limits for own in partition.classes))
        assert limits.tpot_s is not None
        self._info = ClassInfo(WHOLE_CLASS, limits)
        self.pool = service.name
        self.cells = tuple(sorted(partition.cell_class))
        self._first_view = first_view(world)
        self._declared = any(load is not None for load in (world.declared[c] for c in self.cells if world.declared))
        self._first = self._seen(self._first_view)
        own_limits = {cell: partition.classes[k].limits for cell, k in partition.cell_class.items()}
        self.first: list[InstanceSpec] = []  # of each engine to begin with
        self.served = Served(number, limits.tpot_s, own_limits, self._first.lengths)
        self.sizes(self._first_view)  # there is one for each site

    def sizes(self, view: FleetView) -> dict[tuple[str, str], AutoscaleConfig]:
        """Lists by site and type of GPU the sizes of an engine, rising in what they carry: one that carries no more
        than a smaller one is left out. Requests are as long as declared, or else as those now seen.

        Raises:
            SimulationError: None carries anything at a site.
        """
        seen = self._first if self._declared else self._seen(view)
        rates, known = rates_rps(seen), bases(seen)
        found: dict[tuple[str, str], AutoscaleConfig] = {}
        cached = self._config.starting.weights_cached
        spawn_s = cold_start_s(self._world.overheads, weights_cached=cached, model_name=self._service.model)
        for site in self._world.sites:
            if not (modes := self._world.modes(self._service, site.name)):
                continue
            there = {mode: rates[mode] for mode in modes}
            of_gpu = sizes(there, self._config.max_rps, self._config.tp, dict.fromkeys(modes, spawn_s), known)
            if not of_gpu:
                raise self._error(f"no engine carries any load at {site.name}: give larger tp_choices, or max_rps")
            found |= {(site.name, gpu): AutoscaleConfig(own, self._config.period_s) for gpu, own in of_gpu.items()}
        return found

    @property
    def first_view(self) -> ClassView:
        """All classes as one, at the declared load."""
        return self._first

    def _seen(self, view: FleetView) -> ClassView:
        look_back_s = max(USUAL_S[Loop.SCALE], self._config.period_s)
        modes = self._world.modes(self._service)
        return class_view(self._world, self._service, self._info, self.cells, view, look_back_s, 1, modes)

    def take(self, nodes: Iterable[NodeGpus]) -> None:
        """Takes the first engines on nodes that are left to the service: as many as its declared peak needs.

        Raises:
            SimulationError: There is no room for the engines that it needs at least.
        """
        engines, knobs = self._config.engines, PRESETS[self._config.name].knobs
        option = profiled(partition_option(WHOLE, [self._first]), self._config.max_rps)
        config = shared_out_config(knobs, largest_tp(option, self._config.tp))
        if engines is not None:  # their load, in place of the declared one
            most_rps = max(own.max_rps for (_, mode), own in option.profiles.items() if mode.tp <= config.tp)
            demand = replace(option.classes[0], demand_rps=(engines * most_rps / config.alpha,))
            option = replace(option, classes=(demand,))
        found = gpu_cut.first_instances(self._world, self._service, nodes, option, config)
        found = sorted(found, key=lambda spec: -spec.tp)[: len(found) if engines is None else engines]
        if len(found) < (engines or 1):
            raise self._error(f"room for {len(found)} engines only: lower engines or tp, or give the sites more GPUs")
        self.first = [replace(spec, name=f"{spec.name}-{n}") for n, spec in enumerate(found, start=1)]

    def need(self) -> ServiceNeed:
        """Returns what it has, and lacks of its declared peak."""
        instances = Counter((spec.site, WHOLE_CLASS, Mode(spec.gpu, spec.tp)) for spec in self.first)
        knobs = replace(PRESETS[self._config.name].knobs, tp=self._config.tp)
        return gpu_cut.need(self._world, self._service, instances, [self._first], knobs)

    def _error(self, message: str) -> SimulationError:
        return SimulationError(f"policy {self._config.name}, service {self._service.name}: {message}")


def take_first(services: Sequence[ServiceEngines], world: World) -> None:
    """Takes the first engines of all services, one after another within what the others leave.

    Raises:
        SimulationError: There is no room for the engines of one.
    """
    for service in sorted(services, key=lambda own: own.pool):
        service.take(world.claims(own.need() for own in services).left(service.pool))

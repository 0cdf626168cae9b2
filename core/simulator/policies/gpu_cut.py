"""Cuts the GPUs of a service whose paper has one partition and no loop over instances, by the step that cuts those of
live services."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from core.algorithms.fleet.sharing import NodeGpus, Place, ServiceNeed
from core.controllers.fleet import shared_out
from core.controllers.fleet.shared_out import NodeView, SharedOutConfig
from core.observations import asking
from core.observations.demand.class_view import ClassView
from core.observations.fleet.service_needs import service_need
from core.observations.fleet.shared_out_given import shared_out_observation
from core.policy.knobs import USUAL_S, Knobs
from core.simulator.kernel.simulated import InstanceSpec, SimulationError
from core.simulator.policies.world import ServiceInfo, World
from core.types import CarbonPlan, Effects, Loop, Mode, PartitionOption


def cut(
    world: World,
    service: ServiceInfo,
    nodes: Iterable[NodeGpus],
    option: PartitionOption,
    config: SharedOutConfig,
    before: CarbonPlan | None = None,
    now_s: float = 0.0,
    period_s: float = USUAL_S[Loop.CARBON],
) -> tuple[CarbonPlan | None, Effects]:
    """Asks for the cut of those GPUs that may serve. `before`: the one in force."""
    views = offered(world, service, nodes)
    return asking.step(shared_out.step, before, shared_out_observation(now_s, period_s, views, option), config)


def offered(world: World, service: ServiceInfo, nodes: Iterable[NodeGpus]) -> list[NodeView]:
    """Returns those nodes on which the service may have instances."""
    kinds = {(spec.site, spec.gpu) for spec in world.templates if spec.model == service.model}
    return [NodeView(own.site, own.gpu, own.gpus) for own in nodes if (own.site, own.gpu) in kinds]


def first_instances(
    world: World, service: ServiceInfo, nodes: Iterable[NodeGpus], option: PartitionOption, config: SharedOutConfig
) -> list[InstanceSpec]:
    """Returns the kinds of the first instances, one for each, by site.

    Raises:
        SimulationError: No GPU of the nodes can serve.
    """
    plan, effects = cut(world, service, nodes, option, config)
    if plan is None:
        raise SimulationError(f"{service.name}: {effects.rationale.summary}")
    found = []
    for (site, _, mode), count in sorted(plan.workers.items()):
        spec = world.template(service, site, mode)
        if spec is not None:
            found += [spec] * count
    return found


def need(
    world: World,
    service: ServiceInfo,
    instances: Mapping[tuple[str, str, Mode], int],
    classes: Sequence[ClassView],
    knobs: Knobs,
) -> ServiceNeed:
    """Returns what a service has and lacks. `instances`: that it has, by site, class and mode."""
    gpus, workers = Counter[Place](), Counter[tuple[str, Mode]]()
    for (site, name, mode), count in instances.items():
        gpus[site, "", mode.gpu] += count * mode.tp
        workers[name, mode] += count

    def sites_of(mode: Mode) -> list[str]:
        return [site.name for site in world.sites if world.template(service, site.name, mode)]

    return service_need(service.name, gpus, workers, classes, sites_of, knobs, service.share)

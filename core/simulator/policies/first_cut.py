"""Cuts the GPUs of a service whose paper has one partition and no loop over instances, by the step that cuts those of
live services."""

from __future__ import annotations

from collections.abc import Iterable

from core.algorithms.fleet.sharing import NodeGpus
from core.controllers.fleet import shared_out
from core.controllers.fleet.shared_out import NodeView, SharedOutConfig
from core.observations import asking
from core.observations.fleet.shared_out_given import shared_out_observation
from core.policy.knobs import USUAL_S
from core.simulator.kernel.simulated import InstanceSpec, SimulationError
from core.simulator.policies.world import ServiceInfo, World
from core.types import Loop, PartitionOption


def first_instances(
    world: World, service: ServiceInfo, nodes: Iterable[NodeGpus], option: PartitionOption, config: SharedOutConfig
) -> list[InstanceSpec]:
    """Returns the kinds of the first instances, one for each, by site.

    Raises:
        SimulationError: No GPU of the nodes can serve.
    """
    offered = {(spec.site, spec.gpu) for spec in world.templates if spec.model == service.model}
    views = [NodeView(own.site, own.gpu, own.gpus) for own in nodes if (own.site, own.gpu) in offered]
    obs = shared_out_observation(0.0, USUAL_S[Loop.CARBON], views, option)
    plan, effects = asking.step(shared_out.step, None, obs, config)
    if plan is None:
        raise SimulationError(f"{service.name}: {effects.rationale.summary}")
    found = []
    for (site, _, mode), count in sorted(plan.workers.items()):
        spec = world.template(service, site, mode)
        if spec is not None:
            found += [spec] * count
    return found

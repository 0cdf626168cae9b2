"""throttLL'eM, and the two that it is measured against: Triton's plain batching, and a clock rule after ReTail.

throttllem: each request is admitted by projection, to the least loaded engine that can take it; at every admission that
engine's clock becomes the lowest that keeps all limits; every 10 s its TP degree follows the load, by shadow instances.
triton: none of that, an engine of fixed size at its top clock that batches whatever comes. retail: no admission, no
autoscaler, and ReTail's regression for the clock. Each part is a knob of its own; the decisions are the core's.

The paper runs one engine on one server. Here a service may have several (V-F: orthogonal), each with its own batch,
clock and size; they share the load equally.
"""

from __future__ import annotations

from core.simulator.kernel.simulated import SimulationError
from core.simulator.policies.throttllem.autoscale_loop import Autoscaler, EngineSlot
from core.simulator.policies.throttllem.config import READS, ThrottllemConfig, of
from core.simulator.policies.throttllem.engines import ServiceEngines, take_first
from core.simulator.policies.throttllem.router import ThrottleRouter
from core.simulator.policies.world import Member, Plan, PoolPlan, World

__all__ = ["READS", "ThrottllemConfig", "begin", "check", "of"]


def check(config: ThrottllemConfig, world: World) -> None:
    """Raises SimulationError: a service has no objective that the policy goes by."""
    for service in world.services:
        if words := config.lacks_pace(own.limits for own in service.partitions[0].classes):
            raise SimulationError(f"policy {config.name}, slo of service {service.name}: {words}")


def begin(config: ThrottllemConfig, world: World) -> Plan:
    """Plans the first engines, of the size to begin with; the router unless nothing is to be judged; the loop.

    Raises:
        SimulationError: No size of engine carries anything, there is no room for the engines, or a service has no
            objective that the policy goes by.
    """
    check(config, world)
    members: list[Member] = []
    engines: list[EngineSlot] = []
    cell_pool = [""] * world.cells
    services = [ServiceEngines(config, world, n, service) for n, service in enumerate(world.services)]
    take_first(services, world)
    for service in services:
        for spec in service.first:
            engines.append(EngineSlot(spec.name, len(members), spec.site, service))
            members.append(Member(spec, service.pool))
        for cell in service.cells:
            cell_pool[cell] = service.pool
    router = ThrottleRouter(config, [service.served for service in services]) if config.judges else None
    loop = Autoscaler(config, world, engines, router)
    return Plan(
        tuple(members),
        tuple(PoolPlan(service.pool, "least_loaded") for service in services),
        tuple(cell_pool),
        (loop,) if config.judges or config.autoscale else (),
        router,
    )

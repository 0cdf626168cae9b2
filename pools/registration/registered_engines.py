"""Engines that registered themselves: where one belongs in the fleet. Who asks are gateways, and what measures them.

Needs no Django: gateways have none.
"""

from __future__ import annotations

from collections.abc import Iterable

from core.engine import engine_params
from pools import wire


def class_of(service: wire.FleetService, request_class: str | None) -> str | None:
    """The class a worker is for: its own, or where it names none or one that is no more, the largest."""
    if any(c.name == request_class for c in service.classes):
        return request_class
    return max(service.classes, key=lambda c: c.rank).name if service.classes else None


def pools_of(service: wire.FleetService, request_class: str | None, site: str | None) -> list[wire.FleetPool]:
    """Returns the service's pools that a worker may belong to, by id."""
    name = class_of(service, request_class)
    pools = [pool for pool in service.pools if pool.request_class == name and site in (None, pool.site)]
    return sorted(pools, key=lambda pool: pool.id)


def model_of(service: wire.FleetService, own: str | None) -> tuple[str, str]:
    """Returns the model of an engine that names its `own`, and its shape, which only the service's model brings."""
    return (service.model, service.shape) if own in (None, service.model) else (own, "")


def instance_of(worker: wire.WorkerRegistration, services: Iterable[wire.FleetService]) -> wire.InstanceState | None:
    """Returns the worker as an agent would report it, with nothing measured.

    None: the fleet has changed since it registered, and has no place for it.
    """
    service = next((s for s in services if s.name == worker.service), None)
    pools = [] if service is None else pools_of(service, worker.request_class, worker.site)
    gpu = engine_params.GPUS.get(worker.gpu_type)
    if service is None or not pools or gpu is None:
        return None
    model, shape = model_of(service, worker.model)
    return wire.InstanceState(
        uid=worker.uid,
        pool_id=pools[0].id,
        url=worker.url,
        state="ready",
        model=model,
        engine=worker.engine or service.engine,
        gpu_type=worker.gpu_type,
        tp=worker.tp,
        sm_clock_mhz=None,  # nobody here sets it: taken to be the top clock
        min_mhz=gpu.f_min,
        max_mhz=gpu.f_max,
        shape=shape,
    )

"""Makes the rules of an instance's queue for every policy: its order, how fast waiting makes a request shorter, and
who may have to give way."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from core.algorithms.queue.ssjf import measured_aging
from core.engine.engine_model import engine_model
from core.observations.demand.class_view import TYPICAL_TOKENS
from core.simulator.kernel.simulated import InstanceSpec, Scheduling
from core.simulator.policies.world import PartitionInfo, ServiceInfo
from core.types import Limits

_BATCH = 16  # sequences: in between a lone request and a full batch


@dataclass(slots=True)
class Served:
    """The load of instances: the limits of its classes, and what one predicted length in a hundred exceeds."""

    limits: list[Limits] = field(default_factory=list)
    long_tokens: float = 0.0


def served_by_model(services: Iterable[tuple[ServiceInfo, PartitionInfo]]) -> dict[str, Served]:
    """Returns what the instances of each model serve, where requests are cut so: theirs are all of its services."""
    found: dict[str, Served] = defaultdict(Served)
    for service, partition in services:
        own = found[service.model]
        own.limits += [info.limits for info in partition.classes]
        own.long_tokens = max(own.long_tokens, service.long_tokens)
    return found


def queue_of(
    spec: InstanceSpec,
    order: str,
    aging_tokens_per_s: float | None,
    served: Served,
    preempts_s: float = 0.0,
    margin_s: float = 0.0,
) -> Scheduling:
    """Returns the rules of an instance's queue: one of the kernel's orders, with the aging that gateways have.

    Args:
        aging_tokens_per_s: The knob. None: by the long requests and the limits.
        preempts_s: How often running requests may have to give way; first come, first served, nobody has.
        margin_s: By how much those that wait must be ahead then; tokens in an order by tokens without aging.
    """
    token_s, prefill_token_s = token_times_s(spec)
    aging = aging_of(order, aging_tokens_per_s, served.long_tokens, served.limits)
    return Scheduling(
        order,
        aging=aging,
        token_s=token_s,
        prefill_token_s=prefill_token_s,
        preempts_s=0.0 if order == "fcfs" else preempts_s,
        margin=margin_s * (aging or 1.0),  # the kernel's keys of SJF are in tokens, those of gateways in s
    )


def token_times_s(spec: InstanceSpec) -> tuple[float, float]:
    """Returns the times of an output token and of a token to prefill, in s, at the instance's clock."""
    if spec.costs is not None:
        return spec.costs.base_s + _BATCH * spec.costs.decode_s, spec.costs.prefill_token_s
    engine = engine_model(spec.model, spec.gpu, spec.tp, spec.engine)
    prompt = spec.tokens_per_iteration
    token_s = engine.iteration(spec.mhz, (), _BATCH, _BATCH * sum(TYPICAL_TOKENS)).t_s
    return token_s, engine.iteration(spec.mhz, [(prompt, 0)]).t_s / prompt


def aging_of(order: str, aging_tokens_per_s: float | None, long_tokens: float, limits: Iterable[Limits]) -> float:
    """Returns the aging of an instance's queue, in tokens/s, as gateways have it.

    Args:
        aging_tokens_per_s: The knob. None: by the long ones and the limits.
        long_tokens: What one predicted length in a hundred exceeds.
        limits: Of the service's classes.
    """
    if order != "sjf":
        return 0.0
    return measured_aging(long_tokens, limits) if aging_tokens_per_s is None else aging_tokens_per_s

"""Replicas of models on shared devices: the part of a device that each has, its KV cache, and how sensitive it is.

A device is a GPU, and models on it share it: each has a fixed part of its compute and bandwidth (`gpu_share`, see
`device_parts`), and all have one clock. AlpaServe's own runtime interleaves models in time, which
is kinder to a model whose neighbours have nothing to do.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from core.algorithms.placement.sensitivity import Operator, operators
from core.engine.engine_model import EngineModel, engine_model
from core.engine.steady_state import batch_point, largest_batch
from core.observations.clock_given import latency_weights, mean_iteration
from core.observations.mode_profile import Lengths
from core.simulator.kernel.simulated import InstanceSpec
from core.simulator.policies.muserve.device_parts import claim, parts
from core.simulator.policies.muserve.placement_search import Needs

_LEAST_REQUESTS = 8  # of mean lengths, that a model's KV cache is to hold


@dataclass(frozen=True, slots=True)
class Slot:
    """A replica of service `service` on devices, all of which it takes part of."""

    service: int
    devices: tuple[str, ...]
    template: InstanceSpec


@dataclass(frozen=True, slots=True)
class Replica:
    """A slot as an instance, and the rate that it is to carry."""

    slot: Slot
    spec: InstanceSpec
    rps: float


def least_tokens(need: Needs) -> float:
    """Returns the tokens of the least KV cache that a replica must have."""
    return _LEAST_REQUESTS * (need.prompt_tokens + need.output_tokens)


def model_bytes(template: InstanceSpec, need: Needs) -> float:
    """Returns the bytes of one replica: its weights and the least KV cache."""
    engine = engine_of(template)
    return engine.weight_bytes + least_tokens(need) * engine.constants.kv_bytes


def engine_of(spec: InstanceSpec, share: float = 1.0) -> EngineModel:
    """Returns the engine model of an instance that has a share of its GPUs."""
    return engine_model(spec.model, spec.gpu, spec.tp, spec.engine, share)


def sized(slots: Sequence[Slot], needs: Sequence[Needs], device_bytes: float) -> list[Replica] | None:
    """Returns replicas, numbered by service; None where the models do not fit with their least KV caches.

    What memory is left goes to caches, by the same parts as the rest of the device.
    """
    count = Counter(slot.service for slot in slots)
    use = [_use(slot.template, needs[slot.service], count[slot.service]) for slot in slots]
    least_bytes = [model_bytes(slot.template, needs[slot.service]) / slot.template.tp for slot in slots]
    on: dict[str, list[int]] = defaultdict(list)
    for k, slot in enumerate(slots):
        for device in slot.devices:
            on[device].append(k)
    gpus = Counter[int]()
    for slot in slots:
        gpus[slot.service] += len(slot.devices)
    claims = [claim(use[k], needs[slot.service].share, gpus[slot.service]) for k, slot in enumerate(slots)]
    given = {device: dict(zip(own, parts([claims[k] for k in own]), strict=True)) for device, own in on.items()}
    free = {device: device_bytes * (1.0 + 1e-9) - sum(least_bytes[k] for k in own) for device, own in on.items()}
    if min(free.values(), default=0.0) < 0.0:
        return None
    numbered: Counter[int] = Counter()
    found = []
    for k, slot in enumerate(slots):
        need, template = needs[slot.service], slot.template
        share = min(given[device][k] for device in slot.devices)
        engine = engine_of(template, share)
        spare = template.tp * share * min(free[d] for d in slot.devices)
        room = int(least_tokens(need) + spare / engine.constants.kv_bytes)
        if template.kv_capacity_tokens is not None:
            room = min(room, template.kv_capacity_tokens)
        numbered[slot.service] += 1
        spec = replace(
            template,
            name=f"{template.name}-{numbered[slot.service]}",
            mhz=engine.gpu_params.f_max,
            kv_capacity_tokens=room,
            gpu_share=share,
        )
        found.append(Replica(slot, spec, need.rps / count[slot.service]))
    return found


def _use(spec: InstanceSpec, need: Needs, replicas: int) -> float:
    """Part of whole devices that a replica's share of the load keeps busy, at the top clock."""
    engine = engine_of(spec)
    batch = min(float(spec.max_sequences), largest_batch(engine, need.prompt_tokens, need.output_tokens))
    point = batch_point(engine, spec.mhz, max(1.0, batch), need.prompt_tokens, need.output_tokens)
    return need.rps / replicas / point.rps(max(1.0, batch), need.output_tokens)


def scored(spec: InstanceSpec, need: Needs, rps: float) -> tuple[Operator, ...]:
    """Returns a replica's operators at the mean batch of its load; their memory is with the least KV cache."""
    return operators(engine_of(spec), mean_iteration(_lengths(need), _batch(spec, need, rps)), least_tokens(need))


def weights(spec: InstanceSpec, need: Needs, rps: float) -> dict[str, float]:
    """Returns Algorithm 3's weights of latencies, at the mean batch of a replica's load."""
    return latency_weights(engine_of(spec, spec.gpu_share), _lengths(need), _batch(spec, need, rps))


def _lengths(need: Needs) -> Lengths:
    return Lengths(need.prompt_tokens, need.output_tokens)


def _batch(spec: InstanceSpec, need: Needs, rps: float) -> float:
    """Returns the mean batch under a rate (see steady_state)."""
    engine, output = engine_of(spec, spec.gpu_share), max(1.0, need.output_tokens)
    steady = engine.steady_state(rps, need.prompt_tokens, output, spec.mhz)
    return min(float(spec.max_sequences), max(1.0, steady.batch))


def clock_domains(slots: Sequence[Slot]) -> tuple[tuple[int, ...], ...]:
    """Indices of slots that must have one clock: they share a device, or a third one shares one with both."""
    domain = {device: device for slot in slots for device in slot.devices}

    def root(device: str) -> str:
        while domain[device] != device:
            device = domain[device]
        return device

    for slot in slots:
        for device in slot.devices[1:]:
            domain[root(device)] = root(slot.devices[0])
    found: dict[str, list[int]] = defaultdict(list)
    for k, slot in enumerate(slots):
        found[root(slot.devices[0])].append(k)
    return tuple(tuple(own) for own in found.values())

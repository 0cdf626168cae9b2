"""Builds what DynamoLLM's scale and shard loops are given: the forecasts of classes, and what comes to their pools."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from core.algorithms.fleet.hand_down import ClassLoad
from core.algorithms.placement.node_layouts import Layout
from core.controllers.fleet.scale_dynamo import ScaleDynamoObservation
from core.controllers.fleet.shard_dynamo import ShardPool
from core.engine.corrections import configuration
from core.engine.engine_model import UnknownConfiguration, engine_model
from core.engine.load_profile import LoadProfile
from core.engine.measured import basis
from core.engine.overhead_table import OverheadTable, start_key
from core.engine.overheads import Overheads, cold_start_s, weight_bytes
from core.observations.demand.class_view import ClassView, Declared
from core.observations.limits import present_limits
from core.observations.load_profiles import load_profile
from core.observations.mode_profile import Lengths, mode_profile
from core.types import ChangeKind, Limits, Mode, PoolKey


@dataclass(frozen=True, slots=True)
class ClassAhead:
    """A class with the forecast of its load.

    `rates`: the peak of each coming step, in prompt tokens a second; None: unknown. `basis`: what they rest on.
    `limits`: what plans keep.
    """

    name: str
    rates: tuple[float | None, ...]
    basis: str
    lengths: Lengths
    limits: Limits


@dataclass(frozen=True, slots=True)
class PoolLoad:
    """The requests that come to a pool, of its own class and of smaller ones that hand some on, at the coming peak.

    `limits`: the strictest of the classes that are present.
    """

    rps: float
    lengths: Lengths
    limits: Limits


@dataclass(frozen=True, slots=True)
class ServerKind:
    """The servers of a cluster, and what runs on them: `best` is one instance that fills a server."""

    model: str
    engine: str
    best: Mode


def class_ahead(
    own: ClassView, limits: Limits, rates: tuple[float | None, ...], basis: str, declared: Declared | None
) -> ClassAhead:
    """Returns a class with the forecast of its load.

    Args:
        limits: What its plans keep, also where no mode keeps them.
        rates: The forecast, in prompt tokens a second; None: unknown.
        basis: What it rests on.
        declared: The load that is expected of the class; while its rate counts, the forecast is no less.
    """
    least = declared.rps * declared.lengths.prompt_tokens if declared is not None else 0.0
    if least > 0.0:
        rates = tuple(max(least, rate or 0.0) for rate in rates)
    # The paper profiles by mean lengths: all requests of a class count as equally long.
    return ClassAhead(own.demand.name, rates, basis, replace(own.lengths, context_tokens=None), limits)


def server_rps(servers: ServerKind, own: ClassView) -> float:
    """Returns the most requests/s of a class that a server carries at its best; within no limits where it cannot keep
    them at all. 0: nobody knows what it carries.
    """
    profile = own.profiles.get(servers.best)
    if profile is not None and profile.max_rps > 0.0:
        return profile.max_rps
    try:
        return mode_profile(servers.model, servers.engine, servers.best, own.lengths.rounded, Limits()).max_rps
    except UnknownConfiguration:
        return 0.0


def spilled(classes: Sequence[str], there: Collection[str]) -> dict[str, float]:
    """Returns what pools hand on where no scale loop says so: a class that has no instances hands on everything.

    Args:
        classes: Their names, smallest first; the largest has nobody to hand on to.
        there: Those that have instances.
    """
    return dict.fromkeys((name for name in classes[:-1] if name not in there), 1.0) if there else {}


def starts_s(
    table: OverheadTable, overheads: Overheads, servers: ServerKind, weights_cached: bool, look_s: float
) -> tuple[float, float]:
    """Returns the seconds from the moment for which scale asks to the first request, of a warm and a cold start.

    Args:
        table: What starts took; else `overheads` count, a start being cold where no server stands ready.
        weights_cached: The weights lie in the cluster.
        look_s: How often a loop looks: its turn may be later by as much.
    """
    best = servers.best

    def took_s(warm: bool) -> float:
        found_s = published_start_s(overheads, servers.model, warm=warm, weights_cached=weights_cached)
        return table.get(start_key(servers.model, best.gpu, best.tp, warm=warm), found_s)

    return look_s + took_s(True), look_s + took_s(False)


def published_start_s(overheads: Overheads, model: str, *, warm: bool, weights_cached: bool) -> float:
    """Returns the seconds that a start takes while none has been measured; of a model that nobody knows, those of
    table V's.
    """
    try:
        return cold_start_s(overheads, warm=warm, weights_cached=weights_cached, model_name=model)
    except UnknownConfiguration:
        return cold_start_s(overheads, warm=warm, weights_cached=weights_cached)


def steps_ahead(epoch_s: float, cold_start_s: float, step_s: float) -> int:
    """Returns how many steps scale looks ahead: to the end of the epoch that a cold start can still be ready for."""
    return math.ceil((2 + cold_start_s // epoch_s) * epoch_s / step_s) + 1


def cluster_key(name: str) -> PoolKey:
    """Returns the key of a class over all sites: scale counts its servers wherever they are."""
    return PoolKey("cluster", name)


def class_load(own: ClassAhead, server_rps: float) -> ClassLoad:
    """Returns a class as scale sizes it. `server_rps`: the most of its requests/s that a server carries."""
    most = own.lengths.rounded.prompt_tokens * server_rps
    return ClassLoad(cluster_key(own.name), own.rates, most, basis=own.basis)


def scale_observation(
    now_s: float,
    step_s: float,
    servers: ServerKind,
    classes: Sequence[ClassLoad],
    nodes: Mapping[PoolKey, int],
    nodes_available: int,
    starts_s: tuple[float, float],
) -> ScaleDynamoObservation:
    """Returns what a turn of scale is given. `starts_s`: what a warm and a cold start take."""
    best = servers.best
    known = basis(configuration(servers.model, best.gpu, best.tp, servers.engine))
    return ScaleDynamoObservation(now_s, step_s, best, tuple(classes), dict(nodes), nodes_available, *starts_s, known)


def pool_loads(classes: Sequence[ClassAhead], shares: Sequence[float]) -> list[PoolLoad]:
    """Returns what comes to the pool of each class, smallest class first.

    Args:
        shares: What each pool hands on to that of the next larger class, 0 to 1.
    """
    names = [own.name for own in classes]
    limits = present_limits([(own.name, own.limits) for own in classes], dict(zip(names, shares, strict=True)))
    tokens = [own.rates[0] or 0.0 for own in classes]
    found = []
    for pool, own in enumerate(classes):
        parts = _flow(pool, shares)
        rps = sum(
            part * rate / one.lengths.prompt_tokens for part, rate, one in zip(parts, tokens, classes, strict=True)
        )
        found.append(PoolLoad(rps, _mean_lengths(pool, classes, parts, tokens), limits[own.name]))
    return found


def profiles(model: str, engine: str, modes: Sequence[Mode], lengths: Lengths) -> dict[Mode, LoadProfile]:
    """Returns the profile of one instance of each mode that can hold such requests."""
    found = {mode: load_profile(model, engine, mode, lengths.rounded) for mode in modes}
    return {mode: profile for mode, profile in found.items() if profile is not None}


def loads_of_servers(
    servers: ServerKind,
    loads: Mapping[str, PoolLoad],
    pools: Mapping[PoolKey, int],
    beside: Mapping[PoolKey, Mapping[Mode, int]],
) -> dict[PoolKey, PoolLoad]:
    """Returns what comes to the servers of each pool that has any: those of a class, and what stands beside them, share
    its load by what they carry within the limits.

    Args:
        loads: What comes to each class.
        pools: The servers of each pool.
        beside: The instances that stand beside them.
    """
    alike: Counter[str] = Counter()
    for key, count in pools.items():
        alike[key.request_class] += count
    others: dict[str, float] = defaultdict(float)
    for key, workers in beside.items():
        if workers and key.request_class in loads:
            others[key.request_class] += _in_servers(servers, workers, loads[key.request_class])
    found = {}
    for key, count in pools.items():
        if count and (load := loads.get(key.request_class)) is not None:
            part = count / (alike[key.request_class] + others[key.request_class])
            found[key] = replace(load, rps=load.rps * part)
    return found


def _in_servers(servers: ServerKind, workers: Mapping[Mode, int], load: PoolLoad) -> float:
    """Returns how many servers at their best carry as much as some instances do."""
    known = profiles(servers.model, servers.engine, (servers.best, *workers), load.lengths)
    most = {mode: max(0.0, float(own.top().within(load.limits)[0])) for mode, own in known.items()}
    best = most.get(servers.best, 0.0)
    return sum(count * most.get(mode, 0.0) for mode, count in workers.items()) / best if best > 0.0 else 0.0


def shard_pool(
    key: PoolKey,
    servers: ServerKind,
    nodes: Mapping[str, Layout],
    load: PoolLoad,
    known: Mapping[Mode, LoadProfile],
    start_s: float,
    change: ChangeKind = ChangeKind.IN_PLACE,
    one_by_one: bool = False,
) -> ShardPool:
    """Returns a pool as shard is given it.

    Args:
        load: What comes to these nodes.
        known: The profile of one instance, by mode; those of other GPUs or too large for a server are left out.
        start_s: Time that a start takes.
        change: How instances become others.
        one_by_one: In place each becomes one, as live.

    Raises:
        UnknownConfiguration: The engine model does not know what a server runs at its best.
    """
    worker = engine_model(servers.model, servers.best.gpu, servers.best.tp, servers.engine)
    own = {mode.tp: one for mode, one in known.items() if mode.gpu == servers.best.gpu and mode.tp <= servers.best.tp}
    weights, in_place = weight_bytes(servers.model), change is ChangeKind.IN_PLACE
    return ShardPool(
        key=key,
        model=servers.model,
        gpu=servers.best.gpu,
        nodes=nodes,
        demand_rps=(load.rps,),
        limits=load.limits,
        profiles=own,
        weight_bytes=weights,
        room_bytes=(worker.kv_capacity_tokens * worker.constants.kv_bytes + weights) / worker.tp,
        start_s=start_s,
        gpus_per_node=servers.best.tp,
        change=change,
        drain_s=0.0 if in_place and not one_by_one else _longest_s(own, load.lengths),
        one_by_one=in_place and one_by_one,
    )


def _flow(pool: int, shares: Sequence[float]) -> list[float]:
    """Returns the part of each class that ends in a pool, when each pool hands its share on to the next."""
    found = [0.0] * len(shares)
    passing = 1.0
    for n in range(pool, -1, -1):
        found[n] = (1.0 - shares[pool]) * passing
        passing *= shares[n - 1] if n else 0.0
    return found


def _mean_lengths(pool: int, classes: Sequence[ClassAhead], parts: Sequence[float], tokens: Sequence[float]) -> Lengths:
    """Returns the means of what comes to a pool; its own class's if nothing does."""
    present = classes[: pool + 1]
    rates = [rate / own.lengths.prompt_tokens for rate, own in zip(tokens, present, strict=False)]
    weights = np.array([part * rate for part, rate in zip(parts, rates, strict=False)])
    if weights.sum() <= 0.0:
        return classes[pool].lengths
    means = np.array([[own.lengths.prompt_tokens, own.lengths.output_tokens] for own in present])
    return Lengths(*(weights @ means / weights.sum()).tolist())


def _longest_s(own: Mapping[int, LoadProfile], lengths: Lengths) -> float:
    """Returns the seconds of a mean request on the slowest of some instances, at the top clock and its largest load."""
    return max(
        (float(one.ttft_s[-1, -1] + lengths.output_tokens * one.tpot_s[-1, -1]) for one in own.values()), default=0.0
    )

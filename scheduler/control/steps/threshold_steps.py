"""Scale and shard by thresholds on the live fleet: rows and agents' samples to the observations of the core's steps.

Both loops look at every class over all sites. What runs at a site says the class's mode there; of a site without
instances the loops remember it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import connection

from core.controllers.fleet import scale_threshold, shard_threshold
from core.controllers.fleet.scale_threshold import ScaleThresholdObservation, ScaleThresholdState, ThresholdPool
from core.controllers.fleet.shard_threshold import ShardThresholdObservation, ShardThresholdState
from core.controllers.fleet.shared_out import NodeView
from core.observations import asking, step_configs
from core.observations.demand.class_view import partition_option
from core.observations.demand.loop_windows import window_s
from core.observations.recording import RecordingError, recall, record
from core.observations.request import routing_weights
from core.ports import EngineLimits
from core.types import ClassDemand, Loop, Mode, PoolKey
from pools.models import Pool
from scheduler.control import active_operations, service_policy
from scheduler.control.snapshot import snapshot
from scheduler.control.snapshot.offered_nodes import offered_nodes
from scheduler.control.snapshot.recorded_demand import DemandWindow, arrivals
from scheduler.control.snapshot.snapshot import ClassNow
from scheduler.control.steps.policy_steps import LoopTurn, Result, nothing_to_do
from scheduler.control.turn_context import TurnContext
from scheduler.json_values import to_json, workers_from_json
from scheduler.models import ControllerState
from telemetry.models import DemandSketch

STATE, SINCE = "state", "since_s"  # in a loop's state: of the core's step; when scale had its first turn

# The mean share of the busiest resource by class, of the samples that tell both.
USE_SQL = """
SELECT classes.name, avg(greatest(samples.kv_usage, samples.running / %(sequences)s::float))
FROM telemetry_instancesample samples
JOIN pools_instance instances ON instances.id = samples.instance_id
JOIN pools_pool pools ON pools.id = instances.pool_id
JOIN pools_requestclass classes ON classes.id = pools.request_class_id
WHERE pools.service_id = %(service)s AND samples.at >= %(start)s AND samples.at < %(end)s
      AND samples.state = 'ready' AND samples.kv_usage IS NOT NULL AND samples.running IS NOT NULL
GROUP BY classes.name
"""


def scale(turn: LoopTurn) -> Result:
    """Counts the instances of each class by its peak, and by how busy those that there are have been."""
    context, period_s = turn.context, turn.context.times.scale_s
    pools = _pools(context)
    if not pools:
        return nothing_to_do()
    seen = arrivals(context.service, context.now, period_s)
    classes = snapshot.classes_now(context, context.service.partition, seen, 1)
    nodes, now_s = offered_nodes(context), context.now.timestamp()
    since_s = float(turn.state.get(SINCE, now_s))
    obs = ScaleThresholdObservation(
        now_s,
        _is_observed(context, seen, since_s),
        _gpus(nodes),
        _observed(context, classes, pools, nodes, use(context, period_s)),
    )
    config = step_configs.scale_threshold_config(context.knobs, context.tuning, period_s)
    state, effects = asking.step(scale_threshold.step, ScaleThresholdState(_modes(context)), obs, config)
    weights = {
        PoolKey(pool.site.name, own.request_class.name): routing_weights.by_capacity(own.profiles)
        for own in classes
        for pool in pools
        if pool.request_class_id == own.request_class.pk
    }
    return Result(effects, {STATE: record(state), SINCE: since_s, service_policy.WEIGHTS: to_json(weights)})


def shard(turn: LoopTurn) -> Result:
    """Changes a TP degree where another has drawn less for long, and helps classes that need more of late."""
    context, times = turn.context, turn.context.times
    pools = _pools(context)
    if not pools:
        return nothing_to_do()
    partition = context.service.partition
    classes = snapshot.classes_now(context, partition, arrivals(context.service, context.now, times.scale_s), 1)
    recent = snapshot.classes_now(context, partition, arrivals(context.service, context.now, times.shard_s), 1)
    nodes = offered_nodes(context)
    own = _observed(context, classes, pools, nodes, {})
    recent_rps = {name: max(demand.demand_rps) for name, demand in _demands(context, recent).items()}
    obs = ShardThresholdObservation(
        context.now.timestamp(), _gpus(nodes), own, {pool.name: recent_rps[pool.name] for pool in own}
    )
    config = step_configs.shard_threshold_config(context.knobs, context.tuning, times.shard_s)
    before = _recalled(turn.state)
    better = before.better if isinstance(before, ShardThresholdState) else {}
    known = ShardThresholdState(_modes(context), better)
    state, effects = asking.step(shard_threshold.step, known, obs, config)
    return Result(effects, {STATE: record(state)})


def _pools(context: TurnContext) -> list[Pool]:
    """Returns the pools that the loops may decide on, by site: these are used in the order of their names."""
    pinned = {pin.pool_id for pin in context.pins}
    own = [pool for pool in context.pools if pool.gpu_budget and pool.pk not in pinned]
    return sorted(own, key=lambda pool: pool.site.name)


def _observed(
    context: TurnContext,
    classes: Sequence[ClassNow],
    pools: Sequence[Pool],
    nodes: Iterable[NodeView],
    used: Mapping[str, float],
) -> tuple[ThresholdPool, ...]:
    """Makes the observation of each class that has pools to decide on, smallest first."""
    largest: Counter[tuple[str, str]] = Counter()
    for node in nodes:
        largest[node.site, node.gpu] = max(largest[node.site, node.gpu], node.gpus)
    demands, found = _demands(context, classes), []
    for own in classes:
        mine = [pool for pool in pools if pool.request_class_id == own.request_class.pk]
        if not mine:
            continue
        modes = sorted(mode for mode in own.profiles if mode.tp <= context.knobs.tp)
        name = own.request_class.name
        found.append(
            ThresholdPool(
                name=name,
                demand=demands[name],
                profiles=own.profiles,
                offered={
                    pool.site.name: tuple(mode for mode in modes if mode.tp <= largest[pool.site.name, mode.gpu])
                    for pool in mine
                },
                workers={pool.site.name: workers_from_json(pool.workers) for pool in mine},
                use=used.get(name),
                failed=own.failed,
                service=context.service.name,
                share=context.service.share,
            )
        )
    return tuple(found)


def _demands(context: TurnContext, classes: Sequence[ClassNow]) -> dict[str, ClassDemand]:
    """Returns the demand of each class, less what its pinned pools carry."""
    option = partition_option(context.service.partition.name, classes)
    left = active_operations.without_pinned_load(option, context.pins)
    return {own.demand.name: own.demand for own in classes} | {demand.name: demand for demand in left.classes}


def _gpus(nodes: Iterable[NodeView]) -> dict[tuple[str, str], int]:
    found: Counter[tuple[str, str]] = Counter()
    for node in nodes:
        found[node.site, node.gpu] += node.gpus
    return dict(found)


def use(context: TurnContext, period_s: float) -> dict[str, float]:
    """Returns how much of their busiest resource the instances of each class used in the last period, in the mean.

    A class of which no engine reported both its KV cache and its batch has no figure.
    """
    names: dict[str, Any] = {
        "service": context.service.pk,
        "start": context.now - timedelta(seconds=period_s),
        "end": context.now,
        "sequences": context.knobs.max_num_seqs or EngineLimits().max_num_seqs,
    }
    with connection.cursor() as cursor:
        cursor.execute(USE_SQL, names)
        return {name: float(share) for name, share in cursor.fetchall()}


def _is_observed(context: TurnContext, seen: DemandWindow, since_s: float) -> bool:
    """Says whether the load is known: declared, on record from before the window, or looked at for as long as that."""
    if (seen.declared is not None and seen.declared.rps) or context.now.timestamp() - since_s >= window_s(
        context.times.scale_s
    ):
        return True
    start = datetime.fromtimestamp(seen.start_s, UTC)
    return DemandSketch.objects.filter(service=context.service.name, start_at__lt=start).exists()


def _modes(context: TurnContext) -> dict[str, dict[str, Mode]]:
    """Returns by class and site the mode that the loops last had there: only shard changes one that scale knows."""
    kinds = [context.state_kind(loop) for loop in (Loop.SCALE, Loop.SHARD)]
    rows = dict(ControllerState.objects.filter(service=context.service, kind__in=kinds).values_list("kind", "value"))
    found: dict[str, dict[str, Mode]] = {}
    for kind in kinds:
        state = _recalled(rows.get(kind, {}))
        for name, modes in ({} if state is None else state.modes).items():
            found.setdefault(name, {}).update(modes)
    return found


def _recalled(stored: Mapping[str, Any]) -> ScaleThresholdState | ShardThresholdState | None:
    """Reads what a step of these left; None: another step's state, or another version's, whose memory is lost."""
    try:
        found = recall(stored.get(STATE))
    except RecordingError:
        return None
    return found if isinstance(found, (ScaleThresholdState, ShardThresholdState)) else None

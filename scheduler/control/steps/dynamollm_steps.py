"""DynamoLLM's scale and shard epochs on the live fleet: rows to their observations, their commands to workers of pools.

The paper has one cluster of servers that are all alike; `dynamo_servers` says which they are here. Where scale runs,
other GPUs stay idle. Scale counts servers for each class over all sites, and takes them where they are. A server is
named by its place in its pool, since it only matters what runs on it. What a pool hands on to the next larger class is
published, and gateways carry it out.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from django.db.models import F

from core.algorithms.placement.node_layouts import Layout
from core.controllers.fleet import scale_dynamo, shard_dynamo
from core.controllers.fleet.explain import workers_text
from core.controllers.fleet.pool_loop import pool_name
from core.engine.engine_model import UnknownConfiguration
from core.observations import asking, step_configs
from core.observations.demand.loop_windows import MAX_WINDOW_S
from core.observations.fleet import dynamo_given, dynamo_servers
from core.observations.fleet.dynamo_given import ClassAhead, ServerKind
from core.observations.fleet.dynamo_servers import Servers
from core.observations.limits import class_limits, planned
from core.predictors import load_template
from core.predictors.load_template import LoadHistory, TemplateConfig
from core.types import (
    ChangeKind,
    Effects,
    ForwardLoad,
    Loop,
    Mode,
    PoolDecision,
    PoolKey,
    ReshardNode,
    ScaleTo,
    SetTpDegrees,
)
from pools.models import Pool
from scheduler.control import loop_times, service_policy
from scheduler.control.snapshot import change_kinds, measured_overheads, snapshot
from scheduler.control.snapshot.offered_nodes import offered_nodes, servers
from scheduler.control.snapshot.recorded_demand import DemandWindow, arrivals, declared_load
from scheduler.control.snapshot.snapshot import ClassNow
from scheduler.control.steps.policy_steps import LoopTurn, Result, nothing_to_do
from scheduler.control.turn_context import TurnContext
from scheduler.json_values import pool_key, workers_from_json
from scheduler.models import ControllerState

LOADS = "loads"  # kind of the ControllerState that has the templates of load
TEMPLATE = TemplateConfig()


# -- scale -----------------------------------------------------------------------------------------


def scale(turn: LoopTurn) -> Result:
    """Decides the servers of each class by the forecast of its load (IV-B); early where the next epoch is too late."""
    context = turn.context
    cluster = servers(context, offered_nodes(context))
    if cluster is None or not _pools(context):
        return nothing_to_do()
    present = _present(context)
    counts = _server_counts(context, present, cluster)
    starts_s, epoch_s = _starts_s(context, cluster), context.times.scale_s
    steps = dynamo_given.steps_ahead(epoch_s, starts_s[1], TEMPLATE.step_s)
    classes = _classes(turn)
    obs = dynamo_given.scale_observation(
        context.now.timestamp(),
        TEMPLATE.step_s,
        _kind(context, cluster),
        [
            dynamo_given.class_load(ahead, dynamo_given.server_rps(_kind(context, cluster), own))
            for own, ahead in zip(classes, _ahead(turn, classes, steps), strict=True)
        ],
        {
            dynamo_given.cluster_key(name): sum(n for key, n in counts.items() if key.request_class == name)
            for name in (own.request_class.name for own in classes)
        },
        sum(cluster.at.values()),
        starts_s,
    )
    config = step_configs.scale_dynamo_config(context.knobs, context.tuning, epoch_s)
    state, effects = asking.step(scale_dynamo.step, _scale_state(turn.state), obs, config)
    wanted = {key.request_class: count for key, count in obs.nodes.items()}
    for command in effects.commands:
        if isinstance(command, ScaleTo):
            wanted[command.pool.request_class] = sum(command.workers.values())
    layouts = dynamo_servers.spread(
        cluster, {key: _layouts(present[key], cluster, counts[key]) for key in present}, wanted
    )
    decisions = _decisions(effects, present, {key: _workers(cluster.mode.gpu, own) for key, own in layouts.items()})
    moves = [ScaleTo(own.pool, own.workers) for own in decisions if own.changed]
    forwards = [command for command in effects.commands if isinstance(command, ForwardLoad)]
    answer = replace(effects, commands=(*moves, *forwards), decisions=decisions)
    stored = {
        **_scale_json(state),
        "partition": context.service.partition.name,
        "server": cluster.mode.name,
        "servers": {_text(key): len(own) for key, own in layouts.items() if own},
    }
    return Result(answer, stored, next_tick_s=effects.next_tick_s)


def _layouts(workers: Mapping[Mode, int], cluster: Servers, count: int) -> list[Layout]:
    """Returns what runs on each of a pool's servers; instances that have no place in the cluster are left out."""
    found = dynamo_servers.layouts(cluster, workers, {f"{n}": () for n in range(count)})
    return list(found.values()) or [()] * count


def _server_counts(
    context: TurnContext, present: Mapping[PoolKey, Mapping[Mode, int]], cluster: Servers
) -> dict[PoolKey, int]:
    """Counts the servers of each pool: those that scale gave it, or where scale counts no servers, those that its
    budget has room for.

    Shard may leave a server without instances: it is its pool's all the same, until scale takes it, or servers are
    made anew of another type or size.
    """
    budgets = {PoolKey(pool.site.name, pool.request_class.name): pool.gpu_budget for pool in _pools(context)}
    state = ControllerState.objects.filter(kind=context.state_kind(Loop.SCALE), service=context.service).first()
    stored = state.value if state is not None else {}
    alike = stored.get("server", cluster.mode.name) == cluster.mode.name  # states of 0.1 do not say
    given = stored.get("servers", {}) if alike else {}
    found = {}
    for key, workers in present.items():
        used = dynamo_servers.servers_used(cluster, workers)
        own = given.get(_text(key), 0) if context.knobs.scale == "dynamo" else budgets[key].get(cluster.mode.gpu, 0)
        found[key] = max(used, own if context.knobs.scale == "dynamo" else own // cluster.size)
    return found


def _workers(gpu_name: str, layouts: Iterable[Layout]) -> dict[Mode, int]:
    return dict(Counter(Mode(gpu_name, tp) for layout in layouts for tp in layout))


def _present(context: TurnContext) -> dict[PoolKey, dict[Mode, int]]:
    """Returns the wanted workers of the partition's pools that have a budget."""
    return {
        PoolKey(pool.site.name, pool.request_class.name): workers_from_json(pool.workers) for pool in _pools(context)
    }


def _pools(context: TurnContext) -> list[Pool]:
    return [pool for pool in context.pools if pool.gpu_budget]


def _kind(context: TurnContext, cluster: Servers) -> ServerKind:
    card = context.service.model_card
    return ServerKind(card.engine_model_name, card.engine, cluster.mode)


def _decisions(
    effects: Effects, present: Mapping[PoolKey, Mapping[Mode, int]], after: Mapping[PoolKey, Mapping[Mode, int]]
) -> tuple[PoolDecision, ...]:
    """Spreads the decision for each class to its pools, each with what it means for that pool."""
    of_class = {own.pool.request_class: own.rationale for own in effects.decisions}
    found = []
    for key, workers in after.items():
        why, changed = of_class[key.request_class], dict(workers) != {m: n for m, n in present[key].items() if n}
        move = f"{workers_text(present[key])} -> {workers_text(workers)}" if changed else workers_text(workers)
        rationale = replace(why, summary=f"{pool_name(key)}: {move}. {why.summary}")
        found.append(PoolDecision(key, workers, changed, rationale))
    return tuple(found)


def _starts_s(context: TurnContext, cluster: Servers) -> tuple[float, float]:
    found, overheads = measured_overheads.table(context.service, context.now), measured_overheads.published()
    cached, look_s = context.tuning.starts.weights_cached, loop_times.beat_s(Loop.SCALE)
    return dynamo_given.starts_s(found, overheads, _kind(context, cluster), cached, look_s)


# -- forecasts -------------------------------------------------------------------------------------


def _classes(turn: LoopTurn) -> list[ClassNow]:
    """Returns the classes, smallest first, with the lengths of a scale epoch's requests."""
    context = turn.context
    seen = arrivals(context.service, context.now, context.times.scale_s)
    return snapshot.classes_now(context, context.service.partition, seen, 1)


def _ahead(turn: LoopTurn, classes: Sequence[ClassNow], steps: int) -> list[ClassAhead]:
    """Returns the forecast load of each class; until what is recent was seen, no less than what is declared."""
    context, knobs, rows = turn.context, turn.context.knobs, [own.request_class for own in classes]
    history = _look(turn, classes, arrivals(context.service, context.now, MAX_WINDOW_S))
    declared, slo = declared_load(context.service, context.now, TEMPLATE.recent_s), context.service.limits()
    declared_name = None if declared is None else declared.class_name(rows)
    found = []
    for own, row in zip(classes, rows, strict=True):
        coming = load_template.forecast(history, _series(turn, row.name), context.now.timestamp(), steps, TEMPLATE)
        limits = planned(class_limits(slo, row.thresholds, knobs), knobs.plan_ttft_share, knobs.plan_tpot_share)
        of_class = declared if row.name == declared_name else None
        found.append(dynamo_given.class_ahead(own, limits, coming.rates, str(coming.basis), of_class))
    return found


def _series(turn: LoopTurn, name: str) -> str:
    return f"{turn.context.service.partition.name}/{name}"


def _look(turn: LoopTurn, classes: Sequence[ClassNow], seen: DemandWindow) -> LoadHistory:
    """Takes what came in the window into the templates, and stores them; to count a stretch twice changes nothing."""
    state, _ = ControllerState.objects.get_or_create(kind=LOADS, service=turn.context.service)
    history = load_template.from_json(state.value)
    start_s, tokens = seen.prompt_tokens([own.request_class for own in classes])
    for name, amounts in tokens.items():
        history = load_template.observe(history, _series(turn, name), start_s, amounts, TEMPLATE)
    ControllerState.objects.filter(pk=state.pk).update(value=load_template.to_json(history), version=F("version") + 1)
    return history


# -- shard -----------------------------------------------------------------------------------------


def shard(turn: LoopTurn) -> Result:
    """Decides the TP mix of every pool, a few servers at a time (IV-B); between epochs goes on with those under way."""
    context = turn.context
    cluster = servers(context, offered_nodes(context))
    present = _present(context)
    if cluster is None or not any(present.values()):
        return nothing_to_do()
    before, layouts = _shard_state(turn.state), turn.state.get("layouts", {})
    counts = _server_counts(context, present, cluster)
    named = _named(context, present, layouts, cluster, counts)
    overheads = measured_overheads.published()
    obs = shard_dynamo.ShardDynamoObservation(
        context.now.timestamp(),
        _shard_pools(turn, cluster, named, {key: dynamo_servers.beside(cluster, own) for key, own in present.items()}),
        measured_overheads.table(context.service, context.now),
        overheads.sync_s,
        overheads.link_bytes_per_s,
    )
    config = step_configs.shard_dynamo_config(context.knobs, context.tuning, context.times.shard_s)
    state, effects = asking.step(shard_dynamo.step, before, obs, config)
    commands: list[SetTpDegrees | ReshardNode] = []
    decisions = []
    for own in effects.decisions:
        key, why = own.pool, own.rationale
        workers = {**dynamo_servers.beside(cluster, present[key]), **own.workers}
        if own.changed:
            changes = [c for c in effects.commands if isinstance(c, ReshardNode) and c.pool == key]
            named[key] |= {change.node: change.target for change in changes}
            commands += [SetTpDegrees(key, workers), *changes]
            move = f"{workers_text(present[key])} -> {workers_text(workers)}"
            why = replace(why, summary=f"{pool_name(key)}: {move}, {len(changes)} of its servers now. {why.summary}")
        decisions.append(PoolDecision(key, workers, own.changed, why))
    stored = _shard_json(state, named)
    next_s = effects.next_tick_s if state.changes else None
    quiet = before is not None and before.epoch == state.epoch and not commands
    answer = Effects(tuple(commands), next_s, effects.rationale, tuple(decisions))
    return Result(answer, stored, no_op=quiet, next_tick_s=next_s)


def _named(
    context: TurnContext,
    present: Mapping[PoolKey, Mapping[Mode, int]],
    stored: Mapping[str, Mapping[str, Any]],
    cluster: Servers,
    counts: Mapping[PoolKey, int],
) -> dict[PoolKey, dict[str, Layout]]:
    """Returns what runs on each server of each pool, with the names of last time where that is possible.

    Pools of smaller classes come first.
    """
    ranks = {own.request_class.name: own.request_class.rank for own in _pools(context)}
    in_order = sorted(present, key=lambda key: (ranks[key.request_class], key.site))
    known = {
        key: {name: tuple(layout) for name, layout in sorted(stored.get(_text(key), {}).items())[: counts[key]]}
        for key in in_order
    }
    taken = {name for own in known.values() for name in own}
    new = (name for number in itertools.count() if (name := f"server-{number}") not in taken)
    for key, own in known.items():
        own |= {next(new): () for _ in range(counts[key] - len(own))}
    return {key: dynamo_servers.layouts(cluster, present[key], own) for key, own in known.items()}


def _shard_pools(
    turn: LoopTurn,
    cluster: Servers,
    named: Mapping[PoolKey, Mapping[str, Layout]],
    beside: Mapping[PoolKey, Mapping[Mode, int]],
) -> tuple[shard_dynamo.ShardPool, ...]:
    context, kind, classes = turn.context, _kind(turn.context, cluster), _classes(turn)
    names = [own.request_class.name for own in classes]
    shares = service_policy.hands_on(context.service, context.knobs, context.state_kind(Loop.SCALE))
    loads = dynamo_given.pool_loads(_ahead(turn, classes, 1), [shares.get(name, 0.0) for name in names])
    of_class, counts = dict(zip(names, loads, strict=True)), {key: len(layouts) for key, layouts in named.items()}
    wave = context.tuning.dynamo.wave
    serving = {key: sum(1 for layout in layouts.values() if layout) for key, layouts in named.items()}
    kinds = change_kinds.kinds(context, {key: {cluster.mode: min(wave, count)} for key, count in serving.items()})
    kinds |= dict.fromkeys(change_kinds.in_place(context) & kinds.keys(), ChangeKind.IN_PLACE)
    modes = [Mode(cluster.mode.gpu, tp) for tp in cluster.degrees]
    overheads, cached = measured_overheads.published(), context.tuning.starts.weights_cached
    start_s = dynamo_given.published_start_s(overheads, kind.model, warm=True, weights_cached=cached)
    found = []
    for key, load in dynamo_given.loads_of_servers(kind, of_class, counts, beside).items():
        own = dynamo_given.profiles(kind.model, kind.engine, modes, load.lengths)
        try:
            found.append(
                dynamo_given.shard_pool(key, kind, named[key], load, own, start_s, kinds[key], one_by_one=True)
            )
        except UnknownConfiguration:
            return ()
    return tuple(found)


# -- state as JSON ---------------------------------------------------------------------------------


def _text(key: PoolKey) -> str:
    return f"{key.site}/{key.request_class}"


def _scale_json(state: scale_dynamo.ScaleDynamoState) -> dict[str, Any]:
    return {
        "epoch": state.epoch,
        "low": {_text(key): count for key, count in state.low.items()},
        "merged": sorted(_text(key) for key in state.merged),
        "shares": {_text(key): share for key, share in state.shares.items()},
    }


def _scale_state(value: Mapping[str, Any]) -> scale_dynamo.ScaleDynamoState | None:
    if "epoch" not in value:
        return None
    return scale_dynamo.ScaleDynamoState(
        int(value["epoch"]),
        {pool_key(text): int(count) for text, count in value["low"].items()},
        frozenset(pool_key(text) for text in value["merged"]),
        {pool_key(text): float(share) for text, share in value["shares"].items()},
    )


def _shard_json(state: shard_dynamo.ShardDynamoState, named: Mapping[PoolKey, Mapping[str, Layout]]) -> dict[str, Any]:
    return {
        "epoch": state.epoch,
        "changes": {
            _text(key): {
                "target": {node: list(layout) for node, layout in change.target.items()},
                "busy_until_s": dict(change.busy_until_s),
            }
            for key, change in state.changes.items()
        },
        "layouts": {
            _text(key): {node: list(layout) for node, layout in layouts.items()}
            for key, layouts in named.items()
            if layouts
        },
    }


def _shard_state(value: Mapping[str, Any]) -> shard_dynamo.ShardDynamoState | None:
    if "epoch" not in value:
        return None
    changes = {
        pool_key(text): shard_dynamo.Change(
            {node: tuple(layout) for node, layout in change["target"].items()},
            {node: float(at_s) for node, at_s in change["busy_until_s"].items()},
        )
        for text, change in value["changes"].items()
    }
    return shard_dynamo.ShardDynamoState(int(value["epoch"]), changes)

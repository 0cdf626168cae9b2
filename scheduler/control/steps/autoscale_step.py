"""throttLL'eM's autoscaler on the live fleet (IV-D): the size of every engine follows the load, by shadow instances.

The paper has one engine. Here the plan says how many a pool has; each is looked at by itself, with its share of the
load of its class (`recent_load`): gateways send each an equal part.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from core.controllers.fleet import autoscale
from core.controllers.fleet.autoscale import AutoscaleConfig, AutoscaleObservation, AutoscaleState, EngineSize
from core.controllers.fleet.explain import gravest, workers_text
from core.controllers.fleet.pool_loop import pool_name
from core.observations import asking
from core.observations.demand.class_arrivals import STRETCH_S
from core.observations.fleet import autoscale_given
from core.policy.knobs import degrees
from core.types import (
    CancelShadow,
    Command,
    Effects,
    Mode,
    PoolDecision,
    PoolKey,
    Rationale,
    Reason,
    ScaleTo,
    StartShadow,
)
from pools.models import Instance
from scheduler.control.snapshot import measured_overheads, snapshot
from scheduler.control.snapshot.recorded_demand import DemandWindow, arrivals
from scheduler.control.snapshot.snapshot import ClassNow
from scheduler.control.steps import recent_load
from scheduler.control.steps.policy_steps import LoopTurn, Result, nothing_to_do, planned_workers
from scheduler.control.turn_context import TurnContext


@dataclass(frozen=True, slots=True)
class ScaledInstance:
    """An instance that serves, or is the first of its place, and what warms up beside it."""

    uid: str
    pool: PoolKey
    mode: Mode
    shadow: Mode | None


def scale(turn: LoopTurn) -> Result:
    """Takes one period of the autoscaler for every instance."""
    context = turn.context
    if context.plan is None:
        return nothing_to_do()
    seen = came = arrivals(context.service, context.now, context.times.look_back_s)
    if seen.declared is not None:  # engines are profiled once, for what is declared, as in the paper
        seen = seen.without_requests()
    classes = {own.request_class.name: own for own in snapshot.classes_now(context, context.service.partition, seen, 1)}
    instances = _instances(context)
    table = sizes(context, classes)
    workers: dict[PoolKey, dict[Mode, int]] = {}
    present = planned_workers(context, context.plan)
    for key, (now, planned) in present.items():
        workers[key] = _as_many(now, planned, [size.mode for size in table.get(key.request_class, ())])
    rates_rps, now_s = _rates_rps(turn, came, classes), context.now.timestamp()
    began_s = turn.state.get("began_s", now_s)
    whole_period = now_s - began_s >= context.times.scale_s
    effects_by_pool: dict[PoolKey, list[Effects]] = defaultdict(list)
    states: dict[str, Any] = {}
    for instance in instances:
        if workers[instance.pool] != present[instance.pool][0]:
            continue  # what is to run there is being set up anew
        own = [size for size in table.get(instance.pool.request_class, ()) if size.mode.gpu == instance.mode.gpu]
        if not any(size.mode == instance.mode for size in own):
            continue
        name = instance.pool.request_class
        alike = sum(other.pool.request_class == name for other in instances)
        came_rps = rates_rps[name] if whole_period else None
        obs = autoscale_given.observation(now_s, instance.uid, instance.mode, instance.shadow, came_rps, alike)
        effects, states[instance.uid] = _look_at(turn, obs, own)
        effects_by_pool[instance.pool].append(effects)
    stored = {"engines": states, "began_s": began_s}
    return replace(_answer(present, workers, instances, effects_by_pool), state=stored)


def _rates_rps(turn: LoopTurn, seen: DemandWindow, classes: Mapping[str, ClassNow]) -> dict[str, float]:
    """Returns the load of each class in the last period, at least a stretch."""
    span_s = max(STRETCH_S, turn.context.times.scale_s)
    found = recent_load.stretches(turn, seen, classes, span_s)
    return {name: sum(own) / (len(own) * STRETCH_S) for name, own in found.items()}


def sizes(context: TurnContext, classes: Mapping[str, ClassNow]) -> dict[str, list[EngineSize]]:
    """Returns the sizes for each class that keep its limits, ascending in the load that they carry."""
    starts_s = measured_overheads.starts_s(context, {mode for own in classes.values() for mode in own.profiles})
    knobs, found = context.knobs, {}
    for name, own in classes.items():
        of_gpu = autoscale_given.sizes(
            autoscale_given.rates_rps(own),
            degrees(knobs.max_rps or {}),
            knobs.tp,
            starts_s,
            autoscale_given.bases(own),
        )
        found[name] = [size for rising in of_gpu.values() for size in rising]
    return found


def _as_many(present: Mapping[Mode, int], planned: Mapping[Mode, int], known: Sequence[Mode]) -> dict[Mode, int]:
    """Returns as many instances as the plan has, in their present sizes; in the plan's where those are not known."""
    if not present or any(mode not in known for mode in present):
        return dict(planned)
    found = Counter(present)
    short = sum(planned.values()) - sum(found.values())
    for mode in Counter(planned).elements():
        if short <= 0:
            break
        found[mode] += 1
        short -= 1
    for mode in sorted(Counter(present).elements(), key=lambda mode: mode.tp)[: max(0, -short)]:
        found[mode] -= 1
    return dict(+found)


def _instances(context: TurnContext) -> list[ScaledInstance]:
    rows = Instance.objects.filter(pool__service=context.service, desired=Instance.Desired.RUNNING, node__isnull=False)
    live = list(
        rows.filter(pool__request_class__partition=context.service.partition_id)
        .exclude(state=Instance.State.STOPPED)
        .select_related("pool__site", "pool__request_class")
        .order_by("pk")
    )
    uids = {str(row.uid) for row in live}
    shadows: dict[str, Instance] = {}
    over: set[str] = set()  # replaced by one that serves: they are about to drain
    waiting: set[str] = set()
    for row in live:
        olds = [uid for uid in row.replaces if uid in uids]
        if row.state == Instance.State.READY:
            over.update(olds)
        elif olds:
            waiting.add(str(row.uid))
            shadows.update(dict.fromkeys(olds, row))
    found = []
    for row in live:
        uid = str(row.uid)
        if uid in over or uid in waiting:
            continue
        shadow = shadows.get(uid)
        key = PoolKey(row.pool.site.name, row.pool.request_class.name)
        beside = None if shadow is None else Mode(shadow.gpu_type, shadow.tp)
        found.append(ScaledInstance(uid, key, Mode(row.gpu_type, row.tp), beside))
    return found


def _look_at(turn: LoopTurn, obs: AutoscaleObservation, own: Sequence[EngineSize]) -> tuple[Effects, dict[str, Any]]:
    stored = turn.state.get("engines", {}).get(obs.instance)
    before = AutoscaleState(Mode.parse(stored["mode"]), stored["grace_until_s"]) if stored else None
    config = AutoscaleConfig(tuple(own), turn.context.times.scale_s)
    state, effects = asking.step(autoscale.step, before, obs, config)
    why = effects.rationale
    effects = replace(effects, rationale=replace(why, summary=why.summary.replace(obs.instance, obs.instance[:8])))
    return effects, {"mode": state.mode.name, "grace_until_s": state.grace_until_s}


def _answer(
    present: Mapping[PoolKey, tuple[dict[Mode, int], dict[Mode, int]]],
    workers: dict[PoolKey, dict[Mode, int]],
    instances: Sequence[ScaledInstance],
    effects_by_pool: Mapping[PoolKey, Sequence[Effects]],
) -> Result:
    """Returns what is wanted of each pool: an instance and its shadow count as one, of the shadow's size."""
    by_name = {instance.uid: instance for instance in instances}
    commands: list[Command] = []
    decisions = []
    for key, (now, _) in present.items():
        mix = Counter(workers[key])
        own: list[Command] = [command for effects in effects_by_pool.get(key, ()) for command in effects.commands]
        for command in own:
            if isinstance(command, CancelShadow):
                instance = by_name[command.instance]
                if instance.shadow is not None:
                    mix[instance.shadow] -= 1
                    mix[instance.mode] += 1
            elif isinstance(command, StartShadow):
                mix[by_name[command.instance].mode] -= 1
                mix[command.mode] += 1
        wanted = dict(+mix)
        whys = [effects.rationale for effects in effects_by_pool.get(key, ())]
        if wanted == now:
            continue
        why = " ".join(why.summary for why in whys) or "As many engines as the plan has."
        text = f"{pool_name(key)}: {workers_text(now)} -> {workers_text(wanted)}. {why}"
        rationale = Rationale(
            gravest(why.reason for why in whys),
            text,
            _inputs(whys),
            tuple(row for why in whys for row in why.alternatives),
        )
        decisions.append(PoolDecision(key, wanted, True, rationale))
        commands += [ScaleTo(key, wanted), *own]
    whys = [effects.rationale for many in effects_by_pool.values() for effects in many]
    text = " ".join(why.summary for why in whys) or "No engine serves yet."
    summary = Rationale(_reason(whys), text, _inputs(whys))
    return Result(Effects(tuple(commands), None, summary, tuple(decisions)), {})


def _reason(whys: Sequence[Rationale]) -> Reason:
    """Where no engine was looked at, it is the plan's doing."""
    return gravest(why.reason for why in whys) if whys else Reason.POLICY


def _inputs(whys: Sequence[Rationale]) -> dict[str, Any]:
    return {why.summary.partition(":")[0]: dict(why.inputs) for why in whys}

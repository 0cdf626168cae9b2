"""Feeds the steps that a service's policy names from the database, and returns their answers as values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from core.controllers.fleet import scale, shard, shared_out
from core.controllers.fleet.explain import gpus_of, workers_text
from core.controllers.fleet.pool_loop import pool_name
from core.controllers.fleet.shared_out import NodeView
from core.observations import asking, step_configs
from core.observations.fleet import autoscale_given, first_plan
from core.observations.request import routing_weights
from core.types import (
    CarbonPlan,
    Effects,
    Mode,
    PartitionOption,
    PoolDecision,
    PoolKey,
    Rationale,
    Reason,
    ScaleTo,
)
from pools.models import Service
from scheduler.control import active_operations, service_policy
from scheduler.control.snapshot import snapshot
from scheduler.control.snapshot.offered_nodes import all_nodes, offered_nodes, servers
from scheduler.control.turn_context import TurnContext
from scheduler.json_values import plan_from_json, plan_to_json, to_json, workers_from_json

UNKNOWN_UNTIL = "unknown_until_s"  # in the state: the plan was made without any intensity, and is made anew then


@dataclass(frozen=True, slots=True)
class LoopTurn:
    """One turn of a loop of a service. `state` is what the same step left last time; of the carbon loop, the plan in
    force, whoever made it. `fresh`: it is the first turn under this policy."""

    context: TurnContext
    state: Mapping[str, Any]
    fresh: bool


@dataclass(frozen=True, slots=True)
class Result:
    """A controller's answer, and its new state as JSON. `no_op`: there was nothing to decide, which is reported once.

    `next_tick_s`: when the step wants its turn before its next epoch.
    """

    effects: Effects
    state: dict[str, Any]
    no_op: bool = False
    next_tick_s: float | None = None


def nothing_to_do() -> Result:
    rationale = Rationale(Reason.NO_DATA, "No pool has a GPU budget yet: the carbon epoch has made no plan.")
    return Result(Effects((), None, rationale), {})


# -- carbon ----------------------------------------------------------------------------------------


def freesh_step(turn: LoopTurn) -> Result:
    """Solves FREESH's eq. 1; where no plan carries the demand, takes the one that carries most of it.

    A plan of least energy, made while no site had an intensity, gives way as soon as one has: the step wants its turn
    whenever it is asked, and makes that plan anew once a period.
    """
    context = turn.context
    now_s = context.now.timestamp()
    if turn.fresh:
        service_policy.provide(context.service, context.knobs)
    obs, faults = snapshot.carbon(context, offered_nodes(context))
    pinned, own = context.pins, step_configs.carbon_config(context.knobs, context.tuning)
    in_force, until_s = plan_from_json(turn.state), turn.state.get(UNKNOWN_UNTIL)
    present = active_operations.without_pins(in_force, pinned)
    again = until_s is None or now_s >= until_s
    unknown = in_force is None or until_s is not None
    plan, effects, unknown = first_plan.planned(present, obs, own, unknown=unknown, again=again)
    plan = active_operations.with_pins(plan, pinned)
    if plan is None:
        return _unplanned(turn, _with_faults(effects, faults))
    if unknown and not again:
        return Result(effects, dict(turn.state), no_op=True, next_tick_s=now_s)
    option = next((found for found in obs.partitions if found.name == plan.partition), None)
    stored = _plan_state(plan, option, turn.state)
    if not unknown:
        return Result(_with_faults(effects, faults), stored)
    stored[UNKNOWN_UNTIL] = now_s + context.times.carbon_s
    return Result(_with_faults(effects, faults), stored, next_tick_s=now_s)


def shared_out_step(turn: LoopTurn) -> Result:
    """Shares the GPUs among the pools of one partition by load, or says what scale may choose among, where the policy
    has no carbon loop."""
    context, knobs = turn.context, turn.context.knobs
    if turn.fresh:
        service_policy.provide(context.service, knobs)
    nodes = _nodes(context)
    obs, faults = snapshot.shared_out(context, nodes)
    own = step_configs.shared_out_config(knobs, _largest_tp(context, nodes, obs.partition))
    pinned = context.pins
    present = active_operations.without_pins(plan_from_json(turn.state), pinned)
    plan, effects = asking.step(shared_out.step, None if turn.fresh else present, obs, own)
    plan = active_operations.with_pins(plan or present, pinned)
    if plan is None:
        return _unplanned(turn, _with_faults(effects, faults))
    option = obs.partition if plan.partition == obs.partition.name else None
    no_op = effects.rationale.reason is Reason.POLICY
    return Result(_with_faults(effects, faults), _plan_state(plan, option, turn.state), no_op=no_op)


def _nodes(context: TurnContext) -> tuple[NodeView, ...]:
    """Returns the nodes to share out; a scale loop that looks each few seconds itself leaves out what others claim."""
    if context.knobs.in_envelope:
        return all_nodes(context)
    peers = placed_together(context.service) if context.knobs.scale == "placement" else ()
    return offered_nodes(context, peers)


def placed_together(service: Service) -> list[Service]:
    """Returns the other services whose models are placed together with a service's (mu-Serve 3.2)."""
    others = Service.objects.exclude(pk=service.pk).order_by("name")
    return [found for found in others if found.policy_knobs().scale == "placement"]


def _largest_tp(context: TurnContext, nodes: Sequence[NodeView], option: PartitionOption) -> int:
    if context.family in ("throttle", "split"):
        return autoscale_given.largest_tp(option, context.knobs.tp)
    cluster = servers(context, nodes) if context.knobs.in_servers else None
    return context.knobs.tp if cluster is None else cluster.size


def _with_faults(effects: Effects, faults: tuple[str, ...]) -> Effects:
    """Adds to the rationale which classes are not planned for as they should be, with every plan."""
    if not faults:
        return effects
    why = effects.rationale
    reason = why.reason if why.reason in (Reason.POLICY, Reason.NO_DATA) else Reason.INFEASIBLE
    return replace(effects, rationale=replace(why, reason=reason, summary=" ".join([why.summary, *faults])))


def _unplanned(turn: LoopTurn, effects: Effects) -> Result:
    """There is no plan in force yet. What is missing, a feed or a node, may come at any moment and a whole period would
    be long to wait for it: it wants its turn whenever it is asked, and what stays the same is reported once.
    """
    why = effects.rationale.summary
    asked_s = turn.context.now.timestamp()
    return Result(effects, {"waits": why}, no_op=turn.state.get("waits") == why, next_tick_s=asked_s)


def _plan_state(plan: CarbonPlan, option: PartitionOption | None, before: Mapping[str, Any]) -> dict[str, Any]:
    """The plan, and each pool's share of its class for the gateways."""
    if option is None:
        return {**plan_to_json(plan), "shares": before.get("shares", [])}
    shares = [
        {"site": key.site, "request_class": key.request_class, "share": share}
        for key, share in sorted(snapshot.shares(plan, option).items())
    ]
    return {**plan_to_json(plan), "shares": shares}


# -- scale -----------------------------------------------------------------------------------------


def fleet_step(turn: LoopTurn) -> Result:
    observation = snapshot.scale(turn.context)
    if not observation.pools:
        return nothing_to_do()
    own = step_configs.pool_config(turn.context.knobs, turn.context.tuning)
    state, effects = asking.step(scale.step, None, observation, own)
    weights = {pool.key: routing_weights.by_capacity(pool.profiles) for pool in observation.pools}
    return Result(effects, {**to_json(state), service_policy.WEIGHTS: to_json(weights)})


def static_step(turn: LoopTurn) -> Result:
    """Keeps the plan's instances and no others; where TP degrees are another loop's, what fits on the plan's GPUs."""
    context, decisions = turn.context, []
    if context.plan is None:
        return nothing_to_do()
    for key, (present, planned) in planned_workers(context, context.plan).items():
        own, most = gpus_of(present), gpus_of(planned)
        within = bool(present) and all(count <= most.get(kind, 0) for kind, count in own.items())
        if present != planned and not (within and context.knobs.shard != "off"):
            move = f"{workers_text(present)} -> {workers_text(planned)}"
            text = f"{pool_name(key)}: {move}, the plan's instances, which policy {context.policy.name} keeps."
            decisions.append(PoolDecision(key, planned, True, Rationale(Reason.POLICY, text)))
    text = f"Policy {context.policy.name} keeps the plan's instances: the scale loop has nothing to decide."
    commands = tuple(ScaleTo(own.pool, own.workers) for own in decisions)
    effects = Effects(commands, None, Rationale(Reason.POLICY, text), tuple(decisions))
    return Result(effects, {}, no_op=True)


def planned_workers(context: TurnContext, plan: CarbonPlan) -> dict[PoolKey, tuple[dict[Mode, int], dict[Mode, int]]]:
    """Returns the (present, planned) workers of each pool of the partition in force."""
    found = {}
    for pool in context.pools:
        key = PoolKey(pool.site.name, pool.request_class.name)
        planned = {mode: n for (site, name, mode), n in plan.workers.items() if PoolKey(site, name) == key and n}
        found[key] = (workers_from_json(pool.workers), planned)
    return found


# -- shard -----------------------------------------------------------------------------------------


def mix_step(turn: LoopTurn) -> Result:
    observation = snapshot.shard(turn.context)
    if not observation.pools:
        return nothing_to_do()
    own = step_configs.pool_config(turn.context.knobs, turn.context.tuning)
    found, effects = asking.step(shard.step, None, observation, own)
    return Result(effects, to_json(found))


def off_step(turn: LoopTurn) -> Result:
    name, scale_too = turn.context.policy.name, turn.context.knobs.scale in ("throttle", "right_size")
    why = "has its scale loop choose TP degrees" if scale_too else "changes no TP degree by a mix"
    text = f"Policy {name} {why}: the shard loop has nothing to decide."
    return Result(Effects((), None, Rationale(Reason.POLICY, text)), {}, no_op=True)

"""Runs the slow loops: snapshot -> step -> one transaction of state, rows and reasons -> Redis.

An epoch is unique by (kind, service, period, floor(t / period)): whoever inserts its row first has it, and what a
second process computed meanwhile is rolled back. The controller's state moves by compare-and-swap; when it moved
under us, the epoch is computed again on what is now there (`_decide_and_apply` has the steps).

Epochs out of turn (a policy was changed, or a step asked for its turn before its next epoch) have the moment in
milliseconds as their index, below zero. Which step a loop runs is for the service's policy to say (`steps`).
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import redis
from django.db import DatabaseError, IntegrityError, transaction
from django.db.models import QuerySet
from django.utils import timezone

from core.types import Command, Effects, Loop, Reason
from pools.models import Service
from scheduler import agents
from scheduler.control import (
    active_operations,
    decision_rows,
    loop_times,
    pending_plans,
    recordings,
    service_policy,
    turn_context,
)
from scheduler.control.apply import apply, publish
from scheduler.control.steps import autoscale_step, dynamollm_steps, policy_steps, right_size_step
from scheduler.control.steps.policy_steps import LoopTurn, Result
from scheduler.control.turn_context import TurnContext, carbon_plan
from scheduler.json_values import commands_from_json
from scheduler.models import Approval, ControllerState, ControlMode, Epoch, ServiceMode

__all__ = ["carbon_plan", "carry_out", "has_plan", "run", "run_now", "settle"]

log = logging.getLogger(__name__)

ATTEMPTS = 3
EPOCH_LOOPS = (Loop.CARBON, Loop.SCALE, Loop.SHARD)  # slowest first
STEPS: Mapping[tuple[Loop, str], Callable[[LoopTurn], Result]] = {
    (Loop.CARBON, "freesh"): policy_steps.freesh_step,
    (Loop.CARBON, "off"): policy_steps.shared_out_step,
    (Loop.SCALE, "fleet"): policy_steps.fleet_step,
    (Loop.SCALE, "static"): policy_steps.static_step,
    (Loop.SCALE, "placement"): policy_steps.static_step,
    (Loop.SCALE, "dynamo"): dynamollm_steps.scale,
    (Loop.SCALE, "throttle"): autoscale_step.scale,
    (Loop.SCALE, "right_size"): right_size_step.scale,
    (Loop.SHARD, "mix"): policy_steps.mix_step,
    (Loop.SHARD, "dynamo"): dynamollm_steps.shard,
    (Loop.SHARD, "off"): policy_steps.off_step,
}
META = "_"  # in a ControllerState's value: whose it is, and when it was last looked at


class Stale(Exception):
    """The controller's state moved while we computed."""


def has_plan(service: Service) -> bool:
    return carbon_plan(service) is not None


def run(service: Service, loop: Loop, now: datetime) -> Epoch | None:
    """Runs one epoch of one loop for one service. Returns None when it has been run already, or left no row.

    A controller's exception is stored with the epoch: the last plan stays in force and the next epoch tries again.
    """
    overrides = active_operations.planned_around(service, now)
    period = loop_times.times(service_policy.with_overrides(service, overrides)).of(loop)
    index, meta = math.floor(now.timestamp() / period), _meta(service, loop)
    # A loop without a choice has its turn in an epoch without leaving a row.
    signature = service_policy.signature_with(service, overrides)
    looked = meta.get("looked") == [period, index] and meta.get("policy") == signature
    if not (looked or _rows(service, loop, period, index).exists()):
        return _run(service, loop, index, now)
    asked_s = meta.get("next_tick_s")
    return None if asked_s is None or asked_s > now.timestamp() else _run(service, loop, -round(1000 * asked_s), now)


def run_now(service: Service, now: datetime) -> list[Epoch]:
    """All loops at once and out of turn, slowest first: the policy has changed."""
    found = [_run(service, loop, -round(1000 * now.timestamp()), now) for loop in EPOCH_LOOPS]
    return [epoch for epoch in found if epoch is not None]


def _run(service: Service, loop: Loop, index: int, now: datetime) -> Epoch | None:
    for _ in range(ATTEMPTS):
        service.refresh_from_db()  # another loop may have changed its partition, an operator its policy
        if active_operations.is_paused(service, loop):
            return None  # which the pause itself has put on record
        context = turn_context.resolve(service, now, agents.reporting(agents.connect(), now))
        if _rows(service, loop, context.times.of(loop), index).exists():
            return None
        try:
            return _run_once(context, loop, index)
        except Stale:
            continue
        except IntegrityError as error:
            if "epoch_runs_once" not in str(error):
                raise
    log.info("%s epoch %d of %s was run elsewhere", loop.value, index, service)
    return None


def _rows(service: Service, loop: Loop, period: float, index: int) -> QuerySet[Epoch]:
    return Epoch.objects.filter(kind=loop.value, service=service, period_s=period, index=index)


def _meta(service: Service, loop: Loop) -> Mapping[str, Any]:
    state = ControllerState.objects.filter(kind=loop.value, service=service).first()
    found: Mapping[str, Any] = state.value.get(META, {}) if state else {}
    return found


def _run_once(context: TurnContext, loop: Loop, index: int) -> Epoch | None:
    started_at, clock = timezone.now(), time.monotonic()
    try:
        return _decide_and_apply(context, loop, index)
    except (Stale, DatabaseError, redis.RedisError):
        raise
    except Exception as error:
        # Whatever a controller stumbles over must not take the fleet down, nor go unseen.
        log.exception("%s epoch %d of %s failed", loop.value, index, context.service)
        failure = f"{type(error).__name__}: {error}"
        with transaction.atomic():
            epoch = _epoch(context, loop, index, started_at, clock, Epoch.Status.FAILED, failure)
            decision_rows.failed(epoch, context.now, failure)
        return epoch


def _decide_and_apply(context: TurnContext, loop: Loop, index: int) -> Epoch | None:
    """Decides, and carries the decision out only if nothing that it was made on has changed meanwhile.

    A step may compute for seconds. It holds no lock meanwhile, so that people and other loops go on; a compare-and-swap
    keeps it from overwriting what they did. Policy, overrides and the plan in force are those of `context`:

    1. Read the controller's state with its version, and compute the step on it.
    2. Begin the transaction, in which all of the following happens or nothing. A step that had nothing to decide swaps
       its state (as in 7) and is done: it leaves no row, unless it is the first under its policy.
    3. Insert the epoch's row. It is unique, so that the insert fails where another process has run this epoch.
    4. Take the lock of plans and placements. Whoever pauses a loop, sets a control mode or makes an override takes it
       too: these stay as they are until the transaction ends.
    5. Check that nobody has paused the loop while it computed, and that policy and overrides are still the context's.
    6. Read the control mode. Where decisions do not act, record this one, or offer it for approval, and leave the
       controller's state alone: for the next epoch this one has not happened.
    7. Swap the controller's state: replace it where its version is still the one that was read in 1.
    8. Carry out: close older plans that wait, write budgets, workers and decisions, then instances.
    9. Commit, and only then publish to agents and gateways, which would else act on what may be rolled back.

    Raises:
        Stale: The check in 5 or a swap (2, 7, or that of scale's state in 8) failed. Nothing is stored; `_run` begins
            again on what is now there.
        IntegrityError: Another process has run this epoch (3).
    """
    # 1. Compute on the state as it is now.
    service, now = context.service, context.now
    started_at, clock = timezone.now(), time.monotonic()
    touched: frozenset[str] = frozenset()
    with recordings.noting() as notes:
        state, result, fresh = _decide(context, loop, index)
        # 2. From here on: all, or nothing.
        with transaction.atomic():
            if result.no_op and not fresh and not result.effects.commands:
                _swap(state, result.state)
                return None
            # 3. Claim the epoch.
            epoch = _epoch(context, loop, index, started_at, clock, _status(result.effects))
            # 4. Keep everybody else from changing plans, placements and operations.
            apply.lock()
            # 5. What people have set meanwhile goes before this decision.
            policy = Service.objects.only("policy", "knobs").get(pk=service.pk)
            if active_operations.is_paused(service, loop) or service_policy.signature(policy, now) != context.signature:
                raise Stale
            recordings.keep(epoch, notes, now)
            # 6. A decision that does not act goes on record, and no further.
            control_mode = active_operations.control_mode_of(service)
            if result.effects.commands and control_mode.mode != ControlMode.ACT:
                return _record_only(epoch, state, result, control_mode, now)
            # 7. Compare and swap.
            _swap(state, result.state)
            # 8. Carry out.
            pending_plans.supersede(service, loop.value, "The loop has decided anew.", now)
            made = _apply(context, loop, epoch, result)
            if result.effects.commands:
                touched = apply.apply_placement(service, context.reporting, made)
    # 9. Committed: publish.
    if result.effects.commands:
        _publish(touched, made)
    return epoch


def _decide(context: TurnContext, loop: Loop, index: int | None) -> tuple[ControllerState, Result, bool]:
    """Takes the step. Returns the state that it was taken on, its result with whose state that is, and whether this is
    the first turn under this policy.

    Another step's state is not read, but for the carbon loop's: that is the plan in force, whoever made it. `index`
    None: it follows up on another loop, and has its own turn still before it.
    """
    state, _ = ControllerState.objects.get_or_create(kind=loop.value, service=context.service)
    name = str(getattr(context.knobs, loop.value))
    meta = state.value.get(META, {})
    fresh = meta.get("policy") != context.signature
    known = state.value if loop is Loop.CARBON or meta.get("step") == name else {}
    result = _around_pins(context, STEPS[loop, name](LoopTurn(context, known, fresh)))
    mine = {
        "step": name,
        "policy": meta.get("policy") if index is None else context.signature,
        "looked": [context.times.of(loop), index],
        "next_tick_s": result.next_tick_s,
    }
    return state, replace(result, state={**result.state, META: mine}), fresh


def _around_pins(context: TurnContext, result: Result) -> Result:
    """Returns the result without its commands and decisions for pools that a person has pinned."""
    keys = {pin.key for pin in context.pins}
    if not keys:
        return result
    commands = tuple(own for own in result.effects.commands if getattr(own, "pool", None) not in keys)
    decisions = tuple(own for own in result.effects.decisions if own.pool not in keys)
    return replace(result, effects=replace(result.effects, commands=commands, decisions=decisions))


def _record_only(
    epoch: Epoch, state: ControllerState, result: Result, control_mode: ServiceMode, now: datetime
) -> Epoch:
    """Puts a decision on record that is not carried out, or not before somebody approves it."""
    asks = control_mode.mode == ControlMode.APPROVE
    epoch.status = Epoch.Status.WAITING if asks else Epoch.Status.ADVISED
    epoch.save(update_fields=["status"])
    if asks and pending_plans.still_waits(epoch.service, state, epoch.kind, result):
        return epoch
    if epoch.kind == Loop.CARBON:
        decision_rows.of_service(epoch, result.effects, now)
    else:
        decision_rows.of_pools(epoch, result.effects, now)
    if asks:
        pending_plans.offer(epoch, state, result, control_mode, now)
    return epoch


def carry_out(approval: Approval, now: datetime) -> bool:
    """Carries out exactly what was approved, inside the caller's transaction and under its `apply.lock`.

    False: what the plan was made on has moved; nothing is changed. Of a carbon plan the workers follow at once, as they
    do when it acts by itself.
    """
    service, state = approval.service, approval.controller
    service.refresh_from_db()
    state.refresh_from_db()
    if pending_plans.basis(service, state) != approval.basis:
        return False
    context = turn_context.resolve(service, now, agents.reporting(agents.connect(), now))
    _swap(state, approval.state)
    commands = commands_from_json(approval.commands)
    if approval.loop == Loop.CARBON:
        made = _apply_plan(context, approval.epoch, commands)
    else:
        apply.apply_workers(context, commands)
        made = dict(approval.epoch.decisions.exclude(pool=None).values_list("pool_id", "pk"))
    touched = apply.apply_placement(service, context.reporting, made)
    Epoch.objects.filter(pk=approval.epoch_id).update(status=Epoch.Status.APPLIED)
    transaction.on_commit(lambda: _publish(touched, made))
    return True


def _publish(touched: frozenset[str], made: dict[int, int]) -> None:
    publish.publish(agents.connect(), timezone.now())
    publish.nudge(touched, decision_id=next(iter(made.values()), None))


def settle(client: redis.Redis, now: datetime) -> frozenset[str]:
    """Finishes what placements wait for: drains that ended, starts that had no GPU. Returns the nodes concerned."""
    states = agents.states(client, agents.nodes())
    reporting = agents.reporting(client, now)
    touched: frozenset[str] = frozenset()
    with transaction.atomic():
        apply.lock()
        pending_plans.lapse(now)
        touched |= apply.finish_drains(states, now)
        for service in Service.objects.all():
            touched |= apply.apply_placement(service, reporting, decision_rows.latest_by_pool(service))
    return touched


def _apply(context: TurnContext, loop: Loop, epoch: Epoch, result: Result) -> dict[int, int]:
    """Writes commands and decisions; returns pool -> decision for the instances that follow from them."""
    now = context.now
    if loop is not Loop.CARBON:
        apply.apply_workers(context, result.effects.commands)
        return decision_rows.of_pools(epoch, result.effects, now)
    decision = decision_rows.of_service(epoch, result.effects, now)
    if not result.effects.commands:
        return {}
    pools = context.service.pools.all()
    return {pool.pk: decision.pk for pool in pools} | _apply_plan(context, epoch, result.effects.commands)


def _apply_plan(context: TurnContext, epoch: Epoch, commands: Iterable[Command]) -> dict[int, int]:
    """Carries out a carbon plan: its budgets, and the workers that follow from them."""
    apply.apply_budgets(context, commands)
    # Pools that lost or gained GPUs get their workers at once rather than at the next scale epoch.
    planned = replace(context, plan=carbon_plan(context.service))
    state, follow_up, _ = _decide(planned, Loop.SCALE, None)
    _swap(state, follow_up.state)
    apply.apply_workers(context, follow_up.effects.commands)
    return decision_rows.of_pools(epoch, follow_up.effects, context.now, kind=Loop.SCALE)


def _swap(state: ControllerState, value: dict[str, Any]) -> None:
    """Replaces the controller's state if its version is still the one that was read. Raises Stale if it is not."""
    moved = ControllerState.objects.filter(pk=state.pk, version=state.version).update(
        version=state.version + 1, value=value, updated_at=timezone.now()
    )
    if moved != 1:
        raise Stale


def _epoch(
    context: TurnContext,
    loop: Loop,
    index: int,
    started_at: datetime,
    clock: float,
    status: Epoch.Status,
    error: str = "",
) -> Epoch:
    period = context.times.of(loop)
    return Epoch.objects.create(
        kind=loop.value,
        service=context.service,
        index=index,
        period_s=period,
        due_at=datetime.fromtimestamp(index * period, UTC) if index >= 0 else context.now,
        started_at=started_at,
        finished_at=timezone.now(),
        status=status,
        solve_s=time.monotonic() - clock,
        error=error,
    )


def _status(effects: Effects) -> Epoch.Status:
    """Returns the epoch's status. It is infeasible also where the best that is possible was done, so that an operator
    notices.
    """
    if effects.rationale.reason is Reason.INFEASIBLE:
        return Epoch.Status.INFEASIBLE
    return Epoch.Status.APPLIED if effects.commands else Epoch.Status.HELD

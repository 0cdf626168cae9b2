"""Runs the slow loops: snapshot -> step -> one transaction of state, rows and reasons -> Redis.

An epoch is unique by (kind, service, period, floor(t / period)): whoever inserts its row first has it, and what a
second process computed meanwhile is rolled back. The controller's state moves by compare-and-swap; when it moved
under us, the epoch is computed again on what is now there (`_decide_and_apply` has the steps).

Epochs out of turn (a policy was changed, or a step asked for its turn before its next epoch) have the moment in
milliseconds as their index, below zero; those whose period was given back (`ahead_of_clock`) have their row's number.
Which step a loop runs is for the service's policy to say (`steps`).
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import redis
from django.db import DatabaseError, IntegrityError, transaction
from django.db.models import QuerySet
from django.utils import timezone

from core.observations import asking
from core.policy.presets import Policy
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
from scheduler.control.apply import apply, budgets, gpu_turns, publish
from scheduler.control.loop_turns import META, FollowUp, decide, follow_up
from scheduler.control.steps.policy_steps import Result
from scheduler.control.turn_context import TurnContext, carbon_plan
from scheduler.json_values import commands_from_json, plan_from_json
from scheduler.models import Approval, ControllerState, Epoch, ServiceMode

__all__ = ["carbon_plan", "carry_out", "due", "guarded", "has_plan", "run", "run_now", "settle", "status_of"]
__all__ += ["stored_epoch", "swap"]

log = logging.getLogger(__name__)

Turn = Callable[[TurnContext, Loop, int], Epoch | None]
ATTEMPTS = 3
EPOCH_LOOPS = (Loop.CARBON, Loop.SCALE, Loop.SHARD)  # slowest first


class Stale(Exception):
    """The controller's state moved while we computed."""


def has_plan(service: Service) -> bool:
    return carbon_plan(service) is not None


def run(service: Service, loop: Loop, now: datetime) -> Epoch | None:
    """Runs one epoch of one loop for one service. Returns None when it has been run already, or left no row.

    A controller's exception is stored with the epoch: the last plan stays in force and the next epoch tries again.
    """
    if not active_operations.loops_run(service):
        return None
    index = due(service, loop, now, service_policy.deciding(service))
    return None if index is None else _run(service, loop, index, now)


def due(service: Service, loop: Loop, now: datetime, policy: Policy, *, advisory: bool = False) -> int | None:
    """Returns the index of the epoch that a loop is to run now under a policy; None: it has run, or waits.

    `advisory`: of the policy that advises.
    """
    overrides = active_operations.planned_around(service, now)
    period = loop_times.times(service_policy.with_overrides(policy, overrides)).of(loop)
    index, meta = math.floor(now.timestamp() / period), _meta(service, loop, advisory)
    # A loop without a choice has its turn in an epoch without leaving a row.
    signature = service_policy.signature_with(policy, overrides)
    looked = meta.get("looked") == [period, index] and meta.get("policy") == signature
    if not (looked or _rows(service, loop, period, index, advisory).exists()):
        return index
    if advisory and meta.get("policy") != signature:  # it advises since this epoch began
        return -round(1000 * now.timestamp())
    asked_s = meta.get("next_tick_s")
    return None if asked_s is None or asked_s > now.timestamp() else -round(1000 * asked_s)


def run_now(service: Service, now: datetime) -> list[Epoch]:
    """All loops at once and out of turn, slowest first: the policy has changed."""
    found = [_run(service, loop, -round(1000 * now.timestamp()), now) for loop in EPOCH_LOOPS]
    return [epoch for epoch in found if epoch is not None]


def _run(service: Service, loop: Loop, index: int, now: datetime) -> Epoch | None:
    for _ in range(ATTEMPTS):
        service.refresh_from_db()  # another loop may have changed its partition, an operator its policy
        if active_operations.is_paused(service, loop) or not active_operations.loops_run(service):
            return None  # which the pause itself has put on record
        context = turn_context.resolve(service, now, agents.reporting(agents.connect(), now))
        if _rows(service, loop, context.times.of(loop), index).exists():
            return None
        try:
            return guarded(context, loop, index, _decide_and_apply)
        except Stale:
            continue
        except IntegrityError as error:
            if "epoch_runs_once" not in str(error):
                raise
    log.info("%s epoch %d of %s was run elsewhere", loop.value, index, service)
    return None


def _rows(service: Service, loop: Loop, period: float, index: int, advisory: bool = False) -> QuerySet[Epoch]:
    return Epoch.objects.filter(kind=loop.value, service=service, period_s=period, index=index, advisory=advisory)


def _meta(service: Service, loop: Loop, advisory: bool = False) -> Mapping[str, Any]:
    kind = turn_context.state_kind(loop, advisory)
    state = ControllerState.objects.filter(kind=kind, service=service).first()
    found: Mapping[str, Any] = state.value.get(META, {}) if state else {}
    return found


def guarded(context: TurnContext, loop: Loop, index: int, turn: Turn) -> Epoch | None:
    """Takes a turn; a controller's exception is stored with the epoch."""
    started_at, clock = timezone.now(), time.monotonic()
    try:
        return turn(context, loop, index)
    except (Stale, DatabaseError, redis.RedisError):
        raise
    except Exception as error:
        # Whatever a controller stumbles over must not take the fleet down, nor go unseen.
        log.exception("%s epoch %d of %s failed", loop.value, index, context.service)
        failure = f"{type(error).__name__}: {error}"
        with transaction.atomic():
            epoch = stored_epoch(context, loop, index, started_at, clock, Epoch.Status.FAILED, failure)
            decision_rows.failed(epoch, context.now, failure)
        return epoch


def _decide_and_apply(context: TurnContext, loop: Loop, index: int) -> Epoch | None:
    """Decides, and carries the decision out only if nothing that it was made on has changed meanwhile.

    A step may compute for seconds. It holds no lock meanwhile, so that people and other loops go on; a compare-and-swap
    keeps it from overwriting what they did. Policy, overrides and the plan in force are those of `context`:

    1. Read the controller's state with its version, and compute the step on it. Of a carbon plan that will act, compute
       the workers that follow from it too, on the pools as the plan will leave them.
    2. Begin the transaction, in which all of the following happens or nothing. A step that had nothing to decide swaps
       its state (as in 7) and is done: it leaves no row, unless it is the first under its policy.
    3. Insert the epoch's row. It is unique, so that the insert fails where another process has run this epoch.
    4. Take the lock of plans and placements. Whoever pauses a loop, sets a control mode or makes an override takes it
       too: these stay as they are until the transaction ends.
    5. Check that nobody has paused the loop while it computed, and that policy and overrides are still the context's.
    6. Read the control mode. Where people approve decisions, offer this one if it changes the fleet, and leave the
       controller's state alone: for the next epoch this one has not happened. So it is, whatever they are, with
       decisions of a policy that is not in force: gateways go by the states of the one that is.
    7. Swap the controller's state: replace it where its version is still the one that was read in 1.
    8. Carry out: close older plans that wait, write budgets, workers and decisions, then instances.
    9. Commit, and only then publish to agents and gateways, which would else act on what may be rolled back.

    Raises:
        Stale: The check in 5 or a swap (2, 7, or that of scale's state in 8) failed, or pools changed after 1. Nothing
            is stored; `_run` begins again on what is now there.
        IntegrityError: Another process has run this epoch (3).
    """
    # 1. Compute on the state as it is now.
    service, now = context.service, context.now
    started_at, clock = timezone.now(), time.monotonic()
    touched: frozenset[str] = frozenset()
    with asking.noting() as notes:
        turn = decide(context, loop, index)
        state, result = turn.state, turn.result
        workers: FollowUp | None = None
        if loop is Loop.CARBON and result.effects.commands and active_operations.acts(service):
            workers = follow_up(context, result.effects.commands, plan_from_json(result.state))
        # 2. From here on: all, or nothing.
        with transaction.atomic():
            if result.no_op and not turn.fresh and not result.effects.commands:
                swap(state, result.state)
                return None
            # 3. Claim the epoch.
            epoch = stored_epoch(context, loop, index, started_at, clock, status_of(result.effects))
            # 4. Keep everybody else from changing plans, placements and operations.
            apply.lock()
            # 5. What people have set meanwhile goes before this decision.
            stored = Service.objects.get(pk=service.pk)
            halted = active_operations.is_paused(service, loop) or not active_operations.loops_run(service)
            if halted or service_policy.signature(stored, now) != context.signature:
                raise Stale
            recordings.keep(epoch, notes, now)
            # 6. A decision that does not act goes on record, and no further.
            control_mode = active_operations.control_mode_of(service)
            asks = not control_mode.acts and pending_plans.changes_fleet(result.effects.commands)
            if asks or not (control_mode.acts or service_policy.is_in_force(stored)):
                return _record_only(epoch, state, result, control_mode if asks else None, now)
            # 7. Compare and swap.
            swap(state, result.state)
            # 8. Carry out.
            pending_plans.supersede(service, loop.value, "The loop has decided anew.", now)
            made = _apply(context, loop, epoch, result, workers)
            if result.effects.commands:
                touched = apply.apply_placement(service, context.reporting, made)
    # 9. Committed: publish.
    if result.effects.commands:
        _publish(touched, made)
    return epoch


def _record_only(
    epoch: Epoch, state: ControllerState, result: Result, approving: ServiceMode | None, now: datetime
) -> Epoch:
    """Puts a decision on record that is not carried out, or not before somebody approves it."""
    if result.effects.commands:
        epoch.status = Epoch.Status.WAITING if approving else Epoch.Status.ADVISED
        epoch.save(update_fields=["status"])
    if approving and pending_plans.still_waits(epoch.service, state, epoch.kind, result):
        return epoch
    if epoch.kind == Loop.CARBON:
        decision_rows.of_service(epoch, result.effects, now)
    else:
        decision_rows.of_pools(epoch, result.effects, now)
    if approving:
        pending_plans.offer(epoch, state, result, approving, now)
    return epoch


def carry_out(approval: Approval, now: datetime) -> bool:
    """Carries out exactly what was approved, inside the caller's transaction and under its `apply.lock`. The policy
    that made the plan is in force from then on.

    False: what the plan was made on has moved; nothing is changed. Of a carbon plan the workers follow at once, as they
    do when it acts by itself.
    """
    service, state = approval.service, approval.controller
    service.refresh_from_db()
    state.refresh_from_db()
    if pending_plans.basis(service, state) != approval.basis:
        return False
    context = turn_context.resolve(service, now, agents.reporting(agents.connect(), now))
    swap(state, approval.state)
    commands = commands_from_json(approval.commands)
    if approval.loop == Loop.CARBON:
        workers = follow_up(context, commands, plan_from_json(approval.state))
        made = _apply_plan(context, approval.epoch, commands, workers)
    else:
        apply.apply_workers(context, commands)
        made = dict(approval.epoch.decisions.exclude(pool=None).values_list("pool_id", "pk"))
    touched = apply.apply_placement(service, context.reporting, made)
    if not service_policy.is_in_force(service):
        service_policy.put_in_force(service)
    Epoch.objects.filter(pk=approval.epoch_id).update(status=Epoch.Status.APPLIED)
    transaction.on_commit(lambda: _publish(touched, made))
    return True


def _publish(touched: frozenset[str], made: dict[int, int]) -> None:
    publish.publish(agents.connect(), timezone.now())
    publish.nudge(touched, decision_id=next(iter(made.values()), None))


def settle(client: redis.Redis, now: datetime, services: Collection[Service] | None = None) -> frozenset[str]:
    """Finishes what placements wait for: drains that ended, starts that had no GPU. Returns the nodes concerned.

    `services`: whose placements go on; None: all.
    """
    states = agents.states(client, agents.nodes())
    reporting = agents.reporting(client, now)
    touched: frozenset[str] = frozenset()
    with transaction.atomic():
        apply.lock()
        pending_plans.lapse(now)
        touched |= apply.finish_drains(states, now)
        touched |= gpu_turns.let_go(states, now)
        for service in Service.objects.all() if services is None else services:
            touched |= apply.apply_placement(service, reporting, decision_rows.latest_by_pool(service))
    return touched


def _apply(context: TurnContext, loop: Loop, epoch: Epoch, result: Result, workers: FollowUp | None) -> dict[int, int]:
    """Writes commands and decisions; returns pool -> decision for the instances that follow from them."""
    now = context.now
    if loop is not Loop.CARBON:
        apply.apply_workers(context, result.effects.commands)
        return decision_rows.of_pools(epoch, result.effects, now)
    decision = decision_rows.of_service(epoch, result.effects, now)
    if not result.effects.commands:
        return {}
    if workers is None:  # the plan was not to act when it was made
        raise Stale
    made = _apply_plan(context, epoch, result.effects.commands, workers)
    return dict.fromkeys(workers.pools, decision.pk) | made


def _apply_plan(context: TurnContext, epoch: Epoch, commands: Sequence[Command], workers: FollowUp) -> dict[int, int]:
    """Carries out a carbon plan: its budgets, and the workers that follow from them.

    Raises Stale where a pool is no longer as it was when these were decided.
    """
    pools = budgets.pools_of(context.service)
    if {pool.pk: (pool.gpu_budget, pool.workers) for pool in pools} != workers.pools:
        raise Stale
    budgets.apply_budgets(context, commands, pools)
    result = workers.decision.result
    swap(workers.decision.state, result.state)
    apply.apply_workers(context, result.effects.commands)
    return decision_rows.of_pools(epoch, result.effects, context.now, kind=Loop.SCALE)


def swap(state: ControllerState, value: dict[str, Any]) -> None:
    """Replaces the controller's state if its version is still the one that was read. Raises Stale if it is not."""
    moved = ControllerState.objects.filter(pk=state.pk, version=state.version).update(
        version=state.version + 1, value=value, updated_at=timezone.now()
    )
    if moved != 1:
        raise Stale


def stored_epoch(
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
        advisory=context.advisory,
    )


def status_of(effects: Effects) -> Epoch.Status:
    """Returns the epoch's status. It is infeasible also where the best that is possible was done, so that an operator
    notices.
    """
    if effects.rationale.reason is Reason.INFEASIBLE:
        return Epoch.Status.INFEASIBLE
    return Epoch.Status.APPLIED if effects.commands else Epoch.Status.HELD

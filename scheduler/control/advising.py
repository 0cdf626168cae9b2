"""Takes the turns of a policy that advises: its loops decide beside those of the policy in force, on the same demand.

It has a fleet of its own, which exists only here: the partition, and the GPUs and workers of each pool, as its loops
would have them (ControllerState `advice`). It begins as the fleet in force. What steps read of engines (clocks,
batches, instances that start) is of those that run. Nothing of it is carried out. Each turn puts both fleets side by
side.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from core.observations import asking
from core.types import Command, Loop, ScaleTo, SetTpDegrees
from pools.models import Partition, Pool, Service
from scheduler import agents
from scheduler.control import active_operations, decision_rows, epochs, recordings, service_policy, turn_context
from scheduler.control.apply import budgets
from scheduler.control.fleet_prediction import FleetPrediction, clock_ranges, predicted
from scheduler.control.loop_turns import FollowUp, decide, follow_up
from scheduler.control.steps.policy_steps import Result
from scheduler.control.turn_context import TurnContext
from scheduler.json_values import plan_from_json, workers_to_json
from scheduler.models import ControllerState, Epoch

KIND = "advice"  # of the ControllerState that has the fleet advised

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SideBySide:
    """The fleet of the policy in force and that of the policy that advises, both predicted at the same demand."""

    in_force: FleetPrediction
    advised: FleetPrediction


def advises(service: Service) -> bool:
    """Says whether the configured policy advises: it is not in force, or no loop of it has acted yet."""
    control_mode = active_operations.control_mode_of(service)
    return control_mode.advises and (control_mode.gateways_only or not service_policy.is_in_force(service))


def run(service: Service, now: datetime) -> list[Epoch]:
    """Takes the turns that are due, slowest first. Without nodes that report there is nothing to advise on."""
    reporting = agents.reporting(agents.connect(), now)
    if not reporting or not advises(service):
        return []
    found = [_run(service, loop, now, reporting) for loop in epochs.EPOCH_LOOPS]
    return [epoch for epoch in found if epoch is not None]


def side_by_side(service: Service, now: datetime) -> SideBySide:
    """Predicts both fleets as they are at `now`."""
    reporting = agents.reporting(agents.connect(), now)
    return _compared(service, context_of(service, now, reporting))


def turns(service: Service) -> QuerySet[Epoch]:
    """Returns the turns in which a policy advised, the newest first, with both fleets as predicted then."""
    rows = Epoch.objects.filter(service=service, advisory=True, comparison__isnull=False).defer("recording")
    return rows.prefetch_related("decisions").order_by("-started_at", "-pk")


def _run(service: Service, loop: Loop, now: datetime, reporting: Iterable[str]) -> Epoch | None:
    index = epochs.due(service, loop, now, service.configured_policy(), advisory=True)
    if index is None or active_operations.is_paused(service, loop):
        return None
    context = context_of(service, now, reporting)
    try:
        return epochs.guarded(context, loop, index, _decide)
    except epochs.Stale:
        log.info("%s advice %d for %s was given elsewhere", loop.value, index, service)
        return None


def _decide(context: TurnContext, loop: Loop, index: int) -> Epoch | None:
    """Decides, and keeps the fleet that follows. Raises epochs.Stale where another process did so meanwhile."""
    started_at, clock = timezone.now(), time.monotonic()
    fleet = _fleet(context.service)
    with asking.noting() as notes:
        turn = decide(context, loop, index)
        after, workers = carried_out(context, loop, turn.result)
        with transaction.atomic():
            if turn.result.no_op and not turn.fresh and not turn.result.effects.commands:
                epochs.swap(turn.state, turn.result.state)
                return None
            made = bool(turn.result.effects.commands)
            status = Epoch.Status.ADVISED if made else epochs.status_of(turn.result.effects)
            epoch = epochs.stored_epoch(context, loop, index, started_at, clock, status)
            epochs.swap(turn.state, turn.result.state)
            if workers is not None:
                epochs.swap(workers.decision.state, workers.decision.result.state)
            epochs.swap(fleet, _stored(after, fleet.value))
            recordings.keep(epoch, notes, context.now)
            if loop is Loop.CARBON:
                decision_rows.of_service(epoch, turn.result.effects, context.now)
            else:
                decision_rows.of_pools(epoch, turn.result.effects, context.now)
            if workers is not None:
                epoch.service = after.service  # in whose partition its pools are
                decision_rows.of_pools(epoch, workers.decision.result.effects, context.now, kind=Loop.SCALE)
            epoch.comparison = asdict(_compared(Service.objects.get(pk=context.service.pk), after))
            epoch.save(update_fields=["comparison"])
    return epoch


def _compared(service: Service, advised: TurnContext) -> SideBySide:
    in_force = turn_context.resolve(service, advised.now, advised.reporting, service.own_policy())
    return SideBySide(
        predicted(in_force, clock_ranges(in_force)), predicted(advised, clock_ranges(advised, held=False))
    )


# -- the fleet advised -----------------------------------------------------------------------------


def context_of(service: Service, now: datetime, reporting: Iterable[str]) -> TurnContext:
    """Returns the context of the policy that advises, with its own fleet. Where it is another policy than before, or
    overrides have changed, that begins anew as the fleet in force."""
    policy = service.configured_policy()
    context = turn_context.resolve(service, now, reporting, policy, advisory=True)
    fleet = _fleet(service)
    if fleet.value.get("signature") != context.signature:
        kinds = [turn_context.state_kind(loop, advisory=True) for loop in epochs.EPOCH_LOOPS]
        with transaction.atomic():
            ControllerState.objects.filter(service=service, kind__in=kinds).delete()
            present = {str(pool.pk): [pool.gpu_budget, pool.workers] for pool in service.pools.all()}
            value = {"signature": context.signature, "partition": service.partition_id, "pools": present}
            epochs.swap(fleet, value)
        fleet.refresh_from_db()
        context = turn_context.resolve(service, now, reporting, policy, advisory=True)
    pools = _with_envelopes(service, fleet)
    return context.with_plan(context.plan, Partition.objects.get(pk=fleet.value["partition"]), pools)


def carried_out(context: TurnContext, loop: Loop, result: Result) -> tuple[TurnContext, FollowUp | None]:
    """Returns the context as it would be with the commands carried out, and of a carbon plan scale's answer to it.

    Reads and computes; stores nothing.
    """
    commands = result.effects.commands
    if not commands:
        return context, None
    if loop is not Loop.CARBON:
        set_workers(context.pools, commands)
        return context, None
    pools = {pool.pk: pool for pool in budgets.pools_of(context.service)}
    for own in context.pools:
        pools[own.pk].gpu_budget, pools[own.pk].workers = own.gpu_budget, own.workers
    plan, every = plan_from_json(result.state), list(pools.values())
    workers = follow_up(context, commands, plan, every)
    after = context.with_plan(plan, budgets.partition_after(context.service, commands), every)
    set_workers(after.pools, workers.decision.result.effects.commands)
    return after, workers


def set_workers(pools: Iterable[Pool], commands: Sequence[Command]) -> None:
    """Gives the pools the workers that scale or shard wants, within their budgets; stores nothing."""
    by_key = {(pool.site.name, pool.request_class.name): pool for pool in pools}
    for command in commands:
        if isinstance(command, (ScaleTo, SetTpDegrees)):
            pool, workers = by_key[command.pool.site, command.pool.request_class], workers_to_json(command.workers)
            if budgets.within(workers, pool.gpu_budget):
                pool.workers = workers


def _fleet(service: Service) -> ControllerState:
    return ControllerState.objects.get_or_create(kind=KIND, service=service)[0]


def _with_envelopes(service: Service, fleet: ControllerState) -> list[Pool]:
    """Returns the service's pools, unsaved, with the GPUs and the workers of the fleet advised."""
    pools = budgets.pools_of(service)
    for pool in pools:
        pool.gpu_budget, pool.workers = fleet.value["pools"].get(str(pool.pk), ({}, {}))
    return pools


def _stored(after: TurnContext, before: dict[str, Any]) -> dict[str, Any]:
    own = {str(pool.pk): [pool.gpu_budget, pool.workers] for pool in after.pools}
    return {**before, "partition": after.service.partition_id, "pools": own}

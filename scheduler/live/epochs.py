"""Runs the slow loops: snapshot -> step -> one transaction of state, rows and reasons -> Redis.

An epoch is unique by (kind, service, period, floor(t / period)): whoever inserts its row first has it, and what a
second process worked out meanwhile is rolled back. The controller's state moves by compare-and-swap; when it moved
under us, the epoch is worked out again on what is now there.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any

import redis
from django.conf import settings
from django.db import DatabaseError, IntegrityError, transaction
from django.utils import timezone

from pools.models import Service
from scheduler.core.controllers import carbon, scale, shard
from scheduler.core.controllers.pool_loop import PoolDecision, PoolLoopConfig
from scheduler.core.types import CarbonPlan, Effects, Loop, Rationale, Reason
from scheduler.live import agents, apply, decisions, publish, snapshot
from scheduler.live.serial import plan_from_json, plan_to_json, to_json
from scheduler.models import ControllerState, Epoch

log = logging.getLogger(__name__)

ATTEMPTS = 3


class Stale(Exception):
    """The controller's state moved while we computed."""


@dataclass(frozen=True, slots=True)
class Result:
    """A controller's answer, and its new state as JSON."""

    effects: Effects
    state: dict[str, Any]
    per_pool: tuple[PoolDecision, ...] = ()


def period_s(loop: Loop) -> float:
    found: Any = settings.GREENSERVE_LOOPS[loop.value]
    return float(found["period_s"])


def carbon_plan(service: Service) -> CarbonPlan | None:
    state = ControllerState.objects.filter(kind=Loop.CARBON, service=service).first()
    return plan_from_json(state.value) if state else None


def has_plan(service: Service) -> bool:
    return carbon_plan(service) is not None


def run(service: Service, loop: Loop, now: datetime) -> Epoch | None:
    """One epoch of one loop for one service; None when it has been run already.

    A controller's exception is stored with the epoch: the last plan stays in force and the next epoch tries again.
    """
    index = math.floor(now.timestamp() / period_s(loop))
    same = Epoch.objects.filter(kind=loop.value, service=service, period_s=period_s(loop), index=index)
    for _ in range(ATTEMPTS):
        if same.exists():
            return None
        try:
            return _run_once(service, loop, index, now)
        except Stale:
            service.refresh_from_db()
        except IntegrityError as error:
            if "epoch_runs_once" not in str(error):
                raise
    log.info("%s epoch %d of %s was run elsewhere", loop.value, index, service)
    return None


def _run_once(service: Service, loop: Loop, index: int, now: datetime) -> Epoch:
    started_at, clock = timezone.now(), time.monotonic()
    try:
        return _decide_and_apply(service, loop, index, now)
    except (Stale, DatabaseError, redis.RedisError):
        raise
    except Exception as error:
        # Whatever a controller stumbles over must not take the fleet down, nor go unseen.
        log.exception("%s epoch %d of %s failed", loop.value, index, service)
        failure = f"{type(error).__name__}: {error}"
        with transaction.atomic():
            epoch = _epoch(service, loop, index, started_at, clock, Epoch.Status.FAILED, failure)
            decisions.failed(epoch, now, failure)
        return epoch


def _decide_and_apply(service: Service, loop: Loop, index: int, now: datetime) -> Epoch:
    client = agents.connect()
    reporting = agents.reporting(client, now)
    state, _ = ControllerState.objects.get_or_create(kind=loop.value, service=service)
    started_at, clock = timezone.now(), time.monotonic()
    result = _CONTROLLERS[loop](service, now, reporting, state.value)
    touched: frozenset[str] = frozenset()
    with transaction.atomic():
        epoch = _epoch(service, loop, index, started_at, clock, _status(result.effects))
        apply.lock()
        _swap(state, result.state)
        made = _apply(service, loop, epoch, result, now)
        if result.effects.commands:
            touched = apply.apply_placement(service, reporting, made).nodes
    if result.effects.commands:
        publish.publish(client, timezone.now())
        publish.nudge(touched, decision_id=next(iter(made.values()), None))
    return epoch


def settle(client: redis.Redis, now: datetime) -> frozenset[str]:
    """Finishes what placements wait for: drains that ended, starts that had no GPU. Returns the nodes concerned."""
    states = agents.states(client, agents.nodes())
    reporting = agents.reporting(client, now)
    touched: frozenset[str] = frozenset()
    with transaction.atomic():
        apply.lock()
        touched |= apply.finish_drains(states, now)
        for service in Service.objects.all():
            touched |= apply.apply_placement(service, reporting, decisions.latest_by_pool(service)).nodes
    return touched


def _apply(service: Service, loop: Loop, epoch: Epoch, result: Result, now: datetime) -> dict[int, int]:
    """Writes commands and decisions; returns pool -> decision for the instances that follow from them."""
    if loop is not Loop.CARBON:
        apply.apply_workers(service, result.effects.commands)
        return decisions.of_pools(epoch, result.effects, result.per_pool, now)
    decision = decisions.of_service(epoch, result.effects, now)
    if not result.effects.commands:
        return {}
    apply.apply_budgets(service, result.effects.commands)
    # Pools that lost or gained GPUs get their workers at once rather than at the next scale epoch.
    state, _ = ControllerState.objects.get_or_create(kind=Loop.SCALE, service=service)
    follow_up = _scale(service, now, plan_from_json(result.state))
    _swap(state, follow_up.state)
    apply.apply_workers(service, follow_up.effects.commands)
    made = decisions.of_pools(epoch, follow_up.effects, follow_up.per_pool, now, kind=Loop.SCALE)
    return {pool.pk: decision.pk for pool in service.pools.all()} | made


def _swap(state: ControllerState, value: dict[str, Any]) -> None:
    """Raises Stale when another process was quicker."""
    moved = ControllerState.objects.filter(pk=state.pk, version=state.version).update(
        version=state.version + 1, value=value, updated_at=timezone.now()
    )
    if moved != 1:
        raise Stale


def _epoch(
    service: Service,
    loop: Loop,
    index: int,
    started_at: datetime,
    clock: float,
    status: Epoch.Status,
    error: str = "",
) -> Epoch:
    return Epoch.objects.create(
        kind=loop.value,
        service=service,
        index=index,
        period_s=period_s(loop),
        due_at=datetime.fromtimestamp(index * period_s(loop), UTC),
        started_at=started_at,
        finished_at=timezone.now(),
        status=status,
        solve_s=time.monotonic() - clock,
        error=error,
    )


def _status(effects: Effects) -> Epoch.Status:
    if effects.commands:
        return Epoch.Status.APPLIED
    return Epoch.Status.INFEASIBLE if effects.rationale.reason is Reason.INFEASIBLE else Epoch.Status.HELD


# -- the controllers, each fed from the database ---------------------------------------------------


def _config(loop: Loop, kind: type[Any]) -> Any:
    """The controller's configuration from settings; a knob that settings leave out has the controller's default."""
    found: Any = settings.GREENSERVE_LOOPS[loop.value]
    return kind(**{field.name: found[field.name] for field in fields(kind) if field.name in found})


def _run_carbon(service: Service, now: datetime, reporting: set[str], state: Mapping[str, Any]) -> Result:
    observation = snapshot.carbon(service, now, reporting)
    plan, effects = carbon.step(plan_from_json(state), observation, _config(Loop.CARBON, carbon.CarbonConfig))
    return Result(effects, plan_to_json(plan))


def _run_scale(service: Service, now: datetime, reporting: set[str], state: Mapping[str, Any]) -> Result:
    return _scale(service, now, carbon_plan(service))


def _scale(service: Service, now: datetime, plan: CarbonPlan | None) -> Result:
    observation = snapshot.scale(service, now, plan)
    if not observation.pools:
        return _nothing_to_do()
    config = _config(Loop.SCALE, PoolLoopConfig)
    state, effects = scale.step(None, observation, config)
    changing = {command.pool for command in effects.commands if hasattr(command, "pool")}
    per_pool = tuple(scale.step_pool(pool, config) for pool in observation.pools if pool.key in changing)
    return Result(effects, to_json(state), per_pool)


def _run_shard(service: Service, now: datetime, reporting: set[str], state: Mapping[str, Any]) -> Result:
    observation = snapshot.shard(service, now, carbon_plan(service))
    if not observation.pools:
        return _nothing_to_do()
    config = _config(Loop.SHARD, PoolLoopConfig)
    found, effects = shard.step(None, observation, config)
    changing = {command.pool for command in effects.commands if hasattr(command, "pool")}
    per_pool = tuple(
        shard.step_pool(pool, observation.epoch_s, observation.transition_s, config)
        for pool in observation.pools
        if pool.key in changing
    )
    return Result(effects, to_json(found), per_pool)


def _nothing_to_do() -> Result:
    rationale = Rationale(Reason.NO_DATA, "No pool has a GPU budget yet: the carbon epoch has made no plan.")
    return Result(Effects((), None, rationale), {})


_CONTROLLERS: Mapping[Loop, Callable[[Service, datetime, set[str], Mapping[str, Any]], Result]] = {
    Loop.CARBON: _run_carbon,
    Loop.SCALE: _run_scale,
    Loop.SHARD: _run_shard,
}

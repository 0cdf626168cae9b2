"""Plans that wait for a person's approval: epochs make them, `scheduler.operations.approvals` decides on them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from django.contrib.auth.models import User
from django.db.models import QuerySet

from core.types import Command, ForwardLoad
from pools.models import Service
from scheduler.control import service_policy
from scheduler.control.steps.policy_steps import Result
from scheduler.json_values import to_json
from scheduler.models import Approval, ApprovalStatus, ControllerState, Epoch, ServiceMode

NOT_CARRIED_OUT = (Epoch.Status.ADVISED, Epoch.Status.WAITING)


def basis(service: Service, controller: ControllerState) -> str:
    """Returns a hash of what carrying a plan out depends on: policy, partition, pools, the loop's state."""
    pools = service.pools.order_by("pk").values_list("pk", "gpu_budget", "workers")
    made_on = [
        service_policy.signature(service),
        service.partition_id,
        controller.version,
        [list(row) for row in pools],
    ]
    return hashlib.sha256(json.dumps(made_on, sort_keys=True).encode()).hexdigest()


def changes_fleet(commands: Iterable[Command]) -> bool:
    """Says whether there is anything to ask a person for. What gateways hand on follows the load, as weights in routing
    do: it starts and stops no instance."""
    return any(not isinstance(command, ForwardLoad) for command in commands)


def still_waits(service: Service, controller: ControllerState, loop: str, result: Result) -> bool:
    """Says whether the same changes of the fleet wait already, since nobody is asked for them twice."""
    pending = Approval.objects.filter(service=service, loop=loop, status=ApprovalStatus.PENDING).first()
    if pending is None or pending.basis != basis(service, controller):
        return False
    return _of_fleet(pending.commands) == _of_fleet(to_json(result.effects.commands))


def _of_fleet(rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [row for row in rows if row["type"] != ForwardLoad.__name__]


def offer(
    epoch: Epoch, controller: ControllerState, result: Result, control_mode: ServiceMode, now: datetime
) -> Approval:
    """Asks for approval of an epoch's plan; what the same loop asked for before is out of date."""
    supersede(epoch.service, epoch.kind, "A newer plan has taken its place.", now)
    return Approval.objects.create(
        epoch=epoch,
        service=epoch.service,
        controller=controller,
        loop=epoch.kind,
        commands=to_json(result.effects.commands),
        state=result.state,
        basis=basis(epoch.service, controller),
        created_at=now,
        expires_at=now + timedelta(seconds=control_mode.approve_within_s),
    )


def supersede(service: Service, loop: str | None, note: str, now: datetime) -> None:
    """Closes plans of this loop, or of all, that wait and are out of date."""
    rows = Approval.objects.filter(service=service, status=ApprovalStatus.PENDING)
    close(rows.filter(loop=loop) if loop else rows, ApprovalStatus.OUTDATED, now, note)


def lapse(now: datetime) -> None:
    """Closes the approvals whose time is over: their plans are not carried out."""
    rows = Approval.objects.filter(status=ApprovalStatus.PENDING, expires_at__lte=now)
    close(rows, ApprovalStatus.EXPIRED, now, "Nobody approved it in time.")


def close(rows: QuerySet[Approval], status: ApprovalStatus, now: datetime, note: str, by: User | None = None) -> None:
    ids = list(rows.values_list("pk", flat=True))
    if ids:
        Approval.objects.filter(pk__in=ids).update(status=status, decided_at=now, note=note[:300], decided_by=by)
        Epoch.objects.filter(approval__in=ids, status=Epoch.Status.WAITING).update(status=Epoch.Status.ADVISED)

"""Undoing a decision: overrides that bring back what was before it, until they end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime

from django.core.exceptions import ValidationError
from django.db import transaction

from core.types import Command, Loop
from pools.access.audit import Actor
from pools.models import Instance, Partition, Pool
from scheduler.control import pending_plans
from scheduler.json_values import commands_from_json, to_json
from scheduler.models import Decision, DecisionKind, Override

from .overrides import fix_clock, pin_partition, pin_workers

Act = Callable[[Actor, datetime, str], Override]  # with the expiry and the reason


def undoable(decision: Decision) -> str:
    """Says what undoing it would do, as a sentence; empty: there is nothing to go back to."""
    try:
        return "; ".join(words for words, _ in _back(decision))
    except ValidationError:
        return ""


@transaction.atomic
def undo(actor: Actor, decision: Decision, expires_at: datetime, reason: str) -> list[Override]:
    """Makes overrides that bring back what was before a decision, until they end.

    Raises:
        ValidationError: It changed nothing, or what was before is not on record.
        PermissionDenied: The actor may not operate what it concerns.
    """
    return [act(actor, expires_at, reason) for _, act in _back(decision)]


def _back(decision: Decision) -> list[tuple[str, Act]]:
    """Returns, for each thing that it changed, words and what to call with actor, expiry and reason."""
    if not decision.commands or decision.service is None:
        raise ValidationError("this decision changed nothing that could be undone")
    if decision.epoch is not None and decision.epoch.status in pending_plans.NOT_CARRIED_OUT:
        raise ValidationError("this decision was not carried out")
    if decision.kind == DecisionKind.CLOCK:
        return [_clock_back(decision)]
    if decision.kind == DecisionKind.CARBON:
        return [_partition_back(decision)]
    found = [item for command in commands_from_json(decision.commands) if (item := _workers_back(decision, command))]
    if not found:
        raise ValidationError("what was before this decision is not on record")
    return found


def _clock_back(decision: Decision) -> tuple[str, Act]:
    uid = decision.instance_uid
    instance = None if uid is None else Instance.objects.filter(uid=uid).select_related("pool__site").first()
    mhz = decision.inputs.get("from_mhz")
    if instance is None or mhz is None or instance.state == Instance.State.STOPPED:
        raise ValidationError("the instance is gone, or its clock before is not on record")

    def act(actor: Actor, expires_at: datetime, reason: str) -> Override:
        return fix_clock(actor, instance.pool, mhz, expires_at, reason, instance, decision)

    return f"the clock of {instance} stays at {mhz:.0f} MHz", act


def _partition_back(decision: Decision) -> tuple[str, Act]:
    now = next((row["partition"] for row in decision.commands if row["type"] == "ChoosePartition"), None)
    present = decision.inputs.get("present")
    before = present.get("partition") if isinstance(present, dict) else None
    service, partition = decision.service, Partition.objects.filter(name=before or "").first()
    if partition is None or before == now or service is None:
        raise ValidationError("the partition stayed as it was: pin the pools of the decisions that followed instead")

    def act(actor: Actor, expires_at: datetime, reason: str) -> Override:
        return pin_partition(actor, service, partition, expires_at, reason, decision)

    return f"{service} keeps partition {partition}", act


def _workers_back(decision: Decision, command: Command) -> tuple[str, Act] | None:
    """Finds the newest decision before this one that set the same pool's workers."""
    key = getattr(command, "pool", None)
    if key is None:
        return None
    pool = Pool.objects.filter(
        service=decision.service, site__name=key.site, request_class__name=key.request_class, pk=decision.pool_id or 0
    ).first()
    earlier = Decision.objects.filter(pool=pool, pk__lt=decision.pk, kind__in=(Loop.SCALE, Loop.SHARD))
    carried_out = earlier.exclude(commands=[]).exclude(epoch__status__in=pending_plans.NOT_CARRIED_OUT)
    for old in carried_out.order_by("-pk")[:20]:
        for row in old.commands:
            if row["type"] in ("ScaleTo", "SetTpDegrees") and row["pool"] == to_json(key) and pool is not None:
                return _pin_back(decision, pool, row["workers"])
    return None


def _pin_back(decision: Decision, pool: Pool, workers: Mapping[str, int]) -> tuple[str, Act]:
    def act(actor: Actor, expires_at: datetime, reason: str) -> Override:
        return pin_workers(actor, pool, workers, expires_at, reason, decision)

    words = ", ".join(f"{count} x {name}" for name, count in workers.items()) or "no workers"
    return f"{pool} keeps {words}", act

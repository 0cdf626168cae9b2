"""Approves or rejects plans that wait (`control.pending_plans`) for a person, under `apply.lock`."""

from __future__ import annotations

from datetime import datetime

from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils import timezone

from pools.access import audit
from pools.access.audit import Actor
from scheduler.control import epochs, pending_plans
from scheduler.control.apply import apply
from scheduler.models import Approval, ApprovalStatus

from . import records


@transaction.atomic
def approve(actor: Actor, approval: Approval) -> Approval:
    """Carries out exactly what was asked. Look at the status of the answer: it may be too late, or out of date.

    Raises:
        ValidationError: It has been decided on already.
        PermissionDenied: The actor may not operate all of the service.
    """
    now = timezone.now()
    approval = _pending(actor, approval)
    if approval.expires_at <= now:
        pending_plans.lapse(now)
    elif epochs.carry_out(approval, now):
        _close(actor, approval, ApprovalStatus.APPROVED, "", now)
    else:
        text = "What it was made on has moved: the loop's next plan asks again."
        _close(actor, approval, ApprovalStatus.OUTDATED, text, now)
    approval.refresh_from_db()
    return approval


@transaction.atomic
def reject(actor: Actor, approval: Approval, note: str = "") -> Approval:
    """It is not carried out; the loop decides again at its next turn."""
    approval = _pending(actor, approval)
    _close(actor, approval, ApprovalStatus.REJECTED, note, timezone.now())
    approval.refresh_from_db()
    return approval


def _pending(actor: Actor, approval: Approval) -> Approval:
    records.require_right(actor)
    apply.lock()
    found = Approval.objects.select_related("service", "controller", "epoch").get(pk=approval.pk)
    if found.status != ApprovalStatus.PENDING:
        status = str(found.get_status_display()).lower()
        raise ValidationError(f"it is {status} already{f': {found.note}' if found.note else ''}")
    return found


def _close(actor: Actor, approval: Approval, status: ApprovalStatus, note: str, now: datetime) -> None:
    before = audit.values(approval)
    pending_plans.close(Approval.objects.filter(pk=approval.pk), status, now, note, actor.user)
    approval.refresh_from_db()
    audit.record(actor, str(status), approval, before, audit.values(approval))

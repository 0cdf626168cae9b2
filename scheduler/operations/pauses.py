"""Pauses of a service's loops, and its control mode: whether the configured policy acts, advises or asks.

Each is a change of its own on the audit trail. The loops read them in `control.active_operations`; a loop that
computes meanwhile finds out before it changes anything, since this happens under `apply.lock`.
"""

from __future__ import annotations

from datetime import datetime

from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils import timezone

from core import bounds
from pools.access import audit
from pools.access.audit import Actor
from pools.models import Instance, Service
from scheduler.control import active_operations, epochs, pending_plans, service_policy
from scheduler.control.apply import apply
from scheduler.models import ControlMode, LoopPause, ServiceMode

from . import records


@transaction.atomic
def pause(actor: Actor, service: Service, loop: str, reason: str, expires_at: datetime | None = None) -> LoopPause:
    """The loop decides nothing until it is resumed, or `expires_at`. One that is paused already is paused anew.

    Raises:
        ValidationError: No such loop, no reason, or an end that has passed.
        PermissionDenied: The actor may not operate all of the service.
    """
    now = timezone.now()
    records.require_right(actor)
    if loop not in LoopPause.Loop.values:
        raise ValidationError({"loop": f"one of {', '.join(LoopPause.Loop.values)}, not '{loop}'"})
    if expires_at is not None and expires_at <= now:
        raise ValidationError({"expires_at": "in the future, or empty for until somebody resumes it"})
    apply.lock()
    LoopPause.objects.filter(service=service, loop=loop, ended_at=None).update(ended_at=now, ended_by=actor.user)
    made = LoopPause(
        service=service,
        loop=loop,
        reason=records.reason_of(reason),
        expires_at=expires_at,
        created_at=now,
        created_by=actor.user,
    )
    made.save()
    until = f"until {expires_at:%Y-%m-%d %H:%M} UTC" if expires_at else "until it is resumed"
    records.record_decision(
        actor,
        loop,
        service,
        f"{records.name_of(actor)} paused the {loop} loop of {service} {until}: {made.reason}",
        now,
    )
    audit.record(actor, "paused", made, None, audit.values(made))
    records.publish_later()
    return made


@transaction.atomic
def resume(actor: Actor, paused: LoopPause) -> LoopPause:
    """The loop takes its next turn. One that has ended already is left as it is."""
    now = timezone.now()
    records.require_right(actor)
    apply.lock()
    paused.refresh_from_db()
    if paused.ended_at is None:
        before = audit.values(paused)
        paused.ended_at, paused.ended_by = now, actor.user
        paused.save(update_fields=["ended_at", "ended_by"])
        text = f"{records.name_of(actor)} resumed the {paused.loop} loop of {paused.service}."
        records.record_decision(actor, paused.loop, paused.service, text, now)
        audit.record(actor, "resumed", paused, before, audit.values(paused))
        records.publish_later()
    return paused


@transaction.atomic
def set_control_mode(actor: Actor, service: Service, mode: str, approve_within_s: float | None = None) -> ServiceMode:
    """Sets whether the policy that is configured acts, advises beside the one in force, or asks for approval.

    Only `act` changes what acts: it puts the configured policy in force. With any other control mode the policy that
    was in force stays so. Where none of its loops has acted yet, only gateways go by it: clocks stay at the top, but
    for what `let_clocks_down` allows.

    Raises:
        ValidationError: No such control mode, or no time to approve in.
        PermissionDenied: The actor may not operate all of the service.
    """
    now = timezone.now()
    records.require_right(actor)
    apply.lock()
    control_mode = active_operations.control_mode_of(service)
    before = audit.values(control_mode) if control_mode.pk else None
    acted = control_mode.mode == ControlMode.ACT
    control_mode.mode, control_mode.changed_by = mode, actor.user
    if mode == ControlMode.ACT:
        control_mode.gateways_only = False
    elif acted:
        control_mode.gateways_only = not _has_acted(service)
    if approve_within_s is not None:
        control_mode.approve_within_s = approve_within_s
    most_s = bounds.DURATION.most
    if not 0 < control_mode.approve_within_s <= most_s:
        raise ValidationError({"approve_within_s": f"above 0 and at most {most_s:,g} seconds"})
    control_mode.full_clean()
    control_mode.save()
    _keep_in_force(service, acts=mode == ControlMode.ACT, acted=acted)
    if mode != ControlMode.APPROVE:
        pending_plans.supersede(service, None, f"The service's control mode is {mode} now.", now)
    audit.record(actor, "mode", control_mode, before, audit.values(control_mode))
    records.publish_later()
    return control_mode


def _has_acted(service: Service) -> bool:
    """Says whether the service's loops have carried out anything: there is a plan, or an instance that was placed."""
    return epochs.has_plan(service) or Instance.objects.filter(pool__service=service, node__isnull=False).exists()


def _keep_in_force(service: Service, *, acts: bool, acted: bool) -> None:
    """Keeps the policy that acts until now in force; where the configured one acts, no other is in force."""
    service.refresh_from_db()
    if acts:
        service.acting_policy, service.acting_knobs = "", {}
        service.save(update_fields=["acting_policy", "acting_knobs"])
    elif acted:
        service_policy.put_in_force(service)

"""What a person does to the loops: pauses, modes, approvals, overrides and the undoing of a decision.

Each is a change of its own on the audit trail, and a decision of its own on the time line. The loops read them in
`control`; whoever computes meanwhile finds out before anything is changed, since this happens under `apply.lock`.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from django.core.exceptions import PermissionDenied, ValidationError
from django.db import transaction
from django.utils import timezone

from core.types import Loop, Mode, Reason, ScaleTo
from pools.access import audit
from pools.access.audit import Actor
from pools.access.rights import Right, everywhere, require
from pools.models import Gpu, Instance, Partition, Pool, Service, Site
from scheduler.control import approvals, epochs, in_force, service_policy
from scheduler.control.apply import apply
from scheduler.control.snapshot import published_profiles
from scheduler.json_values import commands_from_json, to_json, workers_to_json
from scheduler.models import Approval, Decision, LoopPause, Override, ServiceMode
from scheduler.operations.configure.changes import publish_soon

LONGEST = timedelta(days=30)
Kind = Override.Kind


# -- pauses and modes ------------------------------------------------------------------------------


@transaction.atomic
def pause(actor: Actor, service: Service, loop: str, reason: str, expires_at: datetime | None = None) -> LoopPause:
    """The loop decides nothing until it is resumed, or `expires_at`. One that is paused already is paused anew.

    Raises:
        ValidationError: No such loop, no reason, or an end that has passed.
        PermissionDenied: The actor may not operate all of the service.
    """
    now = timezone.now()
    _allowed(actor)
    if loop not in LoopPause.Loop.values:
        raise ValidationError({"loop": f"one of {', '.join(LoopPause.Loop.values)}, not '{loop}'"})
    if expires_at is not None and expires_at <= now:
        raise ValidationError({"expires_at": "in the future, or empty for until somebody resumes it"})
    apply.lock()
    LoopPause.objects.filter(service=service, loop=loop, ended_at=None).update(ended_at=now, ended_by=actor.user)
    made = LoopPause(
        service=service, loop=loop, reason=_reason(reason), expires_at=expires_at, created_at=now, created_by=actor.user
    )
    made.save()
    until = f"until {expires_at:%Y-%m-%d %H:%M} UTC" if expires_at else "until it is resumed"
    _on_record(actor, loop, service, f"{_who(actor)} paused the {loop} loop of {service} {until}: {made.reason}", now)
    audit.record(actor, "paused", made, None, audit.values(made))
    _publish()
    return made


@transaction.atomic
def resume(actor: Actor, held: LoopPause) -> LoopPause:
    """The loop takes its next turn. One that has ended already is left as it is."""
    now = timezone.now()
    _allowed(actor)
    apply.lock()
    held.refresh_from_db()
    if held.ended_at is None:
        before = audit.values(held)
        held.ended_at, held.ended_by = now, actor.user
        held.save(update_fields=["ended_at", "ended_by"])
        text = f"{_who(actor)} resumed the {held.loop} loop of {held.service}."
        _on_record(actor, held.loop, held.service, text, now)
        audit.record(actor, "resumed", held, before, audit.values(held))
        _publish()
    return held


@transaction.atomic
def set_mode(actor: Actor, service: Service, mode: str, approve_within_s: float | None = None) -> ServiceMode:
    """Whether decisions of the service's carbon, scale and shard loops act, are only shown, or wait for approval.

    Its clocks act in the first only: else they stay at the top, but for what `let_clocks_down` approves.

    Raises:
        ValidationError: No such mode, or no time to approve in.
        PermissionDenied: The actor may not operate all of the service.
    """
    now = timezone.now()
    _allowed(actor)
    apply.lock()
    held = in_force.mode_of(service)
    before = audit.values(held) if held.pk else None
    held.mode, held.changed_by = mode, actor.user
    if approve_within_s is not None:
        held.approve_within_s = approve_within_s
    if not 0 < held.approve_within_s < math.inf:
        raise ValidationError({"approve_within_s": "above 0 seconds"})
    held.full_clean()
    held.save()
    if mode != ServiceMode.Mode.APPROVE:
        approvals.supersede(service, None, f"The service's mode is {mode} now.", now)
    audit.record(actor, "mode", held, before, audit.values(held))
    _publish()
    return held


# -- approvals -------------------------------------------------------------------------------------


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
        approvals.lapse(now)
    elif epochs.carry_out(approval, now):
        _close(actor, approval, Approval.Status.APPROVED, "", now)
    else:
        text = "What it was made on has moved: the loop's next plan asks again."
        _close(actor, approval, Approval.Status.OUTDATED, text, now)
    approval.refresh_from_db()
    return approval


@transaction.atomic
def reject(actor: Actor, approval: Approval, note: str = "") -> Approval:
    """It is not carried out; the loop decides again at its next turn."""
    approval = _pending(actor, approval)
    _close(actor, approval, Approval.Status.REJECTED, note, timezone.now())
    approval.refresh_from_db()
    return approval


def _pending(actor: Actor, approval: Approval) -> Approval:
    _allowed(actor)
    apply.lock()
    found = Approval.objects.select_related("service", "controller", "epoch").get(pk=approval.pk)
    if found.status != Approval.Status.PENDING:
        told = str(found.get_status_display()).lower()
        raise ValidationError(f"it is {told} already{f': {found.note}' if found.note else ''}")
    return found


def _close(actor: Actor, approval: Approval, status: Approval.Status, note: str, now: datetime) -> None:
    before = audit.values(approval)
    approvals.close(Approval.objects.filter(pk=approval.pk), status, now, note, actor.user)
    approval.refresh_from_db()
    audit.record(actor, str(status), approval, before, audit.values(approval))


# -- overrides -------------------------------------------------------------------------------------


def pin_workers(
    actor: Actor,
    pool: Pool,
    workers: Mapping[str, int],
    expires_at: datetime,
    reason: str,
    decision: Decision | None = None,
) -> Override:
    """The pool has these workers (mode name -> instances), and no others, until the override ends.

    Raises:
        ValidationError: No such mode, more GPUs than the site has, or a pool that is not in force.
        PermissionDenied: The actor may not operate the pool's site.
    """
    found = _modes(workers)
    wanted = in_force.pin_of(pool, workers_to_json(found))
    partition = in_force.partition_of(in_force.planned_around(pool.service)) or pool.service.partition.name
    if wanted.partition != partition:
        text = f"{pool} is of partition {wanted.partition}, but {partition} is in force"
        raise ValidationError({"pool": f"{text}: pin that partition first"})
    known = {mode.name for mode in published_profiles.offered_modes(pool.service)}
    for mode in found:
        if mode.name not in known:
            text = f"no node of {pool.service}'s sites holds {mode.name}; known are {', '.join(sorted(known))}"
            raise ValidationError({"workers": text})
    for gpu, count in wanted.gpus.items():
        there = Gpu.objects.filter(node__cluster__site=pool.site, node__schedulable=True, gpu_type=gpu).count()
        if count > there:
            raise ValidationError({"workers": f"{pool.site} has {there} {gpu}, not {count}"})
    held = Override(kind=Kind.WORKERS, service=pool.service, pool=pool, value=workers_to_json(found), decision=decision)
    words = ", ".join(f"{count} x {name}" for name, count in held.value.items()) or "no workers"
    command = ScaleTo(wanted.key, found)
    with transaction.atomic():
        made = _override(actor, held, expires_at, reason, pool.site, Loop.SCALE, f"{pool} has {words}", [command])
        Pool.objects.filter(pk=pool.pk).update(workers=held.value, gpu_budget=wanted.gpus)
    return made


def fix_clock(
    actor: Actor,
    pool: Pool,
    mhz: float,
    expires_at: datetime,
    reason: str,
    instance: Instance | None = None,
    decision: Decision | None = None,
) -> Override:
    """The SM clock of an instance, or of all of a pool's, stays at `mhz`. Its clock rule rests meanwhile.

    Raises:
        ValidationError: A clock that the GPUs cannot have.
        PermissionDenied: The actor may not operate the pool's site.
    """
    _can(pool, instance, "mhz", mhz)
    uid = instance.uid if instance else None
    value = {"mhz": float(mhz)}
    held = Override(kind=Kind.CLOCK, service=pool.service, pool=pool, instance_uid=uid, value=value, decision=decision)
    what = f"instance {str(uid)[:8]} of {pool}" if uid else f"all instances of {pool}"
    words = f"{what} stay at {mhz:.0f} MHz" if uid is None else f"{what} stays at {mhz:.0f} MHz"
    return _override(actor, held, expires_at, reason, pool.site, Loop.CLOCK, words)


def let_clocks_down(actor: Actor, pool: Pool, floor_mhz: float, expires_at: datetime, reason: str) -> Override:
    """The pool's clock rule may go down to `floor_mhz` and no further; in mode approve it acts within that.

    The clock loop decides every few seconds, in the agents: nobody can be asked each time. What a person approves is
    how far down it may go, and until when; the top clock needs nobody's word, since it only costs energy.

    Raises:
        ValidationError: A clock that the GPUs cannot have.
        PermissionDenied: The actor may not operate the pool's site.
    """
    _can(pool, None, "floor_mhz", floor_mhz)
    held = Override(kind=Kind.CLOCK, service=pool.service, pool=pool, value={"floor_mhz": float(floor_mhz)})
    words = f"clocks of {pool} may go down to {floor_mhz:.0f} MHz"
    return _override(actor, held, expires_at, reason, pool.site, Loop.CLOCK, words)


def _can(pool: Pool, instance: Instance | None, field: str, mhz: float) -> None:
    """Raises ValidationError unless all of the instance's, or the pool's, GPUs have this clock."""
    holds = {"holds__instance": instance} if instance else {"holds__instance__pool": pool}
    gpus = Gpu.objects.filter(**holds, holds__released_at=None) or Gpu.objects.filter(node__cluster__site=pool.site)
    ranges = gpus.values_list("min_mhz", "max_mhz")
    if ranges:
        low, high = max(row[0] for row in ranges), min(row[1] for row in ranges)
        if not low <= mhz <= high:
            raise ValidationError({field: f"from {low:.0f} to {high:.0f} MHz, which all of its GPUs can"})


def pin_partition(
    actor: Actor,
    service: Service,
    partition: Partition,
    expires_at: datetime,
    reason: str,
    decision: Decision | None = None,
) -> Override:
    """Requests are cut into classes by this partition, and no other.

    Raises:
        ValidationError: The service may not use it, or a pool of another one is pinned.
        PermissionDenied: The actor may not operate all of the service.
    """
    if not service.partitions.filter(pk=partition.pk).exists() and partition.pk != service.partition_id:
        names = ", ".join(service.partitions.values_list("name", flat=True))
        raise ValidationError({"partition": f"one that {service} may use: {names}"})
    others = [pin for pin in in_force.pins(service) if pin.partition != partition.name]
    if others:
        raise ValidationError({"partition": f"a pool of {others[0].partition} is pinned: end that first"})
    held = Override(kind=Kind.PARTITION, service=service, value={"partition": partition.name}, decision=decision)
    return _override(
        actor, held, expires_at, reason, None, Loop.CARBON, f"{service} cuts requests by partition {partition}"
    )


def drain_site(actor: Actor, site: Site, expires_at: datetime, reason: str) -> Override:
    """No new workers there; plans are made without it, and what runs there goes as others take over."""
    held = Override(kind=Kind.DRAIN, site=site)
    return _override(actor, held, expires_at, reason, site, Loop.CARBON, f"{site} is drained")


@transaction.atomic
def end(actor: Actor, held: Override) -> Override:
    """Ends an override now; the loops decide anew within seconds."""
    now = timezone.now()
    _allowed(actor, _site_of(held))
    apply.lock()
    held.refresh_from_db()
    if held.ended_at is None and held.expires_at > now:
        before = audit.values(held)
        held.ended_at, held.ended_by = now, actor.user
        held.save(update_fields=["ended_at", "ended_by"])
        _on_record(
            actor, _LOOP[Kind(held.kind)], held.service, f"{_who(actor)} ended an override: {held}.", now, held.pool
        )
        audit.record(actor, "ended", held, before, audit.values(held))
        _publish()
    return held


_LOOP = {Kind.WORKERS: Loop.SCALE, Kind.CLOCK: Loop.CLOCK, Kind.PARTITION: Loop.CARBON, Kind.DRAIN: Loop.CARBON}


def _override(
    actor: Actor,
    held: Override,
    expires_at: datetime,
    reason: str,
    site: Site | None,
    loop: Loop,
    words: str,
    commands: list[Any] | None = None,
) -> Override:
    """Stores it in place of what held the same, and puts it on record."""
    now = timezone.now()
    _allowed(actor, site)
    if not now < expires_at <= now + LONGEST:
        raise ValidationError({"expires_at": f"in the future, and within {LONGEST.days} days: an override ends"})
    held.reason, held.expires_at, held.created_at, held.created_by = _reason(reason), expires_at, now, actor.user
    with transaction.atomic():
        apply.lock()
        for service in [held.service] if held.service else Service.objects.filter(pools__site=site).distinct():
            service_policy.ensure_state(service)  # so that the override is taken up
        same = Override.objects.filter(
            ended_at=None, kind=held.kind, service=held.service, site=held.site, pool=held.pool
        )
        same.filter(instance_uid=held.instance_uid).update(ended_at=now, ended_by=actor.user)
        held.full_clean()
        held.save()
        text = f"{words} until {expires_at:%Y-%m-%d %H:%M} UTC, by {_who(actor)}: {held.reason}"
        _on_record(actor, loop, held.service, text, now, held.pool, held.instance_uid, commands)
        audit.record(actor, "overrode", held, None, audit.values(held))
        _publish()
    return held


# -- undo ------------------------------------------------------------------------------------------


def undoable(decision: Decision) -> str:
    """What undoing it would do, as a sentence; empty: there is nothing to go back to."""
    try:
        return "; ".join(words for words, _ in _back(decision))
    except ValidationError:
        return ""


@transaction.atomic
def undo(actor: Actor, decision: Decision, expires_at: datetime, reason: str) -> list[Override]:
    """Overrides that bring back what was before a decision, until they end.

    Raises:
        ValidationError: It changed nothing, or what was before is not on record.
        PermissionDenied: The actor may not operate what it concerns.
    """
    return [act(actor, expires_at, reason) for _, act in _back(decision)]


def _back(decision: Decision) -> list[tuple[str, Any]]:
    """(words, what to call with actor, expiry and reason) of each thing that it changed."""
    if not decision.commands or decision.service is None:
        raise ValidationError("this decision changed nothing that could be undone")
    if decision.epoch is not None and decision.epoch.status in approvals.NOT_CARRIED_OUT:
        raise ValidationError("this decision was not carried out")
    if decision.kind == Decision.Kind.CLOCK:
        return [_clock_back(decision)]
    if decision.kind == Decision.Kind.CARBON:
        return [_partition_back(decision)]
    found = [item for command in commands_from_json(decision.commands) if (item := _workers_back(decision, command))]
    if not found:
        raise ValidationError("what was before this decision is not on record")
    return found


def _clock_back(decision: Decision) -> tuple[str, Any]:
    uid = decision.instance_uid
    instance = None if uid is None else Instance.objects.filter(uid=uid).select_related("pool__site").first()
    mhz = decision.inputs.get("from_mhz")
    if instance is None or mhz is None or instance.state == Instance.State.STOPPED:
        raise ValidationError("the instance is gone, or its clock before is not on record")

    def act(actor: Actor, expires_at: datetime, reason: str) -> Override:
        return fix_clock(actor, instance.pool, mhz, expires_at, reason, instance, decision)

    return f"the clock of {instance} stays at {mhz:.0f} MHz", act


def _partition_back(decision: Decision) -> tuple[str, Any]:
    now = next((row["partition"] for row in decision.commands if row["type"] == "ChoosePartition"), None)
    present = decision.inputs.get("present")
    before = present.get("partition") if isinstance(present, dict) else None
    service, partition = decision.service, Partition.objects.filter(name=before or "").first()
    if partition is None or before == now or service is None:
        raise ValidationError("the partition stayed as it was: pin the pools of the decisions that followed instead")

    def act(actor: Actor, expires_at: datetime, reason: str) -> Override:
        return pin_partition(actor, service, partition, expires_at, reason, decision)

    return f"{service} keeps partition {partition}", act


def _workers_back(decision: Decision, command: Any) -> tuple[str, Any] | None:
    """From the newest decision before this one that set the same pool's workers."""
    key = getattr(command, "pool", None)
    if key is None:
        return None
    pool = Pool.objects.filter(
        service=decision.service, site__name=key.site, request_class__name=key.request_class, pk=decision.pool_id or 0
    ).first()
    earlier = Decision.objects.filter(pool=pool, pk__lt=decision.pk, kind__in=(Loop.SCALE, Loop.SHARD))
    for old in earlier.exclude(commands=[]).exclude(epoch__status__in=approvals.NOT_CARRIED_OUT).order_by("-pk")[:20]:
        for row in old.commands:
            if row["type"] in ("ScaleTo", "SetTpDegrees") and row["pool"] == to_json(key) and pool is not None:
                return _pin_back(decision, pool, row["workers"])
    return None


def _pin_back(decision: Decision, pool: Pool, workers: Mapping[str, int]) -> tuple[str, Any]:
    def act(actor: Actor, expires_at: datetime, reason: str) -> Override:
        return pin_workers(actor, pool, workers, expires_at, reason, decision)

    words = ", ".join(f"{count} x {name}" for name, count in workers.items()) or "no workers"
    return f"{pool} keeps {words}", act


# -- shared ----------------------------------------------------------------------------------------


def _modes(workers: Mapping[str, Any]) -> dict[Mode, int]:
    found = {}
    for name, count in workers.items():
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise ValidationError({"workers": f"{name}: a whole number of instances, not {count!r}"})
        try:
            found[Mode.parse(name)] = count
        except ValueError as error:
            raise ValidationError({"workers": str(error)}) from None
    return found


def _site_of(held: Override) -> Site | None:
    return held.site or (held.pool.site if held.pool is not None else None)


def _allowed(actor: Actor, site: Site | None = None) -> None:
    if actor.user is None and actor.channel in ("system", "command"):
        return
    require(actor.user, Right.OPERATE, site)
    if site is None and not everywhere(actor.user):
        raise PermissionDenied("This concerns a service at all of its sites: ask somebody whose role is for all sites.")


def _reason(text: str) -> str:
    if not text.strip():
        raise ValidationError({"reason": "say why, for those who wonder later"})
    return text.strip()[:300]


def _who(actor: Actor) -> str:
    return str(actor.user.get_username()) if actor.user is not None else "the system"


def _on_record(
    actor: Actor,
    loop: str,
    service: Service | None,
    summary: str,
    now: datetime,
    pool: Pool | None = None,
    instance_uid: uuid.UUID | None = None,
    commands: list[Any] | None = None,
) -> None:
    Decision.objects.create(
        kind=loop,
        at=now,
        service=service,
        pool=pool,
        instance_uid=instance_uid,
        reason=Reason.POLICY.value,
        summary=summary[:500],
        inputs={"by": _who(actor)},
        commands=to_json(tuple(commands or ())),
    )


def _publish() -> None:
    transaction.on_commit(publish_soon, robust=True)

"""Overrides: workers, clocks and partitions that a person sets, and drained sites, until they end.

Each is a change of its own on the audit trail, and a decision of its own on the time line. The loops read them in
`control.active_operations`; a loop that computes meanwhile finds out before it changes anything, since this happens
under `apply.lock`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils import timezone

from core.engine import gpu_slices
from core.engine.engine_params import split_fault
from core.types import Command, Loop, Mode, ScaleTo
from pools.access import audit
from pools.access.audit import Actor
from pools.models import Gpu, Instance, Partition, Pool, Service, Site
from scheduler.control import active_operations, service_policy
from scheduler.control.apply import apply
from scheduler.control.snapshot import published_profiles
from scheduler.json_values import workers_to_json
from scheduler.models import Decision, Override, OverrideKind

from . import records

LONGEST = timedelta(days=30)


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
    wanted = active_operations.pin_of(pool, workers_to_json(found))
    partition = (
        active_operations.partition_of(active_operations.planned_around(pool.service)) or pool.service.partition.name
    )
    if wanted.partition != partition:
        text = f"{pool} is of partition {wanted.partition}, but {partition} is in force"
        raise ValidationError({"pool": f"{text}: pin that partition first"})
    known = {mode.name for mode in published_profiles.offered_modes(pool.service)}
    for mode in found:
        if fault := split_fault(pool.service.model_card.engine_model_name, mode.gpu, mode.tp):
            raise ValidationError({"workers": f"{mode.name}: {fault}"})
        if mode.name not in known:
            text = f"{mode.name} fits on no node of {pool.service}'s sites; known are {', '.join(sorted(known))}"
            raise ValidationError({"workers": text})
    for gpu, count in wanted.gpus.items():
        gpu_type, slices = gpu_slices.whole(gpu)
        here = Gpu.objects.filter(node__cluster__site=pool.site, node__schedulable=True, gpu_type=gpu_type)
        there = here.filter(node__gpu_slices=slices).count() * slices
        if count > there:
            raise ValidationError({"workers": f"{pool.site} has {there} {gpu}, not {count}"})
    override = Override(
        kind=OverrideKind.WORKERS, service=pool.service, pool=pool, value=workers_to_json(found), decision=decision
    )
    words = ", ".join(f"{count} x {name}" for name, count in override.value.items()) or "no workers"
    command = ScaleTo(wanted.key, found)
    with transaction.atomic():
        made = _override(actor, override, expires_at, reason, pool.site, Loop.SCALE, f"{pool} has {words}", [command])
        Pool.objects.filter(pk=pool.pk).update(workers=override.value, gpu_budget=wanted.gpus)
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
    """The SM clock of an instance, or of all of a pool's, stays at `mhz`. Its clock rule is off meanwhile.

    Raises:
        ValidationError: A clock that the GPUs cannot have.
        PermissionDenied: The actor may not operate the pool's site.
    """
    _can(pool, instance, "mhz", mhz)
    uid = instance.uid if instance else None
    value = {"mhz": float(mhz)}
    override = Override(
        kind=OverrideKind.CLOCK, service=pool.service, pool=pool, instance_uid=uid, value=value, decision=decision
    )
    what = f"instance {str(uid)[:8]} of {pool}" if uid else f"all instances of {pool}"
    words = f"{what} stay at {mhz:.0f} MHz" if uid is None else f"{what} stays at {mhz:.0f} MHz"
    return _override(actor, override, expires_at, reason, pool.site, Loop.CLOCK, words)


def let_clocks_down(actor: Actor, pool: Pool, floor_mhz: float, expires_at: datetime, reason: str) -> Override:
    """The pool's clock rule may go down to `floor_mhz` and no further; in mode approve it acts within that.

    The clock loop decides every few seconds, in the agents: nobody can be asked each time. What a person approves is
    how far down it may go, and until when; the top clock needs nobody's word, since it only costs energy.

    Raises:
        ValidationError: A clock that the GPUs cannot have.
        PermissionDenied: The actor may not operate the pool's site.
    """
    _can(pool, None, "floor_mhz", floor_mhz)
    override = Override(kind=OverrideKind.CLOCK, service=pool.service, pool=pool, value={"floor_mhz": float(floor_mhz)})
    words = f"clocks of {pool} may go down to {floor_mhz:.0f} MHz"
    return _override(actor, override, expires_at, reason, pool.site, Loop.CLOCK, words)


def _can(pool: Pool, instance: Instance | None, field: str, mhz: float) -> None:
    """Raises ValidationError unless all of the instance's, or the pool's, GPUs have this clock."""
    allocated = {"holds__instance": instance} if instance else {"holds__instance__pool": pool}
    gpus = Gpu.objects.filter(**allocated, holds__released_at=None) or Gpu.objects.filter(node__cluster__site=pool.site)
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
    others = [pin for pin in active_operations.pins(service) if pin.partition != partition.name]
    if others:
        raise ValidationError({"partition": f"a pool of {others[0].partition} is pinned: end that first"})
    override = Override(
        kind=OverrideKind.PARTITION, service=service, value={"partition": partition.name}, decision=decision
    )
    return _override(
        actor, override, expires_at, reason, None, Loop.CARBON, f"{service} cuts requests by partition {partition}"
    )


def drain_site(actor: Actor, site: Site, expires_at: datetime, reason: str) -> Override:
    """Drains a site: it gets no new workers, plans are made without it, and its instances go as others take over."""
    override = Override(kind=OverrideKind.DRAIN, site=site)
    return _override(actor, override, expires_at, reason, site, Loop.CARBON, f"{site} is drained")


@transaction.atomic
def end(actor: Actor, override: Override) -> Override:
    """Ends an override now; the loops decide anew within seconds."""
    now = timezone.now()
    records.require_right(actor, _site_of(override))
    apply.lock()
    override.refresh_from_db()
    if override.ended_at is None and override.expires_at > now:
        before = audit.values(override)
        override.ended_at, override.ended_by = now, actor.user
        override.save(update_fields=["ended_at", "ended_by"])
        text = f"{records.name_of(actor)} ended an override: {override}."
        records.record_decision(actor, _LOOP[OverrideKind(override.kind)], override.service, text, now, override.pool)
        audit.record(actor, "ended", override, before, audit.values(override))
        records.publish_later()
    return override


_LOOP = {
    OverrideKind.WORKERS: Loop.SCALE,
    OverrideKind.CLOCK: Loop.CLOCK,
    OverrideKind.PARTITION: Loop.CARBON,
    OverrideKind.DRAIN: Loop.CARBON,
}


def _override(
    actor: Actor,
    override: Override,
    expires_at: datetime,
    reason: str,
    site: Site | None,
    loop: Loop,
    words: str,
    commands: list[Command] | None = None,
) -> Override:
    """Stores it in place of the one that set the same, and puts it on record."""
    now = timezone.now()
    records.require_right(actor, site)
    if not now < expires_at <= now + LONGEST:
        raise ValidationError({"expires_at": f"in the future, and within {LONGEST.days} days: an override ends"})
    override.reason, override.expires_at = records.reason_of(reason), expires_at
    override.created_at, override.created_by = now, actor.user
    with transaction.atomic():
        apply.lock()
        for service in [override.service] if override.service else Service.objects.filter(pools__site=site).distinct():
            service_policy.ensure_state(service)  # so that the override is taken up
        same = Override.objects.filter(
            ended_at=None, kind=override.kind, service=override.service, site=override.site, pool=override.pool
        )
        same.filter(instance_uid=override.instance_uid).update(ended_at=now, ended_by=actor.user)
        override.full_clean()
        override.save()
        text = f"{words} until {expires_at:%Y-%m-%d %H:%M} UTC, by {records.name_of(actor)}: {override.reason}"
        records.record_decision(
            actor, loop, override.service, text, now, override.pool, override.instance_uid, commands
        )
        audit.record(actor, "overrode", override, None, audit.values(override))
        records.publish_later()
    return override


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


def _site_of(override: Override) -> Site | None:
    return override.site or (override.pool.site if override.pool is not None else None)

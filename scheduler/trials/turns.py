"""Plans trials, switches policies at the turn of a block, and ends trials.

A switch is the change of a service's policy that a person makes too: checked, published and on the audit trail, where
the trial's own entry stands beside it.
"""

from __future__ import annotations

import random
import secrets
from datetime import datetime, timedelta

from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils import timezone

from pools.access import audit
from pools.access.audit import Actor
from pools.models import Service
from scheduler.control import active_operations
from scheduler.models import Trial, TrialBlock, TrialState
from scheduler.operations import records
from scheduler.operations.configure import changes

ARMS = ("A", "B")
OPEN = (TrialState.PLANNED, TrialState.RUNNING)


def order(pairs: int, seed: int) -> list[str]:
    """Returns the arms of all blocks: one of each a pair, in an order that is drawn for every pair."""
    draw = random.Random(seed)
    return [arm for _ in range(pairs) for arm in (ARMS if draw.random() < 0.5 else ARMS[::-1])]


@transaction.atomic
def plan(actor: Actor, trial: Trial) -> Trial:
    """Stores a trial with all of its blocks; beat begins it.

    Raises:
        ValidationError: By field, in words; nothing is written.
        PermissionDenied: The actor may not operate all of the service.
    """
    records.require_right(actor)
    trial.reason = records.reason_of(trial.reason)
    trial.seed, trial.created_by = secrets.randbelow(2**31), actor.user
    if trial.begins_at <= timezone.now():
        raise ValidationError({"begins_at": "in the future: the first block begins then"})
    if trial.warm_up_s >= trial.block_h * 3600:
        raise ValidationError({"warm_up_s": f"shorter than a block, which has {trial.block_h * 3600} s"})
    if (trial.policy_a, trial.knobs_a) == (trial.policy_b, trial.knobs_b):
        raise ValidationError({"policy_b": "another policy, or other knobs, than A: there is nothing to compare"})
    for field, (policy, knobs) in {"policy_a": _arm(trial, "A"), "policy_b": _arm(trial, "B")}.items():
        _check(trial.service, field, policy, knobs)
    if Trial.objects.filter(service=trial.service, state__in=OPEN).exists():
        raise ValidationError({"service": "has a trial already: wait for its end, or cancel it"})
    trial.full_clean(exclude=["former_policy"])
    trial.save()
    length = timedelta(hours=trial.block_h)
    TrialBlock.objects.bulk_create(
        TrialBlock(
            trial=trial,
            index=n,
            arm=arm,
            starts_at=trial.begins_at + n * length,
            ends_at=trial.begins_at + (n + 1) * length,
        )
        for n, arm in enumerate(order(trial.pairs, trial.seed))
    )
    audit.record(actor, "planned", trial, None, audit.values(trial))
    return trial


@transaction.atomic
def cancel(actor: Actor, trial: Trial, why: str) -> Trial:
    """Ends a trial early and gives the service its policy of before. One that is over is left as it is.

    Raises:
        ValidationError: There is no reason.
        PermissionDenied: The actor may not operate all of the service.
    """
    records.require_right(actor)
    found = Trial.objects.select_for_update(of=("self",)).select_related("service").get(pk=trial.pk)
    if found.state in OPEN:
        _end(actor, found, TrialState.CANCELLED, records.reason_of(why))
    return found


def turn(now: datetime) -> int:
    """Takes every trial to where it should be at `now`; returns how many policies were switched."""
    due = Trial.objects.filter(state__in=OPEN, begins_at__lte=now).values_list("pk", flat=True)
    return sum(_turn(pk, now) for pk in due)


@transaction.atomic
def _turn(pk: int, now: datetime) -> bool:
    trial = Trial.objects.select_for_update(of=("self",)).select_related("service", "created_by").get(pk=pk)
    if trial.state not in OPEN:
        return False
    actor, service = Actor(), trial.service
    last = trial.blocks.filter(switched_at__isnull=False).last()
    if not active_operations.acts(service):
        _end(actor, trial, TrialState.CANCELLED, "The service's control mode does not act any more.", back=False)
        return False
    if last is not None and (service.policy, service.knobs) != _arm(trial, last.arm):
        _end(actor, trial, TrialState.CANCELLED, "Somebody configured another policy.", back=False)
        return False
    block = trial.blocks.filter(starts_at__lte=now, ends_at__gt=now).first()
    if block is None:
        _end(actor, trial, TrialState.DONE, "")
        return last is not None
    if block.switched_at is not None:
        return False
    if trial.state == TrialState.PLANNED:
        trial.state, trial.former_policy, trial.former_knobs = TrialState.RUNNING, service.policy, service.knobs
        trial.save(update_fields=["state", "former_policy", "former_knobs"])
    _switch(actor, trial, *_arm(trial, block.arm))
    block.switched_at = now
    block.save(update_fields=["switched_at"])
    after = {"block": block.index + 1, "arm": block.arm, "policy": service.policy, "knobs": service.knobs}
    audit.record(actor, "switched", trial, None, after)
    return True


def _arm(trial: Trial, arm: str) -> tuple[str, dict[str, object]]:
    return (trial.policy_a, trial.knobs_a) if arm == "A" else (trial.policy_b, trial.knobs_b)


def _check(service: Service, field: str, policy: str, knobs: dict[str, object]) -> None:
    """Raises ValidationError at the trial's field where the service cannot have the policy."""
    wanted = Service.objects.get(pk=service.pk)
    wanted.policy, wanted.knobs = policy, dict(knobs)
    try:
        wanted.full_clean()
    except ValidationError as error:
        raise ValidationError({field: " ".join(error.messages)}) from None


def _switch(actor: Actor, trial: Trial, policy: str, knobs: dict[str, object]) -> None:
    trial.service.policy, trial.service.knobs = policy, dict(knobs)
    changes.update(actor, trial.service)


def _end(actor: Actor, trial: Trial, state: TrialState, why: str, back: bool = True) -> None:
    """Ends a trial; `back`: the service has its policy of before again."""
    before = audit.values(trial)
    if back and trial.state == TrialState.RUNNING:
        _switch(Actor(), trial, trial.former_policy, trial.former_knobs)
    trial.state, trial.ended_why = state, why
    trial.save(update_fields=["state", "ended_why"])
    audit.record(actor, str(state), trial, before, audit.values(trial))

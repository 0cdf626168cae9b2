"""Plans trials, switches policies at the turn of a block, and ends trials.

A trial of one service alternates the policies in time. One by sites has a second service, which always has the policy
that the first has not: a policy is a service's, wherever it runs, so that two sites with two policies are two services.

A switch is the change of a service's policy that a person makes too: checked, published and on the audit trail, where
the trial's own entry stands beside it.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Collection, Iterator, Mapping
from datetime import datetime, timedelta

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from pools.access import audit
from pools.access.audit import Actor
from pools.models import Service
from scheduler.control import active_operations
from scheduler.models import Trial, TrialBlock, TrialState
from scheduler.operations import records
from scheduler.operations.configure import changes

ARMS = ("A", "B")
LONGEST_WHY = 300
SWAPPED = {"A": "B", "B": "A"}
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
        for service in trial.services:
            _check(service, field, policy, knobs)
    _check_services(trial)
    trial.full_clean(exclude=["former_policy", "former_policy_other"])
    trial.save()
    TrialBlock.objects.bulk_create(_blocks(trial))
    audit.record(actor, "planned", trial, None, audit.values(trial))
    return trial


def _blocks(trial: Trial) -> Iterator[TrialBlock]:
    """Yields a block of every service for each turn; the second service has the arm that the first has not."""
    length, services = timedelta(hours=trial.block_h), trial.services
    for n, arm in enumerate(order(trial.pairs, trial.seed)):
        for side, service in enumerate(services):
            yield TrialBlock(
                trial=trial,
                service=service,
                index=n * len(services) + side,
                arm=SWAPPED[arm] if side else arm,
                starts_at=trial.begins_at + n * length,
                ends_at=trial.begins_at + (n + 1) * length,
            )


def _check_services(trial: Trial) -> None:
    """Raises ValidationError unless the services are in no other trial and, by sites, can be compared."""
    services = list(
        Service.objects.select_for_update().filter(pk__in=[one.pk for one in trial.services]).order_by("pk")
    )
    busy = Trial.objects.filter(Q(service__in=services) | Q(other__in=services), state__in=OPEN)
    for field, service in (("service", trial.service), ("other", trial.other)):
        if service is not None and busy.filter(Q(service=service) | Q(other=service)).exists():
            raise ValidationError({field: "has a trial already: wait for its end, or cancel it"})
    if trial.other is None:
        return
    if trial.other == trial.service:
        raise ValidationError({"other": "another service than the first; leave it empty for one service by turns"})
    if trial.other.model_card_id != trial.service.model_card_id:
        raise ValidationError({"other": "offers another model: what the policies use could not be compared"})
    own, others = (set(service.pools.values_list("site__name", flat=True)) for service in trial.services)
    if shared := sorted(own & others):
        raise ValidationError({"other": f"runs at {shared[0]} too: each service needs sites of its own"})
    if not own or not others:
        raise ValidationError({"other" if own else "service": "has no pool: there is nothing to measure"})


@transaction.atomic
def cancel(actor: Actor, trial: Trial, why: str) -> Trial:
    """Ends a trial early and gives the service its policy of before. One that is over is left as it is.

    Raises:
        ValidationError: There is no reason.
        PermissionDenied: The actor may not operate all of the service.
    """
    records.require_right(actor)
    found = Trial.objects.select_for_update(of=("self",)).select_related("service", "other").get(pk=trial.pk)
    if found.state in OPEN:
        _end(actor, found, TrialState.CANCELLED, records.reason_of(why), found.services)
    return found


def turn(now: datetime) -> int:
    """Takes every trial to where it should be at `now`; returns how many policies were switched."""
    due = Trial.objects.filter(state__in=OPEN, begins_at__lte=now).values_list("pk", flat=True)
    return sum(_turn(pk, now) for pk in due)


@transaction.atomic
def _turn(pk: int, now: datetime) -> int:
    related = ("service", "other", "created_by")
    trial = Trial.objects.select_for_update(of=("self",)).select_related(*related).get(pk=pk)
    if trial.state not in OPEN:
        return 0
    services, last = trial.services, _last(trial)
    still = [service for service in services if active_operations.acts(service)]
    if len(still) < len(services):
        why = f"{_whose(trial, still)} control mode does not act any more."
        return _end(Actor(), trial, TrialState.CANCELLED, why, [one for one in still if _has(one, trial, last)])
    own = [service for service in services if service.pk not in last or _has(service, trial, last)]
    if len(own) < len(services):
        return _end(Actor(), trial, TrialState.CANCELLED, "Somebody configured another policy.", own)
    blocks = list(trial.blocks.filter(starts_at__lte=now, ends_at__gt=now))
    if not blocks:
        return _end(Actor(), trial, TrialState.DONE, "", services)
    due = [block for block in blocks if block.switched_at is None]
    if due and trial.state == TrialState.PLANNED:
        _begin(trial)
    for block in due:
        service = next(one for one in services if one.pk == block.service_id)
        if fault := _switch(Actor(), service, *_arm(trial, block.arm)):
            why = f"{service} cannot have policy {block.arm}: {fault}"
            return _end(Actor(), trial, TrialState.CANCELLED, why, services)
        block.switched_at = now
        block.save(update_fields=["switched_at"])
        after = {"block": block.index + 1, "arm": block.arm, "policy": service.policy, "knobs": service.knobs}
        audit.record(Actor(), "switched", trial, None, after)
    return len(due)


def _last(trial: Trial) -> dict[int, str]:
    """Returns the arm that each service got last, of those that got one."""
    return {block.service_id: block.arm for block in trial.blocks.filter(switched_at__isnull=False).order_by("index")}


def _has(service: Service, trial: Trial, last: Mapping[int, str]) -> bool:
    """Says whether the service has the policy that the trial gave it last."""
    return service.pk in last and (service.policy, service.knobs) == _arm(trial, last[service.pk])


def _whose(trial: Trial, still: Collection[Service]) -> str:
    if trial.other is None:
        return "The service's"
    return f"{next(one for one in trial.services if one not in still)}'s"


def _begin(trial: Trial) -> None:
    trial.state = TrialState.RUNNING
    trial.former_policy, trial.former_knobs = trial.service.policy, trial.service.knobs
    if trial.other is not None:
        trial.former_policy_other, trial.former_knobs_other = trial.other.policy, trial.other.knobs
    names = ("former_policy", "former_knobs", "former_policy_other", "former_knobs_other")
    trial.save(update_fields=["state", *names])


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


def _switch(actor: Actor, service: Service, policy: str, knobs: dict[str, object]) -> str:
    """Gives a service a policy. Returns why it cannot have it, and then it keeps its own; empty: it has it."""
    service.policy, service.knobs = policy, dict(knobs)
    try:
        with transaction.atomic():
            changes.update(actor, service)
    except ValidationError as error:
        service.refresh_from_db(fields=["policy", "knobs"])
        return " ".join(error.messages)
    return ""


def _end(actor: Actor, trial: Trial, state: TrialState, why: str, back: Collection[Service]) -> int:
    """Ends a trial. Returns how many services have their policy of before again: those of `back`, if it had begun.

    One that cannot have it any more keeps what it has, and `ended_why` says so.
    """
    before, restored = audit.values(trial), 0
    for service in back if trial.state == TrialState.RUNNING else ():
        if fault := _switch(Actor(), service, *trial.former_of(service)):
            why = f"{why} {service} cannot have its policy of before: {fault}".strip()
        else:
            restored += 1
    trial.state, trial.ended_why = state, why[:LONGEST_WHY]
    trial.save(update_fields=["state", "ended_why"])
    audit.record(actor, str(state), trial, before, audit.values(trial))
    return restored

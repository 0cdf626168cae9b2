"""Checks and records what every operation of a person needs: a right, a reason, and a decision on the time line."""

from __future__ import annotations

import uuid
from datetime import datetime

from django.core.exceptions import PermissionDenied, ValidationError
from django.db import transaction

from core.types import Command, Reason
from pools.access.audit import Actor
from pools.access.rights import Right, everywhere, require
from pools.models import Pool, Service, Site
from scheduler.json_values import to_json
from scheduler.models import Decision
from scheduler.operations.configure.changes import publish_soon


def require_right(actor: Actor, site: Site | None = None) -> None:
    if actor.user is None and actor.channel in ("system", "command"):
        return
    require(actor.user, Right.OPERATE, site)
    if site is None and not everywhere(actor.user):
        raise PermissionDenied("This concerns a service at all of its sites: ask somebody whose role is for all sites.")


def reason_of(text: str) -> str:
    if not text.strip():
        raise ValidationError({"reason": "say why, for those who wonder later"})
    return text.strip()[:300]


def name_of(actor: Actor) -> str:
    return str(actor.user.get_username()) if actor.user is not None else "the system"


def record_decision(
    actor: Actor,
    loop: str,
    service: Service | None,
    summary: str,
    now: datetime,
    pool: Pool | None = None,
    instance_uid: uuid.UUID | None = None,
    commands: list[Command] | None = None,
) -> None:
    Decision.objects.create(
        kind=loop,
        at=now,
        service=service,
        pool=pool,
        instance_uid=instance_uid,
        reason=Reason.POLICY.value,
        summary=summary[:500],
        inputs={"by": name_of(actor)},
        commands=to_json(tuple(commands or ())),
    )


def publish_later() -> None:
    transaction.on_commit(publish_soon, robust=True)

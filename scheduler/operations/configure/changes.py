"""Checks, stores, records and publishes what people change of what they own.

Forms, imports and REST call these; nothing else writes such rows for a person.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import TypeVar, cast

import redis
from celery import current_app
from django.core.exceptions import NON_FIELD_ERRORS, PermissionDenied, ValidationError
from django.db import IntegrityError, models, transaction
from django.db.models import Model, ProtectedError
from django.utils import timezone
from kombu.exceptions import OperationalError

from pools import engine_knowledge
from pools.access import audit
from pools.access.audit import Actor
from pools.access.rights import everywhere, require
from pools.models import GpuType, Partition, Pool, RequestClass, Service
from pools.writes import ensure_pools
from scheduler.control import service_policy
from scheduler.operations.configure import consequences, registry, row_limits
from scheduler.operations.configure.registry import Owned
from telemetry.models import CarbonFeed, WeatherFeed

log = logging.getLogger(__name__)

PUBLISH_TASK = "scheduler.tasks.publish"
PUBLISH_EXPIRES_S = 60
NAMED = 5  # of the rows that use a row, by name; the rest is counted

M = TypeVar("M", bound=Model)
Related = Mapping[str, Iterable[Model]]


@transaction.atomic
def create(actor: Actor, instance: M, related: Related | None = None) -> M:
    """Enters a row. `related`: for fields that name several others.

    Raises:
        ValidationError: By field, in words; nothing is written.
        PermissionDenied: The actor's role is not for that site.
    """
    owned = registry.of(instance)
    instance.pk = None
    instance._state.adding = True
    _allowed(actor, owned, instance)
    _check(instance)
    if isinstance(instance, Pool):
        instance.gpu_budget, instance.workers = {}, {}  # the loops' to fill
    _save(owned, instance, related)
    _follow_up(instance)
    audit.record(actor, "created", instance, None, audit.values(instance))
    _publish_on_commit()
    return instance


@transaction.atomic
def update(actor: Actor, instance: M, related: Related | None = None) -> M:
    """Stores a row as it now is. Of what comes in versions another row is entered, and returned; the old one stays.

    Raises:
        ValidationError: By field, in words; nothing is written.
        PermissionDenied: The actor's role is not for that site.
    """
    owned = registry.of(instance)
    model = type(instance)
    stored = cast(M, model._default_manager.select_for_update(of=("self",)).filter(pk=instance.pk).first())
    if stored is None:
        raise ValidationError(f"this {owned.one} has been deleted meanwhile: nothing was stored")
    _allowed(actor, owned, stored)
    if owned.versions:
        return _new_version(actor, stored, instance)
    _allowed(actor, owned, instance)
    before = audit.values(stored)
    if isinstance(stored, Service):
        service_policy.ensure_state(stored)  # so that a change of policy is taken up
    _check(instance)
    changed = [
        name
        for name in owned.fields
        if name not in owned.many
        and getattr(stored, owned.field(name).attname) != getattr(instance, owned.field(name).attname)
    ]
    _save(owned, instance, related, changed)  # and nothing else: loops and feeds write to the same rows
    if changed and isinstance(instance, CarbonFeed | WeatherFeed):
        # What was wrong with it may be mended now: it is asked at the next tick, not when it has cooled down.
        type(instance)._default_manager.filter(pk=instance.pk).update(
            last_tried_at=None, failures=0, cool_down_until=None
        )
    _follow_up(instance)
    after = audit.values(instance)
    if after != before:
        audit.record(actor, "changed", instance, before, after)
        _publish_on_commit()
    return instance


@transaction.atomic
def delete(actor: Actor, instance: Model) -> None:
    """Takes a row away.

    Raises:
        ValidationError: It is in use; the words name by what. Versions are never deleted.
        PermissionDenied: The actor's role is not for that site.
    """
    owned = registry.of(instance)
    _allowed(actor, owned, instance)
    if owned.versions:
        raise ValidationError(
            f"a {owned.one} is never deleted, since settled figures rest on it: enter another one that counts from then"
        )
    if users := consequences.users_of(instance):
        raise ValidationError(f"{instance} is in use by {users}: delete or change that first")
    audit.record(actor, "deleted", instance, audit.values(instance), None)
    if isinstance(instance, GpuType):
        _follow_up(instance)
    try:
        with transaction.atomic():
            instance.delete()
    except ProtectedError as error:
        raise ValidationError(f"{instance} is in use by {_names(error.protected_objects)}: change that first") from None
    _publish_on_commit()


def versioned(instance: M) -> M:
    """A copy of a version to be edited: entered by `create`, it counts from its own `valid_from`."""
    fresh = type(instance)(
        **{f.attname: getattr(instance, f.attname) for f in instance._meta.concrete_fields if not f.primary_key}
    )
    if any(field.name == "replaces" for field in instance._meta.concrete_fields):
        fresh.replaces = instance  # type: ignore[attr-defined]
    return fresh


def _new_version(actor: Actor, stored: M, instance: M) -> M:
    names = registry.of(stored).fields
    if all(getattr(stored, name) == getattr(instance, name) for name in names):
        return stored
    fresh = versioned(instance)
    if any(field.name == "replaces" for field in stored._meta.concrete_fields):
        fresh.replaces = stored  # type: ignore[attr-defined]
    return create(actor, fresh)


def _allowed(actor: Actor, owned: Owned, instance: Model) -> None:
    """A system's own changes are not asked for a person's right."""
    if actor.channel in ("system", "command") and actor.user is None:
        return
    site = owned.site_of(instance)
    require(actor.user, owned.right, site)
    if site is None and not everywhere(actor.user):
        raise PermissionDenied(
            f"A {owned.one} concerns more than the sites of your role: ask somebody whose role is for all sites."
        )


def _check(instance: Model) -> None:
    """Checks everything that can be known beforehand. Raises ValidationError by field."""
    instance.clean_fields()  # first, since a row's own check may look at what is not there
    instance.full_clean(validate_constraints=False)
    found = {name or NON_FIELD_ERRORS: texts for name, texts in row_limits.broken(instance).items()}
    if not found:
        instance.validate_constraints()  # what is to be unique
    for item in consequences.of(instance):
        if item.level == "error":
            found.setdefault(item.field or NON_FIELD_ERRORS, []).append(item.text)
    if found:
        raise ValidationError({name: list(texts) for name, texts in found.items()})


def _save(owned: Owned, instance: Model, related: Related | None, only: list[str] | None = None) -> None:
    try:
        with transaction.atomic():
            instance.save(update_fields=only)
            for name, others in (related or {}).items():
                getattr(instance, name).set(others)
    except IntegrityError as error:
        raise ValidationError(f"the database refuses this {owned.one}: {_first_line(error)}") from None


def _follow_up(instance: Model) -> None:
    """Makes what belongs to a row: a service's partitions and pools, and the pools of a new class."""
    if isinstance(instance, GpuType):
        transaction.on_commit(engine_knowledge.refresh, robust=True)
    if isinstance(instance, Service):
        instance.partitions.add(instance.partition)
        service_policy.provide(instance, service_policy.of(instance))
        for partition in instance.partitions.all():
            ensure_pools(instance, partition)
    elif isinstance(instance, Pool):
        for partition in _partitions(instance.service):
            ensure_pools(instance.service, partition)
    elif isinstance(instance, RequestClass):
        for service in Service.objects.filter(partitions=instance.partition):
            ensure_pools(service, instance.partition)


def _partitions(service: Service) -> models.QuerySet[Partition]:
    return Partition.objects.filter(
        models.Q(services=service)
        | models.Q(active_services=service)
        | models.Q(name=service_policy.of(service).partition)
    ).distinct()


def _publish_on_commit() -> None:
    transaction.on_commit(publish_soon, robust=True)


def publish_soon() -> None:
    """Asks a worker to publish to gateways and agents now; that happens every few seconds anyway."""
    try:
        current_app.send_task(PUBLISH_TASK, expires=PUBLISH_EXPIRES_S, retry=False)
    except (OperationalError, redis.RedisError, OSError) as error:
        log.warning("stored at %s, to be published when Redis answers: %s", timezone.now().isoformat(), error)


def _names(rows: Iterable[Model]) -> str:
    found = [f"{type(row)._meta.verbose_name} {row}" for row in rows]
    more = f" and {len(found) - NAMED} more" if len(found) > NAMED else ""
    return ", ".join(found[:NAMED]) + more


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]

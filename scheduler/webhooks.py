"""Tells subscribers of events: writes each once for each of them, and sends it until it has arrived or is given up.

Events are found by looking at what happened recently, time and again, and written where they are not yet: what is
committed late is found by the next look, and nothing is sent twice. Alerts' own channel (telemetry.alerts) is another:
that one is set in the environment and needs no database to be set up.
"""

from __future__ import annotations

import json
import logging
import secrets
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import Q

from core.ports import PermanentError, RetryableError
from pools import clock_repairs
from pools.access import audit
from pools.models import Job, JobState
from scheduler.models import Decision, DecisionKind, DeliveryState, WebhookDelivery, WebhookSubscription
from telemetry.alerts import webhook
from telemetry.models import Alert, Report
from telemetry.providers.secrets import Secret

log = logging.getLogger(__name__)

FORMAT = 1  # of the body
LOOK_BACK = timedelta(minutes=30)  # longer than any outage of the workers that should not lose an event
KEPT = timedelta(days=30)  # of the log
TRIES = 8
FIRST_WAIT_S, LONGEST_WAIT_S = 10.0, 1_800.0
CLAIM = timedelta(seconds=120)  # longer than any attempt
BUDGET_S = 20.0  # of one run; an attempt that has begun may take its own time-out more
LOOK_UP_S = 2.0  # of a name when a subscription is made; somebody waits meanwhile
MOST = 1_000  # events of a kind in one look

Happened = Iterator[tuple[str, dict[str, Any]]]  # subject, data


def _decisions(since: datetime) -> Happened:
    """Of the slow loops: the clock loop's come each second."""
    rows = Decision.objects.filter(at__gte=since).exclude(kind=DecisionKind.CLOCK).select_related("service")
    for row in rows.order_by("at", "id").only("kind", "at", "reason", "summary", "service__name")[:MOST]:
        service = row.service.name if row.service else None
        data = {"id": row.pk, "kind": row.kind, "service": service, "at": row.at.isoformat(), "reason": row.reason}
        yield f"{row.pk}", {**data, "summary": row.summary, "url": f"/api/v1/decisions/{row.pk}/"}


def _alerts(column: str) -> Callable[[datetime], Happened]:
    def happened(since: datetime) -> Happened:
        for row in Alert.objects.filter(**{f"{column}__gte": since}).order_by(column, "id")[:MOST]:
            moment = getattr(row, column)
            data = {
                "id": row.pk,
                "rule": row.rule,
                "subject": row.subject,
                "level": row.level,
                "at": moment.isoformat(),
            }
            yield f"{row.pk}", {**data, "summary": row.summary, "url": f"/api/v1/alerts/{row.pk}/"}

    return happened


def _jobs(since: datetime) -> Happened:
    for row in Job.objects.filter(finished_at__gte=since).order_by("finished_at", "id").defer("log", "result")[:MOST]:
        at = row.finished_at.isoformat() if row.finished_at else None
        data = {"uid": str(row.uid), "kind": row.kind, "state": row.state, "at": at, "error": row.error[:500]}
        yield f"{row.uid}", {**data, "url": f"/api/v1/jobs/{row.uid}/"}


def _reports(since: datetime) -> Happened:
    rows = Report.objects.filter(job__finished_at__gte=since, job__state=JobState.DONE).select_related("job")
    for row in rows.order_by("id").defer("basis", "changes")[:MOST]:
        at = row.job.finished_at.isoformat() if row.job.finished_at else None
        data = {"id": row.pk, "at": at, "revision": row.revision, "asked": row.asked}
        yield f"{row.pk}", {**data, "url": f"/api/v1/reports/{row.pk}/"}


EVENTS: Mapping[str, Callable[[datetime], Happened]] = {
    "decision.made": _decisions,
    "alert.opened": _alerts("opened_at"),
    "alert.closed": _alerts("resolved_at"),
    "job.ended": _jobs,
    "report.issued": _reports,
}


# -- who is notified -------------------------------------------------------------------------------


@transaction.atomic
def subscribe(
    actor: audit.Actor, name: str, url: str, events: Collection[str], enabled: bool = True
) -> WebhookSubscription:
    """Makes a subscription with a secret of its own. Raises ValidationError by field."""
    row = WebhookSubscription(
        name=name,
        url=url,
        events=sorted(set(events)),
        enabled=enabled,
        secret=secrets.token_urlsafe(32),
        created_by=actor.user,
    )
    _check(row)
    _check_addresses(row)
    row.save()
    audit.record(actor, "created", row, None, _values(row))
    return row


@transaction.atomic
def change(actor: audit.Actor, row: WebhookSubscription, given: Mapping[str, Any]) -> None:
    """Raises ValidationError by field."""
    stored = WebhookSubscription.objects.select_for_update().get(pk=row.pk)
    before = _values(stored)
    for name, value in given.items():
        setattr(row, name, value)
    _check(row)
    if row.url != stored.url:
        _check_addresses(row)
    row.save()
    if _values(row) != before:
        audit.record(actor, "changed", row, before, _values(row))


@transaction.atomic
def end(actor: audit.Actor, row: WebhookSubscription) -> None:
    audit.record(actor, "deleted", row, _values(row), None)
    row.delete()


def _values(row: WebhookSubscription) -> dict[str, Any]:
    """Returns the values for the audit trail; of the address its host only, since chat services' paths are secrets."""
    return {**audit.values(row), "url": urlsplit(row.url).hostname or ""}


def _check(row: WebhookSubscription) -> None:
    row.full_clean(exclude=["secret", "created_by"])
    if not row.events or (strange := [name for name in row.events if name not in EVENTS]):
        known = ", ".join(EVENTS)
        words = f"there is no event '{strange[0]}'" if row.events else "at least one event"
        raise ValidationError({"events": f"{words}; known are {known}"})
    _target(row)


def _check_addresses(row: WebhookSubscription) -> None:
    """Looks up where the URL leads now. A name that cannot be resolved now is looked up when something is sent."""
    try:
        webhook.check_addresses(_target(row), LOOK_UP_S)
    except PermanentError as error:
        raise ValidationError({"url": str(error).removeprefix("webhook: ")}) from None
    except RetryableError:
        log.info("webhook %s: its name cannot be resolved now", row.name)


def _target(row: WebhookSubscription) -> webhook.Target:
    try:
        found = settings.GREENSERVE_ALERTS
        return webhook.target(row.url, found["webhook_private"], found["webhook_hosts"])
    except ValueError as error:
        raise ValidationError({"url": str(error)}) from None


# -- what they are sent ----------------------------------------------------------------------------


def collect(now: datetime) -> int:
    """Writes what happened since the last look for those who want to know; returns how much was new."""
    subscriptions = list(WebhookSubscription.objects.filter(enabled=True))
    made = 0
    for event, happened in EVENTS.items():
        wanting = [one for one in subscriptions if event in one.events]
        if not wanting:
            continue
        since = now - LOOK_BACK
        known = set(
            WebhookDelivery.objects.filter(event=event, created_at__gte=since - LOOK_BACK).values_list(
                "subscription_id", "subject"
            )
        )
        new = [
            WebhookDelivery(subscription=one, event=event, subject=subject, body=data, due_at=now)
            for subject, data in happened(since)
            for one in wanting
            if (one.pk, subject) not in known and data["at"] >= one.created_at.isoformat()
        ]
        WebhookDelivery.objects.bulk_create(new, ignore_conflicts=True)
        made += len(new)
    return made


def deliver(now: datetime) -> int:
    """Sends what is due; returns how much arrived. To a receiver that has just failed nothing more goes this time."""
    sent, deadline_s, failed = 0, time.monotonic() + BUDGET_S, set[int]()
    while time.monotonic() < deadline_s and (row := _claim(now, failed)) is not None:
        try:
            _send(row)
        except (PermanentError, RetryableError) as error:
            _failed(row, now, error)
            failed.add(row.subscription_id)
            continue
        WebhookDelivery.objects.filter(pk=row.pk).update(state=DeliveryState.SENT, sent_at=now, error="")
        sent += 1
    return sent


def forget(now: datetime) -> int:
    """Takes what is old out of the log."""
    return WebhookDelivery.objects.filter(created_at__lt=now - KEPT).delete()[0]


def again(row: WebhookDelivery, now: datetime) -> bool:
    """Gives a delivery that was given up another round of attempts. Returns False for others."""
    changed = WebhookDelivery.objects.filter(pk=row.pk, state=DeliveryState.FAILED).update(
        state=DeliveryState.PENDING, attempts=0, due_at=now
    )
    return bool(changed)


@transaction.atomic
def _claim(now: datetime, failed: Collection[int]) -> WebhookDelivery | None:
    """Claims the next one that is due: moves its due time on, so that other senders leave it alone meanwhile."""
    # None waits longer than LONGEST_WAIT_S: one that is due later was written before the clock was set back.
    when = Q(due_at__lte=now) | Q(due_at__gt=now + timedelta(seconds=LONGEST_WAIT_S) + clock_repairs.AHEAD)
    due = WebhookDelivery.objects.filter(when, state=DeliveryState.PENDING, subscription__enabled=True)
    due = due.exclude(subscription__in=failed)
    row = due.select_for_update(skip_locked=True, of=("self",)).select_related("subscription").order_by("id").first()
    if row is not None:
        row.attempts += 1
        row.due_at = now + CLAIM
        row.save(update_fields=["attempts", "due_at"])
    return row


def _send(row: WebhookDelivery) -> None:
    try:
        to = _target(row.subscription)
    except ValidationError as error:
        raise PermanentError(" ".join(error.messages)) from None
    body = {"format": FORMAT, "id": str(row.uid), "event": row.event, "data": row.body}
    sent = json.dumps(body, allow_nan=False, separators=(",", ":")).encode()
    headers = {"User-Agent": "greenserve", "X-GreenServe-Event": row.event, "X-GreenServe-Delivery": str(row.uid)}
    webhook.post(to, Secret(row.subscription.secret), sent, headers)


def _failed(row: WebhookDelivery, now: datetime, error: Exception) -> None:
    final = isinstance(error, PermanentError) or row.attempts >= TRIES
    words = str(error).partition(";")[0][:200]  # what follows is about the alerts' own channel
    log.warning("webhook %s, %s, attempt %d: %s", row.subscription.name, row.event, row.attempts, words)
    wait_s = min(LONGEST_WAIT_S, FIRST_WAIT_S * 3.0 ** (row.attempts - 1))
    WebhookDelivery.objects.filter(pk=row.pk).update(
        state=DeliveryState.FAILED if final else DeliveryState.PENDING,
        due_at=now + timedelta(seconds=wait_s),
        error=words,
    )

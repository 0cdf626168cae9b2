"""Sends the notices that rounds have written: each once, again after a while when it could not be sent.

A notice is claimed before it is sent, by moving its due time: a second sender, or one that comes back after a kill,
leaves it alone for as long as a try may take. A try that was cut off in the middle may so be made twice; receivers know
a notice by `X-GreenServe-Delivery`.
"""

from __future__ import annotations

import json
import logging
import smtplib
import time
from collections.abc import Callable, Collection, Mapping
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.core.mail import EmailMessage
from django.db import transaction
from django.db.models import Exists, OuterRef, Q

from core.ports import PermanentError, RetryableError
from pools import clock_repairs, database_locks
from pools.database_locks import Lock
from telemetry.models import Alert, AlertNotice

from . import alert_settings, webhook

log = logging.getLogger(__name__)

TRIES = 8
FIRST_WAIT_S, LONGEST_WAIT_S = 10.0, 1_800.0
CLAIM = timedelta(seconds=120)  # longer than any try
BUDGET_S = 30.0  # of one run; a try that has begun may take its own time-out more
FORMAT = 1  # of the webhook's body


def wait_s(attempts: int) -> float:
    """Returns the seconds until the next try, after so many attempts."""
    return min(LONGEST_WAIT_S, FIRST_WAIT_S * 3.0 ** (attempts - 1))


def deliver(now: datetime) -> int:
    """Sends what is due; returns how many arrived.

    One sender at a time, and for so long at most: a receiver that hangs must not delay the workers, who have epochs
    to run. On a channel that has just failed nothing more is tried this time.
    """
    with database_locks.held(Lock.NOTICES) as mine:
        return _deliver(now) if mine else 0


def _deliver(now: datetime) -> int:
    sent, deadline_s, failed = 0, time.monotonic() + BUDGET_S, set[str]()
    while time.monotonic() < deadline_s and (notice := _claim(now, failed)) is not None:
        try:
            SENDERS[notice.channel](notice, alert_settings.channels())
        except (PermanentError, RetryableError) as error:
            _failed(notice, now, error)
            if isinstance(error, RetryableError):
                failed.add(notice.channel)
            continue
        AlertNotice.objects.filter(pk=notice.pk).update(state=AlertNotice.NoticeState.SENT, sent_at=now, error="")
        sent += 1
    return sent


@transaction.atomic
def _claim(now: datetime, failed: Collection[str]) -> AlertNotice | None:
    """Returns the next that is due, as they were written; of the end of an alert nobody hears before its beginning."""
    before = AlertNotice.objects.filter(
        alert=OuterRef("alert"),
        channel=OuterRef("channel"),
        event=AlertNotice.Event.RAISED,
        state=AlertNotice.NoticeState.PENDING,
    )
    # None waits longer than LONGEST_WAIT_S: one that is due later was written before the clock was set back.
    when = Q(due_at__lte=now) | Q(due_at__gt=now + timedelta(seconds=LONGEST_WAIT_S) + clock_repairs.AHEAD)
    due = AlertNotice.objects.filter(when, state=AlertNotice.NoticeState.PENDING).exclude(channel__in=failed)
    due = due.exclude(Exists(before), event=AlertNotice.Event.RESOLVED)
    notice = due.select_for_update(skip_locked=True, of=("self",)).select_related("alert").first()
    if notice is not None:
        notice.attempts += 1
        notice.due_at = now + CLAIM
        notice.save(update_fields=["attempts", "due_at"])
    return notice


def _failed(notice: AlertNotice, now: datetime, error: Exception) -> None:
    final = isinstance(error, PermanentError) or notice.attempts >= TRIES
    log.log(
        logging.ERROR if final else logging.WARNING,
        "notice of alert %d by %s, try %d: %s",
        *(notice.alert_id, notice.channel, notice.attempts, error),
    )
    AlertNotice.objects.filter(pk=notice.pk).update(
        state=AlertNotice.NoticeState.FAILED if final else AlertNotice.NoticeState.PENDING,
        due_at=now + timedelta(seconds=wait_s(notice.attempts)),
        error=str(error)[:200],
    )


def message(notice: AlertNotice) -> Mapping[str, Any]:
    """Returns the webhook's body: names and units as in the REST API."""
    alert = notice.alert
    return {
        "format": FORMAT,
        "id": str(notice.uid),
        "event": notice.event,
        "alert": {
            "id": alert.pk,
            "rule": alert.rule,
            "subject": alert.subject,
            "level": alert.level,
            "state": Alert.AlertState.RESOLVED if notice.event == AlertNotice.Event.RESOLVED else Alert.AlertState.OPEN,
            "summary": alert.summary,
            "step": alert.step,
            "value": alert.value,
            "threshold": alert.threshold,
            "unit": alert.unit,
            "since": alert.since.isoformat(),
            "opened_at": alert.opened_at.isoformat(),
            "resolved_at": alert.resolved_at.isoformat() if alert.resolved_at else None,
        },
    }


def _by_webhook(notice: AlertNotice, channels: alert_settings.Channels) -> None:
    if channels.webhook_url is None:
        raise PermanentError("webhook: GREENSERVE_ALERT_WEBHOOK_URL is not set any more")
    try:
        to = webhook.target(channels.webhook_url.reveal(), channels.webhook_private, channels.webhook_hosts)
    except ValueError as error:
        raise PermanentError(f"webhook: GREENSERVE_ALERT_WEBHOOK_URL: {error}") from None
    body = json.dumps(message(notice), allow_nan=False, separators=(",", ":")).encode()
    headers = {"User-Agent": "greenserve", "X-GreenServe-Delivery": str(notice.uid)}
    webhook.post(to, channels.webhook_secret, body, headers)


def _by_email(notice: AlertNotice, channels: alert_settings.Channels) -> None:
    if not channels.emails:
        raise PermanentError("e-mail: GREENSERVE_ALERT_EMAILS is not set any more")
    alert, over = notice.alert, notice.event == AlertNotice.Event.RESOLVED
    subject = f"[GreenServe] {'over' if over else 'alert'}: {' '.join(alert.summary.split())}"[:200]
    lines = [
        alert.summary,
        "",
        f"Since {alert.since:%Y-%m-%d %H:%M:%S} UTC" + (f", over {alert.resolved_at:%H:%M:%S} UTC" if over else ""),
        *(() if over else (f"Next: {alert.step.replace('`', '')}",)),
        f"Rule: {alert.rule} {alert.subject}",
    ]
    mail = EmailMessage(
        subject,
        "\n".join(lines),
        settings.DEFAULT_FROM_EMAIL,
        list(channels.emails),
        headers={"Message-ID": f"<{notice.uid}@greenserve>", "Auto-Submitted": "auto-generated"},
    )
    try:
        mail.send()
    except smtplib.SMTPResponseException as error:
        kind = PermanentError if 500 <= error.smtp_code < 600 else RetryableError
        raise kind(f"e-mail: the server answered {error.smtp_code}") from None
    except smtplib.SMTPRecipientsRefused:
        raise PermanentError("e-mail: the server takes none of GREENSERVE_ALERT_EMAILS") from None
    except (smtplib.SMTPException, OSError) as error:
        raise RetryableError(f"e-mail: {type(error).__name__}; check GREENSERVE_EMAIL_URL") from None


SENDERS: Mapping[str, Callable[[AlertNotice, alert_settings.Channels], None]] = {
    AlertNotice.Channel.EMAIL: _by_email,
    AlertNotice.Channel.WEBHOOK: _by_webhook,
}

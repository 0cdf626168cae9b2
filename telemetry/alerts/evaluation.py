"""One round of alerts: read what the rules judge, see what follows, keep it. And what people do about alerts."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta

import redis
from django.contrib.auth.models import User
from django.db import DatabaseError, transaction
from django.db.models import Exists, Max, OuterRef, Q, QuerySet

from pools import clock_repairs, database_locks
from pools.database_locks import Lock
from telemetry.models import Alert, AlertNotice, AlertSilence, AlertWatch, SloMinute

from . import alert_settings, slo_minutes
from .alert_state_machine import Change, Key, Reading, Rule, Step, Watch, look

log = logging.getLogger(__name__)

LONGEST_SILENCE = timedelta(days=30)
KEPT = timedelta(days=400)  # resolved alerts


def run(now: datetime) -> list[Step]:
    """Looks at everything and keeps what follows. Two at a time, or one that comes late, change nothing twice."""
    rules = alert_settings.all_rules()
    readings, answered = gather(rules, now)
    return keep(rules, readings, answered, now)


def gather(rules: Mapping[str, Rule], now: datetime) -> tuple[list[Reading], set[str]]:
    """All readings, and the rules whose source could be read. A source that cannot be read does not stop the others."""
    readings: list[Reading] = []
    answered: set[str] = set()
    for source in alert_settings.sources():
        try:
            found = list(source.read(now, rules))
        except (redis.RedisError, DatabaseError) as error:
            log.warning("alerts: %s cannot be judged now: %s", ", ".join(source.rules), str(error).strip())
            continue
        readings += found
        answered.update(source.rules)
    return readings, answered


@transaction.atomic
def keep(rules: Mapping[str, Rule], readings: Iterable[Reading], answered: Iterable[str], now: datetime) -> list[Step]:
    """Writes what follows from the readings, and the notices that are due, in one transaction."""
    database_locks.take(Lock.ALERTS)
    _set_back(now)
    rows = {(row.rule, row.subject): row for row in AlertWatch.objects.select_related("alert")}
    watches = {key: _watch(row) for key, row in rows.items()}
    steps = look(rules, watches, readings, answered, now.timestamp(), alert_settings.longest_pause_s())
    for step in steps:
        _keep(rules[step.key[0]], step, rows.get(step.key))
    _write_notices(now)
    return steps


def _set_back(now: datetime) -> None:
    """Sets back the watches that lie ahead of the clock: their waiting begins anew, and open alerts stay open."""
    ahead = AlertWatch.objects.filter(at__gt=now + clock_repairs.AHEAD)
    furthest = ahead.aggregate(furthest=Max("at"))["furthest"]
    if furthest is not None:
        rows = ahead.update(at=now, breach_since=None, calm_since=None)
        clock_repairs.note("watches of alerts", rows, furthest, now)


def _watch(row: AlertWatch) -> Watch:
    breach_s = None if row.breach_since is None else row.breach_since.timestamp()
    calm_s = None if row.calm_since is None else row.calm_since.timestamp()
    return Watch(row.at.timestamp(), breach_s, calm_s, row.alert_id is not None)


def _keep(rule: Rule, step: Step, row: AlertWatch | None) -> None:
    watch, at = step.watch, _moment(step.watch.at_s)
    alert = row.alert if row is not None else None
    if step.change is Change.RAISED:
        assert step.reading is not None
        alert = Alert.objects.create(rule=rule.name, subject=step.key[1], **_seen(rule, step.reading, watch))
        log.warning("alert %d raised: %s", alert.pk, alert.summary)
    elif step.change is Change.SEEN and alert is not None:
        _update_seen(alert, rule, step)
    elif step.change is Change.RESOLVED and alert is not None:
        Alert.objects.filter(pk=alert.pk).update(state=Alert.AlertState.RESOLVED, resolved_at=at)
        log.info("alert %d resolved: %s", alert.pk, alert.summary)
    if watch.idle:
        AlertWatch.objects.filter(rule=rule.name, subject=step.key[1]).delete()
        return
    AlertWatch.objects.update_or_create(
        rule=rule.name,
        subject=step.key[1],
        defaults={
            "at": at,
            "breach_since": None if watch.breach_since_s is None else _moment(watch.breach_since_s),
            "calm_since": None if watch.calm_since_s is None else _moment(watch.calm_since_s),
            "alert": alert,
        },
    )


def _seen(rule: Rule, reading: Reading, watch: Watch) -> dict[str, object]:
    """Returns the columns of an alert that has just been raised."""
    at = _moment(watch.at_s)
    return {
        "level": reading.level or rule.level,
        "summary": reading.summary[:500],
        "step": _next_step(rule, reading),
        "value": reading.value,
        "threshold": rule.threshold,
        "unit": rule.unit,
        "decision_id": reading.decision_id,
        "since": at if watch.breach_since_s is None else _moment(watch.breach_since_s),
        "opened_at": at,
        "last_seen_at": at,
    }


def _update_seen(alert: Alert, rule: Rule, step: Step) -> None:
    """Updates the value; the sentence and `last seen` only while the rule fires, to say still what was wrong."""
    reading = step.reading
    changed: dict[str, object] = {"value": reading.value if reading is not None else None}
    if reading is not None and step.watch.breach_since_s is not None:
        changed |= {
            "summary": reading.summary[:500],
            "step": _next_step(rule, reading),
            "threshold": rule.threshold,
            "level": reading.level or rule.level,
            "decision_id": reading.decision_id,
            "last_seen_at": _moment(step.watch.at_s),
        }
    Alert.objects.filter(pk=alert.pk).update(**changed)


def _next_step(rule: Rule, reading: Reading) -> str:
    return (reading.step or rule.step.replace("{subject}", reading.subject))[:300]


def _write_notices(now: datetime) -> None:
    """Writes notices of new alerts that nobody silenced, of those that became worse, and of the end of alerts that had
    a notice."""
    channels = alert_settings.channels().names
    silences = active_silences(now)
    notices = [
        AlertNotice(alert=alert, event=AlertNotice.Event.RAISED, level=alert.level, channel=channel, due_at=now)
        for alert in (_unnotified() if channels else ())
        if not silenced((alert.rule, alert.subject), silences)
        for channel in channels
    ]
    ended = AlertNotice.objects.filter(
        event=AlertNotice.Event.RAISED,
        channel__in=channels,
        alert__state=Alert.AlertState.RESOLVED,
        alert__resolved_at__gte=now - timedelta(days=1),
    ).exclude(alert__notices__event=AlertNotice.Event.RESOLVED)
    notices += [
        AlertNotice(alert_id=notice.alert_id, event=AlertNotice.Event.RESOLVED, channel=notice.channel, due_at=now)
        for notice in ended
    ]
    AlertNotice.objects.bulk_create(notices, ignore_conflicts=True)


def _unnotified() -> QuerySet[Alert]:
    """Returns the open alerts of whose level nobody was notified, nor of a worse one."""
    notified = AlertNotice.objects.filter(alert=OuterRef("pk"), event=AlertNotice.Event.RAISED)
    notified = notified.filter(Q(level=OuterRef("level")) | Q(level=Alert.Level.BAD))
    return Alert.objects.exclude(state=Alert.AlertState.RESOLVED).exclude(Exists(notified))


def active_silences(now: datetime) -> list[AlertSilence]:
    return list(AlertSilence.objects.filter(expires_at__gt=now).select_related("created_by"))


def silenced(key: Key, silences: Iterable[AlertSilence]) -> bool:
    rule, subject = key
    return any(one.rule == rule and one.subject in ("", subject) for one in silences)


# -- what people do ------------------------------------------------------------------------------------


def acknowledge(alert_id: int, user: User | None, now: datetime) -> bool:
    """Somebody looks after it. False when it is not open: somebody was first, or it is over."""
    changed = Alert.objects.filter(pk=alert_id, state=Alert.AlertState.OPEN).update(
        state=Alert.AlertState.ACKNOWLEDGED, acknowledged_at=now, acknowledged_by=user
    )
    return changed == 1


def silence(rule: str, subject: str, length_s: float, reason: str, user: User | None, now: datetime) -> AlertSilence:
    """Stores a silence of `length_s`. Raises ValueError naming the field that makes no sense."""
    known = alert_settings.all_rules()
    if rule not in known:
        raise ValueError(f"rule: there is none called '{rule[:40]}'; known are {', '.join(sorted(known))}")
    if not 60.0 <= length_s <= LONGEST_SILENCE.total_seconds():
        raise ValueError("for_s: give between 60 s and 30 days; it ends by itself")
    if len(subject) > 200 or len(reason) > 200 or "\0" in subject + reason:
        raise ValueError("subject, reason: at most 200 letters each")
    return AlertSilence.objects.create(
        rule=rule,
        subject=subject,
        reason=reason,
        created_by=user,
        created_at=now,
        expires_at=now + timedelta(seconds=length_s),
    )


def end_silence(silence_id: int, now: datetime) -> bool:
    """Ends a silence now; returns False when it is over already. `created_at` is the least that it can end at."""
    row = AlertSilence.objects.filter(pk=silence_id, expires_at__gt=now).first()
    if row is None:
        return False
    row.expires_at = max(now, row.created_at)
    row.save(update_fields=["expires_at"])
    return True


def open_alerts() -> QuerySet[Alert]:
    """Returns those that have not ended, the bad ones first, then the newest."""
    rows = Alert.objects.exclude(state=Alert.AlertState.RESOLVED).select_related("acknowledged_by")
    return rows.order_by("level", "-opened_at", "-id")


def tidy(now: datetime) -> int:
    """Forgets what ended long ago, and ends what no rule judges any more."""
    SloMinute.objects.filter(start_at__lt=now - slo_minutes.KEPT - timedelta(hours=1)).delete()
    AlertSilence.objects.filter(expires_at__lt=now - KEPT).delete()
    orphans = ~Q(rule__in=alert_settings.all_rules())
    AlertWatch.objects.filter(orphans).delete()
    Alert.objects.exclude(state=Alert.AlertState.RESOLVED).filter(orphans).update(
        state=Alert.AlertState.RESOLVED, resolved_at=now
    )
    return Alert.objects.filter(state=Alert.AlertState.RESOLVED, resolved_at__lt=now - KEPT).delete()[0]


def _moment(at_s: float) -> datetime:
    return datetime.fromtimestamp(at_s, UTC)

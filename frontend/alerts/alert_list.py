"""Collects what the page of alerts shows, and the open alerts of the Overview's attention list."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from django.core.paginator import Page, Paginator
from django.urls import reverse

from frontend import formats
from frontend.attention import OpenAlert
from pools.access.rights import AnyUser
from pools.models import Site
from scheduler.operations import visibility
from telemetry.alerts import alert_settings, evaluation
from telemetry.alerts.alert_state_machine import Rule
from telemetry.models import Alert, AlertNotice, AlertSilence

PAGE = 50
CHANNELS = {"email": "e-mail", "webhook": "webhook"}
SILENCE_LENGTHS = (("3600", "1 h"), ("14400", "4 h"), ("86400", "1 day"), ("604800", "7 days"))
UNITS = {"share": "", "times": "×", "s": "s", "W": "W"}  # noqa: RUF001 - the sign is what people read


@dataclass(frozen=True, slots=True)
class Row:
    """An alert as the page shows it: `notified` names the channels, `silence` what keeps the alert from them."""

    alert: Alert
    title: str
    value: str
    threshold: str
    notified: str
    silence: AlertSilence | None

    @property
    def open(self) -> bool:
        return self.alert.state != Alert.AlertState.RESOLVED

    @property
    def tenant_page(self) -> str:
        """Returns the address of the tenant and month that a budget's alert is about; empty: it is about others."""
        if not self.alert.rule.startswith(visibility.OF_TENANTS):
            return ""
        name, _, month = self.alert.subject.partition("/")
        return f"{reverse('tenant', args=[name])}?month={month}"


@dataclass(frozen=True, slots=True)
class Silence:
    row: AlertSilence
    title: str


def quantity(value: float | None, unit: str) -> str:
    """Writes a value in its rule's unit for people."""
    if unit == "share":
        return formats.percent(value)
    if value is not None and unit == "times":
        return f"{formats.plain(value)}\u00a0{UNITS[unit]}"
    return formats.quantity(value, UNITS.get(unit, unit))


def open_alerts(user: AnyUser) -> tuple[OpenAlert, ...]:
    """Returns the open alerts that this person may see, for the attention list. Makes two queries."""
    labels = {site.name: site.label or site.name for site in Site.objects.all()}
    return tuple(
        OpenAlert(
            pk=alert.pk,
            rule=alert.rule,
            subject=alert.subject,
            place=labels.get(alert.subject.partition("/")[0], ""),
            level=alert.level,
            text=alert.summary,
            step=alert.step,
            decision_id=alert.decision_id,
            acknowledged=alert.state == Alert.AlertState.ACKNOWLEDGED,
        )
        for alert in visibility.alerts(user, evaluation.open_alerts())
    )


def current(user: AnyUser, now: datetime) -> list[Row]:
    """Returns the alerts that have not ended, the critical ones first."""
    return _rows(list(visibility.alerts(user, evaluation.open_alerts())), evaluation.active_silences(now))


def ended(user: AnyUser, number: str | None, rule: str) -> tuple[Page[Alert], list[Row]]:
    """Returns a page of the alerts that have ended, the newest first."""
    rows = Alert.objects.filter(state=Alert.AlertState.RESOLVED).select_related("acknowledged_by")
    found = visibility.alerts(user, rows)
    page = Paginator(found.filter(rule=rule) if rule else found, PAGE).get_page(number)
    return page, _rows(list(page.object_list), [])


def silences(user: AnyUser, now: datetime) -> list[Silence]:
    known = alert_settings.all_rules()
    rows = AlertSilence.objects.filter(expires_at__gt=now).select_related("created_by")
    return [Silence(row, _title(known, row.rule)) for row in visibility.alerts(user, rows)]


def choices() -> list[tuple[str, str]]:
    """Returns names and titles of the rules, for the form."""
    return [
        (name, rule.title) for name, rule in sorted(alert_settings.all_rules().items(), key=lambda pair: pair[1].title)
    ]


def channel_words() -> str:
    """Says in one sentence on which channels people are notified, or why on none."""
    found = [CHANNELS[name] for name in alert_settings.channels().names]
    if found:
        return f"Notifications go out by {' and '.join(found)}."
    return "Nobody is notified by e-mail or webhook: set GREENSERVE_ALERT_EMAILS or GREENSERVE_ALERT_WEBHOOK_URL."


def _rows(alerts: Sequence[Alert], silences: Sequence[AlertSilence]) -> list[Row]:
    known = alert_settings.all_rules()
    notices: dict[int, list[AlertNotice]] = {}
    newest: dict[tuple[int, str], AlertNotice] = {}  # of an alert that became worse there are two on a channel
    for notice in AlertNotice.objects.filter(alert__in=alerts, event=AlertNotice.Event.RAISED).order_by("pk"):
        newest[notice.alert_id, notice.channel] = notice
    for notice in newest.values():
        notices.setdefault(notice.alert_id, []).append(notice)
    return [
        Row(
            alert=alert,
            title=_title(known, alert.rule),
            value=quantity(alert.value, alert.unit),
            threshold=quantity(alert.threshold, alert.unit),
            notified=", ".join(_channel_outcome(notice) for notice in notices.get(alert.pk, ())),
            silence=next((one for one in silences if evaluation.silenced((alert.rule, alert.subject), [one])), None),
        )
        for alert in alerts
    ]


def _title(known: dict[str, Rule], rule: str) -> str:
    return known[rule].title if rule in known else rule


def _channel_outcome(notice: AlertNotice) -> str:
    """Gives the name of the channel that the notice went to, or why it did not: an error begins with its channel."""
    if notice.state == AlertNotice.NoticeState.SENT:
        return CHANNELS[notice.channel]
    said = notice.error or f"{CHANNELS[notice.channel]}: not sent yet"
    return said if notice.state == AlertNotice.NoticeState.FAILED else f"{said}; tried again"

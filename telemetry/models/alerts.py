"""Alerts, what their rules remember between two looks, silences, and the notices that people were sent."""

from __future__ import annotations

import uuid

from django.conf import settings
from django.db import models
from django.db.models import F, Q


class Alert(models.Model):
    """A rule that fires, or fired, for a subject. The database keeps a second open one of the same away."""

    class AlertState(models.TextChoices):
        OPEN = "open"
        ACKNOWLEDGED = "acknowledged"  # somebody looks after it
        RESOLVED = "resolved"

    class Level(models.TextChoices):
        BAD = "bad"
        WARN = "warn"

    rule = models.CharField(max_length=40)
    subject = models.CharField(max_length=200, blank=True, help_text="Whose: a site, node, pool, service; empty: all.")
    level = models.CharField(max_length=4, choices=Level)
    state = models.CharField(max_length=12, choices=AlertState, default=AlertState.OPEN)
    summary = models.CharField(max_length=500)
    step = models.CharField(max_length=300, help_text="What to do next.")
    value = models.FloatField(null=True, help_text="At last sight; null: it is not known now.")
    threshold = models.FloatField()
    unit = models.CharField(max_length=10, blank=True)
    decision_id = models.BigIntegerField(null=True)
    since = models.DateTimeField(help_text="When its rule began to hold.")
    opened_at = models.DateTimeField(help_text="When it had held for long enough.")
    last_seen_at = models.DateTimeField(help_text="When it was last seen to hold.")
    resolved_at = models.DateTimeField(null=True)
    acknowledged_at = models.DateTimeField(null=True)
    acknowledged_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+"
    )

    class Meta:
        ordering = ["-opened_at", "-id"]
        constraints = [
            models.UniqueConstraint(fields=["rule", "subject"], condition=~Q(state="resolved"), name="alert_open_once"),
            models.CheckConstraint(
                condition=Q(state="resolved", resolved_at__isnull=False)
                | (~Q(state="resolved") & Q(resolved_at__isnull=True)),
                name="alert_resolved_at",
            ),
        ]
        indexes = [models.Index(fields=["-opened_at", "-id"], name="alert_newest")]

    def __str__(self) -> str:
        return self.summary


class AlertWatch(models.Model):
    """The state that `telemetry.alerts.alert_state_machine` keeps of a rule and subject. No row: all is well."""

    rule = models.CharField(max_length=40)
    subject = models.CharField(max_length=200, blank=True)
    at = models.DateTimeField()
    breach_since = models.DateTimeField(null=True)
    calm_since = models.DateTimeField(null=True)
    alert = models.ForeignKey(Alert, on_delete=models.CASCADE, null=True, related_name="+")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["rule", "subject"], name="alert_watch_once")]

    def __str__(self) -> str:
        return f"{self.rule} {self.subject}"


class AlertSilence(models.Model):
    """Nobody is notified of a rule's alerts until `expires_at`, though pages show them. `subject` empty: of all."""

    rule = models.CharField(max_length=40)
    subject = models.CharField(max_length=200, blank=True)
    reason = models.CharField(max_length=200, blank=True)
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+")
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField()

    class Meta:
        ordering = ["expires_at", "id"]
        constraints = [
            models.CheckConstraint(condition=Q(expires_at__gte=F("created_at")), name="alert_silence_interval")
        ]

    def __str__(self) -> str:
        return f"{self.rule} {self.subject} until {self.expires_at:%Y-%m-%d %H:%M}"


class AlertNotice(models.Model):
    """One message about an alert on one channel: written with the alert's change, sent afterwards, each once.

    `level`: that of an alert which was raised, or became worse; empty for its end.
    """

    class Event(models.TextChoices):
        RAISED = "raised"
        RESOLVED = "resolved"

    class Channel(models.TextChoices):
        EMAIL = "email", "e-mail"
        WEBHOOK = "webhook"

    class NoticeState(models.TextChoices):
        PENDING = "pending"
        SENT = "sent"
        FAILED = "failed"

    uid = models.UUIDField(unique=True, default=uuid.uuid4, editable=False)
    alert = models.ForeignKey(Alert, on_delete=models.CASCADE, related_name="notices")
    event = models.CharField(max_length=8, choices=Event)
    level = models.CharField(max_length=4, choices=Alert.Level, blank=True)
    channel = models.CharField(max_length=8, choices=Channel)
    state = models.CharField(max_length=8, choices=NoticeState, default=NoticeState.PENDING)
    attempts = models.PositiveSmallIntegerField(default=0)
    due_at = models.DateTimeField(help_text="When it is to be sent, or tried again.")
    sent_at = models.DateTimeField(null=True)
    error = models.CharField(max_length=200, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["id"]
        constraints = [models.UniqueConstraint(fields=["alert", "event", "level", "channel"], name="alert_notice_once")]
        indexes = [models.Index(fields=["due_at"], name="alert_notice_due", condition=Q(state="pending"))]

    def __str__(self) -> str:
        return f"{self.alert_id} {self.event} by {self.channel}: {self.state}"


class SloMinute(models.Model):
    """Requests judged by one objective that ended within a minute, and how many kept it: what burn rates are of.

    It can be made again from the request records, and is, as long as late ones may come in.
    """

    service = models.CharField(max_length=100)
    kind = models.CharField(max_length=8)  # as pools.SloMetric
    start_at = models.DateTimeField()
    judged = models.IntegerField()
    within = models.IntegerField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["start_at", "service", "kind"], name="slo_minute_once"),
            models.CheckConstraint(condition=Q(within__gte=0, within__lte=F("judged")), name="slo_minute_counts"),
        ]

    def __str__(self) -> str:
        return f"{self.service} {self.kind} {self.start_at:%Y-%m-%d %H:%M}"

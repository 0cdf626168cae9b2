"""Rows of webhooks: subscriptions, and the deliveries of events to them."""

from __future__ import annotations

import uuid

from django.conf import settings
from django.db import models
from django.db.models import Q


class WebhookSubscription(models.Model):
    """A subscriber to events, each of which is posted as JSON to `url` and signed with `secret`, which is shown once.

    The secret is kept as it is, since signing needs it.
    """

    name = models.CharField(max_length=100, unique=True)
    url = models.CharField(max_length=500, help_text="https, and at a public address; part of it may be secret.")
    secret = models.CharField(max_length=100)
    events = models.JSONField(default=list, help_text="Names of events.")
    enabled = models.BooleanField(default=True)
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


class DeliveryState(models.TextChoices):
    """The progress of a delivery."""

    PENDING = "pending"
    SENT = "sent"
    FAILED = "failed"


class WebhookDelivery(models.Model):
    """An event for one subscriber: written once (`subject` is what it is about), sent afterwards, and kept as a log."""

    uid = models.UUIDField(unique=True, default=uuid.uuid4, editable=False)
    subscription = models.ForeignKey(WebhookSubscription, on_delete=models.CASCADE, related_name="deliveries")
    event = models.CharField(max_length=40)
    subject = models.CharField(max_length=80)
    body = models.JSONField()
    state = models.CharField(max_length=8, choices=DeliveryState, default=DeliveryState.PENDING)
    attempts = models.PositiveSmallIntegerField(default=0)
    due_at = models.DateTimeField(help_text="When it is to be sent, or tried again.")
    sent_at = models.DateTimeField(null=True)
    error = models.CharField(max_length=200, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["-created_at", "-id"]
        constraints = [models.UniqueConstraint(fields=["subscription", "event", "subject"], name="webhook_once")]
        indexes = [
            models.Index(fields=["due_at"], name="webhook_delivery_due", condition=Q(state="pending")),
            models.Index(fields=["-created_at", "-id"], name="webhook_delivery_newest"),
        ]

    def __str__(self) -> str:
        return f"{self.event} {self.subject}: {self.state}"

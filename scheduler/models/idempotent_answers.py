"""Rows of the answers to POSTs that came with an Idempotency-Key."""

from __future__ import annotations

from datetime import timedelta

from django.db import models


class IdempotentAnswer(models.Model):
    """The answer to a POST with an Idempotency-Key, which is given again for a day. It is stored with its effect, or
    not at all.

    `body_hash` is of the method, the path and the body: the key with another one is a mistake.
    """

    KEPT = timedelta(hours=24)

    actor = models.CharField(max_length=80)
    key = models.CharField(max_length=255)
    body_hash = models.CharField(max_length=64)
    status = models.PositiveSmallIntegerField(default=0)
    headers = models.JSONField(default=dict)
    body = models.JSONField(null=True)
    created_at = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["actor", "key"], name="idempotent_answer_once")]
        indexes = [models.Index(fields=["created_at"], name="idempotent_answer_age")]

    def __str__(self) -> str:
        return f"{self.actor} {self.key}"

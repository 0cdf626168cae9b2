"""Rows that came in messages and could not be stored."""

from __future__ import annotations

from django.db import models


class DeadRow(models.Model):
    """Rows of one message that could not be stored, as they came, until somebody has them stored or they are too old.

    A request record has a row here by itself; samples of one batch share one, as does a message that cannot be read.
    """

    class DeadKind(models.TextChoices):
        REQUEST = "request"
        SAMPLES = "samples", "samples of an agent's batch"
        MESSAGE = "message", "a whole message"

    received_at = models.DateTimeField()
    stream = models.CharField(max_length=80)
    entry_id = models.CharField(max_length=40, help_text="Of the stream's entry.")
    place = models.PositiveIntegerField(help_text="Among what was set aside of the entry.")
    source = models.CharField(max_length=100, blank=True, help_text="The agent or gateway; empty: it cannot be read.")
    kind = models.CharField(max_length=10, choices=DeadKind)
    rows = models.PositiveIntegerField(help_text="0: they cannot be counted.")
    why = models.CharField(max_length=500)
    due_at = models.DateTimeField(
        null=True,
        help_text="When rows ahead of the clock are tried again; none: they are not only ahead.",
    )
    body = models.BinaryField(help_text="A message of the stream with these rows alone; or the whole, as it came.")

    class Meta:
        ordering = ["id"]
        constraints = [models.UniqueConstraint(fields=["stream", "entry_id", "place"], name="dead_row_once")]
        indexes = [
            models.Index(fields=["received_at"], name="dead_row_received"),
            models.Index(fields=["due_at"], name="dead_row_due"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} of {self.source or self.stream}: {self.why}"

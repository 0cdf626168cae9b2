"""Marks what was made up: spans of time whose rows nobody measured."""

from __future__ import annotations

from django.db import models
from django.db.models import F, Q


class SyntheticHistory(models.Model):
    """All that is on record of [start_at, end_at) was made by a model. Only the demo's first start adds one."""

    start_at = models.DateTimeField()
    end_at = models.DateTimeField()
    source = models.CharField(max_length=300, help_text="What made it up, in words; shown beside its figures.")
    made_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["start_at"]
        constraints = [models.CheckConstraint(condition=Q(end_at__gt=F("start_at")), name="synthetic_history_interval")]

    def __str__(self) -> str:
        return f"synthetic {self.start_at:%Y-%m-%d %H:%M} to {self.end_at:%Y-%m-%d %H:%M}"

"""Keeps on each feed how asking its provider went."""

from __future__ import annotations

from django.db import models


class Asked(models.Model):
    """A feed that asks a provider, now and then."""

    last_tried_at = models.DateTimeField(null=True, blank=True)
    last_ok_at = models.DateTimeField(null=True, blank=True)
    last_error = models.CharField(max_length=300, blank=True)
    last_error_at = models.DateTimeField(null=True, blank=True)
    failures = models.PositiveIntegerField(default=0, help_text="In a row.")
    cool_down_until = models.DateTimeField(null=True, blank=True)

    class Meta:
        abstract = True

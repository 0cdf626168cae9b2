"""Carbon feeds and their points."""

from __future__ import annotations

from django.db import models
from django.db.models import F, Q

from pools.models import Site


class CarbonFeed(models.Model):
    """A source of carbon intensity for a site. `config` is the adapter's; secrets never stand in it."""

    class Signal(models.TextChoices):
        AVERAGE = "average"
        MARGINAL = "marginal"

    site = models.ForeignKey(Site, on_delete=models.CASCADE, related_name="carbon_feeds")
    provider = models.CharField(max_length=40, help_text="Name of the adapter in settings.CARBON_PROVIDERS.")
    signal = models.CharField(max_length=10, choices=Signal, default=Signal.AVERAGE)
    config = models.JSONField(default=dict, blank=True)
    source = models.CharField(max_length=300, blank=True, help_text="Shown under every figure drawn from it.")
    last_ok_at = models.DateTimeField(null=True, blank=True)
    last_error = models.CharField(max_length=300, blank=True)
    last_error_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["site", "signal"]
        constraints = [models.UniqueConstraint(fields=["site", "signal"], name="carbon_feed_signal_per_site")]

    def __str__(self) -> str:
        return f"{self.site} {self.signal} ({self.provider})"


class CarbonPoint(models.Model):
    """Intensity of [start_at, end_at). Append-only: a revision is a new row with a later `issued_at`.

    A null value stays null: the feed had nothing. Negative is legal for marginal rates. A trigger refuses updates.
    """

    feed = models.ForeignKey(CarbonFeed, on_delete=models.CASCADE, related_name="points")
    start_at = models.DateTimeField()
    end_at = models.DateTimeField()
    value_g_per_kwh = models.FloatField(null=True)
    raw_value = models.FloatField(null=True)
    raw_unit = models.CharField(max_length=40)
    factor = models.CharField(max_length=10, default="lifecycle")
    forecast = models.BooleanField()
    estimated = models.BooleanField(default=False)
    issued_at = models.DateTimeField()
    received_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["feed", "start_at", "forecast", "issued_at"], name="carbon_point_revision"),
            models.CheckConstraint(condition=Q(end_at__gt=F("start_at")), name="carbon_point_interval"),
        ]

    def __str__(self) -> str:
        return f"{self.feed_id} {self.start_at:%Y-%m-%d %H:%M} {self.value_g_per_kwh}"

"""Carbon and price feeds, and their points."""

from __future__ import annotations

from django.db import models
from django.db.models import F, Q

from pools.models import Site

from .asked import Asked


class CarbonFeed(Asked):
    """A source of carbon intensity, or of the price of electricity, for a site. Secrets never stand in `config`.

    The points of a feed are all of one signal: average and marginal rates are two feeds.
    """

    class Signal(models.TextChoices):
        AVERAGE = "average"
        MARGINAL = "marginal"
        PRICE = "price"

    site = models.ForeignKey(Site, on_delete=models.CASCADE, related_name="carbon_feeds")
    provider = models.CharField(max_length=40, help_text="Name of the adapter in settings.CARBON_PROVIDERS.")
    signal = models.CharField(max_length=10, choices=Signal, default=Signal.AVERAGE)
    zone = models.CharField(max_length=60, blank=True, help_text="The provider's name of the zone; blank: the site's.")
    factor = models.CharField(max_length=10, blank=True, help_text="direct or lifecycle; blank: the provider's usual.")
    refresh_s = models.FloatField(null=True, blank=True, help_text="Seconds between two calls; blank: as the others.")
    config = models.JSONField(default=dict, blank=True)
    source = models.CharField(max_length=300, blank=True, help_text="Shown under every figure drawn from it.")
    forecast_model = models.CharField(
        max_length=40, blank=True, help_text="The model whose forecast counts; blank: the provider's own."
    )

    class Meta:
        ordering = ["site", "signal"]
        constraints = [
            models.UniqueConstraint(fields=["site", "signal"], name="carbon_feed_signal_per_site"),
            models.CheckConstraint(
                condition=Q(refresh_s__isnull=True) | Q(refresh_s__gte=1.0), name="carbon_feed_refresh_above_a_second"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.site} {self.signal} ({self.provider})"


class CarbonPoint(models.Model):
    """Intensity, or price, of [start_at, end_at). Append-only: a revision is a new row with a later `issued_at`.

    A null value stays null: the feed had nothing. Negative is legal for marginal rates and prices. `provider` and
    `zone` are where it came from (blank in rows from before they were kept: the feed's); `model` made a forecast that
    is not the provider's own. A trigger refuses updates.
    """

    feed = models.ForeignKey(CarbonFeed, on_delete=models.CASCADE, related_name="points")
    start_at = models.DateTimeField()
    end_at = models.DateTimeField()
    value_g_per_kwh = models.FloatField(null=True)
    price_per_kwh = models.FloatField(null=True)
    currency = models.CharField(max_length=3, blank=True)
    raw_value = models.FloatField(null=True)
    raw_unit = models.CharField(max_length=40)
    factor = models.CharField(max_length=10, default="lifecycle", blank=True)
    forecast = models.BooleanField()
    model = models.CharField(max_length=40, blank=True)
    estimated = models.BooleanField(default=False)
    provider = models.CharField(max_length=40, blank=True)
    zone = models.CharField(max_length=60, blank=True)
    issued_at = models.DateTimeField()
    updated_at = models.DateTimeField(null=True)
    received_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["feed", "start_at", "forecast", "model", "issued_at"], name="carbon_point_revision"
            ),
            models.CheckConstraint(condition=Q(end_at__gt=F("start_at")), name="carbon_point_interval"),
            models.CheckConstraint(
                condition=Q(value_g_per_kwh__isnull=True) | Q(price_per_kwh__isnull=True),
                name="carbon_point_one_signal",
            ),
            models.CheckConstraint(condition=Q(model="") | Q(forecast=True), name="carbon_point_models_forecast"),
        ]

    def __str__(self) -> str:
        return f"{self.feed_id} {self.start_at:%Y-%m-%d %H:%M} {self.value_g_per_kwh}"

"""The weather of sites, hour by hour, and where it comes from."""

from __future__ import annotations

from django.db import models

from pools.models import Site

from .asked import Asked


class WeatherFeed(Asked):
    """Names the provider of a site's weather. A site without one has no weather, and nobody is asked for any."""

    site = models.OneToOneField(Site, on_delete=models.CASCADE, related_name="weather_feed")
    provider = models.CharField(max_length=40, help_text="open_meteo, or weather_csv for a file.")
    refresh_s = models.FloatField(null=True, blank=True, help_text="Seconds between two calls; blank: an hour.")
    config = models.JSONField(default=dict, blank=True)
    source = models.CharField(max_length=300, blank=True, help_text="Whose data it is, shown beside it.")

    class Meta:
        ordering = ["site"]
        constraints = [
            models.CheckConstraint(
                condition=models.Q(refresh_s__isnull=True) | models.Q(refresh_s__gte=60.0),
                name="weather_feed_refresh_above_a_minute",
            )
        ]

    def __str__(self) -> str:
        return f"{self.site} weather ({self.provider})"


class WeatherPoint(models.Model):
    """The weather of one hour, in the units and by the names of `core.predictors.carbon_features.WEATHER`.

    A newer fetch takes the place of an older one: what was forecast becomes what was. So an hour is a forecast where it
    was fetched before it was over. Null: the provider had no such value. `precipitation` is in mm.
    """

    feed = models.ForeignKey(WeatherFeed, on_delete=models.CASCADE, related_name="points")
    start_at = models.DateTimeField()
    wind_m_s = models.FloatField(null=True)
    temperature_k = models.FloatField(null=True)
    dewpoint_k = models.FloatField(null=True)
    irradiance_w_m2 = models.FloatField(null=True)
    precipitation = models.FloatField(null=True)
    fetched_at = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["feed", "start_at"], name="weather_point_once")]

    def __str__(self) -> str:
        return f"{self.feed_id} {self.start_at:%Y-%m-%d %H:%M}"

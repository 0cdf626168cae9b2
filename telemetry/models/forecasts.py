"""The inputs of forecasts, and how good they were."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from .carbon import CarbonFeed


class LoadPoint(models.Model):
    """The load of one step: the highest rate in any 5 seconds of it, as FREESH plans for. A roll-up of request records.

    `request_class` blank: all of the service's requests together. A step in which nothing came is a point of 0 where
    GreenServe ran; where it did not there is none.
    """

    service = models.CharField(max_length=100)
    request_class = models.CharField(max_length=20, blank=True)
    start_at = models.DateTimeField()
    step_s = models.FloatField()
    peak_rps = models.FloatField()
    requests = models.PositiveIntegerField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["service", "step_s", "request_class", "start_at"], name="load_point_once"),
            models.CheckConstraint(condition=Q(peak_rps__gte=0.0, step_s__gt=0.0), name="load_point_not_negative"),
        ]

    def __str__(self) -> str:
        return f"{self.service} {self.request_class} {self.start_at:%Y-%m-%d %H:%M} {self.peak_rps:g}/s"


class LearnedForecast(models.Model):
    """Keeps the model that was learned from a feed's past, as arrays (`core.predictors.boosted_carbon`, no pickle).

    `model` null: nothing yet, and `note` says why. A later try that fails leaves the model that was there.
    `with_weather` was learned from the same hours and their weather; null: too little was known of that.
    """

    feed = models.OneToOneField(CarbonFeed, on_delete=models.CASCADE, related_name="learned_forecast")
    tried_at = models.DateTimeField()
    learned_at = models.DateTimeField(null=True)
    hours = models.PositiveIntegerField(null=True, help_text="Of measured values that it was learned from.")
    model = models.BinaryField(null=True)
    with_weather = models.BinaryField(null=True)
    note = models.CharField(max_length=300, blank=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(model__isnull=True, learned_at__isnull=True, hours__isnull=True)
                | Q(model__isnull=False, learned_at__isnull=False, hours__isnull=False),
                name="learned_forecast_whole",
            )
        ]

    def __str__(self) -> str:
        return f"{self.feed}: {self.note or self.learned_at}"


class CarbonNetwork(models.Model):
    """Keeps the network that was learned from all feeds together, as safetensors (`telemetry.forecasts.learned`).

    `state` null: nothing yet, and `note` says why. A later try that fails leaves the network that was there.
    """

    model = models.CharField(max_length=40, unique=True)
    tried_at = models.DateTimeField()
    learned_at = models.DateTimeField(null=True)
    feeds = models.JSONField(default=list, help_text="Keys of the feeds that it was learned from.")
    state = models.BinaryField(null=True)
    note = models.CharField(max_length=300, blank=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(state__isnull=True, learned_at__isnull=True)
                | Q(state__isnull=False, learned_at__isnull=False),
                name="carbon_network_whole",
            )
        ]

    def __str__(self) -> str:
        return f"{self.model}: {self.note or self.learned_at}"


class ForecastScore(models.Model):
    """A model's score in a back-test with rolling origin: of a feed's carbon, or of a service's load by class.

    `pinball` is the mean pinball loss at `quantile`, in the unit of what is forecast (g/kWh, requests a second); `mape`
    a share, of the median, null where the truth was always 0. `coverage`: the share of the steps that lay between the
    quantiles 0.1 and 0.9. `regret`: what a kWh that waits for the lowest quarter of the steps ahead emits (or costs) by
    the forecast beyond what it would by the truth. Both are null for load, and where they are not known. `chosen`: the
    least loss of its run, whose forecasts are used until the next run.
    """

    feed = models.ForeignKey(CarbonFeed, on_delete=models.CASCADE, null=True, related_name="forecast_scores")
    service = models.CharField(max_length=100, blank=True)
    request_class = models.CharField(max_length=20, blank=True)
    model = models.CharField(max_length=40)
    scored_at = models.DateTimeField()
    step_s = models.FloatField()
    steps = models.PositiveIntegerField(help_text="How far ahead each origin looked.")
    origins = models.PositiveIntegerField()
    samples = models.PositiveIntegerField()
    quantile = models.FloatField()
    pinball = models.FloatField()
    mape = models.FloatField(null=True)
    coverage = models.FloatField(null=True)
    regret = models.FloatField(null=True)
    chosen = models.BooleanField()

    class Meta:
        ordering = ["-scored_at", "pinball"]
        constraints = [
            models.UniqueConstraint(
                fields=["feed", "service", "request_class", "model", "scored_at"],
                nulls_distinct=False,
                name="forecast_score_once",
            ),
            models.CheckConstraint(
                condition=Q(feed__isnull=False, service="") | (Q(feed__isnull=True) & ~Q(service="")),
                name="forecast_score_of_one_thing",
            ),
        ]
        indexes = [models.Index(fields=["service", "request_class", "-scored_at"])]

    def __str__(self) -> str:
        return f"{self.model}: {self.pinball:.3g}"


class LoadNetwork(models.Model):
    """A network that was learned from a class's load, to forecast it with; a newer one takes its place.

    `state` is safetensors: numbers alone, no code. `about` says what else the network needs to know of itself.
    """

    service = models.CharField(max_length=100)
    request_class = models.CharField(max_length=20, blank=True)
    model = models.CharField(max_length=40)
    step_s = models.FloatField()
    learned_at = models.DateTimeField()
    about = models.JSONField()
    state = models.BinaryField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["service", "request_class", "model"], name="load_network_once"),
        ]

    def __str__(self) -> str:
        return f"{self.model} of {self.service} {self.request_class}".rstrip()

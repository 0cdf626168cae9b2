"""The energy ledger: every joule of every GPU counter, attributed once, append-only."""

from __future__ import annotations

from django.db import models
from django.db.models import F, FloatField, Q, Value
from django.db.models.functions import Cast

from pools.models import Gpu, Pool, Site


def _joules(column: str) -> models.GeneratedField:
    """Returns the column in joules, for people and charts; sums that must be exact are of the whole microjoules."""
    return models.GeneratedField(
        expression=Cast(column, FloatField()) / Value(1_000_000.0), output_field=FloatField(), db_persist=True
    )


class MeterMark(models.Model):
    """How far a GPU's counter has been entered: compare-and-swap on (at, energy_uj) makes posting exactly-once."""

    gpu = models.OneToOneField(Gpu, on_delete=models.CASCADE, related_name="meter_mark")
    at = models.DateTimeField()
    energy_uj = models.BigIntegerField()
    energy_j = _joules("energy_uj")
    opened_at = models.DateTimeField()
    opened_energy_uj = models.BigIntegerField(
        help_text="The counter at the first sample ever entered, lowered by what resets took off it since."
    )
    opened_energy_j = _joules("opened_energy_uj")
    passing = models.PositiveSmallIntegerField(
        default=0, db_default=0, help_text="How often it was set back with the clock; entries have that of their time."
    )

    def __str__(self) -> str:
        return f"{self.gpu} {self.energy_j:.1f} J"


class EnergyEntry(models.Model):
    """Energy of one GPU over [start_at, end_at), by what it was doing.

    Per GPU the entries add up to the counter's deltas: serving + idle + transition + unattributed, exactly.
    Carbon is location-based: energy x PUE x the feed's average intensity, as known when it was posted; null where the
    feed had no value then. What is valid by later revisions stands in the settled lines (`settlement.StatementLine`).
    """

    class EnergyKind(models.TextChoices):
        SERVING = "serving"  # an instance with running requests
        IDLE = "idle"  # powered, nothing to do, with or without a loaded model
        TRANSITION = "transition"  # an instance starting or draining away
        UNATTRIBUTED = "unattributed"  # samples were missing: metered, but nobody saw what for

    gpu = models.ForeignKey(Gpu, on_delete=models.PROTECT, related_name="+")
    site = models.ForeignKey(Site, on_delete=models.PROTECT, related_name="+")
    pool = models.ForeignKey(Pool, on_delete=models.SET_NULL, null=True, related_name="+")
    instance_id = models.BigIntegerField(null=True)
    start_at = models.DateTimeField()
    end_at = models.DateTimeField()
    kind = models.CharField(max_length=12, choices=EnergyKind)
    energy_uj = models.BigIntegerField()
    energy_j = _joules("energy_uj")
    gpu_us = models.BigIntegerField(default=0, help_text="How long the GPU was at it.")
    passing = models.PositiveSmallIntegerField(
        default=0, db_default=0, help_text="Above 0: the clock came by again after it was set back."
    )
    intensity_g_per_kwh = models.FloatField(null=True)
    carbon_gco2e = models.FloatField(null=True)
    posted_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(energy_uj__gte=0), name="energy_entry_not_negative"),
            models.CheckConstraint(condition=Q(end_at__gt=F("start_at")), name="energy_entry_interval"),
            models.UniqueConstraint(
                fields=["gpu", "start_at", "kind", "instance_id", "passing"],
                nulls_distinct=False,
                name="energy_entry_once",
            ),
        ]
        indexes = [models.Index(fields=["start_at", "site"]), models.Index(fields=["end_at"])]

    def __str__(self) -> str:
        return f"{self.gpu_id} {self.kind} {self.energy_j:.1f} J"


class GpuEnergy(models.Model):
    """The sum of a GPU's entries of a UTC hour or day, at one site. Kept by triggers, in the entries' transaction.

    A report checks a month of every counter against the ledger; it adds up these in place of single entries.
    """

    pk = models.CompositePrimaryKey("step_s", "site_id", "start_at", "gpu_id")
    step_s = models.IntegerField()
    site = models.ForeignKey(Site, on_delete=models.DO_NOTHING, db_constraint=False, db_index=False, related_name="+")
    start_at = models.DateTimeField()
    gpu = models.ForeignKey(Gpu, on_delete=models.DO_NOTHING, db_constraint=False, db_index=False, related_name="+")
    energy_uj = models.BigIntegerField()

    class Meta:
        db_table = "telemetry_gpuenergy"

    def __str__(self) -> str:
        return f"gpu {self.gpu_id} {self.energy_uj} uJ from {self.start_at}"

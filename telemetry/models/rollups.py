"""Sums over minutes, hours and days: what charts read. They can always be made again from what they sum up."""

from __future__ import annotations

from django.db import models

MINUTE_S, HOUR_S, DAY_S = 60, 3_600, 86_400
STEPS_S = (MINUTE_S, 10 * MINUTE_S, HOUR_S, DAY_S)  # of energy entries; those of GPUs are without the second


class EnergyRollup(models.Model):
    """Energy entries of a site by pool and kind over [start_at, start_at + step_s), kept up by each posting.

    Carbon is by what was known at posting (settlements restate, roll-ups do not); `unknown_uj` is the energy without an
    intensity, whose carbon is not in the sum.
    """

    step_s = models.IntegerField()
    start_at = models.DateTimeField()
    site = models.ForeignKey("pools.Site", on_delete=models.PROTECT, related_name="+")
    pool = models.ForeignKey(
        "pools.Pool", on_delete=models.DO_NOTHING, db_constraint=False, null=True, related_name="+"
    )
    kind = models.CharField(max_length=12)
    energy_uj = models.BigIntegerField()
    gpu_us = models.BigIntegerField()
    carbon_gco2e = models.FloatField()
    unknown_uj = models.BigIntegerField()
    until = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["step_s", "start_at", "site", "pool", "kind"], nulls_distinct=False, name="energy_rollup_once"
            )
        ]

    def __str__(self) -> str:
        return f"{self.site_id} {self.start_at:%Y-%m-%d %H:%M} +{self.step_s} s {self.kind}"


class RollupDue(models.Model):
    """A minute that got samples since it was rolled up. Appended with the samples, taken away by the roll-up."""

    start_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.start_at}"


class GpuRollup(models.Model):
    """Samples of one GPU over a minute, an hour or a day; means are over the samples that had a value.

    `heard_s`: how much of the time lies between readings that are close enough to be the meter's word; the rest is
    gaps. `gaps`: how many began in it. The three tables are alike; the minutes' is partitioned by day.
    """

    pk = models.CompositePrimaryKey("gpu_id", "start_at")
    gpu = models.ForeignKey("pools.Gpu", on_delete=models.DO_NOTHING, db_constraint=False, related_name="+")
    start_at = models.DateTimeField()
    samples = models.IntegerField()
    heard_s = models.FloatField()
    gaps = models.IntegerField()
    power_w = models.FloatField(null=True)
    power_max_w = models.FloatField(null=True)
    sm_clock_mhz = models.FloatField(null=True)
    utilisation = models.FloatField(null=True)
    memory_max_bytes = models.BigIntegerField(null=True)
    temperature_max_c = models.FloatField(null=True)

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return f"gpu {self.gpu_id} from {self.start_at}"


class GpuMinute(GpuRollup):
    class Meta:
        db_table = "telemetry_gpuminute"


class GpuHour(GpuRollup):
    class Meta:
        db_table = "telemetry_gpuhour"


class GpuDay(GpuRollup):
    class Meta:
        db_table = "telemetry_gpuday"

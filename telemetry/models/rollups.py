"""Sums over minutes, hours and days: what charts read. They can always be made again from what they sum up."""

from __future__ import annotations

from django.db import models

MINUTE_S, HOUR_S, DAY_S = 60, 3_600, 86_400
STEPS_S = (MINUTE_S, 10 * MINUTE_S, HOUR_S, DAY_S)  # of energy entries; those of GPUs are without the second
REQUEST_STEPS_S = (10, *STEPS_S)  # no chart's bucket is finer


class EnergySums(models.Model):
    """Energy of one kind over [start_at, start_at + step_s).

    Carbon is by what was known at posting until the window is settled, and as settled or restated from then on;
    `unknown_uj` is the energy without an intensity, whose carbon is not in the sum.
    """

    step_s = models.IntegerField()
    start_at = models.DateTimeField()
    kind = models.CharField(max_length=12)
    energy_uj = models.BigIntegerField()
    gpu_us = models.BigIntegerField()
    carbon_gco2e = models.FloatField()
    unknown_uj = models.BigIntegerField()
    until = models.DateTimeField()

    class Meta:
        abstract = True


class EnergyRollup(EnergySums):
    """Energy entries of a site by pool and kind, kept up by each posting."""

    site = models.ForeignKey("pools.Site", on_delete=models.PROTECT, related_name="+")
    pool = models.ForeignKey(
        "pools.Pool", on_delete=models.DO_NOTHING, db_constraint=False, null=True, related_name="+"
    )

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["step_s", "start_at", "site", "pool", "kind"], nulls_distinct=False, name="energy_rollup_once"
            )
        ]

    def __str__(self) -> str:
        return f"{self.site_id} {self.start_at:%Y-%m-%d %H:%M} +{self.step_s} s {self.kind}"


class SiteEnergy(EnergySums):
    """Energy roll-ups of a site by kind, of all its pools together. The database adds what these are changed by."""

    site = models.ForeignKey(
        "pools.Site", on_delete=models.DO_NOTHING, db_constraint=False, db_index=False, related_name="+"
    )

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["step_s", "start_at", "site", "kind"], name="site_energy_once"),
        ]

    def __str__(self) -> str:
        return f"site {self.site_id} {self.start_at:%Y-%m-%d %H:%M} +{self.step_s} s {self.kind}"


class SloRollup(models.Model):
    """Requests judged by one objective that ended in [start_at, start_at + step_s), and how many kept it.

    `kind` as pools.SloMetric, or empty: by all objectives together. The database adds what records are written; should
    some be deleted, the counts follow and `until` stays.
    """

    step_s = models.IntegerField()
    start_at = models.DateTimeField()
    service = models.CharField(max_length=100)
    kind = models.CharField(max_length=8, blank=True)
    judged = models.IntegerField()
    within = models.IntegerField()
    until = models.DateTimeField(help_text="When the last of them ended.")

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["step_s", "start_at", "service", "kind"], name="slo_rollup_once"),
        ]

    def __str__(self) -> str:
        return f"{self.service} {self.kind} {self.start_at:%Y-%m-%d %H:%M:%S} +{self.step_s} s"


class TenantRollup(models.Model):
    """Tokens that a tenant got, and those of them in time, in requests that ended in [start_at, start_at + step_s)."""

    step_s = models.IntegerField()
    start_at = models.DateTimeField()
    tenant = models.ForeignKey(
        "pools.Tenant", on_delete=models.DO_NOTHING, db_constraint=False, db_index=False, related_name="+"
    )
    timely_tokens = models.BigIntegerField()
    output_tokens = models.BigIntegerField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["step_s", "start_at", "tenant"], name="tenant_rollup_once"),
        ]

    def __str__(self) -> str:
        return f"tenant {self.tenant_id} {self.start_at:%Y-%m-%d %H:%M:%S} +{self.step_s} s"


class LengthRollup(models.Model):
    """Answers of a service's class about as long as each other that ended in [start_at, start_at + step_s).

    `length`: the number of the length's bin (`telemetry.storage.sql.length_rollups.LENGTH`).
    """

    step_s = models.IntegerField()
    start_at = models.DateTimeField()
    service = models.CharField(max_length=100)
    request_class = models.CharField(max_length=20)
    length = models.IntegerField()
    requests = models.IntegerField()
    timely_tokens = models.BigIntegerField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["step_s", "start_at", "service", "request_class", "length"], name="length_rollup_once"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.request_class} {self.length} {self.start_at:%Y-%m-%d %H:%M:%S} +{self.step_s} s"


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


class EngineMinute(models.Model):
    """Samples of one instance's engine over a minute: means of those that had a value. Partitioned by day."""

    pk = models.CompositePrimaryKey("instance_id", "start_at")
    instance = models.ForeignKey("pools.Instance", on_delete=models.DO_NOTHING, db_constraint=False, related_name="+")
    start_at = models.DateTimeField()
    samples = models.IntegerField()
    running = models.FloatField(null=True)
    waiting = models.FloatField(null=True)
    kv_usage_max = models.FloatField(null=True)
    sm_clock_mhz = models.FloatField(null=True)

    class Meta:
        db_table = "telemetry_engineminute"

    def __str__(self) -> str:
        return f"instance {self.instance_id} from {self.start_at}"

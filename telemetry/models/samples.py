"""Samples: range-partitioned by time, no key per row; idempotence comes from `IngestBatch`.

The tables are made by SQL in the first migration (Django has no partitioned tables); these classes read them.
"""

from __future__ import annotations

from django.db import models


class IngestBatch(models.Model):
    """A batch that has been ingested, by (agent, boot, seq): the same one again is a no-op."""

    agent = models.CharField(max_length=80)
    boot = models.CharField(max_length=40)
    seq = models.BigIntegerField()
    rows = models.PositiveIntegerField()
    received_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["agent", "boot", "seq"], name="ingest_batch_once")]

    def __str__(self) -> str:
        return f"{self.agent}/{self.boot}/{self.seq}"


class GpuSample(models.Model):
    """One GPU at one instant. `energy_j` is the cumulative counter."""

    pk = models.CompositePrimaryKey("at", "gpu_id")
    at = models.DateTimeField()
    gpu = models.ForeignKey("pools.Gpu", on_delete=models.DO_NOTHING, db_constraint=False, related_name="+")
    energy_j = models.FloatField(null=True)
    power_w = models.FloatField(null=True)
    sm_clock_mhz = models.FloatField(null=True)
    utilisation = models.FloatField(null=True)
    memory_used_bytes = models.BigIntegerField(null=True)
    temperature_c = models.FloatField(null=True)
    instance = models.ForeignKey(
        "pools.Instance", on_delete=models.DO_NOTHING, db_constraint=False, null=True, related_name="+"
    )
    instance_state = models.CharField(max_length=10, null=True)  # noqa: DJ001 - null is "no instance"
    running = models.IntegerField(null=True)

    class Meta:
        db_table = "telemetry_gpusample"

    def __str__(self) -> str:
        return f"gpu {self.gpu_id} at {self.at}"


class InstanceSample(models.Model):
    """One engine at one instant; latencies are means of what ended since the sample before, null: nothing did."""

    pk = models.CompositePrimaryKey("at", "instance_id")
    at = models.DateTimeField()
    instance = models.ForeignKey("pools.Instance", on_delete=models.DO_NOTHING, db_constraint=False, related_name="+")
    state = models.CharField(max_length=10)
    running = models.IntegerField(null=True)
    waiting = models.IntegerField(null=True)
    kv_usage = models.FloatField(null=True)
    prompt_tokens_total = models.FloatField(null=True)
    generation_tokens_total = models.FloatField(null=True)
    ttft_s = models.FloatField(null=True)
    tpot_s = models.FloatField(null=True)
    sm_clock_mhz = models.FloatField(null=True)

    class Meta:
        db_table = "telemetry_instancesample"

    def __str__(self) -> str:
        return f"instance {self.instance_id} at {self.at}"

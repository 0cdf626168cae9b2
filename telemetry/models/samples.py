"""Samples: range-partitioned by time, no key per row; idempotence comes from `IngestedBatches`.

The tables are made by SQL in the first migration (Django has no partitioned tables); these classes read them.
"""

from __future__ import annotations

from typing import Any

from django.db import models


class WholeNumberRanges(models.Field):  # type: ignore[type-arg]
    """PostgreSQL's int8multirange: a set of numbers as the ranges that it is made of."""

    def db_type(self, connection: Any) -> str:
        return "int8multirange"


class IngestedBatches(models.Model):
    """Which of an agent's batches are in: one of these numbers again is a no-op.

    Agents number without gaps, so a set of many numbers is one range, or a few: a row stays small however long it is
    kept, and a day of 2,000 nodes is 2,000 rows and not 173 million keys.
    """

    pk = models.CompositePrimaryKey("agent", "boot")
    agent = models.CharField(max_length=80)
    boot = models.CharField(max_length=40)
    seqs = WholeNumberRanges()
    received_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.agent}/{self.boot}"


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

"""Energy of hosts: what a node's supplies feed beside its GPUs, by domain, as sampled and as entered in the ledger."""

from __future__ import annotations

from django.db import models
from django.db.models import F, Q

from pools.models import Node, Site

DOMAIN_LENGTH = 40
METHOD_LENGTH = 14


class HostSample(models.Model):
    """One domain of a node's host at one instant. `energy_j` counts from the agent's start.

    Range-partitioned by time, as the GPUs' samples are.
    """

    pk = models.CompositePrimaryKey("at", "node_id", "domain")
    at = models.DateTimeField()
    node = models.ForeignKey("pools.Node", on_delete=models.DO_NOTHING, db_constraint=False, related_name="+")
    domain = models.CharField(max_length=DOMAIN_LENGTH)
    method = models.CharField(max_length=METHOD_LENGTH)  # of core.ports.HOST_METHODS
    energy_j = models.FloatField(null=True)
    power_w = models.FloatField(null=True)

    class Meta:
        db_table = "telemetry_hostsample"

    def __str__(self) -> str:
        return f"node {self.node_id} {self.domain} at {self.at}"


class HostMark(models.Model):
    """The watermark of a domain's counter, as `MeterMark` is of a GPU's."""

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="host_marks")
    domain = models.CharField(max_length=DOMAIN_LENGTH)
    at = models.DateTimeField()
    energy_uj = models.BigIntegerField()
    opened_at = models.DateTimeField()
    opened_energy_uj = models.BigIntegerField(
        help_text="The counter at the first sample ever entered, lowered by what resets took off it since."
    )
    passing = models.PositiveSmallIntegerField(
        default=0, db_default=0, help_text="How often it was set back with the clock; entries have that of their time."
    )

    class Meta:
        constraints = [models.UniqueConstraint(fields=["node", "domain"], name="host_mark_once")]

    def __str__(self) -> str:
        return f"{self.node} {self.domain} {self.energy_uj} uJ"


class HostEntry(models.Model):
    """Energy of one domain of a node's host within [start_at, end_at), which lies in one interval of the ledger.

    Per domain the entries add up to the counter's deltas, exactly. Append-only. Whose they are is said when a window is
    settled: they are shared among what ran on the node's GPUs (docs/ledger.md).
    """

    node = models.ForeignKey(Node, on_delete=models.PROTECT, related_name="+")
    site = models.ForeignKey(Site, on_delete=models.PROTECT, related_name="+")
    domain = models.CharField(max_length=DOMAIN_LENGTH)
    method = models.CharField(max_length=METHOD_LENGTH)
    start_at = models.DateTimeField()
    end_at = models.DateTimeField()
    energy_uj = models.BigIntegerField()
    passing = models.PositiveSmallIntegerField(
        default=0, db_default=0, help_text="Above 0: the clock came by again after it was set back."
    )

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(energy_uj__gte=0), name="host_entry_not_negative"),
            models.CheckConstraint(condition=Q(end_at__gt=F("start_at")), name="host_entry_interval"),
            models.UniqueConstraint(fields=["node", "domain", "start_at", "passing"], name="host_entry_once"),
        ]
        indexes = [models.Index(fields=["start_at", "site"])]

    def __str__(self) -> str:
        return f"node {self.node_id} {self.domain} {self.energy_uj} uJ"

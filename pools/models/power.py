"""Rows that say when servers were off by plan."""

from __future__ import annotations

from django.db import models
from django.db.models import F, Q

from .fleet import Node


class PowerCycle(models.Model):
    """A time that a server is off by plan: from the order to switch it off until its agent reports again.

    Its moments, in order: it was asked to go off, its power port said that it is off, it was asked to boot, its agent
    reported. What has not happened is null. Between the second and the third it draws nothing, as the port has said.
    """

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="power_cycles")
    off_asked_at = models.DateTimeField()
    off_at = models.DateTimeField(null=True, help_text="When its power port was first seen to say that it is off.")
    on_asked_at = models.DateTimeField(null=True)
    ready_at = models.DateTimeField(null=True, help_text="When its agent reported again.")
    forced = models.BooleanField(default=False, help_text="Its power was cut, as its operating system did not end.")
    fault = models.CharField(max_length=300, blank=True, help_text="Why the newest call to its power port failed.")

    class Meta:
        ordering = ["-off_asked_at", "-id"]
        constraints = [
            models.UniqueConstraint(fields=["node"], condition=Q(ready_at__isnull=True), name="power_cycle_once"),
            models.CheckConstraint(
                condition=Q(ready_at__isnull=True) | Q(ready_at__gte=F("on_asked_at")), name="power_cycle_in_order"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.node.name} off from {self.off_asked_at:%Y-%m-%d %H:%M}"

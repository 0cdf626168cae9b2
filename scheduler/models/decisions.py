"""Rows of what the controllers did: epochs, decisions, and the state that they carry from one epoch to the next."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from pools.models import Pool, Service


class ControllerState(models.Model):
    """A controller's state between epochs: a value, replaced by compare-and-swap on `version`."""

    kind = models.CharField(max_length=20)
    service = models.ForeignKey(Service, on_delete=models.CASCADE, related_name="controller_states")
    version = models.BigIntegerField(default=0)
    value = models.JSONField(default=dict)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["kind", "service"], name="controller_state_once")]

    def __str__(self) -> str:
        return f"{self.kind} {self.service} v{self.version}"


class SlowLoop(models.TextChoices):
    """The loops that run in epochs."""

    CARBON = "carbon"
    SCALE = "scale"
    SHARD = "shard"


class Epoch(models.Model):
    """One run of a slow loop for one service; `index` = floor(t / period), unique: no epoch runs twice.

    `advisory`: of the policy that advises beside the one in force. `comparison`: the fleets of both then, predicted.
    """

    class Status(models.TextChoices):
        APPLIED = "applied"
        HELD = "held", "held (no change)"
        INFEASIBLE = "infeasible", "infeasible (what can be done)"
        FAILED = "failed", "failed (last plan kept)"
        ADVISED = "advised", "advised (not carried out)"
        WAITING = "waiting", "waiting (for approval)"

    kind = models.CharField(max_length=10, choices=SlowLoop)
    service = models.ForeignKey(Service, on_delete=models.CASCADE, related_name="epochs")
    index = models.BigIntegerField()
    period_s = models.FloatField()
    due_at = models.DateTimeField()
    started_at = models.DateTimeField()
    finished_at = models.DateTimeField()
    status = models.CharField(max_length=12, choices=Status)
    solve_s = models.FloatField(null=True, blank=True)
    error = models.TextField(blank=True)
    recording = models.JSONField(null=True, help_text="What its steps were given and answered.")
    advisory = models.BooleanField(default=False, help_text="Of the policy that advises: it is never carried out.")
    comparison = models.JSONField(null=True, help_text="Predicted of the fleet in force, and of the one advised.")

    class Meta:
        ordering = ["-due_at"]
        get_latest_by = "due_at"
        constraints = [
            models.UniqueConstraint(
                fields=["kind", "service", "period_s", "index", "advisory"], name="epoch_runs_once"
            ),
            models.CheckConstraint(condition=Q(period_s__gt=0), name="epoch_period_positive"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.service} #{self.index}"


class DecisionKind(models.TextChoices):
    """The loop that decides, or the planner of batches."""

    CARBON = "carbon"
    SCALE = "scale"
    SHARD = "shard"
    CLOCK = "clock"
    DEFERRAL = "deferral"


class Decision(models.Model):
    """A decision of a loop: what, why, on which inputs, and against which alternatives. Holds are decisions too."""

    kind = models.CharField(max_length=10, choices=DecisionKind)
    at = models.DateTimeField()
    service = models.ForeignKey(Service, on_delete=models.CASCADE, null=True, related_name="decisions")
    epoch = models.ForeignKey(Epoch, on_delete=models.CASCADE, null=True, related_name="decisions")
    pool = models.ForeignKey(Pool, on_delete=models.SET_NULL, null=True, related_name="decisions")
    instance_uid = models.UUIDField(null=True)
    reason = models.CharField(max_length=20, help_text="Why: one of the reasons that steps give.")
    summary = models.CharField(max_length=500)
    inputs = models.JSONField(default=dict)
    alternatives = models.JSONField(default=list)
    commands = models.JSONField(default=list)
    predicted = models.JSONField(default=dict)
    realised = models.JSONField(null=True, help_text="Filled once its horizon has passed.")
    held = models.PositiveIntegerField(default=0, help_text="Equal decisions before this one (run-length encoding).")
    source_key = models.CharField(  # noqa: DJ001 - null is "not of an agent", and unique
        max_length=160, null=True, unique=True, help_text="agent/boot/seq/n of a clock decision: ingested once."
    )

    class Meta:
        ordering = ["-at", "-id"]
        indexes = [models.Index(fields=["-at"]), models.Index(fields=["kind", "-at"])]

    def __str__(self) -> str:
        return self.summary

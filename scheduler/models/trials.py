"""Trials: two policies that take turns on a service, to be compared by what was metered."""

from __future__ import annotations

from django.conf import settings
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import F, Q

from pools.models import Service


class TrialState(models.TextChoices):
    """The progress of a trial."""

    PLANNED = "planned"
    RUNNING = "running"
    DONE = "done"
    CANCELLED = "cancelled"


class Trial(models.Model):
    """Two policies, A and B, that a service runs by turns on the live fleet from `begins_at` on.

    A pair is one block of each, in an order that is drawn by `seed`. When the trial is over, the service has its policy
    of before again: `former_policy` and `former_knobs`.
    """

    service = models.ForeignKey(Service, on_delete=models.CASCADE, related_name="trials")
    policy_a = models.CharField(max_length=40)
    knobs_a = models.JSONField(default=dict, blank=True)
    policy_b = models.CharField(max_length=40)
    knobs_b = models.JSONField(default=dict, blank=True)
    block_h = models.PositiveSmallIntegerField(
        default=24, validators=[MinValueValidator(1), MaxValueValidator(168)], help_text="Hours of a block."
    )
    pairs = models.PositiveSmallIntegerField(
        default=7, validators=[MinValueValidator(2), MaxValueValidator(100)], help_text="Pairs of blocks."
    )
    warm_up_s = models.PositiveIntegerField(default=1800, help_text="Of each block, left out after its switch.")
    begins_at = models.DateTimeField()
    seed = models.PositiveIntegerField()
    reason = models.CharField(max_length=300)
    state = models.CharField(max_length=10, choices=TrialState, default=TrialState.PLANNED)
    ended_why = models.CharField(max_length=300, blank=True, help_text="Why it was cancelled.")
    former_policy = models.CharField(max_length=40, blank=True)
    former_knobs = models.JSONField(default=dict, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, blank=True, related_name="+"
    )

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(
                fields=["service"], condition=Q(state__in=["planned", "running"]), name="trial_one_at_a_time"
            ),
            models.CheckConstraint(condition=Q(warm_up_s__lt=F("block_h") * 3600), name="trial_warm_up_in_block"),
        ]

    def __str__(self) -> str:
        return f"trial {self.pk} of {self.service}: {self.policy_a} and {self.policy_b}"


class TrialBlock(models.Model):
    """A turn of one of the policies. `switched_at`: when the service got it; empty: it did not."""

    trial = models.ForeignKey(Trial, on_delete=models.CASCADE, related_name="blocks")
    index = models.PositiveSmallIntegerField()
    arm = models.CharField(max_length=1, choices=[("A", "A"), ("B", "B")])
    starts_at = models.DateTimeField()
    ends_at = models.DateTimeField()
    switched_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["trial", "index"]
        constraints = [models.UniqueConstraint(fields=["trial", "index"], name="trial_block_once")]

    def __str__(self) -> str:
        return f"block {self.index + 1} ({self.arm}) of {self.trial}"

    @property
    def pair(self) -> int:
        return self.index // 2

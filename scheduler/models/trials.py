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

    By sites, `other` is a service with the same model at other sites. It has the policy that `service` has not, at the
    same time; they swap at each turn (a crossover), and a pair is two turns of both, so that what differs between their
    sites cancels.
    """

    service = models.ForeignKey(Service, on_delete=models.CASCADE, related_name="trials")
    other = models.ForeignKey(
        Service,
        on_delete=models.CASCADE,
        null=True,
        blank=True,
        related_name="+",
        help_text="For a trial by sites: a service with the same model at other sites. Empty: one service by turns.",
    )
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
    former_policy_other = models.CharField(max_length=40, blank=True)
    former_knobs_other = models.JSONField(default=dict, blank=True)
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
            models.UniqueConstraint(
                fields=["other"], condition=Q(state__in=["planned", "running"]), name="trial_one_at_a_time_other"
            ),
            models.CheckConstraint(condition=Q(other=None) | ~Q(other=F("service")), name="trial_of_two_services"),
            models.CheckConstraint(condition=Q(warm_up_s__lt=F("block_h") * 3600), name="trial_warm_up_in_block"),
        ]

    def __str__(self) -> str:
        return f"trial {self.pk} of {self.names}: {self.policy_a} and {self.policy_b}"

    @property
    def services(self) -> list[Service]:
        return [self.service] if self.other is None else [self.service, self.other]

    @property
    def names(self) -> str:
        return " and ".join(service.name for service in self.services)

    def former_of(self, service: Service) -> tuple[str, dict[str, object]]:
        """Returns policy and knobs that the service had before the trial."""
        if service.pk == self.other_id:
            return self.former_policy_other, self.former_knobs_other
        return self.former_policy, self.former_knobs


class TrialBlock(models.Model):
    """A turn of one of the policies at a service. `switched_at`: when the service got it; empty: it did not."""

    trial = models.ForeignKey(Trial, on_delete=models.CASCADE, related_name="blocks")
    service = models.ForeignKey(Service, on_delete=models.CASCADE, related_name="+")
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
        """Returns which pair it is in: two turns, each with a block of every service."""
        return int(self.index // (2 if self.trial.other_id is None else 4))

"""Rows of what people set in the place of the loops: pauses, control modes, approvals, and overrides with an end."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

from django.conf import settings
from django.db import models
from django.db.models import F, Q

from pools.models import Pool, Service, Site

from .decisions import ControllerState, Decision, Epoch


class ControlMode(models.TextChoices):
    """Says what becomes of the decisions of the policy that a service has configured."""

    ACT = "act", "act: decisions are carried out"
    ADVISE = "advise", "advise: the policy in force goes on, and what the configured one would do is shown beside it"
    APPROVE = "approve", "approve: plans of the configured policy wait until a person approves them"


class ServiceMode(models.Model):
    """The control mode of a service; without a row its policy acts.

    A change of the control mode alone changes nothing that acts, but for `act` itself: the policy in force stays
    (`Service.acting_policy`). `gateways_only`: no loop of that has acted yet, so that only gateways go by it.
    """

    service = models.OneToOneField(Service, on_delete=models.CASCADE, related_name="mode")
    mode = models.CharField(max_length=8, choices=ControlMode, default=ControlMode.ACT)
    gateways_only = models.BooleanField(
        default=False,
        help_text="The loops of the policy in force have not acted yet: its clocks stay at the top, its plans wait.",
    )
    approve_within_s = models.FloatField(default=900.0, help_text="A decision that nobody approved by then lapses.")
    changed_at = models.DateTimeField(auto_now=True)
    changed_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, blank=True, related_name="+"
    )

    class Meta:
        constraints = [models.CheckConstraint(condition=Q(approve_within_s__gt=0), name="service_mode_time_positive")]

    def __str__(self) -> str:
        return f"{self.service}: {self.mode}"

    @property
    def advises(self) -> bool:
        return self.mode == ControlMode.ADVISE

    @property
    def acts(self) -> bool:
        """Says whether the loops of the policy in force carry out what they decide."""
        return self.mode == ControlMode.ACT or (self.mode == ControlMode.ADVISE and not self.gateways_only)

    @property
    def decides(self) -> bool:
        """Says whether slow loops take turns for the fleet: their plans act, or wait for approval."""
        return self.acts or self.mode == ControlMode.APPROVE


class Intervention(models.Model):
    """The fields that pauses and overrides have in common.

    One is in force until `ended_at` or `expires_at`, whichever comes first.
    """

    reason = models.CharField(max_length=300, help_text="Why, for those who wonder later.")
    created_at = models.DateTimeField()
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, blank=True, related_name="+"
    )
    ended_at = models.DateTimeField(null=True, blank=True, help_text="Ended by hand; empty: it was not.")
    ended_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, blank=True, related_name="+"
    )

    class Meta:
        abstract = True
        ordering: ClassVar[list[str]] = ["-created_at", "-id"]


class LoopPause(Intervention):
    """A loop of a service that decides nothing: what it set last stays, but that clocks go to their top."""

    class Loop(models.TextChoices):
        CARBON = "carbon"
        SCALE = "scale"
        SHARD = "shard"
        CLOCK = "clock"

    service = models.ForeignKey(Service, on_delete=models.CASCADE, related_name="pauses")
    loop = models.CharField(max_length=10, choices=Loop)
    expires_at = models.DateTimeField(null=True, blank=True, help_text="Empty: until somebody resumes it.")

    class Meta(Intervention.Meta):
        constraints = [
            models.UniqueConstraint(
                fields=["service", "loop"], condition=Q(ended_at__isnull=True), name="loop_paused_once"
            )
        ]

    def __str__(self) -> str:
        return f"{self.loop} of {self.service} paused"

    @property
    def over_at(self) -> datetime | None:
        """Returns when it ended or ends by itself; None: somebody has to resume the loop."""
        return self.ended_at or self.expires_at


class OverrideKind(models.TextChoices):
    """The thing that an override sets."""

    WORKERS = "workers", "workers of a pool"
    CLOCK = "clock", "clock"
    PARTITION = "partition", "partition of a service"
    DRAIN = "drain", "drain of a site"


class Override(Intervention):
    """A person's word against the controllers', for a while. `value` by kind:

    workers: mode name -> instances of the pool. clock: {"mhz": MHz} of the instance, or of all of the pool's; or
    {"floor_mhz": MHz} that the pool's clocks may go down to.
    partition: {"partition": name}. drain: {}, of the site: no new workers there, and plans without it.
    """

    kind = models.CharField(max_length=10, choices=OverrideKind)
    service = models.ForeignKey(Service, on_delete=models.CASCADE, null=True, blank=True, related_name="overrides")
    site = models.ForeignKey(Site, on_delete=models.CASCADE, null=True, blank=True, related_name="overrides")
    pool = models.ForeignKey(Pool, on_delete=models.CASCADE, null=True, blank=True, related_name="overrides")
    instance_uid = models.UUIDField(null=True, blank=True)
    value = models.JSONField(default=dict, blank=True)
    expires_at = models.DateTimeField()
    decision = models.ForeignKey(
        Decision,
        on_delete=models.SET_NULL,
        null=True,
        blank=True,
        related_name="undone_by",
        help_text="That it undoes.",
    )

    class Meta(Intervention.Meta):
        constraints = [
            models.CheckConstraint(condition=Q(expires_at__gt=F("created_at")), name="override_ends"),
            models.CheckConstraint(
                condition=(Q(kind="drain", site__isnull=False, service__isnull=True))
                | (Q(kind="partition", service__isnull=False))
                | (Q(kind__in=["workers", "clock"], pool__isnull=False, service__isnull=False)),
                name="override_of_something",
            ),
        ]
        indexes = [models.Index(fields=["expires_at"], condition=Q(ended_at__isnull=True), name="override_open")]

    def __str__(self) -> str:
        return f"{self.get_kind_display()} {self.pool or self.site or self.service}"


class ApprovalStatus(models.TextChoices):
    """The state of a plan that needs an approval."""

    PENDING = "pending"
    APPROVED = "approved"
    REJECTED = "rejected"
    EXPIRED = "expired"
    OUTDATED = "outdated", "out of date"


class Approval(models.Model):
    """A plan that waits for a person. `basis` is what it was made on: when that has moved, it is out of date.

    Approved, exactly `commands` are carried out and `state` becomes the loop's: by compare-and-swap.
    """

    epoch = models.OneToOneField(Epoch, on_delete=models.CASCADE, related_name="approval")
    service = models.ForeignKey(Service, on_delete=models.CASCADE, related_name="approvals")
    controller = models.ForeignKey(ControllerState, on_delete=models.CASCADE, related_name="approvals")
    loop = models.CharField(max_length=10)
    commands = models.JSONField(default=list)
    state = models.JSONField(default=dict)
    basis = models.CharField(max_length=64)
    status = models.CharField(max_length=10, choices=ApprovalStatus, default=ApprovalStatus.PENDING)
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField()
    decided_at = models.DateTimeField(null=True, blank=True)
    decided_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, blank=True, related_name="+"
    )
    note = models.CharField(max_length=300, blank=True)

    class Meta:
        ordering = ["-created_at", "-id"]
        constraints = [
            models.UniqueConstraint(
                fields=["service", "loop"], condition=Q(status="pending"), name="approval_pending_once"
            )
        ]

    def __str__(self) -> str:
        return f"{self.loop} of {self.service}: {self.status}"

    def decisions(self) -> models.QuerySet[Decision]:
        return self.epoch.decisions.order_by("pk")

"""The people and what they may do: roles, tokens for the REST API, and the trail of what was changed."""

from __future__ import annotations

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q

from .fleet import Site


class Membership(models.Model):
    """A person's role, and the sites that it is for. A person without a membership may look and no more."""

    class Role(models.TextChoices):
        """Roles stand in order, from the least to the most."""

        NONE = "none", "No role"
        VIEWER = "viewer", "Viewer"
        OPERATOR = "operator", "Operator"
        FINANCE = "finance", "Finance"
        ADMINISTRATOR = "administrator", "Administrator"

    user = models.OneToOneField(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="membership")
    role = models.CharField(max_length=16, choices=Role, default=Role.VIEWER)
    sites = models.ManyToManyField(
        Site, through="MembershipSite", related_name="+", blank=True, help_text="None chosen: all sites."
    )
    must_change_password = models.BooleanField(default=False, help_text="The password was given by somebody else.")

    class Meta:
        ordering = ["user__username"]

    def __str__(self) -> str:
        return f"{self.user}: {self.role}"


class MembershipSite(models.Model):
    """A site of a role. A site that is somebody's cannot be deleted: with none left the role would be for all."""

    membership = models.ForeignKey(Membership, on_delete=models.CASCADE)
    site = models.ForeignKey(Site, on_delete=models.PROTECT, related_name="+")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["membership", "site"], name="membershipsite_unique")]

    def __str__(self) -> str:
        return f"{self.membership} at {self.site}"


class AccessToken(models.Model):
    """A person's key to the REST API. Only the SHA-256 of the 256-bit random secret is kept."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="access_tokens")
    label = models.CharField(max_length=100)
    prefix = models.CharField(max_length=12, help_text="First characters, to tell tokens apart.")
    token_hash = models.CharField(max_length=64, unique=True)
    rights = ArrayField(models.CharField(max_length=16), help_text="At most these, and no more than the person has.")
    site_ids = ArrayField(models.BigIntegerField(), default=list, blank=True, help_text="Empty: all the person's.")
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True, help_text="To the minute.")
    revoked_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["user", "-created_at"]
        constraints = [models.CheckConstraint(condition=~Q(rights=[]), name="accesstoken_has_rights")]

    def __str__(self) -> str:
        return f"{self.label} {self.prefix}…"


class AuditEntry(models.Model):
    """One change, or one attempt to get in. Neither changed nor deleted, alone or all at once: triggers refuse it.

    What it names is kept as text, so that an entry outlives the person and the thing that it is about.
    """

    at = models.DateTimeField(auto_now_add=True)
    user_id = models.BigIntegerField(null=True, blank=True, help_text="Empty: the system, or nobody known.")
    who = models.CharField(max_length=150, blank=True, help_text="User name at that moment.")
    key = models.CharField(max_length=120, blank=True, help_text="Label and prefix of the token used.")
    channel = models.CharField(max_length=16)
    action = models.CharField(max_length=40)
    kind = models.CharField(max_length=60, help_text="What was changed, for example site.")
    object_key = models.CharField(max_length=100)
    label = models.CharField(max_length=200)
    before = models.JSONField(null=True, blank=True)
    after = models.JSONField(null=True, blank=True)
    request_id = models.CharField(max_length=64, blank=True)
    address = models.GenericIPAddressField(null=True, blank=True)

    class Meta:
        ordering = ["-at", "-id"]
        verbose_name_plural = "audit entries"
        indexes = [
            models.Index(fields=["-at", "-id"], name="auditentry_newest"),
            models.Index(fields=["kind", "object_key", "-id"], name="auditentry_object"),
            models.Index(fields=["who", "-id"], name="auditentry_who"),
        ]

    def __str__(self) -> str:
        return f"{self.who or self.channel}: {self.action} {self.kind} {self.label}"

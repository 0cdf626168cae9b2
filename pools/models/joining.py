"""Tokens with which machines join the fleet, and what nodes show afterwards who they are."""

from __future__ import annotations

from django.db import models

from .fleet import Cluster, Node


class JoinToken(models.Model):
    """Lets one machine join a cluster, once and for a while. Only the SHA-256 of the 256-bit random secret is kept."""

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="join_tokens")
    prefix = models.CharField(max_length=12, help_text="First characters, to tell tokens apart.")
    token_hash = models.CharField(max_length=64, unique=True)
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField()
    used_at = models.DateTimeField(null=True, blank=True)
    node = models.ForeignKey(Node, null=True, blank=True, on_delete=models.SET_NULL, related_name="join_tokens")

    class Meta:
        ordering = ["-created_at"]

    def __str__(self) -> str:
        return f"{self.cluster} {self.prefix}…"


class NodeIdentity(models.Model):
    """A certificate of a node, and its user's password in Redis, of which only the SHA-256 is kept.

    A node may have two that hold: after a renewal the one before goes on until it ends.
    """

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="identities")
    serial = models.CharField(max_length=40, unique=True, help_text="Of the certificate, hexadecimal.")
    fingerprint = models.CharField(max_length=64, help_text="SHA-256 of the certificate, hexadecimal.")
    names = models.JSONField(help_text="Host names and addresses that the certificate is for.")
    password_hash = models.CharField(max_length=64)
    issued_at = models.DateTimeField()
    expires_at = models.DateTimeField()
    revoked_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-issued_at", "-id"]

    def __str__(self) -> str:
        return f"{self.node} {self.serial[:8]}"

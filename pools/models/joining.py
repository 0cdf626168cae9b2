"""Tokens with which machines join the fleet."""

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

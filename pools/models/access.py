"""The clients that may call: tenants and their API keys."""

from __future__ import annotations

from django.db import models


class Tenant(models.Model):
    name = models.SlugField(unique=True)
    label = models.CharField(max_length=100, blank=True)

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.label or self.name


class ApiKey(models.Model):
    """A bearer key of the gateway. Only the SHA-256 of the 256-bit random secret is kept."""

    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="api_keys")
    label = models.CharField(max_length=100, blank=True)
    prefix = models.CharField(max_length=12, help_text="First characters, to tell keys apart.")
    key_hash = models.CharField(max_length=64, unique=True)
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["tenant", "created_at"]

    def __str__(self) -> str:
        return f"{self.tenant} {self.prefix}…"

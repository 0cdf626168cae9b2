"""The clients that may call: tenants and their API keys."""

from __future__ import annotations

import ipaddress

from django.contrib.postgres.fields import ArrayField
from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models

from core import bounds

MOST_NETWORKS = 100


def _limit(help_text: str, name: str) -> models.PositiveBigIntegerField[int | None, int | None]:
    bound = bounds.of(name)
    assert bound is not None
    validators = [MinValueValidator(int(bound.least)), MaxValueValidator(int(bound.most))]
    return models.PositiveBigIntegerField(null=True, blank=True, validators=validators, help_text=help_text)


class RequestLimits(models.Model):
    """Says what may be sent to all gateways together; None: no limit. Gateways refuse what is beyond it with 429."""

    requests_per_minute = _limit("Requests a minute; empty: no limit.", "requests_per_minute")
    tokens_per_minute = _limit("Tokens a minute, of prompts and answers; empty: no limit.", "tokens_per_minute")
    concurrent_requests = _limit("Requests at a time; empty: no limit.", "concurrent_requests")

    class Meta:
        abstract = True


LIMITS = "requests_per_minute", "tokens_per_minute", "concurrent_requests"


class Tenant(RequestLimits):
    name = models.SlugField(unique=True)
    label = models.CharField(max_length=100, blank=True)
    shares_prefixes = models.BooleanField(
        default=False,
        help_text="Engines reuse cached beginnings of prompts among all tenants for which this is set.",
    )

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.label or self.name


class ApiKey(RequestLimits):
    """A bearer key of the gateway. Only the SHA-256 of the 256-bit random secret is kept.

    Its limits count beside its tenant's: a request must keep both.
    """

    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="api_keys")
    label = models.CharField(max_length=100, blank=True)
    prefix = models.CharField(max_length=12, help_text="First characters, to tell keys apart.")
    key_hash = models.CharField(max_length=64, unique=True)
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    # Names, not references: a key that was for one service alone must not be for all once that one is deleted.
    services = ArrayField(
        models.CharField(max_length=100),
        null=True,
        blank=True,
        help_text="Names of the services that it may call; empty: all.",
    )
    addresses = ArrayField(
        models.CharField(max_length=43),
        null=True,
        blank=True,
        help_text="Networks that it may call from, such as 192.0.2.0/24 or 2001:db8::/48; empty: anywhere.",
    )

    class Meta:
        ordering = ["tenant", "created_at"]

    def __str__(self) -> str:
        return f"{self.tenant} {self.prefix}…"

    def limited_to(self) -> list[str]:
        """Returns what the key is limited to, in words; empty: to what its tenant is."""
        found = [f"from {', '.join(self.addresses)}"] if self.addresses else []
        found += [", ".join(self.services)] if self.services else []
        units = "requests a minute", "tokens a minute", "requests at a time"
        values = [getattr(self, name) for name in LIMITS]
        return found + [f"{value:,} {unit}" for value, unit in zip(values, units, strict=True) if value is not None]

    def clean(self) -> None:
        """Writes the networks in their usual form. Raises ValidationError naming the field."""
        super().clean()
        if self.addresses is not None:
            self.addresses = networks(self.addresses)
        if self.services is not None:
            self.services = sorted(set(self.services))
            if not self.services:
                raise ValidationError({"services": "Name at least one service, or leave it out (null) for all."})


def networks(given: list[str]) -> list[str]:
    """Returns networks in their usual form, IPv4-mapped ones as IPv4. Raises ValidationError."""
    if not given:
        raise ValidationError({"addresses": "Name at least one network, or leave it out (null) for any address."})
    if len(given) > MOST_NETWORKS:
        raise ValidationError({"addresses": f"Name at most {MOST_NETWORKS} networks."})
    found = []
    for text in given:
        try:
            network = ipaddress.ip_network(text.strip())
        except ValueError as error:
            remedy = "write an address or a network without host bits, such as 192.0.2.0/24"
            raise ValidationError({"addresses": f"{text!r}: {error}; {remedy}."}) from None
        mapped = getattr(network.network_address, "ipv4_mapped", None)
        if mapped is not None and network.prefixlen >= 96:
            network = ipaddress.ip_network(f"{mapped}/{network.prefixlen - 96}")
        found.append(str(network))
    return list(dict.fromkeys(found))

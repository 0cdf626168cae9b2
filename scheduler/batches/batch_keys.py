"""The keys that batches' lines are sent with.

A client's secret is not kept, so a line cannot be sent with it. Instead each API key that has a batch under way gets a
second secret, derived from it and the installation's own: gateways get its hash, and it counts as that key.
Nothing is stored, and with the key it ends.
"""

from __future__ import annotations

from datetime import datetime

from django.db.models import Q, QuerySet
from django.utils.crypto import salted_hmac
from msgspec.structs import replace

from pools import wire
from pools.models import ApiKey, Tenant
from pools.writes import hash_secret
from scheduler.models import Batch

SALT = "scheduler.live.batches"  # as in the first release: keys of batches under way stay good over an upgrade


def secret(key_id: int) -> str:
    return "gs-batch-" + salted_hmac(SALT, str(key_id), algorithm="sha256").hexdigest()


def live_keys(now: datetime) -> QuerySet[ApiKey]:
    """Returns the keys that are neither revoked nor expired."""
    return ApiKey.objects.filter(revoked_at__isnull=True).filter(Q(expires_at__isnull=True) | Q(expires_at__gt=now))


def fleet_keys(now: datetime) -> list[wire.FleetKey]:
    """Returns the keys that gateways are to know of batches, each for as long as one of its batches is under way."""
    busy = Batch.objects.exclude(status__in=Batch.FINAL).values("key")
    return [
        # It is ours to send them: the client's address was looked at when the batch was made.
        replace(key, key_hash=hash_secret(secret(key.key_id)), addresses=[])
        for key in messages(live_keys(now).filter(pk__in=busy))
    ]


def messages(keys: QuerySet[ApiKey]) -> list[wire.FleetKey]:
    """Returns keys as gateways are to know them."""
    return [
        wire.FleetKey(
            key.key_hash,
            key.pk,
            key.tenant.name,
            key.tenant_id,
            key.services or [],
            None if key.expires_at is None else key.expires_at.timestamp(),
            _limits(key),
            _limits(key.tenant),
            key.addresses or [],
            "" if key.tenant.shares_prefixes else cache_salt(key.tenant_id),
        )
        for key in keys.select_related("tenant")
    ]


def cache_salt(tenant_id: int) -> str:
    """Returns what engines keep a tenant's prefixes apart by, as hex: nobody can guess it, and it is no name."""
    return salted_hmac("pools.cache_salt", str(tenant_id), algorithm="sha256").hexdigest()


def _limits(row: ApiKey | Tenant) -> wire.RequestLimits | None:
    limits = wire.RequestLimits(row.requests_per_minute, row.tokens_per_minute, row.concurrent_requests)
    return None if limits == wire.RequestLimits() else limits

"""The keys that batches' lines are sent with.

A client's secret is not kept, so a line cannot be sent with it. Instead each API key that has a batch under way gets a
second secret, derived from it and the installation's own: gateways get its hash, and it counts as that key.
Nothing is stored, and with the key it ends.
"""

from __future__ import annotations

from datetime import datetime

from django.db.models import Q, QuerySet
from django.utils.crypto import salted_hmac

from pools import wire
from pools.models import ApiKey
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
        wire.FleetKey(
            key_hash=hash_secret(secret(key.pk)),
            key_id=key.pk,
            tenant=key.tenant.name,
            tenant_id=key.tenant_id,
            expires_at_s=key.expires_at.timestamp() if key.expires_at else None,
        )
        for key in live_keys(now).filter(pk__in=busy).select_related("tenant")
    ]

"""Writes of the pools app that more than one caller makes."""

from __future__ import annotations

import hashlib
import secrets
from datetime import datetime

from django.db import transaction

from core.policy import dynamo_classes
from core.policy.knobs import DYNAMO, WHOLE, WHOLE_CLASS
from pools.models import ApiKey, Partition, Pool, RequestClass, Service, Site, Tenant

KEY_PREFIX_LENGTH = 10


def new_secret() -> str:
    """Returns a 256-bit random API key, recognisable as ours."""
    return "gs-" + secrets.token_urlsafe(32)


def hash_secret(secret: str) -> str:
    """Returns the SHA-256 hex: enough for a 256-bit random secret, and cheap enough for every request."""
    return hashlib.sha256(secret.encode()).hexdigest()


def find_key(secret: str, now: datetime) -> ApiKey | None:
    """Returns the valid key that a bearer secret is, with its tenant, or None."""
    key = ApiKey.objects.filter(key_hash=hash_secret(secret), revoked_at__isnull=True).select_related("tenant").first()
    return None if key is None or (key.expires_at and key.expires_at <= now) else key


def register_key(tenant: Tenant, secret: str, label: str = "") -> ApiKey:
    """Makes `secret` a key of `tenant`; a no-op when it already is a key, revoked or not."""
    key, _ = ApiKey.objects.get_or_create(
        key_hash=hash_secret(secret),
        defaults={"tenant": tenant, "label": label, "prefix": secret[:KEY_PREFIX_LENGTH]},
    )
    return key


@transaction.atomic
def ensure_partition(name: str) -> Partition:
    """Returns the partition of that name; those that policies bring with them are made when they are missing.

    Raises:
        Partition.DoesNotExist: It is an operator's own, and there is none.
    """
    source = _BUILT_IN.get(name)
    if source is None:
        return Partition.objects.get(name=name)
    partition, created = Partition.objects.get_or_create(name=name, defaults={"source": source})
    if created and name == WHOLE:
        RequestClass.objects.create(partition=partition, name=WHOLE_CLASS, rank=0)
    elif created:
        for bounds in dynamo_classes.request_classes():
            RequestClass.objects.create(
                partition=partition,
                name=bounds.name,
                rank=bounds.rank,
                input_min=bounds.input_min,
                input_max=bounds.input_max,
                output_min=bounds.output_min,
                output_max=bounds.output_max,
                ttft_threshold_s=bounds.limits.ttft_s,
                tpot_threshold_s=bounds.limits.tpot_s,
            )
    return partition


_BUILT_IN = {
    WHOLE: "One class of all requests, for policies that keep one pool",
    DYNAMO: "DynamoLLM (arXiv 2408.00741), table IV",
}


def ensure_pools(service: Service, partition: Partition) -> None:
    """Makes sure that each class of the partition has a pool at each site where the service has pools."""
    for site in Site.objects.filter(pools__service=service).distinct():
        for request_class in partition.classes.all():
            Pool.objects.get_or_create(service=service, site=site, request_class=request_class)

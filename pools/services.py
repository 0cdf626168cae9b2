"""Writes of the pools app that more than one caller makes."""

from __future__ import annotations

import hashlib
import secrets

from pools.models import ApiKey, Tenant

KEY_PREFIX_LENGTH = 10


def new_secret() -> str:
    """A 256-bit random API key, recognisable as ours."""
    return "gs-" + secrets.token_urlsafe(32)


def hash_secret(secret: str) -> str:
    """SHA-256 hex: enough for a 256-bit random secret, and cheap enough for every request."""
    return hashlib.sha256(secret.encode()).hexdigest()


def register_key(tenant: Tenant, secret: str, label: str = "") -> ApiKey:
    """Makes `secret` a key of `tenant`; a no-op when it already is a key, revoked or not."""
    key, _ = ApiKey.objects.get_or_create(
        key_hash=hash_secret(secret),
        defaults={"tenant": tenant, "label": label, "prefix": secret[:KEY_PREFIX_LENGTH]},
    )
    return key

"""What a receiver of webhooks does with the header X-GreenServe-Signature (telemetry/alerts/webhook.py)."""

from __future__ import annotations

import hashlib
import hmac

from telemetry.providers.secrets import Secret

TOLERANCE_S = 300.0


def verified(secret: Secret, header: str, body: bytes, now_s: float) -> bool:
    """Whether the signature is ours, of this body, and not old."""
    parts = dict(part.partition("=")[::2] for part in header.split(","))
    if not parts.get("t", "").isdecimal() or abs(now_s - int(parts["t"])) > TOLERANCE_S:
        return False
    signed = parts["t"].encode() + b"." + body
    expected = hmac.new(secret.reveal().encode(), signed, hashlib.sha256).hexdigest()
    return hmac.compare_digest(expected, parts.get("v1", ""))

"""Says which Redis may be used: who can speak to it steers every node, and reads the keys of all engines."""

from __future__ import annotations

from urllib.parse import urlsplit

from pools import own_address
from pools.masking import passwords

VARIABLE = "GREENSERVE_REDIS_INSECURE"
OPTION = "--redis-insecure"


def fault(url: str, insecure: bool = False) -> str:
    """Returns why a Redis may not be used, in words with the remedy; empty: it may be. Never repeats the address.

    A socket is guarded by its folder. Over TCP a password is needed everywhere, since each account of a machine reaches
    its loopback addresses, and TLS everywhere but there. `insecure`: the operator takes any.
    """
    parts = urlsplit(url)
    if insecure or parts.scheme not in ("redis", "rediss"):
        return ""
    lacks = [] if passwords(url) else ["a password"]
    if parts.scheme == "redis" and not own_address.is_loopback(parts.hostname or ""):
        lacks.append("TLS (rediss://)")
    if not lacks:
        return ""
    return (
        f"Redis is reached over TCP without {' and '.join(lacks)}, and whoever reaches it can steer all nodes: give it "
        f"that, or set {VARIABLE}=1 (option {OPTION} of a gateway or an agent) where nobody else can reach it"
    )

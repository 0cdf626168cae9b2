"""The mail server of GREENSERVE_EMAIL_URL."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from telemetry.providers.secrets import Secret

PORTS = {"smtp": 587, "smtps": 465, "smtp+plain": 25}
REMEDY = (
    "write smtp://user:password@host:587 (STARTTLS), smtps://user:password@host:465, or smtp+plain://host:25 for a "
    "relay on this machine"
)


@dataclass(frozen=True, slots=True)
class MailServer:
    """`scheme`: smtp begins in the clear and turns to TLS at once, smtps is TLS throughout, smtp+plain is neither."""

    scheme: str
    host: str
    port: int
    user: str
    password: Secret | None


def parse(url: str) -> MailServer:
    """Raises ValueError, which says nothing of the URL: it may hold a password."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ValueError from None
    if parts.scheme not in PORTS or not parts.hostname or parts.path not in ("", "/") or parts.query or parts.fragment:
        raise ValueError
    password = Secret(unquote(parts.password)) if parts.password else None
    if parts.scheme == "smtp+plain" and password is not None:
        raise ValueError  # it would go over the wire for all to read
    return MailServer(
        parts.scheme, parts.hostname, port or PORTS[parts.scheme], unquote(parts.username or ""), password
    )

"""Finds this machine's own address, as others have it: the one that its routes give a connection to them."""

from __future__ import annotations

import ipaddress
import re
import socket

LOOPBACK = "127.0.0.1"
OWN = (LOOPBACK, "::1", "localhost")  # where each machine reaches itself
ANYWHERE = ("192.0.2.1", "2001:db8::1")  # of documentation (RFC 5737, RFC 3849): routes lead there, nobody answers
_PORT = 9


def towards(host: str) -> str | None:
    """Returns the address from which this machine speaks to `host`; None: no route leads there.

    Nothing is sent. Raises OSError: the name of `host` is not known.
    """
    for family, kind, protocol, _, address in socket.getaddrinfo(host, _PORT, type=socket.SOCK_DGRAM):
        with socket.socket(family, kind, protocol) as probe:
            try:
                probe.connect(address)
            except OSError:
                continue
            return str(probe.getsockname()[0]).partition("%")[0]
    return None


def outward() -> tuple[str, ...]:
    """Returns the addresses of the interfaces that lead away from this machine: IPv4, then IPv6, if there are any."""
    return tuple(found for host in ANYWHERE if (found := towards(host)) is not None and not is_loopback(found))


def is_loopback(host: str) -> bool:
    address = _literal(host)
    return host == "localhost" if address is None else address.is_loopback


def is_wildcard(host: str) -> bool:
    """Says whether a process that listens there listens at every address of its machine."""
    address = _literal(host)
    return host == "" if address is None else address.is_unspecified


def is_host(text: str) -> bool:
    """Says whether `text` can be a host: an address, or a name without a port."""
    return _literal(text) is not None or re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", text) is not None


def here(host: str) -> str:
    """Returns where this machine reaches its own process that listens at `host`."""
    if not is_wildcard(host):
        return host
    return "::1" if ":" in host else LOOPBACK


def in_url(host: str) -> str:
    """Writes a host as URLs have it."""
    return f"[{host}]" if ":" in host else host


def _literal(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None

"""Reads the address of a client as its socket names it."""

from __future__ import annotations

import ipaddress

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def parsed(host: str) -> Address | None:
    """Returns the address without its zone, an IPv4-mapped one as IPv4; None: it is none."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address

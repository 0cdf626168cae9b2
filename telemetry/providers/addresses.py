"""Decides which addresses the server goes to for a person: public ones, and its own network's where these are allowed.

Looked at twice: as an address stands in a URL, when the URL is stored, and as the name resolves, when it is connected
to, which goes to the very address that was looked at.
"""

from __future__ import annotations

import ipaddress
import re
import socket

_NAME = re.compile(r"[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*")
# Names that no public resolver answers, or that lead to a machine's own services (RFC 6761, 6762, 8375, 9476).
_INNER = ("localhost", "local", "localdomain", "internal", "intranet", "lan", "home.arpa", "alt")
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def is_public(address: str) -> bool:
    """Returns whether an address lies in the public internet, also in the IPv6 forms that wrap an IPv4 address."""
    found = _unwrapped(address)
    return found.is_global and not found.is_multicast


def is_private(address: str) -> bool:
    """Returns whether an address is of one's own network or this machine. Link-local ones (metadata) are not."""
    found = _unwrapped(address)
    nobodys = found.is_link_local or found.is_multicast or found.is_unspecified or found.is_reserved
    return found.is_loopback or (found.is_private and not nobodys)


def host_fault(host: str, private: bool) -> str:
    """Says why the server would not go to a host as it stands in a URL; empty: the name is to be looked up.

    Args:
        private: Private addresses, and names of one's own network, are allowed.
    """
    plain = host.lower().rstrip(".")
    try:
        literal = _literal(plain)
    except ValueError:
        if not _NAME.fullmatch(plain) or plain.rpartition(".")[2].isdigit():
            return "its host is no name: write it in ASCII letters, such as hooks.example.org"
        own = "." not in plain or any(plain == name or plain.endswith(f".{name}") for name in _INNER)
        return "" if private or not own else "it is a name of its own network"
    if is_public(literal) or (private and is_private(literal)):
        return ""
    return "it is an address of its own network" if is_private(literal) else "it is no address that anybody may be at"


def _literal(host: str) -> str:
    """Returns an address that is written in figures, in any way that resolvers take: also 0x7f.1, 2130706433, 0177.1.

    Raises ValueError: it is a name.
    """
    if ":" in host:
        return str(ipaddress.ip_address(host.partition("%")[0]))
    if re.fullmatch(r"[0-9a-fx.]+", host):
        try:
            return socket.inet_ntoa(socket.inet_aton(host))
        except OSError:
            pass
    raise ValueError(host)


def _unwrapped(address: str) -> Address:
    """Returns the IPv4 address that an IPv6 one stands for, or else the address itself."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv4Address):
        return found
    wrapped = found.ipv4_mapped or found.sixtofour or (found.teredo[1] if found.teredo else None)
    for network in ("64:ff9b::/96", "::/96"):  # NAT64 (RFC 6052), and the old form of IPv4 in IPv6
        if wrapped is None and found in ipaddress.ip_network(network) and int(found) > 0xFFFF:
            wrapped = ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)
    return wrapped or found

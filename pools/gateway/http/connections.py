"""All client connections of a process, and what they may take together.

A connection has no key until a request's head with one has come over it. Those without a key have places of their own,
a few for each address. When there are too many, the oldest of them closes: a client with a key sends it with its first
bytes, so it is never among the oldest for long. A connection with a key is never closed for another's sake.

Each connection costs the processor time before its key is known. So does a request that needs none. An address may
have only so many of both a second; what an address opens and then uses with a key does not count.
"""

from __future__ import annotations

import ipaddress
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from ..errors import SERVER_ERROR, ApiError
from . import client_address
from .fair_arrivals import FairArrivals

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

THIS_MACHINE = ipaddress.ip_network("127.0.0.1"), ipaddress.ip_network("::1")


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Bounds on all clients of a process together. An address is one of IPv4, or a /64 of IPv6.

    `proxies`: where many clients have one address; what is by address, or a second, does not hold there.
    """

    most: int = 16_384
    unkeyed: int = 4_096  # of these, without a key
    unkeyed_of_address: int = 1_024
    unkeyed_per_s: int = 500  # new ones; `unkeyed` of them may come at once
    of_key: int = 4_096
    head_bytes: int = 16 << 20  # of heads that are not complete
    body_bytes: int = 512 << 20  # of requests that come in, wait or are served; one key may have half
    proxies: tuple[Network, ...] = THIS_MACHINE


class Connection(Protocol):
    """Stands for one client's connection."""

    def abort(self) -> None: ...

    def check(self, now_s: float) -> None: ...

    def close_if_idle(self) -> None: ...


class KeyShare:
    """Counts what one key has of a process."""

    __slots__ = ("body_bytes", "connections")

    def __init__(self) -> None:
        self.connections = 0
        self.body_bytes = 0


class Connections:
    """`refused`: new ones for which there was no place. `dropped`: those closed for the sake of another.

    `too_many`: connections and requests without a key beyond those that their address may have a second.
    """

    def __init__(
        self, limits: ConnectionLimits | None = None, monotonic_s: Callable[[], float] = time.monotonic
    ) -> None:
        self.limits = limits or ConnectionLimits()
        self._monotonic_s = monotonic_s
        self._arrivals = FairArrivals(self.limits.unkeyed, self.limits.unkeyed_per_s)
        self.head_bytes = self.body_bytes = 0
        self.refused = self.dropped = self.too_many = 0
        self._keyed: dict[Connection, tuple[int, KeyShare]] = {}
        self._unkeyed: dict[Connection, bytes] = {}  # with their addresses; the oldest first, as in all of these
        self._by_address: dict[bytes, dict[Connection, None]] = {}
        self._shares: dict[int, KeyShare] = {}
        self._heads: dict[Connection, int] = {}  # bytes of heads that are not complete

    def __iter__(self) -> Iterator[Connection]:
        yield from self._keyed
        yield from self._unkeyed

    def __len__(self) -> int:
        return len(self._keyed) + len(self._unkeyed)

    @property
    def unkeyed(self) -> int:
        return len(self._unkeyed)

    def lets_in(self, host: str) -> bool:
        """Says whether one more connection without a key may come from an address now."""
        if self._arrivals.take(_group(host), self._monotonic_s()) or self._is_proxy(host):
            return True
        self.too_many += 1
        return False

    def asked_without_key(self, connection: Connection, host: str) -> None:
        """Counts a request that needs no key. Raises ApiError 429 when too many come from its address."""
        if connection not in self._keyed and not self.lets_in(host):
            raise ApiError(
                429,
                "Too many connections and requests without a key come from this address.",
                kind="rate_limit_error",
                code="too_many_without_key",
                retry_after_s=1,
            )

    def opened(self, connection: Connection, host: str) -> bool:
        """Takes in a new connection from an address. Says whether there is a place for it."""
        limits, address = self.limits, _group(host)
        neighbours = self._by_address.setdefault(address, {})
        if len(neighbours) >= limits.unkeyed_of_address and not self._is_proxy(host):
            self._drop(next(iter(neighbours)))
        elif len(self._unkeyed) >= limits.unkeyed or (self._unkeyed and len(self) >= limits.most):
            self._drop(next(iter(self._unkeyed)))
        elif len(self) >= limits.most:
            del self._by_address[address]
            self.refused += 1
            return False
        self._unkeyed[connection] = address
        self._by_address.setdefault(address, {})[connection] = None
        return True

    def keyed(self, connection: Connection, key_id: int) -> KeyShare | None:
        """Counts a connection as a key's, over which a head with that key came. None: it is not one of these.

        Raises ApiError 429 when the key has as many as it may have.
        """
        before = self._keyed.get(connection)
        if before is not None and before[0] == key_id:
            return before[1]
        if before is None and connection not in self._unkeyed:
            return None  # closed for another's sake, while its bytes were on their way
        if before is None:
            self._arrivals.give_back(self._unkeyed[connection])
        share = self._shares.get(key_id) or KeyShare()
        if share.connections >= self.limits.of_key:
            raise ApiError(
                429,
                f"This key has {share.connections} connections open already, as many as it may have.",
                kind="rate_limit_error",
                code="too_many_connections",
                retry_after_s=1,
            )
        self._forget(connection)
        self._shares[key_id] = share
        share.connections += 1
        self._keyed[connection] = key_id, share
        return share

    def closed(self, connection: Connection) -> None:
        self.head_here(connection)
        self._forget(connection)

    # -- bytes -------------------------------------------------------------------------------------

    def head_grew(self, connection: Connection, more_bytes: int) -> None:
        """Counts bytes of a head that is not complete; closes those that have waited longest if there are too many."""
        heads = self._heads
        heads[connection] = heads.get(connection, 0) + more_bytes
        self.head_bytes += more_bytes
        while self.head_bytes > self.limits.head_bytes:
            self._drop(next(iter(heads)))

    def head_here(self, connection: Connection) -> None:
        self.head_bytes -= self._heads.pop(connection, 0)

    def hold(self, share: KeyShare, body_bytes: int) -> bool:
        """Counts a key's body, to be kept until its request is over. Says whether there is room for it."""
        most_bytes = self.limits.body_bytes
        if self.body_bytes + body_bytes > most_bytes or share.body_bytes + body_bytes > most_bytes // 2:
            return False
        self.body_bytes += body_bytes
        share.body_bytes += body_bytes
        return True

    def release(self, share: KeyShare, body_bytes: int) -> None:
        self.body_bytes -= body_bytes
        share.body_bytes -= body_bytes

    # ----------------------------------------------------------------------------------------------

    def _is_proxy(self, host: str) -> bool:
        address = client_address.parsed(host)
        return address is not None and any(address in network for network in self.limits.proxies)

    def _drop(self, connection: Connection) -> None:
        self.dropped += 1
        self.closed(connection)
        connection.abort()

    def _forget(self, connection: Connection) -> None:
        found = self._keyed.pop(connection, None)
        if found is not None:
            key_id, share = found
            share.connections -= 1
            if not share.connections and not share.body_bytes:
                self._shares.pop(key_id, None)
        address = self._unkeyed.pop(connection, None)
        if address is not None:
            neighbours = self._by_address[address]
            del neighbours[connection]
            if not neighbours:
                del self._by_address[address]


def no_room() -> ApiError:
    return ApiError(
        503,
        "The gateway holds as many bytes of requests as it may: try again.",
        kind=SERVER_ERROR,
        code="too_many_bytes",
        retry_after_s=1,
    )


def networks(words: str) -> tuple[Network, ...]:
    """Reads addresses and networks with commas between, or `none`. Raises ValueError naming the word that is wrong."""
    if words.strip() == "none":
        return ()
    return tuple(ipaddress.ip_network(word.strip(), strict=False) for word in words.split(",") if word.strip())


def _group(host: str) -> bytes:
    """Returns what counts as one address; who has one of IPv6 has 2**64 of them."""
    try:
        whole = socket.inet_pton(socket.AF_INET6, host.partition("%")[0])
    except OSError:
        return host.encode()
    mapped = whole.startswith(bytes(10) + b"\xff\xff")
    return ".".join(map(str, whole[12:])).encode() if mapped else whole[:8]

"""Knows where instances are as Envoy wants it, by address, and which of them a request may go to."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import time
from collections.abc import Iterable, Sequence

from ..errors import unavailable
from ..fleet.instance import Instance
from ..fleet.view import Service
from ..http.upstream import Address
from ..placing.dispatch import Gate
from ..requests.call import Call
from . import messages

KEPT_S = 30.0
TIMEOUT_S = 2.0


class Endpoints:
    """The `ip:port` of instances. Names are looked up beside the event loop, and kept for a while."""

    def __init__(self) -> None:
        self._found: dict[Address, tuple[str, float]] = {}  # by address: endpoint, and until when

    def known(self, instance: Instance) -> str | None:
        """None: its address is a name that has not been looked up."""
        host, port, _ = instance.address
        found = self._found.get(instance.address)
        if found is not None:
            return found[0]
        try:
            where = messages.endpoint(host, port)
        except ValueError:  # a name
            return None
        self._found[instance.address] = where, float("inf")
        return where

    async def of(self, instance: Instance) -> str:
        """Raises ApiError 503 when its name has no address."""
        where = self.known(instance)
        if where is not None and self._found[instance.address][1] > time.monotonic():
            return where
        host, port, _ = instance.address
        try:
            async with asyncio.timeout(TIMEOUT_S):
                rows = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
            where = messages.endpoint(str(ipaddress.ip_address(rows[0][4][0])), port)
        except (OSError, TimeoutError) as error:
            raise unavailable(f"The address of an instance is not known: {error or 'no answer'}.") from None
        self._found[instance.address] = where, time.monotonic() + KEPT_S
        return where

    def keep(self, instances: Iterable[Instance]) -> None:
        """Forgets all others."""
        addresses = {instance.address for instance in instances}
        self._found = {address: found for address, found in self._found.items() if address in addresses}

    def allowed(self, instances: Sequence[Instance], call: Call) -> Sequence[Instance]:
        """Returns those that the proxy allows the call."""
        if call.endpoints is None:
            return instances
        return [instance for instance in instances if self.known(instance) in call.endpoints]

    def find(self, instances: Sequence[Instance], where: str) -> Instance | None:
        """Returns the instance at an endpoint; None: none of these, as far as is known."""
        return next((instance for instance in instances if self.known(instance) == where), None)


class AllowedOnly:
    """A gate before another: only instances that the proxy allows a call may take it."""

    def __init__(self, endpoints: Endpoints, behind: Gate) -> None:
        self._endpoints = endpoints
        self._behind = behind

    def narrows(self, service: Service, call: Call) -> bool:
        return call.endpoints is not None or self._behind.narrows(service, call)

    def narrow(self, service: Service, choosable: Sequence[Instance], call: Call) -> Sequence[Instance]:
        allowed = self._endpoints.allowed(choosable, call)
        return self._behind.narrow(service, allowed, call) if allowed else allowed

    def placed(self, service: Service, instance: Instance) -> None:
        self._behind.placed(service, instance)

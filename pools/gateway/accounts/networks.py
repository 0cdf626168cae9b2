"""Says whether a client's address is in one of the networks that its key may be used from."""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from collections.abc import Sequence

from ..http import client_address

_MOST_KEPT = 4096


class Networks:
    """Keeps the newest answers: a connection asks again with each of its requests."""

    def __init__(self) -> None:
        self._answers: OrderedDict[tuple[str, tuple[str, ...]], bool] = OrderedDict()

    def hold(self, networks: Sequence[str], host: str) -> bool:
        """Says whether the address is in one of the networks; an IPv4-mapped one counts as IPv4."""
        asked = host, tuple(networks)
        known = self._answers.get(asked)
        if known is None:
            known = self._answers[asked] = _held(networks, host)
            if len(self._answers) > _MOST_KEPT:
                self._answers.popitem(last=False)
        return known


def _held(networks: Sequence[str], host: str) -> bool:
    address = client_address.parsed(host)
    return address is not None and any(address in ipaddress.ip_network(network) for network in networks)

"""`ports.ServerPower` by wake-on-LAN: a magic packet switches on; nothing in it can switch off or tell the state.

So a webhook switches off and tells the state. The agent does not: it would need a right to end its machine.
"""

from __future__ import annotations

import socket

from core.ports import PowerState, RetryableError

from .webhook_power import WebhookPower

PORT = 9  # discard, as network cards look for the packet whatever its port
EVERYBODY = "255.255.255.255"


def magic_packet(mac: str) -> bytes:
    """Returns six bytes of ones and sixteen times the address. Raises ValueError: that is no MAC address."""
    octets = bytes.fromhex(mac.replace(":", "").replace("-", ""))
    if len(octets) != 6:
        raise ValueError(f"'{mac}' is no MAC address: write 12:34:56:78:9a:bc")
    return b"\xff" * 6 + octets * 16


class WakeOnLanPower:
    """`broadcast`: the address of the node's network; its routers must let the packet through. Raises ValueError."""

    def __init__(self, mac: str, broadcast: str, rest: WebhookPower, port: int = PORT) -> None:
        self._packet, self._to, self._rest = magic_packet(mac), (broadcast or EVERYBODY, port), rest

    def on(self) -> None:
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
                sender.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
                sender.sendto(self._packet, self._to)
        except OSError as error:
            raise RetryableError(f"wake-on-LAN: {self._to[0]}: {error.strerror}") from None

    def off(self, force: bool = False) -> None:
        self._rest.off(force)

    def state(self) -> PowerState | None:
        return self._rest.state()

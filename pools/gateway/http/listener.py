"""Takes in connections, as many in a turn of the event loop as have come; those with no right to come close at once.

A server of uvloop's takes in one connection a turn (libuv 1.45 and later). With a crowd its turns are long, the
kernel's queue of connections fills, and the next client waits for seconds until the kernel has room for it.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import Callable
from typing import Any

from .connections import Connections

log = logging.getLogger(__name__)

BACKLOG = 2048  # connections that wait in the kernel
MOST_PER_TURN = 64
PAUSE_S = 0.5  # after the system had no file or memory for a connection
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: what is closed leaves nothing in the kernel


class Listener:
    """Make and use it inside a running event loop. `make` makes the protocol of a connection."""

    def __init__(self, connections: Connections, make: Callable[[], asyncio.Protocol]) -> None:
        self._connections, self._make = connections, make
        self._loop = asyncio.get_running_loop()
        self._sockets: list[socket.socket] = []
        self._making: set[asyncio.Task[Any]] = set()

    @property
    def port(self) -> int:
        """The port listened on, of the first address."""
        port: int = self._sockets[0].getsockname()[1]
        return port

    async def start(self, host: str, port: int, *, reuse_port: bool = False) -> None:
        """Listens on all addresses of a host; empty: on all of this machine. Raises OSError."""
        kind, flags = socket.SOCK_STREAM, socket.AI_PASSIVE
        found = await self._loop.getaddrinfo(host or None, port, type=kind, flags=flags)
        try:
            for family, address in dict.fromkeys((entry[0], entry[4]) for entry in found):
                listening = socket.create_server(address, family=family, backlog=BACKLOG, reuse_port=reuse_port)
                self._sockets.append(listening)
                listening.setblocking(False)
                self._listen(listening)
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """Takes in no more connections. Those that are here stay."""
        sockets, self._sockets = self._sockets, []
        for listening in sockets:
            self._loop.remove_reader(listening)
            listening.close()

    def _listen(self, listening: socket.socket) -> None:
        if listening in self._sockets:
            self._loop.add_reader(listening, self._take_in, listening)

    def _take_in(self, listening: socket.socket) -> None:
        for _ in range(MOST_PER_TURN):
            try:
                accepted, peer = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                log.warning("no connection can be taken in for %g s: %s", PAUSE_S, error)
                self._loop.remove_reader(listening)
                self._loop.call_later(PAUSE_S, self._listen, listening)
                return
            if not self._connections.lets_in(peer[0]):
                accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                accepted.close()
                continue
            accepted.setblocking(False)
            making = self._loop.create_task(self._loop.connect_accepted_socket(self._make, accepted))
            self._making.add(making)
            making.add_done_callback(self._made)

    def _made(self, making: asyncio.Task[Any]) -> None:
        self._making.discard(making)
        if not making.cancelled() and (error := making.exception()) is not None:
            log.debug("a connection was lost at once: %r", error)

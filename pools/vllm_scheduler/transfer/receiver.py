"""Takes caches of other engines: grants slots by the side channel, and hears what was written into them.

An engine says `hello` first, with what its caches are of; caches of another model or layout are refused. Then for each
transfer `open`, `written` for each chunk and `end`. Whoever breaks this, or shows no certificate, is cut off.
"""

from __future__ import annotations

import base64
import contextlib
import logging
import socket
import ssl
import threading
import time
from typing import Any

from .arrivals import Arrivals
from .channel import Channel, ChannelTls
from .mover import Mover, Staging

log = logging.getLogger("vllm.greenserve")

_CONNECTIONS_MOST = 256
_GREETS_WITHIN_S = 5.0


class Receiver:
    """Listens in threads of its own until `close`."""

    def __init__(
        self,
        address: tuple[str, int],
        same: str,
        arrivals: Arrivals,
        mover: Mover,
        staging: Staging,
        tls: ChannelTls | None,
    ) -> None:
        """Listens at `address`. `same`: what caches are of. `staging`: the memory that slots are of.

        Raises OSError: the address is taken, or none of this machine.
        """
        self._same, self._arrivals, self._mover, self._staging, self._tls = same, arrivals, mover, staging, tls
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._listener = socket.create_server(address, family=family, backlog=64)
        self.port = int(self._listener.getsockname()[1])
        self._places = threading.BoundedSemaphore(_CONNECTIONS_MOST)
        self._closing = False
        threading.Thread(target=self._accept, name="kv receiver", daemon=True).start()

    def close(self) -> None:
        self._closing = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while not self._closing:
            try:
                connection, address = self._listener.accept()
            except OSError as error:
                if not self._closing:
                    log.warning("a connection of another engine cannot be taken: %s", error)
                    time.sleep(0.1)  # out of files, most likely: others give some back
                continue
            if not self._places.acquire(blocking=False):
                connection.close()
                continue
            threading.Thread(target=self._serve, args=(connection, address), name="kv sender", daemon=True).start()

    def _serve(self, connection: socket.socket, address: Any) -> None:
        transfers: set[str] = set()
        try:
            channel = Channel.accepted(connection, self._tls, _GREETS_WITHIN_S)
            try:
                self._greet(channel)
                channel.wait(None)
                while True:
                    self._hear(channel, channel.receive(), transfers)
            finally:
                channel.close()
        except ssl.SSLError as error:
            log.warning("%s is not let send caches: %s", address, error)
        except (OSError, ValueError, KeyError, TypeError) as error:
            if transfers or not isinstance(error, ConnectionError):
                log.warning("the engine at %s sends no more caches: %s", address, error)
        finally:
            connection.close()
            self._places.release()
            self._arrivals.lost(transfers, time.monotonic())
            self._mover.expect(-len(transfers))

    def _greet(self, channel: Channel) -> None:
        hello = channel.receive()
        if hello.get("op") != "hello" or hello.get("same") != self._same:
            why = f"caches here are of {self._same}, not of {hello.get('same')}"
            channel.send({"ok": False, "error": why})
            raise ValueError(why)
        metadata = base64.b64encode(self._mover.metadata()).decode()
        channel.send({"ok": True, "agent": metadata, "address": self._staging.address})

    def _hear(self, channel: Channel, message: dict[str, Any], transfers: set[str]) -> None:
        transfer, now_s = str(message["transfer"]), time.monotonic()
        match message["op"]:
            case "open":
                slots = self._arrivals.open(transfer, int(message["blocks"]), now_s)
                transfers.add(transfer)
                self._mover.expect(1)
                channel.send({"ok": True, "slots": slots})
            case "written" if transfer in transfers:
                blocks = [(str(key), int(slot)) for key, slot in message["blocks"]]
                self._arrivals.written(transfer, blocks, now_s)
            case "end" if transfer in transfers:
                self._arrivals.end(transfer, now_s)
                transfers.discard(transfer)
                self._mover.expect(-1)
            case other:
                raise ValueError(f"`{other}` of transfer {transfer} makes no sense here")

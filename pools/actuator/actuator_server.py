"""The actuator's socket and its loop."""

from __future__ import annotations

import errno
import logging
import os
import selectors
import signal
import socket
import struct
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import msgspec

from core.ports import AdapterError, PermanentError

from .actuator_protocol import MESSAGE_BYTES, ActuatorAnswer, Lock, Request, Reset
from .leases import Leases
from .nvml_clocks import NvmlClocks

logger = logging.getLogger(__name__)

_MOST_PEERS = 16
_ENDING_S = 5.0  # that a driver has to give the clocks back at the end
_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid


@dataclass(slots=True)
class _Peer:
    number: int
    pid: int
    socket: socket.socket


class Server:
    """One thread: packets of peers and the ends of leases, in turn. Only peers of `allowed_uids` are answered."""

    def __init__(self, path: Path, clocks: NvmlClocks, leases: Leases, allowed_uids: Collection[int]) -> None:
        self._path = path
        self._clocks = clocks
        self._leases = leases
        self._allowed_uids = allowed_uids
        self._selector = selectors.DefaultSelector()
        self._peers: dict[int, _Peer] = {}  # by file descriptor
        self._count = 0
        self._ending = False

    def run(self) -> bool:
        """Serves until SIGTERM or SIGINT. Says whether all clocks were given back at the end. Raises OSError."""
        wake, woken = socket.socketpair()
        wake.setblocking(False)
        woken.setblocking(False)
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._end)
        with wake, woken, self._listen() as listener:
            self._leases.recover(self._clocks.all, time.monotonic())  # not before it is known to be the only one
            self._selector.register(woken, selectors.EVENT_READ)
            self._selector.register(listener, selectors.EVENT_READ)
            try:
                while not self._ending:
                    self._turn(listener, woken)
            finally:
                self._path.unlink(missing_ok=True)
                given_back = self._give_back()
        return given_back

    def _listen(self) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        # A socket that a killed actuator left is in the way; one that answers is not ours to take.
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
            probe.settimeout(1.0)
            try:
                probe.connect(str(self._path))
            except OSError:
                self._path.unlink(missing_ok=True)
            else:
                listener.close()
                raise OSError(errno.EADDRINUSE, "another actuator listens there", str(self._path))
        draft = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        draft.unlink(missing_ok=True)
        try:
            listener.bind(str(draft))
            os.chmod(draft, 0o666)  # who may ask is decided by who is at the other end, not by the file
            listener.listen(_MOST_PEERS)
            draft.rename(self._path)  # whoever sees it can connect
        except OSError:
            draft.unlink(missing_ok=True)
            listener.close()
            raise
        return listener

    def _turn(self, listener: socket.socket, woken: socket.socket) -> None:
        for key, _ in self._selector.select(self._leases.wait_s(time.monotonic())):
            if key.fileobj is listener:
                self._accept(listener)
            elif key.fileobj is woken:
                woken.recv(64)
            else:
                self._hear(self._peers[key.fd])
        self._leases.lapse(time.monotonic())

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except OSError as error:
            logger.debug("a peer went before it was heard: %s", error)
            return
        connection.setblocking(False)
        pid, uid, _ = _CREDENTIALS.unpack(
            connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        )
        self._count += 1
        peer = _Peer(self._count, pid, connection)
        refusal = ""
        if uid not in self._allowed_uids:
            refusal = f"user {uid} may not set clocks; start the actuator with --allow-uid {uid} if it should"
        elif len(self._peers) >= _MOST_PEERS:
            refusal = f"{_MOST_PEERS} peers are connected already"
        if refusal:
            logger.warning("process %d is refused: %s", pid, refusal)
            self._send(peer, ActuatorAnswer(error=refusal, permanent=True, refusal=refusal))
            connection.close()
            return
        self._peers[connection.fileno()] = peer
        self._selector.register(connection, selectors.EVENT_READ)

    def _hear(self, peer: _Peer) -> None:
        try:
            data = peer.socket.recv(MESSAGE_BYTES + 1)
        except BlockingIOError:
            return
        except OSError as error:
            logger.info("process %d: %s", peer.pid, error)
            data = b""
        if not data:
            self._close(peer)
        elif len(data) > MESSAGE_BYTES:
            self._send(peer, ActuatorAnswer(error=f"a message has at most {MESSAGE_BYTES} bytes", permanent=True))
            self._close(peer)
        elif not self._send(peer, self._answer(peer, data)):
            self._close(peer)  # who does not read its answers is not served

    def _answer(self, peer: _Peer, data: bytes) -> ActuatorAnswer:
        now_s, lease_s = time.monotonic(), None
        try:
            request: Request = msgspec.json.decode(data, type=Request)
            if isinstance(request, Lock):
                lease_s = self._leases.lock(peer.number, peer.pid, request.gpus, request.mhz, request.lease_s, now_s)
            elif isinstance(request, Reset):
                self._leases.reset(peer.number, peer.pid, request.gpus, now_s)
        except msgspec.DecodeError as error:
            return ActuatorAnswer(error=f"not a request: {error}", permanent=True)
        except AdapterError as error:
            permanent = isinstance(error, PermanentError)
            return ActuatorAnswer(error=str(error), permanent=permanent, refusal=self._clocks.refusal)
        return ActuatorAnswer(lease_s=lease_s, refusal=self._clocks.refusal, held=self._leases.held(now_s))

    def _send(self, peer: _Peer, answer: ActuatorAnswer) -> bool:
        try:
            peer.socket.send(msgspec.json.encode(answer))
        except OSError as error:
            logger.info("process %d does not take its answer: %s", peer.pid, error)
            return False
        return True

    def _close(self, peer: _Peer) -> None:
        del self._peers[peer.socket.fileno()]
        self._selector.unregister(peer.socket)
        peer.socket.close()
        self._leases.leave(peer.number, time.monotonic())

    def _give_back(self) -> bool:
        deadline_s = time.monotonic() + _ENDING_S
        while not (done := self._leases.end(time.monotonic())) and time.monotonic() < deadline_s:
            time.sleep(0.2)
        for peer in self._peers.values():
            peer.socket.close()
        self._selector.close()
        return done

    def _end(self, number: int, frame: object) -> None:
        self._ending = True

"""The side channel of a transfer: lines of JSON between two engines, by TLS that both show a node's certificate for."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
from dataclasses import dataclass
from typing import Any

LONGEST_LINE = 1 << 20  # bytes
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 5), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))


@dataclass(frozen=True, slots=True)
class ChannelTls:
    """Files, PEM: the node's certificate with its key, and the authority whose certificates are accepted."""

    certificate: str
    authority: str

    def context(self, purpose: int) -> ssl.SSLContext:
        """Returns a context of one connection: the certificate is renewed while engines serve."""
        context = ssl.SSLContext(purpose)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(self.certificate)
        context.load_verify_locations(self.authority)
        return context


class Channel:
    """One side of a connection. All but `close` raise OSError, or ValueError where the other side makes no sense."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
        self._connection = connection
        self._reader = connection.makefile("rb")

    @classmethod
    def connect(cls, host: str, port: int, tls: ChannelTls | None, timeout_s: float) -> Channel:
        """Connects, and checks that the certificate there is of `host`."""
        plain = socket.create_connection((host, port), timeout_s)
        try:
            if tls is None:
                return cls(plain)
            return cls(tls.context(ssl.PROTOCOL_TLS_CLIENT).wrap_socket(plain, server_hostname=host))
        except BaseException:
            plain.close()
            raise

    @classmethod
    def accepted(cls, plain: socket.socket, tls: ChannelTls | None, timeout_s: float) -> Channel:
        """Takes a connection whose other side shows a certificate of the authority within `timeout_s`."""
        plain.settimeout(timeout_s)
        if tls is None:
            return cls(plain)
        return cls(tls.context(ssl.PROTOCOL_TLS_SERVER).wrap_socket(plain, server_side=True))

    def wait(self, timeout_s: float | None) -> None:
        """Sets how long each send and each receive may take; None: as long as the other side is there."""
        self._connection.settimeout(timeout_s)

    def send(self, message: dict[str, Any]) -> None:
        self._connection.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> dict[str, Any]:
        line = self._reader.readline(LONGEST_LINE)
        if not line.endswith(b"\n"):
            raise ConnectionError("the other side is gone" if len(line) < LONGEST_LINE else "a line is too long")
        message = json.loads(line)
        if not isinstance(message, dict):
            raise ValueError("a message is an object")
        return message

    def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        """Returns the answer. Raises ValueError with what the other side says against it."""
        self.send(message)
        answer = self.receive()
        if not answer.get("ok"):
            raise ValueError(f"refused: {answer.get('error')}")
        return answer

    def close(self) -> None:
        for closing in (self._reader, self._connection):
            with contextlib.suppress(OSError):
                closing.close()

"""Connections to engines: HTTP/1.1 framing by llhttp, kept alive and pooled by address."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections import deque
from typing import NamedTuple, Protocol, cast

import httptools

from .known_heads import KnownHead
from .loop_turn import EndOfTurn

CONNECT_TIMEOUT_S = 2.0
MAX_IDLE_PER_ENGINE = 256
MAX_HEAD_BYTES = 256 << 10  # of a response
# vLLM's server closes a connection that idles for 5 s; one near that age may die under the next request.
MAX_IDLE_S = 4.0
_TLS_ROUND_TRIPS = 2  # TCP's, and that of TLS 1.3

# How a chunk begins that has so many bytes with its frame. Larger ones are left to the parser.
_CHUNK_HEADS = {len(b"%x\r\n\r\n" % size) + size: b"%x\r\n" % size for size in range(1, 2048)}

_DROPPED_HEADERS = frozenset(
    {
        *(b"connection", b"keep-alive", b"transfer-encoding", b"content-length", b"te", b"trailer", b"upgrade"),
        *(b"x-request-id", b"proxy-connection", b"proxy-authenticate"),
    }
)


class Address(NamedTuple):
    """The host and port at which an engine listens."""

    host: str
    port: int
    tls: bool = False


class Receiver(Protocol):
    """Takes a response. Calls come in this order; `lost` may replace any of them from then on."""

    def head(self, status: int, headers: bytes) -> None:
        """Takes the response's status, and its end-to-end headers as complete lines."""

    def body(self, pieces: list[bytes]) -> None:
        """What came of the body with one read, one piece at least. The list is the connection's."""

    def chunk(self, data: bytes, start: int) -> None:
        """In place of `body` when a read brought just one chunk: the piece is data[start:-2], the rest its frame."""

    def complete(self) -> None: ...

    def lost(self, error: str) -> None:
        """Hears that the connection broke before the response was complete."""


class UpstreamConnection(asyncio.Protocol):
    """One connection to an engine, serving one request at a time."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.rtt_s = 0.0  # a round trip took at most so long when the connection was made
        self.idle_since_s = 0.0
        self.alive = True
        self.silent = True  # no byte of the response in progress yet
        self._receiver: Receiver | None = None
        self._pieces: list[bytes] = []
        self.on_body = self._pieces.append  # the parser's callback: there is nothing else to do for a piece
        self._parser = httptools.HttpResponseParser(self)
        self._keep_alive = True
        self._between = True  # messages: the parser waits for a head
        self._behind_chunk = False  # the parser has come to the end of a chunk, and no further
        self._known_head: KnownHead[tuple[int, bytes]] | None = None
        self._head: tuple[int, bytes] | None = None  # by the head of the response in progress
        self._reset()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def expect(self, receiver: Receiver) -> None:
        """A request is about to be written; the receiver hears of the rest."""
        self._receiver = receiver
        self.silent = True

    def write(self, data: bytes) -> None:
        if not self._transport.is_closing():  # else `connection_lost` is on its way, or nobody waits any more
            self._transport.write(data)

    @property
    def reusable(self) -> bool:
        return self.alive and self._keep_alive and self._receiver is None and not self._transport.is_closing()

    def pause(self, paused: bool) -> None:
        """Stops or resumes reading: the engine feels it through TCP."""
        if self.alive and not self._transport.is_closing():
            if paused:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def abort(self) -> None:
        """Drops the connection at once, so that the engine stops generating. The receiver hears nothing more."""
        self._receiver = None
        self.alive = False
        self._transport.abort()

    # -- transport ---------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        receiver = self._receiver
        if receiver is None:  # bytes that nobody asked for
            self.abort()
            return
        self.silent = False
        if self._behind_chunk:
            head = _CHUNK_HEADS.get(len(data))
            if head is not None and data.startswith(head) and data.endswith(b"\r\n"):
                receiver.chunk(data, len(head))
                return
        elif self._between and (known := self._known_head) is not None:
            body = known.body_of(data)
            if body is not None:
                self._answer(receiver, known.meaning, body)
                return
        self._feed(receiver, data)

    def _answer(self, receiver: Receiver, head: tuple[int, bytes], body: bytes) -> None:
        """A whole response has come, with a head like the one before."""
        receiver.head(*head)
        if self._receiver is receiver:
            receiver.body([body])
        if self._receiver is receiver:
            self._receiver = None
            receiver.complete()

    def _feed(self, receiver: Receiver, data: bytes) -> None:
        fresh, self._head, self._behind_chunk = self._between, None, False
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if self._receiver is not None:
                self._receiver = None
                receiver.lost(f"the engine sent no proper HTTP: {error}")
            self.abort()
            return
        if self._in_head:  # a header without an end is seen by no callback
            self._check_head(receiver, len(data))
        if self._pieces:
            self._pass_on()
        if not data.endswith(
            b"\n"
        ):  # something stands behind the chunk: not a whole line, or it would have been an event
            self._behind_chunk = False
        if fresh and self._between and self._head is not None and self._keep_alive:
            self._known_head = KnownHead.of(data, self._body_bytes, self._head)

    def _check_head(self, receiver: Receiver, more_bytes: int) -> None:
        self._head_bytes += more_bytes
        if self._head_bytes > MAX_HEAD_BYTES and self._receiver is not None:
            self.abort()
            receiver.lost(f"the head of the engine's response exceeds {MAX_HEAD_BYTES} bytes")

    def _pass_on(self) -> None:
        if self._receiver is not None:
            self._receiver.body(self._pieces)
        self._pieces.clear()

    def connection_lost(self, exc: Exception | None) -> None:
        self.alive = False
        receiver, self._receiver = self._receiver, None
        if receiver is None:
            return
        if exc is None and self._ends_with_connection:
            receiver.complete()
        else:
            receiver.lost(f"the engine closed the connection{f': {exc}' if exc else ''}")

    # -- parser's callbacks ------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._receiver is None:  # behind a response one that nobody asked for: the next request would get it
            self.abort()
        self._reset()
        self._in_head, self._between = True, False

    def _reset(self) -> None:
        self._in_head = False
        self._head_bytes = self._body_bytes = 0
        self._headers: list[bytes] = []
        self._framed = False
        self._ends_with_connection = False
        self._interim = False

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name in (b"content-length", b"transfer-encoding"):
            self._framed = True
        if name not in _DROPPED_HEADERS:
            self._headers.append(b"%b: %b\r\n" % (name, value))

    def on_headers_complete(self) -> None:
        self._in_head = False
        status = self._parser.get_status_code()
        self._interim = status < 200
        if self._interim or self._receiver is None:
            return
        self._ends_with_connection = not self._framed
        self._head = status, b"".join(self._headers)
        self._receiver.head(*self._head)

    def on_chunk_header(self) -> None:
        self._behind_chunk = False

    def on_chunk_complete(self) -> None:
        self._behind_chunk = True

    def on_message_complete(self) -> None:
        self._between, self._behind_chunk = True, False
        if self._interim:
            return
        self._body_bytes = len(self._pieces[0]) if len(self._pieces) == 1 else 0
        self._keep_alive = self._parser.should_keep_alive()
        if self._pieces:
            self._pass_on()
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.complete()


class UpstreamPool:
    """Idle connections by address, the most recently used first; and what is sent over those in use."""

    def __init__(self, trust: ssl.SSLContext | None = None) -> None:
        """Takes certificates that `trust` accepts; None: those that the system trusts."""
        self._tls = trust
        self._outbox = EndOfTurn[tuple[UpstreamConnection, bytes]](_write_all)
        self._idle: dict[Address, deque[UpstreamConnection]] = {}

    def take(self, address: Address) -> UpstreamConnection | None:
        """Returns an idle connection that is young enough to be trusted, or None."""
        idle = self._idle.get(address)
        limit_s = time.monotonic() - MAX_IDLE_S
        while idle:
            connection = idle.pop()
            if connection.reusable and connection.idle_since_s > limit_s:
                return connection
            connection.abort()
        return None

    async def connect(self, address: Address) -> UpstreamConnection:
        """Opens a new connection. Raises OSError (TimeoutError after 2 s) when there is none to be had."""
        begun_s = time.monotonic()
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            connection = await self._open(address)
        connection.rtt_s = (time.monotonic() - begun_s) / (_TLS_ROUND_TRIPS if address.tls else 1)
        return connection

    async def _open(self, address: Address) -> UpstreamConnection:
        if address.tls and self._tls is None:
            self._tls = ssl.create_default_context()
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            lambda: UpstreamConnection(address), address.host, address.port, ssl=self._tls if address.tls else None
        )
        return connection

    def send(self, connection: UpstreamConnection, data: bytes, receiver: Receiver) -> None:
        """Sends a request, with all others of this turn; the receiver hears of the rest."""
        connection.expect(receiver)
        self._outbox.add((connection, data))

    def put_back(self, connection: UpstreamConnection) -> None:
        """Keeps a connection for the next request, or drops it when it cannot be used again."""
        idle = self._idle.get(connection.address)
        if idle is None:
            idle = self._idle[connection.address] = deque()
        if not connection.reusable or len(idle) >= MAX_IDLE_PER_ENGINE:
            connection.abort()
            return
        connection.idle_since_s = time.monotonic()
        idle.append(connection)

    def prune(self) -> None:
        """Called now and then: closes connections that have idled for too long, also to engines that are gone."""
        limit_s = time.monotonic() - MAX_IDLE_S
        for address, idle in list(self._idle.items()):
            while idle and (idle[0].idle_since_s <= limit_s or not idle[0].reusable):
                idle.popleft().abort()
            if not idle:
                del self._idle[address]

    def close(self) -> None:
        for idle in self._idle.values():
            for connection in idle:
                connection.abort()
        self._idle.clear()


def _write_all(requests: list[tuple[UpstreamConnection, bytes]]) -> None:
    for connection, data in requests:
        connection.write(data)

"""One client's connection: HTTP/1.1 framing by llhttp, limits, one request at a time, and back-pressure.

The application looks at a request's head as soon as it is complete: nobody's body is kept before its key is known.
Requests are handed on whole (a route needs the body) and answered in order; pipelined ones wait. Reading goes on while
a request is served, since that is how a client's departure is noticed, and stops when pipelined input piles up.
Uploads of known length are the exception: they are handed on with their head, and their body follows piece by piece.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections import deque
from http import HTTPStatus
from typing import Protocol, cast

import httptools

from pools import wire

from ..errors import ApiError
from .connections import Connections, KeyShare, no_room
from .known_heads import KnownHead
from .request import HttpLimits, Request, sane_id

JSON = b"application/json"
CLOSE_TIMEOUT_S = 10.0
HEADER_BYTES = 32  # that each header counts for beside its own: there can only be so many
PIECE_BYTES = 64  # the same of each piece of a body in chunks
READ_BYTES = 4096  # that each read of what is thrown away counts for beside its own
_IDLE, _HEAD, _BODY = "idle", "head", "body"
_REASONS = {status.value: status.phrase.encode() for status in HTTPStatus}
_KEPT_HEADERS = frozenset(
    {
        *(b"authorization", b"x-request-id", b"traceparent", b"tracestate"),
        *(b"x-slo-ttft-ms", b"x-slo-tpot-ms", b"x-greenserve-energy", b"x-greenserve-continue"),
        *(b"content-type", b"accept", b"x-forwarded-for", b"forwarded"),
    }
)


Meaning = tuple[bytes, bytes, dict[bytes, bytes], wire.FleetKey | None]  # method, path, headers, key


class _Enough(Exception):
    """Ends the parser's work on what has been read: the rest of it is of no use."""


# Spellings of headers that mean nothing here: a client sends the same dozen with each request.
_unread: set[bytes] = set()
_MAX_UNREAD, _MAX_UNREAD_BYTES = 500, 64


class ClientListener(Protocol):
    """Whoever serves the request in progress hears of the client through this."""

    def client_gone(self) -> None: ...

    def client_paused(self, paused: bool) -> None: ...


class UploadListener(ClientListener, Protocol):
    """Serves a request whose body is `incoming`."""

    def client_sent(self, data: bytes) -> None: ...

    def client_sent_all(self) -> None: ...


class Application(Protocol):
    """The application behind the connections."""

    @property
    def draining(self) -> bool: ...

    @property
    def connections(self) -> Connections: ...

    def admit(self, head: Request, connection: ClientConnection) -> int:
        """Returns how many bytes the body may have of a request whose head is here: above 0 only for one with a key,
        which is given to `connection.belongs_to`. Raises ApiError to refuse the request unread."""

    def uploads(self, path: bytes) -> bool:
        """Says whether bodies that are sent there are passed on as they come."""

    def handle(self, request: Request, connection: ClientConnection) -> None:
        """Answers at once, or sets `connection.listener` and answers later. Never blocks."""

    def refused(self, error: ApiError) -> None:
        """Counts what never became a request."""


class ClientConnection(asyncio.Protocol):
    """The server's side of one connection."""

    def __init__(self, application: Application, limits: HttpLimits) -> None:
        self._application = application
        self._connections = application.connections
        self._limits = limits
        self._parser = httptools.HttpRequestParser(self)
        self._waiting: deque[Request | ApiError] = deque()
        self._serving: Request | None = None
        self._upload: Request | None = None  # whose body is coming in
        self._reading_paused = False
        self._deaf = False  # after a refusal of framing or size nothing more is understood
        self._thrown_away = 0
        self._raw_head_bytes = self._head_reads = 0  # of a head which is not complete
        self._had_head = False  # in what is being read
        self._known_head: KnownHead[Meaning] | None = None
        self._newest: Request | None = None  # of those that llhttp made of what is being read
        self._share: KeyShare | None = None  # of the key that came with the newest head
        self._held: dict[KeyShare, int] = {}  # bytes of bodies of requests that are not over
        self._refusal_headers = b""
        self.listener: ClientListener | None = None
        self.host = ""  # the client's address; empty: it has none, as over a Unix socket
        self.paused = False
        self.buffered: list[bytes] = []  # of a stream: chunks in their frames, to be sent at the end of the turn
        self.on_message_begin()
        self._phase = _IDLE
        self._most_body_bytes = 0

    # -- transport ---------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self.host = peer[0] if isinstance(peer, tuple) else ""
        if not self._connections.opened(self, self.host):
            self._transport.abort()
            return
        self._transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
        self._release()
        self._connections.closed(self)
        del self._parser  # it refers back: a crowd of the two would wait for the collector, with all that they hold

    def belongs_to(self, key_id: int) -> None:
        """Raises ApiError 429 when the key has as many connections as it may have."""
        self._share = self._connections.keyed(self, key_id)

    def eof_received(self) -> None:
        """A client that closed its sending side is taken to be gone: the two cannot be distinguished in time."""
        if self.listener is not None:
            self._leave()
            self._transport.abort()

    def _leave(self) -> None:
        self._deaf = True
        self._waiting.clear()
        listener, self.listener = self.listener, None
        if listener is not None:
            listener.client_gone()

    def pause_writing(self) -> None:
        self.paused = True
        if self.listener is not None:
            self.listener.client_paused(True)

    def resume_writing(self) -> None:
        self.paused = False
        if self.listener is not None:
            self.listener.client_paused(False)

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            self._throw_away(len(data))
            return
        fresh = self._phase is _IDLE and self._serving is None and not self._waiting
        if fresh and (known := self._known_head) is not None:
            body = known.body_of(data)
            if body is not None and len(body) <= self._most_body_bytes and self._hold(len(body)):
                method, path, headers, key = known.meaning
                request = Request(method, path, headers, body, True)
                request.key = key
                self._serve(request)
                return
        self._feed(data)
        newest, self._newest = self._newest, None
        if fresh and newest is not None and self._share is not None and self._may_come_again(newest):
            meaning = newest.method, newest.path, newest.headers, newest.key
            self._known_head = KnownHead.of(data, len(newest.body), meaning)

    def _may_come_again(self, request: Request) -> bool:
        return request.keep_alive and request.chunked_reply and not self._expects_continue

    def _throw_away(self, read_bytes: int) -> None:
        limits = self._limits
        self._thrown_away += read_bytes + READ_BYTES
        if self._thrown_away > (limits.linger_bytes if self._share is None else limits.linger_keyed_bytes):
            self._transport.pause_reading()

    def _feed(self, data: bytes) -> None:
        only_head = self._phase is not _BODY
        self._had_head = False
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:  # refused when the head was complete
            pass
        except httptools.HttpParserError as error:
            self._refuse(ApiError(400, f"Malformed HTTP request: {error}"))
        if self._phase is _HEAD and not self._deaf:  # a header without an end is seen by no callback
            more_bytes = len(data) if only_head and not self._had_head else self._head_bytes
            self._raw_head_bytes += more_bytes
            self._head_reads += 1
            self._connections.head_grew(self, more_bytes)
            if self._raw_head_bytes > self._limits.max_head_bytes:
                self._refuse(_head_too_large(self._limits))
            elif self._head_reads > self._limits.max_head_reads:
                self._refuse(ApiError(400, "The request's head comes in too small pieces."))
        if len(self._waiting) >= self._limits.max_pipelined and not self._reading_paused:
            self._reading_paused = True
            self._transport.pause_reading()

    def check(self, now_s: float) -> None:
        """Called now and then: closes a connection whose client lets it idle or sends too slowly."""
        if self._serving is not None or now_s < self._deadline_s:
            return
        if self._transport.is_closing():  # the client does not take the last bytes
            self._transport.abort()
        elif self._phase is _IDLE or self._deaf:
            self._close()
        else:
            patience_s = self._limits.head_timeout_s if self._phase is _HEAD else self._limits.read_timeout_s
            self._refuse(ApiError(408, f"The request was not here within {patience_s:g} s."))

    # -- parser's callbacks ------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._deaf:
            raise _Enough
        self._path = b""
        self._length = 0
        self._headers: dict[bytes, bytes] = {}
        self._expects_continue = False
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._chunked = False
        self._phase = _HEAD
        self._head_bytes = 0
        if self._serving is None:
            self._deadline_s = time.monotonic() + self._limits.head_timeout_s

    def on_url(self, url: bytes) -> None:
        self._path += url
        self._count_head(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count_head(len(name) + len(value) + HEADER_BYTES)
        if name in _unread or self._phase is not _HEAD:  # behind a body in chunks nothing is said that counts
            return
        spelled, name = name, name.lower()
        if name in _KEPT_HEADERS:
            self._headers[name] = value
        elif name == b"content-length":
            self._length = int(value)  # a number: llhttp has checked it
        elif name == b"transfer-encoding":
            self._chunked = True
        elif name == b"expect":
            self._expects_continue = value.lower() == b"100-continue"
        elif len(_unread) < _MAX_UNREAD and len(spelled) <= _MAX_UNREAD_BYTES:
            _unread.add(spelled)

    def _count_head(self, more_bytes: int) -> None:
        self._head_bytes += more_bytes
        if self._head_bytes > self._limits.max_head_bytes:
            self._refuse(_head_too_large(self._limits))
            raise _Enough

    def on_headers_complete(self) -> None:
        self._had_head = True
        if self._raw_head_bytes:
            self._raw_head_bytes = self._head_reads = 0
            self._connections.head_here(self)
        if self._parser.should_upgrade():
            self._refuse(ApiError(400, "This server does not change protocols."))
        self._phase = _BODY
        self._known_head = None  # this one is looked at, and it may be another key's
        if self._serving is None:
            self._deadline_s = time.monotonic() + self._limits.read_timeout_s
        if self._deaf:
            return
        self._head = request = self._request()
        try:
            self._most_body_bytes = self._application.admit(request, self)
        except ApiError as error:
            self._refuse(error)
            return
        if self._length > self._most_body_bytes or (self._chunked and not self._most_body_bytes):
            self._refuse(_body_too_large(self._most_body_bytes))
        elif self._length and not self._busy and self._application.uploads(self._path):
            self._continue()
            self._begin_upload(request)
        elif not self._hold(self._length):
            self._refuse(no_room())
        else:
            self._continue()

    @property
    def _busy(self) -> bool:
        return self._serving is not None or bool(self._waiting)

    def _continue(self) -> None:
        if self._expects_continue and self._serving is None:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _begin_upload(self, request: Request) -> None:
        request.incoming = self._length
        self._upload = self._serving = request
        self._application.handle(request, self)

    def _hold(self, body_bytes: int) -> bool:
        """Counts bytes of a body that is to be kept. Says whether there is room for it."""
        if not body_bytes:
            return True
        share = self._share
        if share is None or not self._connections.hold(share, body_bytes):
            return False
        self._held[share] = self._held.get(share, 0) + body_bytes
        return True

    def _release(self) -> None:
        for share, body_bytes in self._held.items():
            self._connections.release(share, body_bytes)
        self._held.clear()

    def _upload_listener(self) -> UploadListener | None:
        """Returns who takes the body that comes in; None: it was answered before its end, and the rest is of no use."""
        served = self._serving is self._upload and self.listener is not None
        return cast(UploadListener, self.listener) if served else None

    def on_body(self, data: bytes) -> None:
        if self._deaf:
            return
        self._body_bytes += len(data)
        if self._upload is not None:
            listener = self._upload_listener()
            if listener is not None:
                listener.client_sent(data)
            return
        if self._body_bytes > self._most_body_bytes:
            self._refuse(_body_too_large(self._most_body_bytes))
        elif self._chunked and not self._hold(len(data) + PIECE_BYTES):
            self._refuse(no_room())
        else:
            self._body.append(data)

    def on_message_complete(self) -> None:
        self._phase = _IDLE
        if self._deaf:
            return
        if self._upload is not None:
            listener = self._upload_listener()
            self._upload = None
            if listener is not None:
                listener.client_sent_all()
            return
        self._newest = request = self._head
        request.body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        request.is_here()
        self._body = []
        self._waiting.append(request)
        if self._serving is None:
            self._next()

    def _request(self) -> Request:
        parser = self._parser
        request = Request(parser.get_method(), self._path, self._headers, b"", parser.should_keep_alive())
        request.chunked_reply = parser.get_http_version() != "1.0"
        return request

    def pause_upload(self, paused: bool) -> None:
        """Back-pressure: whoever takes the body in cannot take more for now."""
        if not self._transport.is_closing() and not self._reading_paused:
            if paused:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    # -- serving -----------------------------------------------------------------------------------

    def _refuse(self, error: ApiError) -> None:
        """Answers, after what is being served, something that is no proper request; then the connection ends."""
        if self._deaf:
            return
        self._deaf = True
        self._body = []
        self._connections.head_here(self)
        self._refusal_headers = error.headers(sane_id(self._headers))
        self._application.refused(error)
        self._waiting.append(error)
        if self._serving is None:
            self._next()

    def _next(self) -> None:
        if not self._waiting:
            self._deadline_s = time.monotonic() + self._limits.idle_timeout_s
            if self._reading_paused:
                self._reading_paused = False
                self._transport.resume_reading()
            return
        item = self._waiting.popleft()
        if isinstance(item, ApiError):
            self._last_words(item)
            return
        self._serve(item)

    def _serve(self, request: Request) -> None:
        self._serving = request
        self._application.handle(request, self)

    def _last_words(self, error: ApiError) -> None:
        """Sends a refusal and half-closes; input is thrown away for a moment so that no reset swallows the refusal."""
        if self._transport.is_closing():
            return
        body = error.body()
        head = response_head(error.status, JSON, len(body), keep_alive=False, headers=self._refusal_headers)
        self._transport.write(head if self._parser.get_method() == b"HEAD" else head + body)
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._deadline_s = time.monotonic() + CLOSE_TIMEOUT_S
        asyncio.get_running_loop().call_later(self._limits.linger_s, self._transport.close)

    def give_up(self, error: ApiError) -> None:
        """Refuses the request that is being served, of whose body nothing more is wanted."""
        self._deaf = True
        self._refusal_headers = error.headers(sane_id(self._headers))
        self._serving = self.listener = None
        self._last_words(error)

    def respond(self, status: int, body: bytes, content_type: bytes | None = JSON, headers: bytes = b"") -> None:
        """Sends a whole response at once. `headers` are complete lines."""
        if (request := self._serving) is None or self._transport.is_closing():
            return
        keep_alive = request.keep_alive and not self._application.draining
        head = response_head(status, content_type, len(body), keep_alive, headers)
        self._transport.write(head if request.method == b"HEAD" else head + body)
        self._finished(keep_alive)

    def start_stream(self, status: int, headers: bytes) -> None:
        """Begins a response of unknown length; `send` and then `finish` or `cut` must follow."""
        if (request := self._serving) is None or self._transport.is_closing():
            return
        if request.chunked_reply:
            head = response_head(status, None, None, self._keeps_alive(request), headers)
        else:  # HTTP/1.0 knows no chunks: the end of the connection ends the response
            request.keep_alive = False
            head = response_head(status, None, -1, keep_alive=False, headers=headers)
        self._transport.write(head)

    def send(self, data: bytes) -> None:
        if self.buffered:
            self.send_buffered()
        if (request := self._serving) is not None and data and not self._transport.is_closing():
            self._transport.write(b"%x\r\n%b\r\n" % (len(data), data) if request.chunked_reply else data)

    def send_buffered(self) -> None:
        """Sends the chunks in `buffered`; whatever is to be sent behind them does so first."""
        data = self.buffered[0] if len(self.buffered) == 1 else b"".join(self.buffered)
        self.buffered.clear()
        if self._serving is not None and not self._transport.is_closing():
            self._transport.write(data)

    def finish(self, data: bytes = b"") -> None:
        """Ends a stream, with its last bytes."""
        if self.buffered:
            self.send_buffered()
        if (request := self._serving) is None or self._transport.is_closing():
            return
        keep_alive = self._keeps_alive(request)
        if request.chunked_reply:
            last = b"%x\r\n%b\r\n" % (len(data), data) if data else b""
            self._transport.write(last + b"0\r\n\r\n")
        elif data:
            self._transport.write(data)
        self._finished(keep_alive)

    def cut(self, data: bytes = b"") -> None:
        """Ends a stream that failed: last bytes, then the connection closes without the response's proper end."""
        self.send(data)
        self._serving = self.listener = None
        self._close()

    def close_if_idle(self) -> None:
        """For shutting down: a connection without a request is closed, others close after their response."""
        if self._serving is None:
            self._close()

    def abort(self) -> None:
        self._transport.abort()

    def _close(self) -> None:
        """Closes once everything is written; `check` cuts it short when the client does not read."""
        self._deadline_s = time.monotonic() + CLOSE_TIMEOUT_S
        self._transport.close()

    def _keeps_alive(self, request: Request) -> bool:
        return request.keep_alive and not self._application.draining

    def _finished(self, keep_alive: bool) -> None:
        self._serving = self.listener = None
        if self._held and not self._waiting:
            self._release()
        if not keep_alive:
            self._close()
        elif self._waiting:  # not now: a long pipeline would recurse
            asyncio.get_running_loop().call_soon(self._next_if_free)
        else:
            self._next()

    def _next_if_free(self) -> None:
        if self._serving is None and not self._transport.is_closing():
            self._next()


def response_head(
    status: int, content_type: bytes | None, length: int | None, keep_alive: bool, headers: bytes = b""
) -> bytes:
    """Returns a response's head. `length` None: chunked; -1: until the connection ends.

    `headers` are complete lines.
    """
    if length is None:
        framing = b"transfer-encoding: chunked\r\n"
    else:
        framing = b"content-length: %d\r\n" % length if length >= 0 else b""
    kind = b"" if content_type is None else b"content-type: %b\r\n" % content_type
    end = b"\r\n" if keep_alive else b"connection: close\r\n\r\n"
    return b"HTTP/1.1 %d %b\r\n%b%b%b%b" % (status, _REASONS.get(status, b"Unknown"), kind, framing, headers, end)


def _head_too_large(limits: HttpLimits) -> ApiError:
    return ApiError(431, f"The request's head exceeds {limits.max_head_bytes} bytes.", code="headers_too_large")


def _body_too_large(most: int) -> ApiError:
    return ApiError(413, f"The body exceeds {most} bytes.", code="body_too_large")

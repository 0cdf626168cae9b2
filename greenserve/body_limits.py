"""Bounds the bodies that the web process takes: Django keeps a whole body, on disk, before it asks who sends it."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

Scope = dict[str, Any]
Message = Mapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class BodyBounds:
    """Most bytes of a body, and of all that are here at a time."""

    most_bytes: int = 66 << 20  # a study's trace has 64 MiB, and its form a little more
    most_upload_bytes: int = 208 << 20  # under /v1/: files of tenants
    together_bytes: int = 1 << 30


class _TooMuch(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


class BodyLimits:
    """An ASGI application before another. It answers 413 or 503 in its place."""

    def __init__(self, application: Asgi, bounds: BodyBounds | None = None) -> None:
        self._application, self._bounds = application, bounds or BodyBounds()
        self.held_bytes = 0  # of requests that are being read or answered

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        bounds, here_bytes = self._bounds, 0
        most_bytes = bounds.most_upload_bytes if scope["path"].startswith("/v1/") else bounds.most_bytes

        async def bounded() -> Message:
            nonlocal here_bytes
            message = await receive()
            more_bytes = len(message.get("body", b""))
            here_bytes += more_bytes
            self.held_bytes += more_bytes
            self._check(here_bytes, most_bytes)
            return message

        try:
            self._check(_length(scope), most_bytes)
            await self._application(scope, bounded, send)
        except _TooMuch as error:
            await _refuse(send, error, str(scope["path"]))
        finally:
            self.held_bytes -= here_bytes

    def _check(self, body_bytes: int, most_bytes: int) -> None:
        if body_bytes > most_bytes:
            raise _TooMuch(413, f"The body exceeds {most_bytes} bytes.")
        if self.held_bytes > self._bounds.together_bytes:
            raise _TooMuch(503, "The web process holds as many bytes of requests as it may: try again.")


def _length(scope: Scope) -> int:
    """Returns the length that a request announces; 0: it announces none."""
    given = dict(scope["headers"]).get(b"content-length", b"")
    return int(given) if given.isdigit() else 0


async def _refuse(send: Send, error: _TooMuch, path: str) -> None:
    """Answers, and ends the connection: what still comes of the body is of no use."""
    kind, body = b"text/plain", error.message.encode()
    if path.startswith("/api/"):  # whose errors are all problem documents (frontend.api.rest.problems)
        kind, body = b"application/problem+json", _problem(error, path)
    headers = [(b"content-type", kind), (b"content-length", b"%d" % len(body)), (b"connection", b"close")]
    if error.status == 503:
        headers.append((b"retry-after", b"1"))
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _problem(error: _TooMuch, path: str) -> bytes:
    code = "too_large" if error.status == 413 else "unavailable"
    remedy = "Send less: several smaller requests, or a shorter file." if error.status == 413 else "Try again later."
    words = {"title": HTTPStatus(error.status).phrase, "status": error.status, "detail": error.message}
    return json.dumps({"type": f"urn:greenserve:problem:{code}", **words, "instance": path, "remedy": remedy}).encode()

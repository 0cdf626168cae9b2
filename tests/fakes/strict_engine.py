"""An engine that answers whatever reaches it as vLLM's server would, and keeps count of what should not have."""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

import httptools

_WHOLE = json.dumps(
    {
        "id": "cmpl-1",
        "object": "text_completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "text": "tok", "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4},
    }
).encode()
_EVENTS = (
    b'data: {"id":"cmpl-1","object":"text_completion","created":1,"choices":[{"index":0,"text":"tok"}]}\n\n',
    b'data: {"id":"cmpl-1","object":"text_completion","created":1,"choices":[],'
    b'"usage":{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4}}\n\n',
    b"data: [DONE]\n\n",
)


class StrictEngine:
    """`malformed`: input that is no proper HTTP. `unreadable`: bodies that Python's JSON reader does not take."""

    def __init__(self) -> None:
        self.requests = 0
        self.malformed: list[str] = []
        self.unreadable: list[bytes] = []

    async def start(self) -> StrictEngine:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def stop(self) -> None:
        self._server.close()

    def answer(self, body: bytes) -> bytes:
        self.requests += 1
        try:
            fields: Any = json.loads(body, parse_int=float)  # Python's own limit on digits is not JSON's
        except (ValueError, RecursionError):
            self.unreadable.append(body)
            return _response(b"400 Bad Request", b'{"error":{"message":"no JSON"}}')
        if not fields.get("stream"):
            return _response(b"200 OK", _WHOLE)
        chunks = b"".join(b"%x\r\n%b\r\n" % (len(event), event) for event in _EVENTS)
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        return head + chunks + b"0\r\n\r\n"


def _response(status: bytes, body: bytes) -> bytes:
    head = b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % (status, len(body))
    return head + body


class _Connection(asyncio.Protocol):
    def __init__(self, engine: StrictEngine) -> None:
        self._engine = engine
        self._parser = httptools.HttpRequestParser(self)
        self._body = self._url = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._engine.malformed.append(f"{error}: {data[:200]!r}")
            self._transport.abort()

    def on_message_begin(self) -> None:
        self._body = self._url = b""

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_body(self, data: bytes) -> None:
        self._body += data

    def on_message_complete(self) -> None:
        if self._url == b"/health":  # asked by the gateway itself
            self._transport.write(_response(b"200 OK", b""))
        else:
            self._transport.write(self._engine.answer(self._body))

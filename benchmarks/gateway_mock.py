"""A vLLM-shaped engine for timing proxies: `python -m benchmarks.gateway_mock PORT [PORT ...]`.

Raw protocol, no framework, so that it costs less than what is timed. The prompt says what to answer, since every proxy
hands it on: `[tokens=200 pace=10 first=0]`, pace and first in milliseconds. pace=0 floods until the socket is full.
A stream's tokens come one chunk and one write each, as vLLM's server sends them; each carries the time of its making.
`GET /stats` tells what has been served, and when the last stream was aborted (monotonic, comparable on one machine).
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import sys
import time
from dataclasses import asdict, dataclass
from typing import cast

import httptools
import uvloop

_ORDER = re.compile(rb"\[tokens=(\d+) pace=(\d+) first=(\d+)\]")
_WANTS_STREAM = re.compile(rb'"stream":\s*true')
_WANTS_USAGE = re.compile(rb'"include_usage":\s*true')
_IDENTITY = (
    b'"id":"chatcmpl-7f0c1d2e3a4b5c6d7e8f90a1b2c3d4e5","object":"chat.completion%b","created":1760000000,"model":"m"'
)
_HEAD = b"HTTP/1.1 %b\r\ndate: Thu, 09 Oct 2025 08:53:20 GMT\r\nserver: uvicorn\r\n%bcontent-type: %b\r\n\r\n"
_STREAM_HEAD = _HEAD % (b"200 OK", b"transfer-encoding: chunked\r\n", b"text/event-stream; charset=utf-8")
_FLOOD_CHUNKS = 64  # written in one turn of the loop


def _event(json_text: bytes) -> bytes:
    event = b"data: %b\n\n" % json_text
    return b"%x\r\n%b\r\n" % (len(event), event)


def _chunk(choice: bytes) -> bytes:
    return _event(b"{%b,%b}" % (_IDENTITY % b".chunk", choice))


_TOKEN = _chunk(
    b'"choices":[{"index":0,"delta":{"content":" 000000000000000"},"logprobs":null,"finish_reason":null,'
    b'"token_ids":null}]'
).replace(b"0" * 15, b"%015d")  # as long as what it will be filled with, so that its frame is right
_LAST = _chunk(b'"choices":[{"index":0,"delta":{"content":""},"logprobs":null,"finish_reason":"length"}]')
_USAGE = _chunk(b'"choices":[],"usage":{"prompt_tokens":20,"total_tokens":220,"completion_tokens":200}')
_DONE = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"


def _whole(body: bytes, status: bytes = b"200 OK") -> bytes:
    return _HEAD % (status, b"content-length: %d\r\n" % len(body), b"application/json") + body


_ANSWER = _whole(
    b'{%b,"choices":[{"index":0,"message":{"role":"assistant","content":"A short answer.","refusal":null,'
    b'"annotations":null,"audio":null,"function_call":null,"tool_calls":[],"reasoning":null},"logprobs":null,'
    b'"finish_reason":"stop","stop_reason":null,"token_ids":null}],"service_tier":null,"system_fingerprint":null,'
    b'"usage":{"prompt_tokens":20,"total_tokens":36,"completion_tokens":16,"prompt_tokens_details":null},'
    b'"prompt_logprobs":null,"prompt_token_ids":null,"kv_transfer_params":null}' % (_IDENTITY % b"")
)
_MODELS = _whole(b'{"object":"list","data":[{"id":"m","object":"model","created":1760000000,"owned_by":"vllm"}]}')
_METRICS = _whole(b"vllm:num_requests_running 0\nvllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc 0.1\n")


@dataclass(slots=True)
class Stats:
    requests: int = 0
    running: int = 0
    finished: int = 0
    aborts: int = 0
    last_abort_s: float = 0.0
    chunks: int = 0


class MockEngine(asyncio.Protocol):
    """One connection."""

    def __init__(self, loop: asyncio.AbstractEventLoop, stats: Stats) -> None:
        self._loop = loop
        self._stats = stats
        self._parser = httptools.HttpRequestParser(self)
        self._timer: asyncio.Handle | None = None
        self._left = 0  # tokens still to be sent
        self._pace_s = 0.0
        self._usage = False
        self._full = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._left:
            self._left = 0
            self._stats.running -= 1
            self._stats.aborts += 1
            self._stats.last_abort_s = time.monotonic()

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        if self._left and not self._pace_s:
            self._flood()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.abort()

    def on_message_begin(self) -> None:
        self._path = b""
        self._body: list[bytes] = []

    def on_url(self, url: bytes) -> None:
        self._path += url

    def on_body(self, data: bytes) -> None:
        self._body.append(data)

    def on_message_complete(self) -> None:
        path = self._path
        if path.startswith(b"/v1/chat/completions"):
            self._complete(b"".join(self._body))
        elif path.startswith(b"/stats"):
            self._transport.write(_whole(json.dumps(asdict(self._stats)).encode()))
        elif path.startswith(b"/v1/models"):
            self._transport.write(_MODELS)
        elif path.startswith(b"/metrics"):
            self._transport.write(_METRICS)
        elif path.startswith(b"/health"):
            self._transport.write(_whole(b""))
        else:
            self._transport.write(_whole(b"{}", b"404 Not Found"))

    def _complete(self, body: bytes) -> None:
        self._stats.requests += 1
        if not _WANTS_STREAM.search(body):
            self._transport.write(_ANSWER)
            return
        order = _ORDER.search(body)
        tokens, pace_ms, first_ms = map(int, order.groups()) if order else (16, 0, 0)
        self._left, self._pace_s = tokens, pace_ms / 1000
        self._usage = _WANTS_USAGE.search(body) is not None
        self._stats.running += 1
        if first_ms:
            self._timer = self._loop.call_later(first_ms / 1000, self._begin)
        else:
            self._begin()

    def _begin(self) -> None:
        self._transport.write(_STREAM_HEAD)
        if self._pace_s:
            self._tick()
        else:
            self._flood()

    def _tick(self) -> None:
        if self._left > 1:
            self._timer = self._loop.call_later(self._pace_s, self._tick)
        self._token()

    def _flood(self) -> None:
        self._timer = None
        for _ in range(_FLOOD_CHUNKS):
            if not self._left or self._full:
                return
            self._token()
        self._timer = self._loop.call_soon(self._flood)

    def _token(self) -> None:
        self._left -= 1
        self._stats.chunks += 1
        if self._left:
            self._transport.write(_TOKEN % (time.monotonic_ns() // 1000))
            return
        self._stats.running -= 1
        self._stats.finished += 1
        self._transport.write(_LAST)
        self._transport.write(_USAGE + _DONE if self._usage else _DONE)


async def serve(ports: list[int]) -> None:
    loop = asyncio.get_running_loop()
    stats = Stats()
    for port in ports:
        await loop.create_server(lambda: MockEngine(loop, stats), "127.0.0.1", port, backlog=4096)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve([int(word) for word in sys.argv[1:]]))

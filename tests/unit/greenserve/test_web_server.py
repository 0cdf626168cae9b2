"""What strangers may hold of the web process: heads, bodies, connections and time."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import uvicorn

from greenserve import web_server
from greenserve.body_limits import BodyBounds, BodyLimits
from greenserve.web_server import WebLimits
from pools.gateway.http.connections import ConnectionLimits
from tests.unit.pools.gateway.conftest import until

PLACES = ConnectionLimits(most=6, unkeyed=6, unkeyed_of_address=4, of_key=6)
LIMITS = WebLimits(max_head_bytes=2000, max_pipelined=3, head_timeout_s=30.0, connections=PLACES)
BOUNDS = BodyBounds(most_bytes=1000, most_upload_bytes=4000, together_bytes=5000)


class Application:
    """Reads the body and answers with its length, once it may."""

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.asked = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        length, more = 0, True
        while more:
            message = await receive()
            length, more = length + len(message.get("body", b"")), message.get("more_body", False)
        self.asked += 1
        await self.may_answer.wait()
        body = b"%d bytes" % length
        headers = [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


class Stand:
    """A server in the test's own loop, and clients of it."""

    def __init__(self, server: uvicorn.Server, application: Application, bodies: BodyLimits) -> None:
        self.server, self.application, self.bodies = server, application, bodies
        self.port = server.servers[0].sockets[0].getsockname()[1]
        self.writers: list[asyncio.StreamWriter] = []

    async def connect(self, data: bytes = b"", address: str = "127.0.0.1") -> asyncio.StreamReader:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, local_addr=(address, 0))
        self.writers.append(writer)
        writer.write(data)
        return reader

    async def answer(self, data: bytes) -> bytes:
        """Sends bytes, and reads until the server closes."""
        reader = await self.connect(data)
        return await asyncio.wait_for(reader.read(), 3)


Start = Callable[..., Awaitable[Stand]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    stands: list[Stand] = []

    async def begin(**limits: Any) -> Stand:
        application = Application()
        bodies = BodyLimits(application, BOUNDS)
        server = web_server.server(bodies, "127.0.0.1", 0, dataclasses.replace(LIMITS, **limits), "error")
        server.config.load()
        server.lifespan = server.config.lifespan_class(server.config)
        await server.startup()
        stands.append(Stand(server, application, bodies))
        return stands[0]

    yield begin
    for stand in stands:
        stand.application.may_answer.set()
        for writer in stand.writers:
            writer.transport.abort()
        await stand.server.shutdown()


def get(path: str = "/", more: bytes = b"") -> bytes:
    return b"GET %b HTTP/1.1\r\n%b\r\n" % (path.encode(), more)


async def test_request_within_all_limits_is_answered(start: Start) -> None:
    stand = await start()
    answer = await stand.answer(b"POST / HTTP/1.1\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello")
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.endswith(b"5 bytes")


@pytest.mark.parametrize(
    "head",
    [
        get(more=b"X: " + b"x" * 2000 + b"\r\n"),
        get("/" + "x" * 2000),
        get(more=b"a:\r\n" * 70),
        b"GET / HTTP/1.1\r\nX: " + b"x" * 2500,
        b"GET /" + b"x" * 2500,
    ],
)
async def test_head_is_bounded_whether_or_not_it_ends(start: Start, head: bytes) -> None:
    stand = await start()
    assert (await stand.answer(head)).startswith(b"HTTP/1.1 400 ")
    assert stand.application.asked == 0


async def test_head_that_comes_in_many_pieces_is_bounded(start: Start) -> None:
    stand = await start()
    reader = await stand.connect(b"GET / HTTP/1.1\r\nX: ")
    for _ in range(5):
        stand.writers[0].write(b"x" * 500)
        await stand.writers[0].drain()
    assert (await asyncio.wait_for(reader.read(), 3)).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("sent", [b"", b"GET / HT", b"\r\n", b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\nx"])
async def test_client_that_is_slow_is_cut_off(start: Start, sent: bytes) -> None:
    stand = await start(head_timeout_s=0.05, body_timeout_s=0.05)
    assert await stand.answer(sent) == b""


@pytest.mark.parametrize("then", [b"", b"\r\n", b"GET / HT"])
async def test_connection_that_is_kept_open_after_an_answer_is_closed(start: Start, then: bytes) -> None:
    stand = await start(head_timeout_s=0.05, idle_timeout_s=0.05)
    reader = await stand.connect(get())
    assert (await reader.readuntil(b"bytes")).startswith(b"HTTP/1.1 200 ")
    stand.writers[0].write(then)
    assert await asyncio.wait_for(reader.read(), 3) == b""


async def test_answer_takes_as_long_as_it_takes_whatever_the_client_sends_meanwhile(start: Start) -> None:
    stand = await start(head_timeout_s=0.02)
    stand.application.may_answer.clear()
    reader = await stand.connect(get() + b"\r\nGET / HT")
    await until(lambda: stand.application.asked == 1)
    (connection,) = stand.server.server_state.connections
    first: Any = connection._timer  # type: ignore[union-attr]
    await until(lambda: connection._timer is not first)  # type: ignore[union-attr]
    stand.application.may_answer.set()
    assert (await reader.readuntil(b"bytes")).startswith(b"HTTP/1.1 200 ")


async def test_requests_that_wait_behind_one_are_bounded(start: Start) -> None:
    stand = await start()
    stand.application.may_answer.clear()
    reader = await stand.connect(get() * 6)
    assert b"HTTP/1.1 400 " in await asyncio.wait_for(reader.read(), 3)


async def test_upgrade_to_another_protocol_is_refused(start: Start) -> None:
    stand = await start()
    upgrade = b"Connection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: eA==\r\n"
    reader = await stand.connect(get(more=upgrade))
    assert not (await asyncio.wait_for(reader.readuntil(b"\r\n"), 3)).startswith(b"HTTP/1.1 101 ")


async def test_client_gets_a_place_while_a_crowd_sends_no_head(start: Start) -> None:
    stand = await start()
    stand.application.may_answer.clear()
    served = await stand.connect(get(), "127.0.0.2")
    await until(lambda: stand.application.asked == 1)
    for number in range(20):
        await stand.connect(b"GET / HT", f"127.0.1.{1 + number % 10}")
    late = await stand.connect(get(), "127.0.0.3")
    await until(lambda: stand.application.asked == 2)
    assert len(stand.server.server_state.connections) <= PLACES.most
    stand.application.may_answer.set()
    for reader in (served, late):
        assert (await reader.readuntil(b"bytes")).startswith(b"HTTP/1.1 200 ")


async def test_address_has_only_some_of_the_places(start: Start) -> None:
    stand = await start()
    await stand.connect(b"", "127.0.0.2")
    for _ in range(9):
        await stand.connect(b"", "127.0.0.3")
    together: Any = stand.server.config.http_protocol_class.together  # type: ignore[attr-defined]
    await until(lambda: together.dropped == 5)
    assert len(together) == 5


def post(path: str, length: int, sent: bytes) -> bytes:
    return b"POST %b HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (path.encode(), length) + sent


def chunked(path: str, body: bytes) -> bytes:
    head = b"POST %b HTTP/1.1\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n" % path.encode()
    return head + b"".join(
        b"%x\r\n%b\r\n" % (len(body[i : i + 500]), body[i : i + 500]) for i in range(0, len(body), 500)
    )


@pytest.mark.parametrize(("path", "most"), [("/", 1000), ("/v1/files", 4000)])
async def test_body_is_bounded_by_its_length_and_by_what_comes(start: Start, path: str, most: int) -> None:
    stand = await start()
    assert (await stand.answer(post(path, most + 1, b""))).startswith(b"HTTP/1.1 413 ")
    assert (await stand.answer(chunked(path, b"x" * (most + 1)) + b"0\r\n\r\n")).startswith(b"HTTP/1.1 413 ")
    assert stand.application.asked == 0
    assert (await stand.answer(chunked(path, b"x" * most) + b"0\r\n\r\n")).endswith(b"%d bytes" % most)
    assert stand.bodies.held_bytes == 0


async def test_refused_body_is_a_problem_document_under_the_api(start: Start) -> None:
    stand = await start()
    answer = await stand.answer(post("/api/v1/sites/", 1001, b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"content-type: application/problem+json" in head.lower()
    found = json.loads(body)
    assert (found["status"], found["type"]) == (413, "urn:greenserve:problem:too_large")
    assert "1000 bytes" in found["detail"]


async def test_bodies_are_bounded_together(start: Start) -> None:
    stand = await start()
    readers = [await stand.connect(chunked("/v1/files", b"x" * 2500)) for _ in range(2)]
    await until(lambda: stand.bodies.held_bytes == 5000)
    answer = await stand.answer(post("/", 9, b"123456789"))
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"retry-after: 1\r\n" in answer
    stand.writers[0].write(b"0\r\n\r\n")
    assert (await readers[0].read()).endswith(b"2500 bytes")
    stand.writers[1].transport.abort()
    await until(lambda: stand.bodies.held_bytes == 0)

"""Files and batches go to the web process: uploads and downloads as they come, and nothing waits for ever."""

from __future__ import annotations

import asyncio
import io
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web as aioweb

from pools.gateway.http.request import HttpLimits
from pools.gateway.relay.web_relay import WebTimeouts, is_web_path
from pools.gateway.server import Config, GatewayServer
from tests.fakes.fleet import OTHER_SECRET, SECRET, FakeFleet
from tests.unit.pools.gateway.conftest import until

AUTH = {"Authorization": f"Bearer {SECRET}"}
LIMITS = HttpLimits(max_body_bytes=1 << 16, max_upload_bytes=8 << 20, linger_s=0.2)


class FakeWeb:
    """Keeps what it was asked; `pace_s` between the pieces that it reads, `pieces` that it sends."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, dict[str, str]]] = []
        self.bytes = 0
        self.cut = 0
        self.pace_s = 0.0
        self.refuses = False
        self.pieces = [b"{}"]
        self.hangs = False

    async def start(self) -> FakeWeb:
        app = aioweb.Application(client_max_size=1 << 30)
        app.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = aioweb.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = aioweb.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.port: int = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
        return self

    async def stop(self) -> None:
        await self._runner.cleanup()

    async def _serve(self, request: aioweb.Request) -> aioweb.StreamResponse:
        self.seen.append((request.method, request.path_qs, dict(request.headers)))
        if self.refuses:
            return aioweb.json_response({"error": {"message": "no"}}, status=401)
        try:
            while data := await request.content.readany():
                self.bytes += len(data)
                await asyncio.sleep(self.pace_s)
        except Exception:
            self.cut += 1
            raise
        if self.hangs:
            await asyncio.sleep(60)
        response = aioweb.StreamResponse(status=200, headers={"Content-Type": "application/x-test", "X-Own": "1"})
        await response.prepare(request)
        for piece in self.pieces if request.method != "HEAD" else ():
            await response.write(piece)
        return response


def body(size: int) -> io.BytesIO:
    return io.BytesIO(b"x" * size)


class Relay:
    def __init__(self, server: GatewayServer, web: FakeWeb, http: aiohttp.ClientSession) -> None:
        self.server, self.web, self.http = server, web, http
        self.url = f"http://127.0.0.1:{server.port}"


Start = Callable[..., Awaitable[Relay]]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    made: list[Relay] = []

    async def begin(timeouts: WebTimeouts | None = None) -> Relay:
        web = await FakeWeb().start()
        config = Config(
            "127.0.0.1", 0, tmp_path, learns=False, limits=LIMITS, web_url=f"http://127.0.0.1:{web.port}", grace_s=0.3
        )
        server = GatewayServer(config)
        await server.start()
        if timeouts and server.gateway.web:
            server.gateway.web.timeouts = timeouts
        fleet = FakeFleet([])
        server.fleet.apply(fleet.fleet(), fleet.states(), 0.0)
        made.append(Relay(server, web, aiohttp.ClientSession(headers=AUTH)))
        return made[-1]

    yield begin
    for relay in made:
        await relay.http.close()
        await relay.server.stop()
        await relay.web.stop()


@pytest.fixture
async def relay(start: Start) -> Relay:
    return await start()


@pytest.mark.parametrize(
    ("path", "served"),
    [
        (b"/v1/files", True),
        (b"/v1/files?limit=2&after=file-1", True),
        (b"/v1/files/file-abc/content", True),
        (b"/v1/batches/batch_1/cancel", True),
        (b"/v1/filesystem", False),
        (b"/v1/files/../../decisions/", False),
        (b"/v1/files/%2e%2e/decisions", False),
        (b"/v1/files/a/content/b", False),
        (b"/v1/files//", False),
        (b"/healthz", False),
    ],
)
def test_only_its_own_paths_are_relayed(path: bytes, served: bool) -> None:
    assert is_web_path(path) == served


async def test_request_and_response_pass_with_their_headers(relay: Relay) -> None:
    async with relay.http.get(relay.url + "/v1/batches?limit=3", headers={"X-Request-Id": "mine"}) as response:
        assert response.status == 200
        assert await response.read() == b"{}"
        assert response.headers["Content-Type"] == "application/x-test"
        assert response.headers["X-Request-Id"] == "mine"
        assert "X-Own" not in response.headers
    ((method, path, headers),) = relay.web.seen
    assert (method, path, headers["Authorization"]) == ("GET", "/v1/batches?limit=3", AUTH["Authorization"])
    assert "X-Request-Id" not in headers
    async with relay.http.post(relay.url + "/v1/batches", json={"a": 1}) as response:
        assert response.status == 200
    assert relay.web.bytes == len(b'{"a": 1}')
    assert relay.web.seen[-1][2]["Content-Type"] == "application/json"
    async with relay.http.delete(relay.url + "/v1/files/file-1") as response:
        assert response.status == 200
    async with relay.http.head(relay.url + "/v1/files/file-1") as response:
        assert response.status == 200


async def test_upload_larger_than_a_body_may_be_passes_as_it_comes(relay: Relay) -> None:
    relay.web.pace_s = 0.002
    async with relay.http.post(relay.url + "/v1/files", data=body(6 << 20)) as response:
        assert response.status == 200
    assert relay.web.bytes == 6 << 20
    async with relay.http.get(relay.url + "/v1/files") as response:
        assert response.status == 200, "on the same connection"
    assert len(relay.server.gateway.connections) == 1


async def test_no_more_of_an_upload_is_held_than_the_bound_when_the_web_process_is_slow(relay: Relay) -> None:
    relay.web.pace_s = 0.05
    held = 0

    async def watch() -> None:
        nonlocal held
        while True:
            for exchange in relay.server.gateway.web._running.values():  # type: ignore[union-attr]
                held = max(held, exchange._buffered_bytes)
            await asyncio.sleep(0.002)

    watching = asyncio.create_task(watch())
    async with relay.http.post(relay.url + "/v1/files", data=body(7 << 20)) as response:
        assert response.status == 200
    watching.cancel()
    assert 0 < held < 3 << 20


async def test_too_large_upload_is_refused_before_it_comes(relay: Relay) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", relay.server.port)
    head = f"POST /v1/files HTTP/1.1\r\nAuthorization: Bearer {SECRET}\r\nContent-Length: {9 << 20}\r\n\r\n"
    writer.write(head.encode())
    assert b"413" in await asyncio.wait_for(reader.readline(), 5)
    writer.close()
    async with relay.http.post(relay.url + "/v1/batches", data=body(1 << 17)) as response:
        assert response.status == 413, "only files may be that large"
    assert not relay.web.seen


async def test_strangers_and_other_methods_reach_nothing_or_the_web_processs_own_answer(relay: Relay) -> None:
    async with relay.http.post(
        relay.url + "/v1/files", data=body(4 << 20), headers={"Authorization": "Bearer gs-nobody"}
    ) as response:
        assert response.status == 401
    assert not relay.web.seen
    relay.web.refuses = True
    async with relay.http.post(
        relay.url + "/v1/files", data=body(1 << 18), headers={"Authorization": f"Bearer {OTHER_SECRET}"}
    ) as response:
        assert response.status == 401
        assert (await response.json())["error"]["message"] == "no"
    async with relay.http.get(relay.url + "/v1/files") as response:
        assert response.status == 401


async def test_long_download_waits_for_a_client_that_reads_slowly(relay: Relay) -> None:
    relay.web.pieces = [b"y" * (1 << 20)] * 40
    async with relay.http.get(relay.url + "/v1/files/file-1/content") as response:
        await asyncio.sleep(0.3)
        (connection,) = relay.server.gateway.connections
        assert connection.paused
        assert connection._transport.get_write_buffer_size() < 4 << 20
        assert len(await response.read()) == 40 << 20


async def test_client_that_reads_nothing_is_cut_off(start: Start) -> None:
    relay = await start(WebTimeouts(client_s=0.3))
    relay.web.pieces = [b"y" * (1 << 20)] * 40
    reader, writer = await asyncio.open_connection("127.0.0.1", relay.server.port, limit=1024)
    writer.write(f"GET /v1/files/f/content HTTP/1.1\r\nAuthorization: Bearer {SECRET}\r\n\r\n".encode())
    await until(lambda: bool(relay.web.seen))
    await until(lambda: not relay.server.gateway.web._running)  # type: ignore[union-attr]
    writer.transport.abort()
    del reader


async def test_client_that_stops_sending_is_answered(start: Start) -> None:
    relay = await start(WebTimeouts(client_s=0.3))
    reader, writer = await asyncio.open_connection("127.0.0.1", relay.server.port)
    writer.write(
        f"POST /v1/files HTTP/1.1\r\nAuthorization: Bearer {SECRET}\r\nContent-Length: 1000\r\n\r\nabc".encode()
    )
    assert b"408" in await asyncio.wait_for(reader.readline(), 5)
    await until(lambda: relay.web.cut == 1)
    writer.close()


async def test_web_process_hears_when_the_client_leaves(relay: Relay) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", relay.server.port)
    writer.write(
        f"POST /v1/files HTTP/1.1\r\nAuthorization: Bearer {SECRET}\r\nContent-Length: 1000\r\n\r\nabc".encode()
    )
    await until(lambda: bool(relay.web.seen))
    writer.transport.abort()
    await until(lambda: relay.web.cut == 1)
    assert not relay.server.gateway.web._running  # type: ignore[union-attr]


async def test_error_is_in_openais_shape_when_the_web_process_is_away_or_hangs(start: Start) -> None:
    relay = await start(WebTimeouts(read_s=0.3))
    relay.web.hangs = True
    async with relay.http.get(relay.url + "/v1/files") as response:
        assert response.status == 504
        assert (await response.json())["error"]["code"] == "upstream_timeout"
    await relay.web.stop()
    async with relay.http.get(relay.url + "/v1/files") as response:
        assert response.status == 503
        assert response.headers["Retry-After"]
        assert (await response.json())["error"]["code"] == "web_unavailable"


async def test_paths_are_unknown_when_there_is_no_web_process(relay: Relay) -> None:
    relay.server.gateway.web = None
    async with relay.http.get(relay.url + "/v1/files") as response:
        assert response.status == 404


async def test_upload_ends_with_an_answer_when_the_gateway_stops(relay: Relay) -> None:
    with socket.create_connection(("127.0.0.1", relay.server.port)) as client:
        client.setblocking(False)
        loop = asyncio.get_running_loop()
        head = f"POST /v1/files HTTP/1.1\r\nAuthorization: Bearer {SECRET}\r\nContent-Length: 1000\r\n\r\nabc"
        await loop.sock_sendall(client, head.encode())
        await until(lambda: bool(relay.web.seen))
        await relay.server.stop()
        assert b"503" in await asyncio.wait_for(loop.sock_recv(client, 4096), 5)

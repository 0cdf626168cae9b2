"""Before a key is known: nothing of a body is kept, and nobody with a key notices."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import msgspec
import pytest

from pools.gateway.http.access import MetricsAccess
from pools.gateway.http.client_protocol import ClientConnection
from pools.gateway.http.connections import ConnectionLimits
from pools.gateway.http.fair_arrivals import FairArrivals
from pools.gateway.http.request import HttpLimits
from tests.fakes.fleet import SECRET
from tests.unit.pools.gateway.conftest import LIMITS, Bench, Start, completion, raw_post, until

KEY = f"Authorization: Bearer {SECRET}\r\n".encode()
WRONG = b"Authorization: Bearer nobody's\r\n"


async def connect(bench: Bench, data: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", bench.server.port)
    writer.write(data)
    return reader, writer


async def exchange(bench: Bench, data: bytes) -> bytes:
    """Sends bytes, and reads until the gateway closes."""
    reader, writer = await connect(bench, data)
    answer = await asyncio.wait_for(reader.read(), 3)
    writer.close()
    return answer


def limited(bench: Bench, **limits: int) -> None:
    bench.server.gateway.connections.limits = ConnectionLimits(**limits)


@pytest.mark.parametrize("framing", [b"Content-Length: 8000000\r\n", b"Transfer-Encoding: chunked\r\n"])
@pytest.mark.parametrize("key", [b"", WRONG])
@pytest.mark.parametrize("path", [b"/v1/chat/completions", b"/v1/models", b"/v1/workers", b"/nothing"])
async def test_refusal_comes_with_the_head_and_no_body_is_asked_for(
    bench: Bench, path: bytes, key: bytes, framing: bytes
) -> None:
    head = b"POST %b HTTP/1.1\r\nX-Request-Id: mine\r\n%b%bExpect: 100-continue\r\n\r\n" % (path, key, framing)
    answer = await exchange(bench, head)
    assert answer.startswith(b"HTTP/1.1 404 " if path in (b"/nothing", b"/v1/workers") else b"HTTP/1.1 401 "), answer
    assert b"x-request-id: mine\r\n" in answer
    assert b"connection: close\r\n" in answer
    assert bench.server.gateway.connections.body_bytes == 0


async def test_nothing_of_a_body_without_a_key_is_kept(bench: Bench) -> None:
    _, writer = await connect(
        bench, b"POST /v1/completions HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n" + b"x" * 500_000
    )
    connections = bench.server.gateway.connections
    await until(lambda: len(connections) == 1 and all(c._deaf for c in connections))  # type: ignore[attr-defined]
    (connection,) = connections
    assert connection._body == []  # type: ignore[attr-defined]
    assert (connections.body_bytes, connections.unkeyed) == (0, 1)
    writer.close()


@pytest.mark.parametrize("path", [b"/live", b"/ready", b"/health", b"/metrics"])
@pytest.mark.parametrize("framing", [b"Content-Length: 5\r\n\r\nhello", b"Transfer-Encoding: chunked\r\n\r\n"])
async def test_paths_without_a_key_take_no_body(bench: Bench, path: bytes, framing: bytes) -> None:
    assert (await exchange(bench, b"GET %b HTTP/1.1\r\n%b" % (path, framing))).startswith(b"HTTP/1.1 413 ")


async def test_request_is_served_while_a_crowd_without_keys_takes_every_place(bench: Bench) -> None:
    limited(bench, most=8, unkeyed=4)
    reader, writer = await connect(bench, raw_post(completion()))
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
    crowd = [await connect(bench, b"POST /v1/completions HTTP/1.1\r\nX: ") for _ in range(20)]
    async with bench.post(completion()) as response:
        assert response.status == 200, "a new one with a key has a place"
    await reader.read(1 << 16)
    writer.write(raw_post(completion()))
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 "), "and the old one has kept its own"
    connections = bench.server.gateway.connections
    assert connections.unkeyed <= 4
    assert connections.dropped >= 16
    for _, other in [*crowd, (reader, writer)]:
        other.close()


async def test_heads_without_an_end_are_bounded_together(bench: Bench) -> None:
    limited(bench, head_bytes=20_000)
    crowd = [await connect(bench, b"GET /live HTTP/1.1\r\nX: " + b"x" * 5_000) for _ in range(10)]
    connections = bench.server.gateway.connections
    await until(lambda: connections.dropped >= 6)
    assert connections.head_bytes <= 20_000
    async with bench.post(completion()) as response:
        assert response.status == 200
    for _, writer in crowd:
        writer.close()


async def test_body_is_refused_before_it_is_read_when_too_many_are_held(bench: Bench) -> None:
    limited(bench, body_bytes=2_000)
    answer = await exchange(bench, b"POST /v1/completions HTTP/1.1\r\n%bContent-Length: 1001\r\n\r\n" % KEY)
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"retry-after: 1\r\n" in answer
    assert json.loads(answer.split(b"\r\n\r\n", 1)[1])["error"]["code"] == "too_many_bytes"
    piece = b"1f4\r\n" + b"x" * 500 + b"\r\n"
    chunks = b"POST /v1/completions HTTP/1.1\r\n%bTransfer-Encoding: chunked\r\n\r\n" % KEY + piece * 3
    assert (await exchange(bench, chunks)).startswith(b"HTTP/1.1 503 ")
    await until(lambda: bench.server.gateway.connections.body_bytes == 0)


async def test_body_is_held_until_its_request_is_over_however_it_ends(bench: Bench) -> None:
    connections = bench.server.gateway.connections
    bench.engine.pace_s = 0.05
    running = asyncio.create_task(bench.events(completion()))
    await until(lambda: connections.body_bytes > 0)
    await running
    assert connections.body_bytes == 0
    for _ in range(3):  # the second and third are recognised by their heads
        async with bench.post(completion()) as response:
            await response.read()
    assert connections.body_bytes == 0
    _, writer = await connect(bench, raw_post(completion(stream=True))[:-5])
    await until(lambda: connections.body_bytes > 0)
    writer.transport.abort()
    await until(lambda: connections.body_bytes == 0)


async def test_key_is_refused_when_it_has_as_many_connections_as_it_may_have(bench: Bench) -> None:
    limited(bench, of_key=1)
    reader, writer = await connect(bench, b"GET /v1/models HTTP/1.1\r\n%b\r\n" % KEY)
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
    answer = await exchange(bench, b"GET /v1/models HTTP/1.1\r\n%b\r\n" % KEY)
    assert answer.startswith(b"HTTP/1.1 429 ")
    assert b"too_many_connections" in answer
    writer.close()


async def test_slow_head_is_given_less_time_than_a_body(start: Start) -> None:
    bench = await start(limits=HttpLimits(head_timeout_s=0.1, read_timeout_s=60.0, linger_s=0.05))
    assert (await exchange(bench, b"POST /v1/completions HTTP/1.1\r\n")).startswith(b"HTTP/1.1 408 ")
    assert await exchange(bench, b"") == b""
    _, writer = await connect(bench, b"POST /v1/completions HTTP/1.1\r\n%bContent-Length: 9\r\n\r\n" % KEY)
    (connection,) = bench.server.gateway.connections
    await until(lambda: connection._phase == "body")  # type: ignore[attr-defined]
    assert connection._deadline_s - asyncio.get_running_loop().time() > 50  # type: ignore[attr-defined]
    writer.close()


async def test_headers_are_bounded_in_number(bench: Bench) -> None:
    answer = await exchange(bench, b"GET /live HTTP/1.1\r\n" + b"a:\r\n" * (LIMITS.max_head_bytes // 32) + b"\r\n")
    assert answer.startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize(
    "framing",
    [
        *(b"Content-Length: 4\r\nTransfer-Encoding: chunked", b"Content-Length: 4\r\nContent-Length: 5"),
        *(b"Transfer-Encoding: chunked, identity", b"Content-Length: +4", b"Content-Length: 4, 4"),
        *(b"Transfer-Encoding: xchunked", b"Content-Length : 4", b"Transfer-Encoding\x0b: chunked"),
    ],
)
async def test_request_of_two_lengths_is_never_two_requests(bench: Bench, framing: bytes) -> None:
    smuggled = b"0\r\n\r\nGET /v1/models HTTP/1.1\r\n%b\r\n" % KEY
    answer = await exchange(bench, b"POST /v1/completions HTTP/1.1\r\n%b%b\r\n\r\n" % (KEY, framing) + smuggled)
    assert answer.count(b"HTTP/1.1 ") == 1
    assert answer.startswith(b"HTTP/1.1 400 ")


async def test_nothing_behind_a_refused_request_is_looked_at(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at = []
    on_url = ClientConnection.on_url

    def count(connection: ClientConnection, url: bytes) -> None:
        looked_at.append(url)
        on_url(connection, url)

    monkeypatch.setattr(ClientConnection, "on_url", count)
    answer = await exchange(bench, b"GET /live HTTP/1.1\r\n\r\n" + b"GET /nothing HTTP/1.1\r\n\r\n" * 100)
    assert looked_at == [b"/live", b"/nothing"]
    assert answer.count(b"HTTP/1.1 ") == 2


async def test_head_in_too_many_pieces_is_refused(start: Start) -> None:
    bench = await start(limits=HttpLimits(max_head_reads=5, linger_s=0.05))
    reader, writer = await connect(bench, b"GET /live HTTP/1.1\r\nX: ")
    (connection,) = await there(bench)
    for pieces in range(1, 6):
        await until(lambda: connection._head_reads == pieces)  # noqa: B023
        writer.write(b"x")
    answer = await asyncio.wait_for(reader.read(), 3)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"small pieces" in answer
    writer.close()


async def test_client_without_a_key_gets_its_answer_though_most_of_its_body_is_never_read(start: Start) -> None:
    bench = await start(limits=HttpLimits(linger_s=0.3, linger_bytes=20_000))
    body = b"x" * (4 << 20)
    head = b"POST /v1/completions HTTP/1.1\r\n%bContent-Length: %d\r\n\r\n" % (WRONG, len(body))
    reader, writer = await connect(bench, head + body)
    (connection,) = await there(bench)
    answer = await asyncio.wait_for(reader.read(), 3)
    assert answer.startswith(b"HTTP/1.1 401 ")
    assert connection._thrown_away < len(body) / 4  # type: ignore[attr-defined]
    writer.transport.abort()


async def test_body_of_a_client_with_a_key_is_read_to_its_end_when_it_is_refused(start: Start) -> None:
    bench = await start(limits=HttpLimits(max_body_bytes=1000, linger_s=5.0, linger_bytes=1000))
    body = b"x" * (1 << 20)
    head = b"POST /v1/completions HTTP/1.1\r\n%bContent-Length: %d\r\n\r\n" % (KEY, len(body))
    reader, writer = await connect(bench, head + body)
    (connection,) = await there(bench)
    await until(lambda: connection._thrown_away > len(body) / 2 and not writer.transport.get_write_buffer_size())
    assert (await asyncio.wait_for(reader.read(), 3)).startswith(b"HTTP/1.1 413 ")
    writer.close()


async def there(bench: Bench) -> list[Any]:
    connections = bench.server.gateway.connections
    await until(lambda: len(connections) > 0)
    return list(connections)


async def test_requests_that_need_no_key_are_bounded_too(bench: Bench) -> None:
    connections = bench.server.gateway.connections
    connections.limits = ConnectionLimits(proxies=())
    connections._arrivals = FairArrivals(40, 0.1)
    reader, writer = await connect(bench)
    for _ in range(9):  # and one for the connection
        writer.write(b"GET /live HTTP/1.1\r\nContent-Length: 0\r\n\r\n")
        assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 200 ")
    writer.write(b"GET /live HTTP/1.1\r\nContent-Length: 0\r\n\r\n")
    answer = await asyncio.wait_for(reader.read(), 3)
    assert answer.startswith(b"HTTP/1.1 429 ")
    assert b"retry-after: 1\r\n" in answer
    assert b"too_many_without_key" in answer
    writer.close()


# -- the key of a request ------------------------------------------------------------------------------


async def test_key_is_looked_up_once_for_all_requests_of_a_connection(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_up = []
    fleet = bench.server.fleet
    key = type(fleet).key
    monkeypatch.setattr(fleet, "key", lambda secret: looked_up.append(secret) or key(fleet, secret), raising=False)
    reader, writer = await connect(bench)
    for _ in range(3):
        writer.write(raw_post(completion()))
        assert (await reader.readuntil(b"}}")).startswith(b"HTTP/1.1 200 ")
    assert looked_up == [SECRET.encode()]
    writer.close()


async def test_key_that_is_revoked_is_none_for_the_next_request_of_a_connection(bench: Bench) -> None:
    reader, writer = await connect(bench, raw_post(completion()))
    assert (await reader.readuntil(b"}}")).startswith(b"HTTP/1.1 200 ")
    fleet = msgspec.structs.replace(bench.fleet.fleet(), keys=[])
    bench.server.fleet.apply(fleet, bench.fleet.states(), time.monotonic())
    writer.write(raw_post(completion()))
    assert (await asyncio.wait_for(reader.read(), 3)).startswith(b"HTTP/1.1 401 ")
    writer.close()


async def test_key_behind_a_body_in_chunks_is_none(bench: Bench) -> None:
    body = json.dumps(completion()).encode()
    chunks = b"%x\r\n%b\r\n0\r\nAuthorization: Bearer another\r\nX-Request-Id: late\r\n\r\n" % (len(body), body)
    reader, writer = await connect(
        bench, b"POST /v1/completions HTTP/1.1\r\n%bTransfer-Encoding: chunked\r\n\r\n" % KEY + chunks
    )
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert b"late" not in head
    writer.close()


# -- metrics ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("token", "headers", "status"),
    [
        (None, {}, 200),
        (None, {"X-Forwarded-For": "192.0.2.1"}, 403),
        (None, {"Forwarded": "for=192.0.2.1"}, 403),
        ("an-operators-token", {}, 401),
        ("an-operators-token", {"Authorization": f"Bearer {SECRET}"}, 401),
        ("an-operators-token", {"Authorization": "Bearer an-operators-token"}, 200),
    ],
)
async def test_metrics_are_for_this_machine_or_for_the_token(
    bench: Bench, token: str | None, headers: dict[str, str], status: int
) -> None:
    bench.server.gateway.metrics_access = MetricsAccess(token)
    async with bench.http.get(bench.url + "/metrics", headers=headers) as response:
        assert response.status == status
        text = await response.text()
    assert ("greenserve_gateway_unkeyed_connections" in text) == (status == 200)


@pytest.mark.parametrize(("host", "here"), [("127.0.0.9", True), ("::1", True), ("192.0.2.1", False), ("", False)])
def test_only_this_machine_is_here(host: str, here: bool) -> None:
    from pools.gateway.http.access import _is_here

    assert _is_here(host) is here
    assert _is_here(f"::ffff:{host}") is (here and ":" not in host)


async def test_ready_tells_strangers_nothing_of_the_fleet(bench: Bench) -> None:
    found: dict[str, Any] = {}
    for path in ("/live", "/ready", "/health"):
        async with bench.http.get(bench.url + path) as response:
            found[path] = await response.json()
    ages_s = [found[path].pop("snapshot_age_s") for path in ("/ready", "/health")]
    assert all(0.0 <= age_s < 60.0 for age_s in ages_s)
    assert found == {"/live": {"status": "live"}, "/ready": {"status": "ready"}, "/health": {"status": "ready"}}

"""Engines that refuse, die, hang or say no; clients that leave or do not read; a gateway that has to stop."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import struct

import aiohttp
import pytest

from pools import wire
from pools.gateway import runtime
from pools.gateway.http.request import HttpLimits
from pools.gateway.http.upstream import Address
from pools.gateway.relay.exchange import Timeouts
from tests.fakes.engine import FakeEngine
from tests.fakes.fleet import SECRET
from tests.unit.pools.gateway.conftest import Bench, Start, completion, raw_post, until

BOTH = pytest.mark.parametrize("stream", [False, True])


def uid(n: int) -> str:
    return f"00000000-0000-4000-8000-{n:012d}"


def first_choice(bench: Bench) -> FakeEngine:
    """Equal instances are chosen by their uid: the first gets the first request."""
    return bench.engines[0]


@BOTH
async def test_another_instance_serves_when_one_refuses_the_connection(start: Start, stream: bool) -> None:
    bench = await start(engines=2)
    await first_choice(bench).stop()
    for _ in range(2):
        async with bench.post(completion(stream=stream)) as response:
            assert response.status == 200
            await response.read()
    first, second = bench.rows()
    assert (first.status, first.attempts, first.instance_uid) == ("ok", 2, uid(1))
    assert (second.status, second.attempts) == ("ok", 1), "the one that refused is passed over for a moment"


@BOTH
async def test_another_instance_serves_when_one_dies_before_the_first_byte(start: Start, stream: bool) -> None:
    bench = await start(engines=2)
    first_choice(bench).die = "before"
    async with bench.post(completion(stream=stream)) as response:
        assert response.status == 200
        await response.read()
    row = await bench.row()
    assert (row.status, row.attempts, row.instance_uid) == ("ok", 2, uid(1))


async def test_another_instance_serves_when_a_stream_dies_before_its_first_token(start: Start) -> None:
    bench = await start(engines=2)
    first_choice(bench).die, first_choice(bench).die_after = "midway", 0
    assert (await bench.events(completion()))[-1] == "[DONE]"
    assert (await bench.row()).attempts == 2


@BOTH
@pytest.mark.parametrize("status", [429, 503])
async def test_another_instance_serves_when_one_is_busy(start: Start, stream: bool, status: int) -> None:
    bench = await start(engines=2)
    first_choice(bench).status = status
    async with bench.post(completion(stream=stream)) as response:
        assert response.status == 200
        await response.read()
    assert (await bench.row()).attempts == 2


@pytest.mark.parametrize("status", [429, 503])
async def test_last_refusal_is_passed_on_when_all_are_busy(start: Start, status: int) -> None:
    bench = await start(engines=4)
    for engine in bench.engines:
        engine.status = status
    async with bench.post(completion(stream=True)) as response:
        assert response.status == status
        assert response.headers["Retry-After"] == "1"
        assert (await response.json())["error"]["message"] == "engine says no"
    row = await bench.row()
    assert (row.status, row.http_status, row.attempts) == ("rejected", status, 3)
    assert sum(len(engine.received) for engine in bench.engines) == 3


async def test_request_fails_with_502_when_every_attempt_is_lost(start: Start) -> None:
    bench = await start(engines=2)
    for engine in bench.engines:
        engine.die = "before"
    async with bench.post(completion()) as response:
        assert response.status == 502
        assert (await response.json())["error"]["code"] == "upstream_error"
    row = await bench.row()
    assert (row.status, row.http_status, row.attempts) == ("upstream_error", 502, 2)


@pytest.mark.parametrize(
    ("status", "code", "recorded"),
    [
        (400, "invalid_request", "client_error"),
        (404, "not_found", "upstream_error"),
        (500, "upstream_error", "upstream_error"),
    ],
)
async def test_refusal_of_an_engine_is_passed_on_with_a_code_that_is_a_text(
    start: Start, status: int, code: str, recorded: str
) -> None:
    bench = await start(engines=2)
    first_choice(bench).status = status
    async with bench.post(completion()) as response:
        assert response.status == status
        error = (await response.json())["error"]
        kind = "invalid_request_error" if status < 500 else "server_error"
        assert error == {"message": "engine says no", "type": kind, "param": None, "code": code}
    row = await bench.row()
    assert (row.status, row.http_status, row.attempts) == (recorded, status, 1)
    assert "engine says no" in row.error


async def test_stream_ends_with_an_error_event_and_a_cut_when_the_engine_dies_midway(start: Start) -> None:
    bench = await start(engines=2)
    first_choice(bench).die, first_choice(bench).pace_s = "midway", 0.02
    reader, writer = await asyncio.open_connection("127.0.0.1", bench.server.port)
    writer.write(raw_post(completion(stream=True)))
    answer = await asyncio.wait_for(reader.read(), 5)
    writer.close()
    assert not answer.endswith(b"0\r\n\r\n"), "cut, not ended"
    seen = b"".join(re.findall(rb"\n(data: .+\n\n)", answer))
    events = [event for event in seen.split(b"\n\n") if event]
    assert len(events) == 3
    assert json.loads(events[-1].removeprefix(b"data: "))["error"]["code"] == "upstream_error"
    assert b"[DONE]" not in seen
    row = await bench.row()
    assert (row.status, row.http_status, row.attempts) == ("upstream_error", 200, 1)
    assert (row.output_tokens, row.tokens_source, row.prompt_tokens) == (2, "chunks", 300)
    assert not bench.engines[1].received, "after the first byte nothing is tried elsewhere"


async def test_request_times_out_when_the_engine_sends_nothing(start: Start) -> None:
    bench = await start(engines=2, timeouts=Timeouts(first_byte_s=0.2, whole_response_s=0.2))
    first_choice(bench).head_delay_s = 30
    for stream in (False, True):
        async with bench.post(completion(stream=stream)) as response:
            assert response.status == 504
            assert (await response.json())["error"]["code"] == "upstream_timeout"
    assert [(row.status, row.http_status, row.attempts) for row in bench.rows()] == [("timeout", 504, 1)] * 2
    await until(lambda: first_choice(bench).aborted == 2)


async def test_stream_is_cut_when_the_engine_goes_silent_midway(start: Start) -> None:
    bench = await start(timeouts=Timeouts(idle_s=0.2))
    bench.engine.silent_after = 2
    with pytest.raises(aiohttp.ClientPayloadError):
        async with bench.post(completion(stream=True)) as response:
            await response.read()
    row = await bench.row()
    assert (row.status, row.http_status, row.output_tokens) == ("timeout", 200, 2)
    await until(lambda: bench.engine.aborted == 1)


@BOTH
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_engine_hears_at_once_when_the_client_leaves(bench: Bench, stream: bool, path: str) -> None:
    bench.engine.tokens, bench.engine.pace_s = 1000, 0.02
    body = completion(stream=stream)
    if "chat" in path:
        body["messages"] = [{"role": "user", "content": "Hi"}]
        del body["prompt"]
    reader, writer = await asyncio.open_connection("127.0.0.1", bench.server.port)
    writer.write(raw_post(body, path))
    if stream:
        await reader.readuntil(b"tok2")
    else:
        await until(lambda: len(bench.engine.received) == 1)
    writer.close()
    await until(lambda: bench.engine.aborted == 1)
    row = await bench.row()
    assert (row.status, row.http_status) == ("client_gone", 200 if stream else 499)
    assert row.output_tokens == (None if not stream else pytest.approx(3, abs=2))
    assert bench.server.gateway.pool.take(Address("127.0.0.1", bench.engine.port)) is None
    assert all(i.in_flight == 0 for i in bench.server.fleet.instances())


async def test_slow_client_slows_its_engine_down_when_it_does_not_read(start: Start) -> None:
    bench = await start(timeouts=Timeouts(idle_s=0.3))
    bench.engine.tokens, bench.engine.filler = 100_000, 10_000
    reader, writer = await asyncio.open_connection("127.0.0.1", bench.server.port, limit=1024)
    writer.write(raw_post(completion(stream=True)))
    await reader.read(10)
    await until(lambda: bool(bench.rows()), timeout_s=8)
    assert (await bench.row()).status == "client_gone"
    assert bench.engine.sent_bytes < 20_000_000, "kernel buffers and little else"
    await until(lambda: bench.engine.aborted == 1)
    writer.close()


async def test_slow_client_gets_everything_when_it_reads_on(bench: Bench) -> None:
    bench.engine.tokens, bench.engine.filler = 300, 20_000
    async with bench.post(completion(stream=True)) as response:
        await response.content.readany()
        await asyncio.sleep(0.3)
        text = await response.text()
    assert text.endswith("data: [DONE]\n\n")
    assert (await bench.row()).output_tokens == 300


async def test_engine_is_asked_again_when_it_closed_an_idle_connection(bench: Bench) -> None:
    bench.engine.close_when_idle = True
    for _ in range(5):
        async with bench.post(completion()) as response:
            assert response.status == 200
            await response.read()
    assert {(row.status, row.attempts) for row in bench.rows()} == {("ok", 1)}


async def test_requests_are_answered_in_order_when_pipelined(bench: Bench) -> None:
    bench.engine.pace_s = 0.01
    reader, writer = await asyncio.open_connection("127.0.0.1", bench.server.port)
    for n in range(4):
        writer.write(raw_post(completion(stream=n % 2 == 0, vllm_xargs={"sim_output_tokens": n + 1})))
    writer.write(b"GET /live HTTP/1.1\r\nConnection: close\r\n\r\n")
    answer = await asyncio.wait_for(reader.read(), 5)
    writer.close()
    assert answer.count(b"HTTP/1.1 200 ") == 5
    assert answer.endswith(b'{"status":"live"}')
    assert [row.output_tokens for row in bench.rows()] == [1, 2, 3, 4]


async def test_body_is_read_when_announced_with_expect_or_sent_in_chunks(bench: Bench) -> None:
    raw = json.dumps(completion()).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", bench.server.port)
    auth = f"POST /v1/completions HTTP/1.1\r\nAuthorization: Bearer {SECRET}\r\n".encode()
    writer.write(auth + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(raw))
    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(raw)
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
    await reader.readuntil(b"}}")
    writer.write(auth + b"Transfer-Encoding: chunked\r\n\r\n")
    for byte in (raw[:7], raw[7:]):
        writer.write(b"%x\r\n%b\r\n" % (len(byte), byte))
    writer.write(b"0\r\n\r\n")
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
    writer.close()


async def test_stream_ends_with_the_connection_when_the_client_speaks_http_1_0(bench: Bench) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", bench.server.port)
    writer.write(raw_post(completion(stream=True), version="1.0"))
    answer = await asyncio.wait_for(reader.read(), 5)
    writer.close()
    assert b"transfer-encoding" not in answer
    assert answer.endswith(b"\n\ndata: [DONE]\n\n")


async def test_client_is_let_go_when_it_sends_too_slowly_or_idles(start: Start) -> None:
    bench = await start(limits=HttpLimits(head_timeout_s=0.2, idle_timeout_s=0.2, linger_s=0.1))
    reader, writer = await asyncio.open_connection("127.0.0.1", bench.server.port)
    writer.write(b"POST /v1/completions HTTP/1.1\r\nContent-Le")
    assert (await asyncio.wait_for(reader.read(), 3)).startswith(b"HTTP/1.1 408 ")
    writer.close()
    reader, writer = await asyncio.open_connection("127.0.0.1", bench.server.port)
    writer.write(b"GET /live HTTP/1.1\r\n\r\n")
    assert (await asyncio.wait_for(reader.read(), 3)).endswith(b'{"status":"live"}')
    writer.close()


async def test_running_requests_end_well_when_the_gateway_stops(start: Start) -> None:
    bench = await start(grace_s=5)
    bench.engine.pace_s = 0.1
    running = asyncio.create_task(bench.events(completion()))
    await until(lambda: len(bench.engine.received) == 1)
    await bench.server.stop()
    assert (await running)[-1] == "[DONE]"
    assert (await bench.row()).status == "ok"
    with pytest.raises(aiohttp.ClientConnectorError):
        await bench.http.get(bench.url + "/live")


async def test_requests_are_cut_and_recorded_when_they_outlast_the_grace_time(start: Start) -> None:
    bench = await start(grace_s=0.1)
    bench.engine.pace_s = 2
    running = asyncio.create_task(bench.events(completion()))
    await until(lambda: len(bench.engine.received) == 1)
    await bench.server.stop()
    with pytest.raises(aiohttp.ClientPayloadError):
        await running
    row = await bench.row()
    assert (row.status, row.error) == ("upstream_error", "The gateway is shutting down.")


async def test_record_is_on_disk_when_the_client_sees_the_end(bench: Bench) -> None:
    for stream in (False, True):
        before = len(bench.rows())
        async with bench.post(completion(stream=stream)) as response:
            await response.content.readexactly(10) if not stream else await response.content.readuntil(b"[DONE]")
            assert len(bench.rows()) == before + 1
            await response.read()


async def test_every_request_is_served_and_its_row_held_when_the_disk_is_full(bench: Bench) -> None:
    journal = bench.server.journal
    full = os.open("/dev/full", os.O_WRONLY)
    assert journal._fd is not None
    os.dup2(full, journal._fd)
    os.close(full)
    for _ in range(20):
        async with bench.post(completion()) as response:
            assert response.status == 200
            await response.read()
    assert journal.disk_state() == wire.DiskState("No space left on device", held=20)
    async with bench.http.get(bench.url + "/metrics") as response:
        page = await response.text()
    assert "greenserve_gateway_journal_failing 1.0" in page
    assert "greenserve_gateway_journal_held_rows 20" in page
    assert "greenserve_gateway_journal_lost_rows_total 0" in page


async def test_nothing_breaks_inside_when_many_clients_reset_midway(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.engine.tokens, bench.engine.pace_s = 2000, 0.001

    async def reset_midway() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", bench.server.port)
        writer.write(raw_post(completion(stream=True)))
        await reader.readuntil(b"tok20 ")
        linger = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.transport.abort()

    await asyncio.gather(*(reset_midway() for _ in range(30)))
    await until(lambda: len(bench.rows()) == 30)
    assert {row.status for row in bench.rows()} == {"client_gone"}
    await until(lambda: bench.engine.aborted == 30)
    assert not caplog.records


async def test_gateway_stops_when_a_task_takes_its_cancellation_for_a_fault(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "CANCEL_S", 0.01)
    bench = await start()
    cancelled = 0

    async def goes_on() -> None:
        """As one whose connection breaks in the `finally` of what is cancelled."""
        nonlocal cancelled
        while cancelled < 3:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                cancelled += 1
        await asyncio.sleep(60)

    bench.server.runtime.begin(goes_on(), "goes on")
    await asyncio.sleep(0)
    async with asyncio.timeout(5):
        await bench.server.stop()
    assert cancelled == 3

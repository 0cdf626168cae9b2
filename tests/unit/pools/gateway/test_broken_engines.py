"""Engines that answer with garbage, drop by drop, or not at all when connected to; and clients that read as slowly."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress

import aiohttp
import pytest

from pools.gateway.http import upstream
from pools.gateway.http.connections import Connections
from pools.gateway.relay.exchange import Timeouts
from tests.unit.pools.gateway.conftest import Bench, Start, completion, raw_post, until

BOTH = pytest.mark.parametrize("stream", [False, True])
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
TOKEN = b'data: {"id":"cmpl-1","choices":[{"index":0,"text":"tok"}]}\n\n'


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class RawEngine:
    """Says `answer` to whatever comes, `pace_s` between pieces of `step` bytes, and then hangs up if it `ends`."""

    def __init__(self) -> None:
        self.answer: bytes | Callable[[bytes], bytes] = b""
        self.ends = True
        self.step = 1 << 30
        self.pace_s = 0.0
        self.asked = 0
        self.sent_bytes = 0
        self.lost = 0  # connections that the gateway has closed

    async def start(self) -> RawEngine:
        self._tasks: set[asyncio.Task[None]] = set()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        with suppress(ConnectionError, RuntimeError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                body = await reader.readexactly(length)
                self.asked += 1
                data = self.answer if isinstance(self.answer, bytes) else self.answer(body)
                for at in range(0, len(data), self.step):
                    writer.write(data[at : at + self.step])
                    await writer.drain()
                    self.sent_bytes += self.step
                    if self.pace_s:
                        await asyncio.sleep(self.pace_s)
                if self.ends:
                    break
        self.lost += 1
        writer.close()

    async def stop(self) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


Break = Callable[[Bench], Awaitable[RawEngine]]


@pytest.fixture
async def broken() -> AsyncIterator[Break]:
    """Puts a raw engine in the place of the bench's first one, which is asked first."""
    engines: list[RawEngine] = []

    async def put(bench: Bench) -> RawEngine:
        engine = await RawEngine().start()
        engines.append(engine)
        bench.fleet.urls[0] = engine.url
        bench.publish()
        return engine

    yield put
    for engine in engines:
        await engine.stop()


BEFORE_THE_FIRST_BYTE = {
    "no HTTP": b"nonsense\r\n\r\n",
    "TLS": b"\x15\x03\x03\x00\x02\x02\x50",
    "a request": b"GET / HTTP/1.1\r\n\r\n",
    "no end of the head": HEAD,
    "less than announced": HEAD + b"content-length: 100\r\n\r\nabc",
    "two lengths": HEAD + b"content-length: 3\r\ncontent-length: 4\r\n\r\nabcd",
    "length and chunks": HEAD + b"content-length: 3\r\ntransfer-encoding: chunked\r\n\r\nabc",
    "no size of a chunk": STREAM_HEAD + b"zz\r\nabc\r\n",
    "a chunk longer than its size": STREAM_HEAD + b"3\r\nabcdef\r\n",
    "half an event": STREAM_HEAD + chunk(TOKEN[:20]),
    "NUL in a header": HEAD + b"x: a\0b\r\n\r\n",
    "another protocol": b"HTTP/1.1 101 Switching Protocols\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n",
    "nothing": b"",
}


@BOTH
@pytest.mark.parametrize("what", BEFORE_THE_FIRST_BYTE)
async def test_another_instance_serves_when_one_sends_garbage(
    start: Start, broken: Break, stream: bool, what: str
) -> None:
    bench = await start(engines=2)
    engine = await broken(bench)
    engine.answer = BEFORE_THE_FIRST_BYTE[what]
    async with bench.post(completion(stream=stream)) as response:
        assert response.status == 200
        text = await response.text()
    assert text.endswith("data: [DONE]\n\n") if stream else json.loads(text)["choices"]
    row = await bench.row()
    assert (row.status, row.attempts, engine.asked) == ("ok", 2, 1)


@BOTH
async def test_another_instance_serves_when_a_head_has_no_end(
    start: Start, broken: Break, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upstream, "MAX_HEAD_BYTES", 10_000)
    for name in (b"x-more: " + b"a" * 100 + b"\r\n", b"a"):
        bench = await start(engines=2)
        engine = await broken(bench)
        engine.answer, engine.step = HEAD + (b"x: " if name == b"a" else b"") + name * (30_000_000 // len(name)), 4096
        async with bench.post(completion(stream=stream)) as response:
            assert response.status == 200
            await response.read()
        assert bench.rows()[-1].attempts == 2
        await until(lambda engine=engine: engine.lost == 1)
        assert engine.sent_bytes < 20_000_000, "kernel buffers and little else"


async def test_request_fails_with_502_when_all_send_garbage(start: Start, broken: Break) -> None:
    bench = await start()
    engine = await broken(bench)
    engine.answer = b"nonsense\r\n\r\n"
    async with bench.post(completion()) as response:
        assert response.status == 502
        assert (await response.json())["error"]["code"] == "upstream_error"
    row = await bench.row()
    assert (row.status, row.attempts) == ("upstream_error", 1)


@pytest.mark.parametrize("rest", [b"zz\r\n", b"5\r\nabcdefghij\r\n", b"", chunk(b"data: half an ev")])
async def test_stream_ends_with_an_error_event_when_garbage_follows_its_tokens(
    start: Start, broken: Break, rest: bytes
) -> None:
    bench = await start(engines=2)
    engine = await broken(bench)
    engine.answer, engine.pace_s = STREAM_HEAD + chunk(TOKEN) + chunk(TOKEN) + rest, 0.05
    engine.step = len(STREAM_HEAD + chunk(TOKEN) + chunk(TOKEN))
    reader, writer = await asyncio.open_connection("127.0.0.1", bench.server.port)
    writer.write(raw_post(completion(stream=True)))
    answer = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    assert answer.count(TOKEN.strip()) == 2
    assert b'"code":"upstream_error"' in answer
    assert b"[DONE]" not in answer
    assert not answer.endswith(b"0\r\n\r\n"), "cut, not ended"
    row = await bench.row()
    assert (row.status, row.http_status, row.attempts, row.output_tokens) == ("upstream_error", 200, 1, 2)
    assert not bench.engines[1].received


@pytest.mark.parametrize(
    "body", [b"", b"\xff\xfe\x00", b"[]", b'{"usage":3}', b'{"usage":{"prompt_tokens":"x"}}', b"{"]
)
async def test_whole_answer_is_passed_on_as_it_is_when_it_makes_no_sense(
    start: Start, broken: Break, body: bytes
) -> None:
    """Framing is the gateway's business, sense is not: what is well framed goes through, and its tokens are unknown."""
    bench = await start()
    engine = await broken(bench)
    engine.answer, engine.ends = HEAD + b"content-length: %d\r\n\r\n%b" % (len(body), body), False
    async with bench.post(completion()) as response:
        assert (response.status, await response.read()) == (200, body)
    row = await bench.row()
    assert (row.status, row.output_tokens, row.tokens_source) == ("ok", None, "estimate")


@pytest.mark.parametrize(
    "event",
    [
        b"data: \xff\xfe\n\n",
        b"data: {\n\n",
        b": comment\n\n",
        b"\n\n",
        b"x" * 3000,
    ],
)
async def test_stream_is_passed_on_as_it_is_when_its_events_make_no_sense(
    start: Start, broken: Break, event: bytes
) -> None:
    bench = await start()
    engine = await broken(bench)
    events = chunk(TOKEN) + chunk(event) + chunk(b"data: [DONE]\n\n")
    engine.answer, engine.ends = STREAM_HEAD + events + b"0\r\n\r\n", False
    async with bench.post(completion(stream=True)) as response:
        assert await response.read() == TOKEN + event + b"data: [DONE]\n\n"
    row = await bench.row()
    assert (row.status, row.attempts) == ("ok", 1)


@pytest.mark.parametrize(
    ("usage", "said"),
    [
        (b'{"prompt_tokens":300,"completion_tokens":1000000000000000}', "1000000000000000 output tokens"),
        (b'{"prompt_tokens":300,"completion_tokens":21}', "21 output tokens, where at most 20 are possible"),
        (b'{"prompt_tokens":1000000000000000,"completion_tokens":2}', "1000000000000000 prompt tokens"),
        (b'{"prompt_tokens":300,"completion_tokens":-7}', "-7 output tokens"),
        (b'{"prompt_tokens":300,"completion_tokens":1%b}' % (b"0" * 400), "tokens, where at most 20"),
        (b'{"prompt_tokens":300,"completion_tokens":1e15}', "not credible"),
        (b'{"prompt_tokens":300,"completion_tokens":"2"}', "cannot be read"),
        (b'{"prompt_tokens":[[[300]]],"completion_tokens":{"is":2}}', "cannot be read"),
        (b'{"prompt_tokens":NaN,"completion_tokens":2}', ""),  # no JSON: there is no usage
    ],
)
@BOTH
async def test_usage_that_cannot_be_is_left_aside_and_the_record_says_so(
    start: Start, broken: Break, stream: bool, usage: bytes, said: str
) -> None:
    bench = await start()
    engine = await broken(bench)
    body = b'{"choices":[],"usage":%b}' % usage
    events = chunk(TOKEN) + chunk(TOKEN) + chunk(b"data: %b\n\n" % body) + chunk(b"data: [DONE]\n\n")
    whole = HEAD + b"content-length: %d\r\n\r\n%b" % (len(body), body)
    engine.answer, engine.ends = STREAM_HEAD + events + b"0\r\n\r\n" if stream else whole, False
    async with bench.post(completion(stream=stream, stream_options={"include_usage": True} if stream else None)) as got:
        assert got.status == 200
        await got.read()
    row = await bench.row()
    counted = (2, "chunks") if stream and said else (3, "chunks") if stream else (None, "estimate")
    assert (row.status, row.prompt_tokens, (row.output_tokens, row.tokens_source)) == ("ok", 300, counted)
    assert said in row.error
    page = bench.server.runtime.metrics_page(0, Connections()).decode()
    assert f"greenserve_gateway_usage_not_credible_total {int(bool(said))}\n" in page


async def test_nobody_gets_anothers_answer_when_an_engine_sends_more_than_one(start: Start, broken: Break) -> None:
    """Behind each answer comes half of one that nobody asked for, its rest when the next request is under way."""
    bench = await start()
    engine = await broken(bench)

    def twice(body: bytes) -> bytes:
        own = b'{"answer_to":%d}' % json.loads(body)["prompt"][0]
        wrong = HEAD + b"content-length: 20\r\n\r\n" + b"wrong"
        return HEAD + b"content-length: %d\r\n\r\n%b" % (len(own), own) + wrong

    engine.answer, engine.ends = twice, False
    for n in range(6):
        async with bench.post(completion(prompt=[n, 1])) as response:
            assert (response.status, await response.json()) == (200, {"answer_to": n})
    assert {row.status for row in bench.rows()} == {"ok"}


@BOTH
async def test_everything_arrives_when_the_engine_sends_drop_by_drop(start: Start, broken: Break, stream: bool) -> None:
    """Slow, but never as long silent as `idle_s`: nothing is cut, however long it takes."""
    bench = await start(timeouts=Timeouts(first_byte_s=5.0, whole_response_s=5.0, idle_s=5.0))
    engine = await broken(bench)
    body = b'{"choices":[],"usage":{"prompt_tokens":300,"completion_tokens":1}}'
    events = TOKEN + b"data: [DONE]\n\n"
    whole = HEAD + b"content-length: %d\r\n\r\n%b" % (len(body), body)
    engine.answer = STREAM_HEAD + chunk(events) + b"0\r\n\r\n" if stream else whole
    engine.step, engine.pace_s, engine.ends = 1, 0.001, False
    async with bench.post(completion(stream=stream)) as response:
        assert await response.read() == (events if stream else body)
    assert (await bench.row()).status == "ok"


@BOTH
async def test_another_instance_serves_when_one_cannot_be_connected_to_in_time(
    start: Start, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host that is gone, or whose queue of connections is full, answers nothing at all."""
    monkeypatch.setattr(upstream, "CONNECT_TIMEOUT_S", 0.2)
    bench = await start(engines=2)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        address = full.getsockname()
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(address)
        bench.fleet.urls[0] = f"http://127.0.0.1:{address[1]}"
        bench.publish()
        async with bench.post(completion(stream=stream)) as response:
            assert response.status == 200
            await response.read()
        for filler in fillers:
            filler.close()
    row = await bench.row()
    assert (row.status, row.attempts) == ("ok", 2)


# -- clients -----------------------------------------------------------------------------------------


def slow_reader(port: int) -> socket.socket:
    """A client with as little room as the kernel lets it have."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    client.setblocking(False)
    client.connect_ex(("127.0.0.1", port))
    return client


async def test_engine_is_free_at_once_when_the_client_reads_a_byte_at_a_time(bench: Bench) -> None:
    """The kernel and the gateway hold a short stream: its record is there, and its client has all of it in the end."""
    loop = asyncio.get_running_loop()
    bench.engine.tokens = 40
    client = slow_reader(bench.server.port)
    await asyncio.sleep(0.05)
    await loop.sock_sendall(client, raw_post(completion(stream=True), version="1.0"))
    answer = b""
    for _ in range(5):
        answer += await loop.sock_recv(client, 1)
        await asyncio.sleep(0.02)
    assert (await bench.row()).status == "ok"
    assert bench.engine.finished == 1
    while came := await loop.sock_recv(client, 1):
        answer += came
    client.close()
    assert answer.count(b"data: {") == 40
    assert answer.endswith(b"data: [DONE]\n\n")


async def test_long_stream_is_held_back_then_cut_when_the_client_reads_a_byte_at_a_time(start: Start) -> None:
    """A byte now and then is as good as nothing: what it holds back stays bounded, and others are served meanwhile."""
    bench = await start(timeouts=Timeouts(idle_s=0.25))
    loop = asyncio.get_running_loop()
    bench.engine.tokens, bench.engine.filler = 100_000, 10_000
    client = slow_reader(bench.server.port)
    await asyncio.sleep(0.05)
    await loop.sock_sendall(client, raw_post(completion(stream=True)))
    began_s, held = time.monotonic(), 0
    while not bench.rows():
        with suppress(ConnectionError):
            await asyncio.wait_for(loop.sock_recv(client, 1), 1.0)
        held = max(held, *(c._transport.get_write_buffer_size() for c in bench.server.gateway.connections), 0)
        await asyncio.sleep(0.02)  # stands for a second: it is the gateway's idle_s that counts
        assert time.monotonic() - began_s < 30
    row = await bench.row()
    assert (row.status, row.error) == ("client_gone", "the client read nothing for 0.25 s")
    assert held < 1_000_000
    assert bench.engine.sent_bytes < 20_000_000
    await until(lambda: bench.engine.aborted == 1)
    client.close()
    bench.engine.tokens, bench.engine.filler = 5, 0
    assert (await bench.events(completion()))[-1] == "[DONE]"


async def test_connections_are_not_leaked_when_clients_vanish_without_a_word(bench: Bench) -> None:
    """Before the head's end, within the body, and while the response is awaited."""
    bench.engine.head_delay_s = 30
    request = raw_post(completion())
    writers = []
    for end in (10, len(request) - 5, len(request)):
        _, writer = await asyncio.open_connection("127.0.0.1", bench.server.port)
        writer.write(request[:end])
        writers.append(writer)
    await until(lambda: len(bench.engine.received) == 1)
    for writer in writers:
        writer.transport.abort()
    await until(lambda: not bench.server.gateway.connections)
    assert (await bench.row()).status == "client_gone"
    await until(lambda: bench.engine.aborted == 1)


async def test_retries_are_bounded_when_every_engine_fails(start: Start, broken: Break) -> None:
    """Of 300 requests each would like two retries: the budget has a hundred, and a fifth of all."""
    bench = await start(engines=1)
    engines = [await RawEngine().start() for _ in range(4)]
    bench.fleet.urls = [engine.url for engine in engines]
    bench.publish()
    connector = aiohttp.TCPConnector(limit=20)
    began_s = time.monotonic()
    async with aiohttp.ClientSession(connector=connector) as http:

        async def ask() -> int:
            async with http.post(bench.url + "/v1/completions", json=completion(), headers=bench.auth) as response:
                return response.status

        assert set(await asyncio.gather(*(ask() for _ in range(300)))) == {502}
    took_s = time.monotonic() - began_s
    attempts = sum(engine.asked for engine in engines)
    assert attempts <= 300 + 100 + 0.2 * 300 + 3.0 * took_s + 1
    assert len(bench.rows()) == 300
    for engine in engines:
        await engine.stop()

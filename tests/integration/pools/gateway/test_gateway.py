"""The gateway as a process of its own, with a real Redis: snapshots in, rows out, killed and stopped."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
import redis
from django.conf import settings
from msgspec.structs import replace

from pools import wire
from scheduler.control.apply import message_writer
from tests.fakes.engine import FakeEngine
from tests.fakes.fleet import MODEL, SECRET, FakeFleet
from tests.servers import redis_words

AUTH = {"Authorization": f"Bearer {SECRET}"}
BODY = {"model": MODEL, "prompt": [11] * 50, "max_tokens": 20}


@pytest.fixture
def store() -> Iterator[redis.Redis]:
    """The suite's Redis, without what the gateway reads and writes there."""
    client = redis.Redis.from_url(settings.REDIS_URL, socket_timeout=5)

    def clean() -> None:
        fleet = client.keys(wire.FLEET_KEY + "*")
        client.delete(
            *(*fleet, wire.PUBLISHED_KEY, wire.agent_key("node-1"), wire.REQUEST_STREAM),
            *(wire.alive_key("gateway"), "greenserve:test"),
        )

    clean()
    yield client
    clean()
    client.close()


@dataclass
class Process:
    """One `python -m pools.gateway`, and what a test wants of it."""

    spool: Path
    redis_url: str
    port: int = 0
    log: list[str] = field(default_factory=list)
    more: tuple[str, ...] = ()  # arguments

    async def start(self) -> None:
        self.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "pools.gateway", "--host", "127.0.0.1", "--port", str(self.port)),
            *(*redis_words(self.spool.parent, self.redis_url), "--spool", str(self.spool), *self.more),
            stderr=asyncio.subprocess.PIPE,
        )
        assert self.process.stderr is not None
        while line := (await asyncio.wait_for(self.process.stderr.readline(), 20)).decode():
            self.log.append(line)
            if "listening on" in line:
                self.port = int(line.rsplit(":", 1)[1].split("/")[0])
                self._reading = asyncio.create_task(self._read_log())
                return

    async def _read_log(self) -> None:
        assert self.process.stderr is not None
        while line := await self.process.stderr.readline():
            self.log.append(line.decode())

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def end(self, number: int = signal.SIGTERM) -> int:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)
        code = await asyncio.wait_for(self.process.wait(), 60)
        if hasattr(self, "_reading"):
            await self._reading
        return code

    def spooled(self) -> int:
        return sum(len(path.read_bytes().splitlines()) for path in self.spool.glob("*.jsonl"))


@pytest.fixture
async def engine() -> AsyncIterator[FakeEngine]:
    engine = await FakeEngine().start()
    yield engine
    await engine.stop()


@pytest.fixture
async def gateway(tmp_path: Path, store: redis.Redis) -> AsyncIterator[Process]:
    process = Process(tmp_path / "spool", settings.REDIS_URL)
    await process.start()
    yield process
    if process.process.returncode is None:
        await process.end(signal.SIGKILL)


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20)) as session:
        yield session


def publish(store: redis.Redis, engine: FakeEngine, **fields: Any) -> None:
    fake = FakeFleet([engine.url], **fields)
    store.set(wire.agent_key("node-1"), wire.encode(fake.states()["node-1"]))
    message_writer.write(store, lambda version: (replace(fake.fleet(), version=version), []))


def shipped(store: redis.Redis) -> list[wire.RequestBatch]:
    return [wire.decode(entry[b"b"], wire.RequestBatch) for _, entry in store.xrange(wire.REQUEST_STREAM)]


def ids(store: redis.Redis) -> list[str]:
    return [row.request_id for batch in shipped(store) for row in batch.rows]


async def until(what: str, probe: Any, timeout_s: float = 10.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while True:
        found = probe()
        if await found if asyncio.iscoroutine(found) else found:
            return
        assert time.monotonic() < deadline_s, f"{what}: not within {timeout_s:g} s"
        await asyncio.sleep(0.02)


async def ready(http: aiohttp.ClientSession, gateway: Process) -> bool:
    try:
        async with http.get(gateway.url + "/ready") as response:
            return response.status == 200
    except aiohttp.ClientConnectionError:
        return False


async def ask(http: aiohttp.ClientSession, gateway: Process, **fields: Any) -> int:
    async with http.post(gateway.url + "/v1/completions", json=BODY | fields, headers=AUTH) as response:
        await response.read()
        return response.status


async def test_gateway_becomes_ready_and_serves_when_a_fleet_is_published(
    gateway: Process, store: redis.Redis, engine: FakeEngine, http: aiohttp.ClientSession
) -> None:
    assert not await ready(http, gateway)
    assert await ask(http, gateway) == 503, "keys are not known yet"
    publish(store, engine)
    await until("ready", lambda: ready(http, gateway))
    for n in range(6):
        assert await ask(http, gateway, stream=n % 2 == 0) == 200
    await until("six rows in the stream", lambda: len(ids(store)) == 6)
    await asyncio.sleep(0.7)
    assert len(set(ids(store))) == len(ids(store)) == 6
    rows = [row for batch in shipped(store) for row in batch.rows]
    assert {(row.status, row.prompt_tokens, row.output_tokens) for row in rows} == {("ok", 50, 5)}
    assert {batch.gateway for batch in shipped(store)} == {"gateway"}
    assert gateway.spooled() == 0
    beat = wire.decode(store.get(wire.alive_key("gateway")) or b"", wire.Heartbeat)
    assert time.time() - beat.at_s < 5
    assert beat.disk == wire.DiskState()
    assert 0 < store.ttl(wire.alive_key("gateway")) <= wire.HEARTBEAT_TTL_S
    publish(store, engine, state="draining")
    await until("not ready", lambda: _not_ready(http, gateway))


async def _not_ready(http: aiohttp.ClientSession, gateway: Process) -> bool:
    return not await ready(http, gateway)


async def test_no_finished_request_loses_its_record_when_killed(
    gateway: Process, store: redis.Redis, engine: FakeEngine, http: aiohttp.ClientSession
) -> None:
    publish(store, engine)
    await until("ready", lambda: ready(http, gateway))
    finished = 0

    async def keep_asking() -> None:
        nonlocal finished
        with contextlib.suppress(aiohttp.ClientError):
            while True:
                status = await ask(http, gateway, stream=True)
                finished += status == 200

    asking = [asyncio.create_task(keep_asking()) for _ in range(8)]
    await asyncio.sleep(0.8)
    await gateway.end(signal.SIGKILL)
    await asyncio.gather(*asking)
    assert finished > 20
    await gateway.start()
    await until("ready again", lambda: ready(http, gateway))
    await until("all rows in the stream", lambda: len(set(ids(store))) >= finished and gateway.spooled() == 0)
    unique = {(b.gateway, b.boot, b.seq): len(b.rows) for b in shipped(store)}
    recorded = sum(unique.values())
    assert recorded == len(set(ids(store))), "the numbers alone keep doubles out"
    assert finished <= recorded <= finished + 8, "at most those that were under way"


async def test_requests_are_served_and_rows_wait_when_redis_is_away(
    tmp_path: Path, store: redis.Redis, engine: FakeEngine, http: aiohttp.ClientSession
) -> None:
    """Redis goes away behind a relay that stops relaying, and comes back."""
    relay = Relay(settings.REDIS_URL)
    await relay.start()
    password = urlsplit(settings.REDIS_URL).password or ""
    gateway = Process(tmp_path / "spool", f"redis://:{password}@127.0.0.1:{relay.port}/{relay.db}")
    await gateway.start()
    try:
        publish(store, engine)
        await until("ready", lambda: ready(http, gateway))
        await relay.stop()
        for _ in range(10):
            assert await ask(http, gateway) == 200
        await asyncio.sleep(1.0)
        assert await ask(http, gateway) == 200
        assert gateway.spooled() == 11
        assert not ids(store)
        await relay.start()
        await until("rows in the stream", lambda: len(set(ids(store))) == 11 and gateway.spooled() == 0)
        assert await gateway.end() == 0
        assert sum("fails and will be tried again" in line for line in gateway.log) <= 4, "each task says it once"
    finally:
        await gateway.end(signal.SIGKILL)
        await relay.stop()


async def test_running_request_ends_and_its_row_is_shipped_when_terminated(
    gateway: Process, store: redis.Redis, engine: FakeEngine, http: aiohttp.ClientSession
) -> None:
    publish(store, engine)
    await until("ready", lambda: ready(http, gateway))
    engine.pace_s = 0.2
    asking = asyncio.create_task(ask(http, gateway, stream=True))
    await until("the request at the engine", lambda: bool(engine.received))
    assert await gateway.end() == 0
    assert await asking == 200
    assert len(ids(store)) == 1
    assert not list(await asyncio.to_thread(lambda: list(gateway.spool.iterdir())))


async def test_taken_port_is_one_line_and_code_2(gateway: Process, tmp_path: Path) -> None:
    second = Process(tmp_path / "second", settings.REDIS_URL, port=gateway.port)
    await second.start()
    assert await second.process.wait() == 2
    (line,) = [line for line in second.log if "files may be open" not in line]  # this machine's limit may be low
    assert f"port {gateway.port} on 127.0.0.1 is taken" in line


class Relay:
    """Passes TCP on to Redis; stopping it is Redis going away."""

    def __init__(self, redis_url: str) -> None:
        options = redis.Redis.from_url(redis_url).connection_pool.connection_kwargs
        self._options = options
        self.db = options.get("db", 0)
        self.port = 0

    async def start(self) -> None:
        self._writers: set[asyncio.StreamWriter] = set()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        self._server.close()
        for writer in list(self._writers):
            writer.close()
        await asyncio.sleep(0.05)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if path := self._options.get("path"):
            far_reader, far_writer = await asyncio.open_unix_connection(path)
        else:
            far_reader, far_writer = await asyncio.open_connection(self._options["host"], self._options["port"])
        self._writers |= {writer, far_writer}
        try:
            await asyncio.gather(_pump(reader, far_writer), _pump(far_reader, writer))
        finally:
            self._writers -= {writer, far_writer}


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()

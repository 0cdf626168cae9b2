"""Faults under load, with real processes: engines killed or frozen, Redis and PostgreSQL gone, SIGTERM.

Whatever happens, a request that was accepted is answered, and what was answered has its record, once.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import psycopg
import pytest
import redis
import redis.asyncio
from django.conf import settings

from greenserve import env
from greenserve.process import Child, Spec
from greenserve.servers import embedded, postgres_server
from pools import wire
from tests import servers
from tests.fakes.engine import FakeEngine
from tests.fakes.fleet import FakeFleet
from tests.integration.pools.gateway.test_gateway import (
    AUTH,
    BODY,
    Process,
    engine,
    gateway,
    http,
    ids,
    ready,
    shipped,
    store,
    until,
)

__all__ = ["engine", "gateway", "http", "store"]  # fixtures

REDIS_GONE_S = 60.0
# Ten minutes in the figures; here so long, with as many requests a second more. Nothing in the way of a record waits
# longer than the ingester's longest pause, 5 s, so that a longer time only makes a longer stream. 600 takes it in full.
POSTGRES_GONE_S = float(os.environ.get("GREENSERVE_TEST_POSTGRES_GONE_S", "30"))
POSTGRES_GONE_REQUESTS = 1800  # 600 s of 3 a second, the demo's traffic
AGENTS_BACK_S = 3.0  # until an agent has found a Redis that is back


@dataclass
class Load:
    """Clients that ask one request after the other, and what they saw of each."""

    gateway: Process
    http: aiohttp.ClientSession
    pause_s: float = 0.0
    seen: Counter[str] = field(default_factory=Counter)
    stopping: bool = False
    sent: int = 0
    begun: int = 0  # streams of which something came and the end did not

    async def client(self, number: int, **fields: Any) -> None:
        while not self.stopping:
            stream = number % 4 != 0  # not as many as there are engines: one would have all that are no streams
            await self.one(stream, **fields)
            await asyncio.sleep(self.pause_s)

    async def one(self, stream: bool, **fields: Any) -> None:
        self.sent += 1
        self.seen[await self.ask(stream=stream, **fields)] += 1

    async def ask(self, stream: bool, **fields: Any) -> str:
        """ "ok" only for an answer that is whole."""
        answered = False
        text = ""
        try:
            async with self.http.post(
                self.gateway.url + "/v1/completions", json=BODY | {"stream": stream} | fields, headers=AUTH
            ) as response:
                answered = True
                if response.status != 200:
                    return f"{response.status}"
                async for piece in response.content.iter_any():
                    self.begun += stream and not text
                    text += piece.decode()
        except aiohttp.ClientConnectorError:
            return "refused"
        except TimeoutError:
            return "hung"
        except (aiohttp.ClientError, ConnectionError):
            if not answered:
                return "closed before an answer"
            return "error event" if '"error"' in text.rsplit("data: ", 1)[-1] else "cut without a word"
        finally:
            self.begun -= stream and bool(text)
        whole = text.endswith("data: [DONE]\n\n") if stream else '"usage"' in text
        return "ok" if whole else "ended too soon"


def rows_of(store: redis.Redis) -> list[wire.RequestRow]:
    return [row for batch in shipped(store) for row in batch.rows]


def has_all(store: redis.Redis, gateway: Process, answered: int) -> bool:
    return len(set(ids(store))) >= answered and gateway.spooled() == 0


# -- engines ---------------------------------------------------------------------------------------


@pytest.fixture
async def engines() -> AsyncIterator[list[tuple[asyncio.subprocess.Process, str]]]:
    """Three engines, each a process that takes 0.2 s for a stream."""
    processes = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.fakes.engine_process", "0.01", "20"),
            stdout=asyncio.subprocess.PIPE,
            cwd=env.ROOT,
        )
        for _ in range(3)
    ]
    found = []
    for process in processes:
        assert process.stdout is not None
        port = int(await asyncio.wait_for(process.stdout.readline(), 30))
        found.append((process, f"http://127.0.0.1:{port}"))
    yield found
    for process, _ in found:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGKILL, id="killed"),
        pytest.param(signal.SIGSTOP, id="frozen", marks=pytest.mark.slow("a second engine under load")),
    ],
)
async def test_only_streams_of_the_engine_itself_are_hurt_when_it_is_killed_or_frozen_under_load(
    tmp_path: Path,
    store: redis.Redis,
    engines: list[tuple[asyncio.subprocess.Process, str]],
    http: aiohttp.ClientSession,
    number: signal.Signals,
) -> None:
    gateway = Process(tmp_path / "spool", settings.REDIS_URL)
    bounds = ("--first-byte-timeout-s", "--whole-response-timeout-s", "--idle-timeout-s")
    gateway.more = tuple(word for option in bounds for word in (option, "1.5"))
    await gateway.start()
    try:
        fake = FakeFleet([url for _, url in engines], policy=wire.RequestPolicy(route="least_loaded"))
        store.set(wire.FLEET_KEY, wire.encode(fake.fleet()))
        store.set(wire.agent_key("node-1"), wire.encode(fake.states()["node-1"]))
        await until("ready", lambda: ready(http, gateway))
        load = Load(gateway, http)
        # One stream at each engine lasts until all is over, so that the victim has one under way whenever it is hurt.
        long = {"vllm_xargs": {"sim_output_tokens": 600}}
        lasting = [asyncio.create_task(load.one(stream=True, **long)) for _ in engines]
        await until("a stream under way at each engine", lambda: load.begun == len(engines))
        clients = [asyncio.create_task(load.client(n)) for n in range(12)]
        await until("all engines at work", lambda: load.seen["ok"] >= 40)
        assert set(load.seen) == {"ok"}
        victim = engines[0][0]
        victim.send_signal(number)
        at = load.sent
        await until("many more", lambda: load.sent > at + 80, timeout_s=60)
        load.stopping = True
        await asyncio.gather(*clients, *lasting)
        hurt = load.seen.total() - load.seen["ok"]
        allowed = {"ok", "error event"} | ({"504"} if number is signal.SIGSTOP else set())
        assert set(load.seen) <= allowed, "what had not begun was tried elsewhere, unless its engine still has it"
        probes = 0 if number is signal.SIGKILL else 10  # of an engine that is out: each finds out by waiting
        assert 1 <= hurt <= len(clients) + 1 + probes, "no more than were under way"
        await until("all records", lambda: has_all(store, gateway, load.seen.total()), timeout_s=20)
        rows = rows_of(store)
        assert len(rows) == len({row.request_id for row in rows}) == load.seen.total() == load.sent
        statuses = Counter(row.status for row in rows)
        assert statuses["ok"] == load.seen["ok"]
        assert statuses["upstream_error"] + statuses["timeout"] == hurt
    finally:
        await gateway.end(signal.SIGKILL)
        for process, _ in engines:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)


# -- SIGTERM ---------------------------------------------------------------------------------------


async def test_all_that_was_accepted_is_served_and_recorded_when_terminated_under_load(
    gateway: Process, store: redis.Redis, engine: FakeEngine, http: aiohttp.ClientSession
) -> None:
    fake = FakeFleet([engine.url])
    store.set(wire.agent_key("node-1"), wire.encode(fake.states()["node-1"]))
    store.set(wire.FLEET_KEY, wire.encode(fake.fleet()))
    await until("ready", lambda: ready(http, gateway))
    engine.tokens, engine.pace_s = 20, 0.025
    load = Load(gateway, http)

    async def until_refused(number: int) -> None:
        while "refused" not in load.seen:
            load.seen[await load.ask(stream=number % 3 != 0)] += 1

    clients = [asyncio.create_task(until_refused(n)) for n in range(40)]
    await until("many served", lambda: load.seen["ok"] >= 60, timeout_s=30)
    assert await gateway.end(signal.SIGTERM) == 0
    await asyncio.gather(*clients)
    assert set(load.seen) <= {"ok", "refused", "closed before an answer"}
    rows = rows_of(store)
    assert {row.status for row in rows} == {"ok"}
    assert len({row.request_id for row in rows}) == len(rows) == load.seen["ok"] == len(engine.received)
    assert not await asyncio.to_thread(lambda: list(gateway.spool.iterdir())), "and nothing is left on disk"


# -- Redis and PostgreSQL ----------------------------------------------------------------------------


def started(spec: Spec, var_dir: Path) -> Child:
    child = Child(spec, var_dir / "log" / f"{spec.name}.log")
    child.start()
    embedded.wait_ready(child, timeout_s=30)
    return child


@pytest.fixture
def var_dir(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "var"
    path.mkdir()
    yield path
    servers.remove(path)


class Agents:
    """Report as agents do: each second, under a key that expires; they are late to find a Redis that was away."""

    def __init__(self, url: str, fake: FakeFleet) -> None:
        self._redis = redis.asyncio.Redis.from_url(url, socket_timeout=1, socket_connect_timeout=1)
        self._fake = fake

    async def publish(self) -> None:
        await self._redis.set(wire.FLEET_KEY, wire.encode(self._fake.fleet()))
        await self.keep_reporting(once=True)

    async def keep_reporting(self, once: bool = False) -> None:
        while True:
            try:
                state = wire.encode(self._fake.states()["node-1"])
                await self._redis.set(wire.agent_key("node-1"), state, ex=wire.AGENT_STATE_TTL_S)
                pause_s = 1.0
            except (redis.RedisError, OSError):
                pause_s = AGENTS_BACK_S
            if once:
                return
            await asyncio.sleep(pause_s)

    async def close(self) -> None:
        await self._redis.aclose()


@pytest.mark.slow("Redis is away for a minute")
async def test_nobody_notices_and_no_record_is_lost_when_redis_is_gone_for_a_minute(
    var_dir: Path, engine: FakeEngine, http: aiohttp.ClientSession
) -> None:
    server = started(embedded.redis(var_dir), var_dir)
    url = embedded.redis_url(var_dir)
    gateway, agents = Process(var_dir / "spool", url), Agents(url, FakeFleet([engine.url]))
    await gateway.start()
    reporting = None
    try:
        await agents.publish()
        reporting = asyncio.create_task(agents.keep_reporting())
        await until("ready", lambda: ready(http, gateway))
        load = Load(gateway, http, pause_s=0.1)
        clients = [asyncio.create_task(load.client(n)) for n in range(4)]
        await until("some served", lambda: load.seen["ok"] >= 20)
        await asyncio.to_thread(server.stop)
        gone_at_s, gone_at = time.monotonic(), load.sent
        await asyncio.sleep(REDIS_GONE_S)
        assert load.sent - gone_at > REDIS_GONE_S, "requests are served as before"
        assert await ready(http, gateway), "it serves by what it heard last"
        assert gateway.spooled() >= load.sent - gone_at - 8
        server = await asyncio.to_thread(started, embedded.redis(var_dir), var_dir)
        assert time.monotonic() - gone_at_s >= REDIS_GONE_S
        await until("ready again", lambda: ready(http, gateway))
        await asyncio.sleep(AGENTS_BACK_S + 2.0)
        load.stopping = True
        await asyncio.gather(*clients)
        assert set(load.seen) == {"ok"}, load.seen
        with redis.Redis.from_url(url, socket_timeout=5) as client:
            await until("all records", lambda: has_all(client, gateway, load.sent), timeout_s=30)
            rows = rows_of(client)
        assert len({row.request_id for row in rows}) == load.sent
        assert await gateway.end() == 0
    finally:
        if reporting is not None:
            reporting.cancel()
        await agents.close()
        await gateway.end(signal.SIGKILL)
        server.stop()


@pytest.mark.slow("PostgreSQL is away for half a minute")
async def test_every_record_is_in_the_database_once_when_postgresql_was_gone_for_long(
    var_dir: Path, engine: FakeEngine, http: aiohttp.ClientSession
) -> None:
    url = embedded.redis_url(var_dir)
    own = {"DATABASE_URL": embedded.owner_url(var_dir), "REDIS_URL": url, "GREENSERVE_VAR": str(var_dir)}
    variables = env.for_child(**own, DJANGO_SETTINGS_MODULE="greenserve.settings")
    manage = (sys.executable, str(env.ROOT / "manage.py"))
    server = started(embedded.redis(var_dir), var_dir)
    database = started(postgres_server.spec(var_dir, durable=True), var_dir)
    gateway, agents = Process(var_dir / "spool", url), Agents(url, FakeFleet([engine.url]))
    await gateway.start()
    ingester = Child(Spec(name="ingester", argv=(*manage, "ingest"), env=variables, cwd=env.ROOT), var_dir / "ingester")
    reporting = None
    try:
        migrating = await asyncio.create_subprocess_exec(*manage, "migrate", "-v", "0", env=variables)
        assert await asyncio.wait_for(migrating.wait(), 120) == 0
        ingester.start()
        await agents.publish()
        reporting = asyncio.create_task(agents.keep_reporting())
        await until("ready", lambda: ready(http, gateway))
        load = Load(gateway, http, pause_s=20 * POSTGRES_GONE_S / POSTGRES_GONE_REQUESTS)
        clients = [asyncio.create_task(load.client(n)) for n in range(20)]
        await until("first records", lambda: len(recorded(var_dir)) >= 20, timeout_s=60)
        await asyncio.to_thread(database.stop)
        gone_at = load.sent
        await asyncio.sleep(POSTGRES_GONE_S)
        assert load.sent - gone_at > POSTGRES_GONE_REQUESTS * 0.5
        assert await ready(http, gateway), "the gateway has nothing to do with PostgreSQL"
        with redis.Redis.from_url(url, socket_timeout=5) as client:
            assert client.xlen(wire.REQUEST_STREAM) > 0, "what cannot be stored waits"
        database = await asyncio.to_thread(started, postgres_server.spec(var_dir, durable=True), var_dir)
        load.stopping = True
        await asyncio.gather(*clients)
        assert set(load.seen) == {"ok"}, load.seen
        await until("all records", lambda: len(recorded(var_dir)) >= load.sent, timeout_s=90)
        await asyncio.sleep(1.0)  # a double would come now
        found = recorded(var_dir)
        assert len(found) == len(set(found)) == load.sent
        assert gateway.spooled() == 0
    finally:
        if reporting is not None:
            reporting.cancel()
        await agents.close()
        await gateway.end(signal.SIGKILL)
        ingester.stop()
        database.stop()
        server.stop()


def recorded(var_dir: Path) -> list[str]:
    with psycopg.connect(embedded.owner_url(var_dir), connect_timeout=5) as connection:
        return [row[0] for row in connection.execute("SELECT request_id FROM telemetry_requestrecord")]

"""The control plane fails, the data plane serves: Redis full, read-only, hung, cut off or empty; silent agents.

And an engine that hangs: its requests are served elsewhere. The long ones take the times for which it was seen to fail.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
import redis
from django.conf import settings

from greenserve.process import Child
from greenserve.servers import embedded
from greenserve.servers.server_folders import folders_of
from pools import wire
from tests.fakes.engine import FakeEngine
from tests.fakes.fleet import FakeFleet
from tests.integration.pools.gateway.test_gateway import Process, engine, http, ready, shipped, store, until
from tests.integration.pools.gateway.test_gateway_faults import (
    Agents,
    Load,
    engines,
    has_all,
    rows_of,
    started,
    var_dir,
)

__all__ = ["engine", "engines", "http", "store", "var_dir"]  # fixtures


@dataclass
class Plane:
    """A Redis of its own with agents that report there, and a gateway between clients and an engine."""

    var_dir: Path
    server: Child
    url: str
    gateway: Process
    agents: Agents
    load: Load
    reporting: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        await self.agents.publish()
        self.report()

    def report(self) -> None:
        self.reporting = asyncio.create_task(self.agents.keep_reporting())

    def silence(self) -> None:
        assert self.reporting is not None
        self.reporting.cancel()

    def order(self, *words: str) -> None:
        with redis.Redis.from_url(self.url, socket_timeout=5) as client:
            client.execute_command(*words)

    async def break_down(self, fault: str) -> None:
        if fault == "agents stopped":
            self.silence()
        elif fault == "full":
            self.order("CONFIG", "SET", "maxmemory", "1")
        elif fault == "read-only":
            self.order("REPLICAOF", "127.0.0.1", "1")
        elif fault == "hung":
            assert self.server.process is not None
            self.server.process.send_signal(signal.SIGSTOP)
        elif fault == "lost":
            await asyncio.to_thread(self.server.stop)
            shutil.rmtree(folders_of(self.var_dir).redis_data)
            self.server = await asyncio.to_thread(started, embedded.redis(self.var_dir), self.var_dir)
            self.silence()
        else:
            raise AssertionError(fault)

    async def repair(self, fault: str) -> None:
        if fault == "agents stopped":
            self.report()
        elif fault == "full":
            self.order("CONFIG", "SET", "maxmemory", "0")
        elif fault == "read-only":
            self.order("REPLICAOF", "NO", "ONE")
        elif fault == "hung":
            assert self.server.process is not None
            self.server.process.send_signal(signal.SIGCONT)
        elif fault == "lost":
            await self.begin()


@pytest.fixture
async def plane(var_dir: Path, engine: FakeEngine, http: aiohttp.ClientSession) -> AsyncIterator[Plane]:
    server = started(embedded.redis(var_dir), var_dir)
    url = embedded.redis_url(var_dir)
    gateway, agents = Process(var_dir / "spool", url), Agents(url, FakeFleet([engine.url]))
    gateway.more = ("--state", str(var_dir / "state"))
    await gateway.start()
    found = Plane(var_dir, server, url, gateway, agents, Load(gateway, http, pause_s=0.3))
    await found.begin()
    await until("ready", lambda: ready(http, gateway))
    yield found
    found.silence()
    await agents.close()
    await gateway.end(signal.SIGKILL)
    if found.server.process is not None:
        found.server.process.send_signal(signal.SIGCONT)
    found.server.stop()


def slow(fault: str, seconds: float) -> object:
    return pytest.param(fault, seconds, id=fault, marks=pytest.mark.slow(f"{fault} for {seconds:g} s"))


@pytest.mark.parametrize(
    ("fault", "seconds"),
    [
        pytest.param("full", 1.0, id="full-for-a-second"),
        slow("full", 40.0),
        slow("agents stopped", 24.0),
        slow("read-only", 24.0),
        slow("hung", 24.0),
        slow("lost", 24.0),
    ],
)
async def test_no_request_is_refused_and_no_record_lost_when_the_control_plane_fails(
    plane: Plane, http: aiohttp.ClientSession, fault: str, seconds: float
) -> None:
    load, gateway = plane.load, plane.gateway
    clients = [asyncio.create_task(load.client(n)) for n in range(2)]
    await until("some served", lambda: load.seen["ok"] >= 4)
    broken_at, broken_s = load.sent, time.monotonic()
    await plane.break_down(fault)
    await asyncio.sleep(max(0.0, broken_s + seconds - time.monotonic()))
    assert load.sent > broken_at + seconds, "clients do not notice"
    assert await ready(http, gateway)
    await plane.repair(fault)
    load.stopping = True
    await asyncio.gather(*clients)
    print(f"{fault} for {seconds:g} s: {load.sent - broken_at} requests sent since, seen {dict(load.seen)}")
    assert set(load.seen) == {"ok"}, load.seen
    expected = load.sent if fault != "lost" else load.sent - broken_at  # what Redis had is lost with it
    with redis.Redis.from_url(plane.url, socket_timeout=5) as client:
        await until("all records", lambda: has_all(client, gateway, expected), timeout_s=30)
        # A Redis that hung takes in later what was sent to it: the ingester stores each number of a batch once.
        batches = {(batch.boot, batch.seq): batch for batch in shipped(client)}
    rows = [row.request_id for batch in batches.values() for row in batch.rows]
    assert len(rows) == len(set(rows)), "each once"


@pytest.mark.slow("waits until silent agents' engines were asked")
async def test_dead_engine_leaves_and_the_other_serves_when_agents_are_silent(
    var_dir: Path,
    store: redis.Redis,
    engines: list[tuple[asyncio.subprocess.Process, str]],
    http: aiohttp.ClientSession,
) -> None:
    gateway = Process(var_dir / "spool", settings.REDIS_URL)
    await gateway.start()
    try:
        publish(store, engines)
        await until("ready", lambda: ready(http, gateway))
        engines[0][0].kill()
        await until("one is lost", lambda: ready_instances(http, gateway, 2), timeout_s=30)
        load = Load(gateway, http)
        assert [await load.ask(stream=True) for _ in range(10)] == ["ok"] * 10
        assert {row.attempts for row in rows_of(store)} <= {1}, "nobody was sent to the dead one"
    finally:
        await gateway.end(signal.SIGKILL)


def publish(store: redis.Redis, engines: list[tuple[asyncio.subprocess.Process, str]]) -> None:
    """Agents report once, and never again."""
    fake = FakeFleet([url for _, url in engines], policy=wire.RequestPolicy(route="least_loaded"))
    store.set(wire.FLEET_KEY, wire.encode(fake.fleet()))
    store.set(wire.agent_key("node-1"), wire.encode(fake.states()["node-1"]))


async def ready_instances(http: aiohttp.ClientSession, gateway: Process, count: int) -> bool:
    async with http.get(gateway.url + "/metrics") as response:
        return f"greenserve_gateway_instances_ready {count}\n" in await response.text()


@pytest.mark.slow("a gateway starts twice, and asks its engine")
async def test_gateway_serves_when_it_starts_while_redis_is_away(plane: Plane, http: aiohttp.ClientSession) -> None:
    assert await plane.gateway.end() == 0
    await asyncio.to_thread(plane.server.stop)
    await plane.gateway.start()
    await until("ready", lambda: ready(http, plane.gateway), timeout_s=30)
    assert await plane.load.ask(stream=True) == "ok"
    assert plane.gateway.spooled() == 1
    plane.server = await asyncio.to_thread(started, embedded.redis(plane.var_dir), plane.var_dir)
    with redis.Redis.from_url(plane.url, socket_timeout=5) as client:
        await until("its record", lambda: has_all(client, plane.gateway, 1), timeout_s=30)


@pytest.mark.slow("an engine hangs for as long as it takes to notice")
@pytest.mark.parametrize("number", [40])
async def test_requests_of_a_frozen_engine_are_served_elsewhere(
    tmp_path: Path,
    store: redis.Redis,
    engines: list[tuple[asyncio.subprocess.Process, str]],
    http: aiohttp.ClientSession,
    number: int,
) -> None:
    gateway = Process(tmp_path / "spool", settings.REDIS_URL)
    await gateway.start()
    try:
        publish(store, engines)
        await until("ready", lambda: ready(http, gateway))
        engines[0][0].send_signal(signal.SIGSTOP)
        load = Load(gateway, http)
        waits_s = []

        async def ask(n: int) -> str:
            began_s = time.monotonic()
            seen = await load.ask(stream=n % 4 != 0)
            waits_s.append(time.monotonic() - began_s)
            return seen

        seen = await asyncio.gather(*(ask(n) for n in range(number)))
        print(f"{number} requests, one of three engines frozen: longest wait {max(waits_s):.1f} s")
        assert seen == ["ok"] * number
        await until("all records", lambda: has_all(store, gateway, number))
        assert {row.status for row in rows_of(store)} == {"ok"}
    finally:
        await gateway.end(signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            engines[0][0].send_signal(signal.SIGCONT)

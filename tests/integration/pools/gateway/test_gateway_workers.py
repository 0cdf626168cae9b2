"""Workers that register themselves with a gateway process of its own, over a real Redis."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
import redis
from django.conf import settings

from pools import wire
from pools.gateway.redis_tasks import RedisLink
from tests.fakes.engine import FakeEngine
from tests.fakes.fleet import MODEL, SECRET, FakeFleet
from tests.servers import redis_words

TOKEN = "a-token-for-workers"
WORKER = wire.WorkerRegistration("test-worker", "http://127.0.0.1:1", MODEL, "A100-80GB", 4, 60.0, 0.0)


@pytest.fixture
def store() -> Iterator[redis.Redis]:
    client = redis.Redis.from_url(settings.REDIS_URL, socket_timeout=5)

    def clean() -> None:
        found = client.keys(wire.worker_key("*"))
        client.delete(wire.FLEET_KEY, wire.agent_key("node-1"), wire.REQUEST_STREAM, wire.WORKERS_KEY, *found)

    clean()
    yield client
    clean()
    client.close()


@pytest.fixture
async def engine() -> AsyncIterator[FakeEngine]:
    running = await FakeEngine().start()
    yield running
    await running.stop()


@pytest.fixture
async def link() -> AsyncIterator[RedisLink]:
    found = RedisLink(settings.REDIS_URL)
    yield found
    await found.close()


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[str]:
    """Its URL."""
    token = tmp_path / "token"
    token.write_text(TOKEN + "\n")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pools.gateway", "--port", "0", *redis_words(tmp_path, settings.REDIS_URL)),
        *("--spool", str(tmp_path / "spool"), "--worker-token-file", str(token)),
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    line = ""
    while "listening on" not in line:
        line = (await asyncio.wait_for(process.stderr.readline(), 20)).decode()
        assert line, "it did not start"
    reading = asyncio.create_task(process.stderr.read())
    yield f"http://127.0.0.1:{line.rsplit(':', 1)[1].split('/')[0]}"
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    await asyncio.wait_for(process.wait(), 15)
    await reading


async def until(probe: Callable[[], Any], timeout_s: float = 10.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not await probe():
        assert time.monotonic() < deadline_s, "it did not come true in time"
        await asyncio.sleep(0.05)


async def test_lease_ends_by_itself_unless_it_is_renewed(store: redis.Redis, link: RedisLink) -> None:
    short = wire.WorkerRegistration("short", "http://127.0.0.1:2", MODEL, "A100-80GB", 4, 0.2, 0.0)
    await link.put_worker(WORKER)
    await link.put_worker(short)
    assert {worker.uid for worker in (await link.workers())[0]} == {"test-worker", "short"}
    await asyncio.sleep(0.15)
    await link.put_worker(short)
    await asyncio.sleep(0.15)
    assert len((await link.workers())[0]) == 2
    await asyncio.sleep(0.15)
    assert await link.workers() == ([WORKER], {"short"})
    store.zadd(wire.WORKERS_KEY, {"short": time.time() - 100})
    await link.put_worker(WORKER)
    assert store.zrange(wire.WORKERS_KEY, 0, -1) == [b"test-worker"]
    assert await link.drop_worker("test-worker")
    assert not await link.drop_worker("test-worker")
    assert await link.workers() == ([], {"test-worker"}), "it has left, and was not lost"


async def test_worker_is_put_back_for_the_rest_of_its_lease_unless_it_is_there_again(
    store: redis.Redis, link: RedisLink
) -> None:
    await link.put_worker_back(WORKER, 10.0)
    assert await link.workers() == ([WORKER], set())
    assert 9_000 < store.pttl(wire.worker_key("test-worker")) <= 10_000
    renewed = msgspec.structs.replace(WORKER, registered_at_s=9.0)
    await link.put_worker(renewed)
    await link.put_worker_back(WORKER, 10.0)
    assert await link.workers() == ([renewed], set())
    assert store.pttl(wire.worker_key("test-worker")) > 10_000


async def test_registration_that_cannot_be_read_is_left_out(
    store: redis.Redis, link: RedisLink, caplog: pytest.LogCaptureFixture
) -> None:
    await link.put_worker(WORKER)
    store.set(wire.worker_key("other"), b"{}")
    store.zadd(wire.WORKERS_KEY, {"other": time.time() + 9})
    assert await link.workers() == ([WORKER], {"other"})
    assert "other" in caplog.text
    store.delete(wire.worker_key("other"))


async def test_worker_registers_serves_and_leaves(gateway: str, store: redis.Redis, engine: FakeEngine) -> None:
    store.set(wire.FLEET_KEY, wire.encode(FakeFleet([], nodes=[]).fleet()))
    store.publish(wire.FLEET_CHANNEL, b"1")
    body = {"url": engine.url, "service": MODEL, "gpu_type": "A100-80GB", "tp": 4, "lease_s": 30}
    mine = {"Authorization": f"Bearer {TOKEN}"}
    async with aiohttp.ClientSession() as http:

        async def status(path: str, wanted: int) -> bool:
            async with http.get(gateway + path) as response:
                return response.status == wanted

        async def registered() -> bool:
            async with http.post(f"{gateway}/v1/workers", json=body, headers=mine) as response:
                found = await response.json()
                uid[:] = [found.get("id")]
                return response.status in (200, 201)

        uid: list[str] = []
        await until(registered)
        await until(lambda: status("/ready", 200))
        asked = {"model": MODEL, "prompt": [11] * 50, "max_tokens": 20}
        theirs = {"Authorization": f"Bearer {SECRET}"}
        async with http.post(f"{gateway}/v1/completions", json=asked, headers=theirs) as response:
            assert response.status == 200
        async with http.delete(f"{gateway}/v1/workers/{uid[0]}", headers=mine) as response:
            assert response.status == 200
        await until(lambda: status("/ready", 503))

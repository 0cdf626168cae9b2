"""The gateway as a process whose disk is full: every request is served, and its record is in the stream once."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest
import redis
from django.conf import settings

from pools import wire
from tests.fakes.engine import FakeEngine

from .test_gateway import Process, ask, engine, gateway, http, ids, publish, ready, store, until

__all__ = ["engine", "gateway", "http", "store"]  # fixtures


async def served(http: aiohttp.ClientSession, gateway: Process, requests: int) -> None:
    """Sends requests, ten at a time; all are answered whole."""
    for begun in range(0, requests, 10):
        count = min(10, requests - begun)
        statuses = await asyncio.gather(*(ask(http, gateway, stream=n % 2 == 0) for n in range(count)))
        assert set(statuses) == {200}


async def failing(http: aiohttp.ClientSession, gateway: Process) -> bool:
    async with http.get(gateway.url + "/metrics") as response:
        return "greenserve_gateway_journal_failing 1.0" in await response.text()


def disk_state(store: redis.Redis) -> wire.DiskState | None:
    said = store.get(wire.alive_key("gateway"))
    return None if said is None else wire.decode(said, wire.Heartbeat).disk


async def test_no_record_is_lost_while_nothing_can_be_written_and_the_disk_is_used_again_afterwards(
    gateway: Process, store: redis.Redis, engine: FakeEngine, http: aiohttp.ClientSession
) -> None:
    """RLIMIT_FSIZE of 0 makes every write to a file fail."""
    publish(store, engine)
    await until("ready", lambda: ready(http, gateway))
    _, hard = resource.prlimit(gateway.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(gateway.process.pid, resource.RLIMIT_FSIZE, (0, hard))
    await served(http, gateway, 60)
    await until("60 records", lambda: len(ids(store)) == 60)
    assert await failing(http, gateway)
    resource.prlimit(gateway.process.pid, resource.RLIMIT_FSIZE, (hard, hard))
    await until("right again", lambda: _not_failing(http, gateway))
    await served(http, gateway, 10)
    await gateway.end(signal.SIGTERM)
    assert len(ids(store)) == len(set(ids(store))) == 70
    assert sum("held in memory, as" in line for line in gateway.log) == 1
    assert not os.listdir(gateway.spool)


async def _not_failing(http: aiohttp.ClientSession, gateway: Process) -> bool:
    return not await failing(http, gateway)


async def test_records_in_memory_are_shipped_before_the_gateway_ends(
    gateway: Process, store: redis.Redis, engine: FakeEngine, http: aiohttp.ClientSession
) -> None:
    publish(store, engine)
    await until("ready", lambda: ready(http, gateway))
    resource.prlimit(gateway.process.pid, resource.RLIMIT_FSIZE, (0, 0))
    await served(http, gateway, 20)
    assert await gateway.end(signal.SIGTERM) == 0
    assert len(ids(store)) == 20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 1 MB of its own."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a tmpfs")
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True, text=True, timeout=10
    )
    if mounted.returncode:
        pytest.skip(f"a tmpfs cannot be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True, timeout=10)


@pytest.fixture
async def gateway_on_small_disk(small_disk: Path, store: redis.Redis) -> AsyncIterator[Process]:
    process = Process(small_disk / "spool", settings.REDIS_URL)
    await process.start()
    yield process
    if process.process.returncode is None:
        await process.end(signal.SIGKILL)


def fill(disk: Path) -> Path:
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    assert shutil.disk_usage(disk).free == 0
    return filler


@pytest.mark.slow("fills a real disk, and sends a thousand requests meanwhile")
async def test_no_record_is_lost_when_a_real_disk_is_full(
    gateway_on_small_disk: Process,
    small_disk: Path,
    store: redis.Redis,
    engine: FakeEngine,
    http: aiohttp.ClientSession,
) -> None:
    gateway = gateway_on_small_disk
    publish(store, engine)
    await until("ready", lambda: ready(http, gateway))
    filler = fill(small_disk)
    await served(http, gateway, 1000)
    await until("1000 records", lambda: len(set(ids(store))) == 1000)
    await until("in its heartbeat", lambda: (disk_state(store) or wire.DiskState()).fault == "No space left on device")
    assert (disk_state(store) or wire.DiskState()).lost == 0
    filler.unlink()
    await until("right again", lambda: (disk_state(store) or wire.DiskState("?")) == wire.DiskState())
    await served(http, gateway, 100)
    await gateway.end(signal.SIGTERM)
    assert len(ids(store)) == len(set(ids(store))) == 1100

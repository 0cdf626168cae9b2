"""Two gateways of one port, as processes, with a real Redis: both serve, and one that is killed loses no record."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
import redis
from django.conf import settings

from pools import wire
from tests.fakes.engine import FakeEngine
from tests.integration.pools.gateway.test_gateway import (
    AUTH,
    BODY,
    Process,
    engine,
    ids,
    publish,
    shipped,
    store,
    until,
)
from tests.ports import free_port

__all__ = ["engine", "store"]  # fixtures

NAMES = ("gateway.1", "gateway.2")


@pytest.fixture
async def pair(tmp_path: Path, store: redis.Redis) -> AsyncIterator[list[Process]]:
    port = free_port()
    own = [
        Process(
            tmp_path / "spool", settings.REDIS_URL, port, more=("--share", f"{n}/2", "--state", str(tmp_path / "s"))
        )
        for n in (1, 2)
    ]
    for process in own:
        await process.start()
    yield own
    for process in own:
        if process.process.returncode is None:
            await process.end(signal.SIGKILL)
    store.delete(wire.GATEWAYS_KEY, *(wire.alive_key(name) for name in NAMES))


async def ask(url: str) -> int:
    """By a connection of its own, which either of them may get."""
    timeout = aiohttp.ClientTimeout(total=20)
    body = BODY | {"stream": True}
    async with (
        aiohttp.ClientSession(timeout=timeout) as http,
        http.post(url + "/v1/completions", json=body, headers=AUTH) as response,
    ):
        await response.read()
        return response.status


async def both_ready(url: str) -> bool:
    """Each of them says so itself, on the page that either shows."""
    async with aiohttp.ClientSession() as http, http.get(url + "/metrics") as response:
        page = await response.text()
    return all(f'instances_ready{{gateway="{name}"}} 1\n' in page for name in NAMES)


def rows_by_gateway(store: redis.Redis) -> Counter[str]:
    unique = {(batch.gateway, batch.boot, batch.seq): len(batch.rows) for batch in shipped(store)}
    found: Counter[str] = Counter()
    for (gateway, _, _), rows in unique.items():
        found[gateway] += rows
    return found


async def test_both_serve_and_leave_their_records_when_they_share_a_port(
    pair: list[Process], store: redis.Redis, engine: FakeEngine
) -> None:
    publish(store, engine)
    await until("both ready", lambda: both_ready(pair[0].url))
    asked = 0
    while asked < 400 and (asked < 60 or len(rows_by_gateway(store)) < 2):
        assert await ask(pair[0].url) == 200
        asked += 1
    await until("all rows in the stream", lambda: rows_by_gateway(store).total() == asked)
    assert set(rows_by_gateway(store)) == set(NAMES)
    assert len(set(ids(store))) == len(ids(store)) == asked, "each once, though they share a folder"
    await until("each knows of the other", lambda: store.zcard(wire.GATEWAYS_KEY) >= 2)
    assert [await process.end() for process in pair] == [0, 0]
    assert not list(pair[0].spool.iterdir())


@pytest.mark.slow("one gateway is killed in test_gateway.py")
async def test_no_finished_request_loses_its_record_when_one_of_two_is_killed(
    pair: list[Process], store: redis.Redis, engine: FakeEngine
) -> None:
    publish(store, engine)
    await until("both ready", lambda: both_ready(pair[0].url))
    finished, stop = 0, asyncio.Event()

    async def keep_asking() -> None:
        nonlocal finished
        while not stop.is_set():
            with contextlib.suppress(aiohttp.ClientError):
                status = await ask(pair[0].url)
                finished += status == 200

    asking = [asyncio.create_task(keep_asking()) for _ in range(8)]
    await until("some answers", lambda: finished > 60)
    await pair[0].end(signal.SIGKILL)
    before = finished
    await until("the other one goes on alone", lambda: finished > before + 60)
    stop.set()
    await asyncio.gather(*asking)

    def all_there() -> bool:
        return rows_by_gateway(store).total() >= finished and pair[1].spooled() == 0

    await until("all rows in the stream, shipped by the one that is left", all_there)
    found = rows_by_gateway(store)
    assert set(found) == set(NAMES)
    assert found.total() == len(set(ids(store)))
    assert finished <= found.total() <= finished + 8, "at most those that were under way"
    async with aiohttp.ClientSession() as http, http.get(pair[1].url + "/metrics") as response:
        page = await response.text()
    assert 'up{gateway="gateway.1"} 0\n' in page
    await pair[0].start()
    await until("both again", lambda: both_ready(pair[1].url))

"""A stream that is full takes nothing more until what reads it has made room: nothing is lost meanwhile, or doubled."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import redis
from django.conf import settings

from pools import wire
from pools.agent import redis_link as agent_link
from pools.gateway import redis_tasks
from pools.gateway.accounts.request_journal import Journal
from pools.gateway.accounts.request_shipper import Shipper, StreamFull
from pools.gateway.redis_tasks import RedisLink, keep_shipping

MOST = 3


@pytest.fixture
async def link() -> AsyncIterator[RedisLink]:
    found = RedisLink(settings.REDIS_URL, most_batches=MOST)
    yield found
    await found.close()


def row(n: int) -> wire.RequestRow:
    return wire.RequestRow(f"id-{n}", 1e9 + n, "svc", 1, 1, "chat", True, "ok", 200)


def taken(client: redis.Redis, most: int) -> list[str]:
    """Takes messages out of the stream, as the ingester does once they are stored."""
    entries = client.xrange(wire.REQUEST_STREAM, count=most)
    for number, _ in entries:
        client.xdel(wire.REQUEST_STREAM, number)
    return [row.request_id for _, entry in entries for row in wire.decode(entry[b"b"], wire.RequestBatch).rows]


async def test_batch_is_refused_when_the_stream_is_full(redis_client: redis.Redis, link: RedisLink) -> None:
    for n in range(MOST):
        await link.add(wire.RequestBatch("gw", "boot", n, [row(n)]))
    with pytest.raises(StreamFull):
        await link.add(wire.RequestBatch("gw", "boot", MOST, [row(MOST)]))
    assert redis_client.xlen(wire.REQUEST_STREAM) == MOST
    assert taken(redis_client, 1) == ["id-0"]
    await link.add(wire.RequestBatch("gw", "boot", MOST, [row(MOST)]))
    assert taken(redis_client, 9) == [f"id-{n}" for n in range(1, MOST + 1)]


def test_agent_adds_in_order_what_there_is_room_for_and_always_says_how_it_is(redis_client: redis.Redis) -> None:
    link = agent_link.RedisLink(settings.REDIS_URL, "n1", most_batches=MOST)

    def send(*numbers: int) -> int:
        heartbeat = wire.Heartbeat("node.n1", 1.0, 1.0)
        batches = [wire.AgentBatch("n1", "boot", number, 1.0) for number in numbers]
        return link.send(wire.AgentState("n1", "boot", 1.0, None, []), heartbeat, batches)

    assert [send(1, 2), send(), send(3, 4), send(4), send()] == [2, 0, 1, 0, 0]
    found = [wire.decode(entry[b"b"], wire.AgentBatch).seq for _, entry in redis_client.xrange(wire.batch_stream("n1"))]
    assert found == [1, 2, 3]
    redis_client.delete(wire.agent_key("n1"))
    assert send(4) == 0
    assert redis_client.exists(wire.agent_key("n1"))
    link.close()


async def test_rows_wait_on_disk_and_arrive_once_when_the_stream_is_full_for_a_while(
    redis_client: redis.Redis,
    link: RedisLink,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(redis_tasks, "FULL_PERIOD_S", 0.01)
    monkeypatch.setattr(redis_tasks, "SHIP_PERIOD_S", 0.01)
    journal = Journal(tmp_path, "gw", "boot")
    shipping = asyncio.create_task(keep_shipping(Shipper(journal, link)))
    for n in range(30):
        journal.append(row(n))
        await asyncio.sleep(0.01)
    assert redis_client.xlen(wire.REQUEST_STREAM) == MOST
    found: list[str] = []
    async with asyncio.timeout(4.0):
        while len(found) < 30:
            found += taken(redis_client, 1)
            await asyncio.sleep(0.01)
    assert found == [f"id-{n}" for n in range(30)]
    assert "the stream is full" in caplog.text
    shipping.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await shipping
    journal.close()
    assert not os.listdir(tmp_path)

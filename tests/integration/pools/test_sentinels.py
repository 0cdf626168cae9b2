"""The master of Redis is killed: gateways, agents, Celery and the rest go on with the one that sentinels choose."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path

import pytest
import redis
from celery import Celery

from pools import redis_address, wire
from pools.agent.redis_link import LinkError, RedisLink
from pools.gateway import redis_tasks
from pools.registration import node_users
from tests.sentinels import Watched, watched

WITHIN_S = 20.0


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Watched]:
    with watched(tmp_path) as found:
        yield found


async def until(works: Callable[[], bool]) -> float:
    """Returns how long it took, in seconds."""
    began_s, said = time.monotonic(), ""
    while time.monotonic() < began_s + WITHIN_S:
        try:
            if await asyncio.to_thread(works):
                return time.monotonic() - began_s
        except (redis.RedisError, OSError, LinkError) as error:
            said = str(error)
        await asyncio.sleep(0.05)
    raise AssertionError(f"not within {WITHIN_S:g} s: {said}")


async def test_every_client_goes_on_with_the_new_master_when_the_master_is_killed(servers: Watched) -> None:
    broker, options = redis_address.celery_broker(servers.url)
    product = Celery("t", broker=broker, set_as_current=False)
    product.conf.update(broker_transport_options=options | {"socket_timeout": 2, "socket_connect_timeout": 2})
    web = redis_address.connect(servers.url, socket_timeout=2, socket_connect_timeout=2)
    agent = RedisLink(redis_address.as_user(servers.url, wire.node_user("n1"), "of n1"), "n1")
    identities = node_users.Wanted({"n1": sha256(b"of n1").hexdigest()}, {"1f": "n1"})
    gateway = redis_tasks.RedisLink(servers.url)
    state, beat = wire.AgentState("n1", "b", 1.0, None, []), wire.Heartbeat("node.n1", 1.0, 1.0)
    changed = asyncio.Event()
    listening = asyncio.create_task(redis_tasks.keep_listening(gateway, type("R", (), {"wake": changed})()))

    def all_work() -> bool:
        node_users.bring_up_to_date(web, identities)  # as the control plane does each 5 s: no server replicates users
        agent.send(state, beat, [])
        product.send_task("scheduler.tasks.publish", queue="epochs", retry=False)
        return web.llen("epochs") > 0 and web.get(wire.agent_key("n1")) is not None

    try:
        await until(all_work)
        assert await gateway.beat("gateway", "", wire.OpenRequests([], [], [], [], [], [])) == 1
        killed = servers.kill_master()
        took_s = await until(all_work)
        print(f"all clients write to the new master {took_s:.1f} s after the old one was killed")
        assert servers.master() != killed
        assert await gateway.beat("gateway", "", wire.OpenRequests([], [], [], [], [], [])) >= 1
        changed.clear()
        await until(lambda: bool(web.publish(wire.FLEET_CHANNEL, b"2")))  # somebody hears it
        async with asyncio.timeout(WITHIN_S):
            await changed.wait()
    finally:
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
        await gateway.close()
        agent.close()
        web.close()
        product.close()

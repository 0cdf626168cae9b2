"""Two gateways that send to one simulated engine, whose clock both ask for: its requests keep their limits."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest
import redis
from django.conf import settings
from msgspec.structs import replace

from pools import wire
from pools.agent.clocks.clock_requests import ClockListener, ClockRequests
from pools.agent.redis_link import redis_url
from pools.gateway.placing.projections import InstanceProjection
from pools.gateway.server import Config, GatewayServer
from scheduler.control.apply import message_writer
from tests.fakes.fleet import ENGINE_MODEL, MODEL, SECRET, FakeFleet
from tests.fakes.simnode import SimnodeProcess
from tests.unit.pools.gateway.conftest import until

NODE = "node-1"
LIMIT_S, KEPT_S = 0.052, 0.05  # the objective on TPOT, and what projections keep of it
EACH, TOKENS = 40, 50  # requests of each gateway, and tokens of each answer
ALL_THERE = 15  # tokens that the first have when the last have come
POLICY = wire.RequestPolicy(
    route="least_loaded",
    admission="projection",
    throttle=True,
    engine_queue=1000,
    tuning=wire.RequestTuning(throttle_tbt_s=KEPT_S),
)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimnodeProcess]:
    process = SimnodeProcess(tmp_path_factory.mktemp("simnode"), "shared", ("A100-80GB:4",)).start()
    yield process
    assert process.stop() == 0, process.log()


@pytest.fixture
async def gateways(
    tmp_path: Path, redis_client: redis.Redis, node: SimnodeProcess
) -> AsyncIterator[list[GatewayServer]]:
    """Two gateways of one Redis that know one engine, and judge it."""
    InstanceProjection(ENGINE_MODEL, "A100-80GB", 4, "vllm-v1").warm_up()
    fake = FakeFleet([""], policy=POLICY, objectives=wire.LatencyLimits(5.0, LIMIT_S, None))
    fake.urls = [node.run_instance(fake.instance("http://127.0.0.1:1", 0).uid, [0, 1, 2, 3])]
    redis_client.set(wire.agent_key(NODE), wire.encode(fake.states()[NODE]))
    message_writer.write(redis_client, lambda version: (replace(fake.fleet(), version=version), []))
    started = []
    for n in (1, 2):
        config = Config(
            host="127.0.0.1", port=0, spool=tmp_path / str(n), name=f"g{n}", redis_url=settings.REDIS_URL, learns=False
        )
        started.append(GatewayServer(config))
        await started[-1].start()
    await until(lambda: all(server.fleet.ready_instances for server in started))
    for server in started:
        (instance,) = server.fleet.services[MODEL].ready
        await until(lambda s=server, i=instance: s.gate._projection(s.fleet.services[MODEL], i) is not None)
    yield started
    for server in started:
        await server.stop()


class Agent:
    """In the agent's place: hears clocks that are asked for, and sets the highest."""

    def __init__(self, node: SimnodeProcess, uid: str) -> None:
        self.node, self.uid = node, uid
        self.asked, self.heard = ClockRequests(), asyncio.Event()
        loop = asyncio.get_running_loop()
        url = redis_url(settings.CELERY_BROKER_URL)
        self.listener = ClockListener(url, NODE, self.asked, lambda: loop.call_soon_threadsafe(self.heard.set))
        self.listener.start()
        self.mhz: list[float] = []

    async def keep(self) -> None:
        while True:
            await self.heard.wait()
            self.heard.clear()
            highest = self.asked.highest(self.uid, time.time())
            if highest is not None and self.mhz[-1:] != [highest.mhz]:
                order = {"uuids": [self.node.uuid(n) for n in range(4)], "mhz": highest.mhz, "lease_s": 10.0}
                status, answer = await asyncio.to_thread(self.node.send, "POST", "/gpus/clock", order)
                assert status == 200, answer
                self.mhz.append(highest.mhz)


async def tpot_s(http: aiohttp.ClientSession, server: GatewayServer) -> float:
    """Returns the mean time between the tokens of one request, once all are there."""
    body = {"model": MODEL, "prompt": [1] * 20, "max_tokens": TOKENS, "ignore_eos": True, "stream": True}
    headers = {"Authorization": f"Bearer {SECRET}"}
    url = f"http://127.0.0.1:{server.port}/v1/completions"
    async with http.post(url, json=body, headers=headers) as answer:
        assert answer.status == 200, await answer.text()
        times_s = [time.monotonic() async for line in answer.content if line.startswith(b"data: {")]
    assert len(times_s) >= TOKENS
    return (times_s[TOKENS - 1] - times_s[ALL_THERE]) / (TOKENS - 1 - ALL_THERE)


@pytest.mark.parametrize("shared", [True, False], ids=["boards are shared", "boards are not shared"])
async def test_time_between_tokens_keeps_its_limit_only_when_gateways_know_what_both_sent(
    gateways: list[GatewayServer], node: SimnodeProcess, redis_client: redis.Redis, shared: bool
) -> None:
    if shared:
        await until(
            lambda: all(
                not (own := server.runtime.boards).alone and not own.unknown(time.monotonic()) for server in gateways
            )
        )
    else:
        for server in gateways:  # as if each were alone
            boards = server.runtime.boards
            boards.hear({}, float("inf"), time.time())
            boards.hear = lambda *_: None  # type: ignore[method-assign]
    agent = Agent(node, gateways[0].fleet.services[MODEL].ready[0].uid)
    keeping = asyncio.create_task(agent.keep())
    await until(lambda: redis_client.pubsub_numsub(wire.clock_channel(NODE))[0][1] > 0)  # type: ignore[index]
    try:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
            found = await asyncio.gather(*(tpot_s(http, server) for server in gateways for _ in range(EACH)))
    finally:
        keeping.cancel()
        await asyncio.to_thread(agent.listener.end, 5.0)
    mean_s = statistics.fmean(found)
    print(f"{2 * EACH} requests, shared: {shared}: {mean_s * 1e3:.1f} ms a token, clocks {agent.mhz}")
    assert len(agent.mhz) > 1
    assert (mean_s <= LIMIT_S) == shared

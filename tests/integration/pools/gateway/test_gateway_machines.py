"""A dozen gateways of four machines: each knows how many there are, and all together keep a tenant's limits."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
import redis
from django.conf import settings
from msgspec.structs import replace

from pools import wire
from pools.agent.clocks.clock_requests import ClockRequests
from pools.gateway import redis_tasks
from pools.gateway.accounts.use_elsewhere import UseElsewhere
from pools.gateway.errors import ApiError
from pools.gateway.placing.clock_requests import PendingClockRequest
from pools.open_requests import open_requests
from scheduler.control.apply import message_writer
from tests.fakes.engine import FakeEngine
from tests.fakes.fleet import FakeFleet
from tests.integration.pools.gateway.test_gateway import Process, ask, engine, http, ready, store, until
from tests.unit.pools.gateway.accounts.test_request_limits import Counter

__all__ = ["engine", "http", "store"]  # fixtures

HOSTS, NAMES = ("gw-1", "gw-2", "gw-3", "gw-4"), ("gateway.1", "gateway.2", "gateway.3")
LIMIT = 120
Link = tuple[str, str, redis_tasks.RedisLink]


@pytest.fixture
async def links(redis_client: redis.Redis) -> AsyncIterator[list[Link]]:
    own = [(host, name, redis_tasks.RedisLink(settings.REDIS_URL)) for host in HOSTS for name in NAMES]
    yield own
    for _, _, link in own:
        await link.close()


async def known(links: list[Link], monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Returns how many gateways each of them knows of, after a sign of life of all."""
    found = []
    for _ in range(2):
        found = []
        for number, (host, name, link) in enumerate(links):
            monkeypatch.setattr(redis_tasks.socket, "gethostname", lambda host=host: host)
            opened = wire.OpenRequests(["chat"], [0], [f"r{number}"], [1.0], [10], [20])
            found.append(await link.beat(name, "", opened))
    return found


def admitted(counters: list[Counter], asked: int, at_s: float) -> int:
    """Sends requests to the gateways in turn, and returns how many were admitted."""
    count = 0
    for number in range(asked):
        try:
            counters[number % len(counters)].ask(at_s)
        except ApiError:
            continue
        count += 1
    return count


async def test_a_dozen_gateways_of_four_machines_admit_no_more_than_the_limit_together(
    links: list[Link], redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = await known(links, monkeypatch)
    assert counts == [12] * 12, "though gateways of different machines go by one name"
    limits = wire.RequestLimits(requests_per_minute=LIMIT)
    counters = [Counter(tenant_limits=limits, gateways=count) for count in counts]
    assert admitted(counters, 10 * LIMIT, at_s=100.0) == LIMIT
    assert admitted(counters, 10 * LIMIT, at_s=130.0) == LIMIT // 2, "half a minute has come back"
    assert {found.request_id for found in open_requests(redis_client, "chat")} == {f"r{n}" for n in range(12)}


async def test_each_gateway_hears_what_tenants_used_at_all_others(
    links: list[Link], monkeypatch: pytest.MonkeyPatch
) -> None:
    await known(links, monkeypatch)
    used = [UseElsewhere() for _ in links]
    heard = [(0, 0)] * len(links)

    async def share() -> None:
        for number, (own, (host, name, link)) in enumerate(zip(used, links, strict=True)):
            monkeypatch.setattr(redis_tasks.socket, "gethostname", lambda host=host: host)
            queued, ended = own.hear(await link.share_use(name, own.message()))
            heard[number] = (
                heard[number][0] + queued.get("chat/LL", {}).get("acme", 0),
                heard[number][1] + ended.get("acme", 0),
            )

    for _ in range(2):  # each has heard of each
        await share()
    for own in used:
        own.note_queued("chat/LL", "acme", 10)
        own.note_ended("acme", 3)
    for _ in range(3):
        await share()
    assert heard == [(110, 33)] * 12, "of the eleven others, each once"


async def test_each_gateway_hears_what_all_others_have_at_engines_or_that_they_do_not_tell(
    links: list[Link], redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    (_, name, link), (host, other, silent), *_ = links
    monkeypatch.setattr(redis_tasks.socket, "gethostname", lambda: "gw-1")
    boards = wire.GatewayBoards(5.0, time.time(), {"e": wire.EngineBoard(0, None, [], [], [], [], [], [], [], [])})
    own = f"{name}@gw-1"
    assert await link.share_boards(name, boards) == {own: None}, "it is not listed yet: nobody hears it"
    await known(links[:2], monkeypatch)
    assert await link.share_boards(name, boards) == {f"{other}@{host}": None}, "it has published nothing"
    assert await silent.share_boards(other, None) == {own: boards}
    left_ms = redis_client.pttl(wire.gateway_boards_key(own))
    assert 0 < left_ms <= 1000.0 * wire.GATEWAY_BOARDS_TTL_S, "of one that ends nothing is known a second later"  # type: ignore[operator]
    redis_client.set(wire.gateway_boards_key(own), b"no board")
    assert await silent.share_boards(other, None) == {own: None}, "what cannot be read is as if it were not there"


async def test_clocks_that_gateways_of_two_machines_ask_for_are_two_though_they_have_one_name(
    links: list[Link], redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, name, link = links[0]
    asked = ClockRequests()
    channel = redis_client.pubsub(ignore_subscribe_messages=True)
    channel.subscribe(wire.clock_channel("node-1"))
    channel.get_message(timeout=1.0)
    for host, mhz in (("gw-1", 1200.0), ("gw-2", 600.0)):
        monkeypatch.setattr(redis_tasks.socket, "gethostname", lambda host=host: host)
        await link.ask_clock(name, PendingClockRequest("e", "node-1", mhz, "within_limits", "", 0.0))
        message = channel.get_message(timeout=1.0)
        assert message is not None
        asked.put(wire.decode(message["data"], wire.ClockRequest), time.time())
    channel.close()
    highest = asked.highest("e", time.time())
    assert highest is not None
    assert (highest.gateway, highest.mhz) == (f"{name}@gw-1", 1200.0), "the later one is not in its place"


async def test_gateways_that_remain_take_over_the_parts_of_those_that_are_gone(
    links: list[Link], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await known(links, monkeypatch) == [12] * 12
    later_s = time.time() + 5 * redis_tasks.HEARTBEAT_PERIOD_S + 1.0
    monkeypatch.setattr(redis_tasks.time, "time", lambda: later_s)
    (count, *_) = await known(links[:1], monkeypatch)
    assert count == 1


@pytest.mark.slow("a dozen processes, and half a minute of requests")
@pytest.mark.parametrize("spread", ["over all", "to one"])
async def test_a_dozen_processes_keep_a_limit(
    tmp_path: Path, store: redis.Redis, engine: FakeEngine, http: aiohttp.ClientSession, spread: str
) -> None:
    fake, seconds = FakeFleet([engine.url]), 30.0
    fleet = fake.fleet()
    limited = [replace(one, tenant_limits=wire.RequestLimits(requests_per_minute=LIMIT)) for one in fleet.keys]
    store.set(wire.agent_key("node-1"), wire.encode(fake.states()["node-1"]))
    message_writer.write(store, lambda version: (replace(fleet, version=version, keys=limited), []))
    gateways = [
        Process(tmp_path / str(n), settings.REDIS_URL, more=("--name", f"gateway-{n}"), log=[]) for n in range(12)
    ]
    try:
        for gateway in gateways:  # one after the other: a dozen at once would take too long on two processors
            await gateway.start()
            await until("ready", lambda gateway=gateway: ready(http, gateway), timeout_s=60.0)
        await until("all known", lambda: store.zcard(wire.GATEWAYS_KEY) == 12, timeout_s=60.0)
        await asyncio.sleep(2 * redis_tasks.HEARTBEAT_PERIOD_S)  # each has heard so
        rng, began_s, served = random.Random(1), time.monotonic(), 0
        while time.monotonic() < began_s + seconds:
            chosen = gateways[0] if spread == "to one" else rng.choice(gateways)
            served += await ask(http, chosen) == 200
            await asyncio.sleep(0.02)
        whole = LIMIT * (1.0 + seconds / 60.0)  # a full bucket, and what comes back
        print(f"a dozen gateways, {spread}: {served} served of {whole:g} that one gateway would admit")
        assert served <= whole + 12, "what is cut off a part, at each gateway"
        assert served >= (0.8 * whole if spread == "over all" else 0.8 * whole / 12)
    finally:
        for gateway in gateways:
            if hasattr(gateway, "process"):
                await gateway.end()

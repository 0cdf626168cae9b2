"""What the network takes is part of the time to the first token: far engines serve what can wait for them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pools import wire
from pools.gateway.fleet.instance import RoundTrip
from pools.gateway.http.upstream import Address, UpstreamConnection, UpstreamPool
from tests.unit.pools.gateway.conftest import Bench, Start, completion

NEAR, FAR = 0, 1
WAY_S = 0.2


def far_away(pool: UpstreamPool, port: int, way_s: float) -> None:
    """Connections to a port take longer."""
    open_at_once = pool._open

    async def slow(address: Address) -> UpstreamConnection:
        await asyncio.sleep(way_s if address.port == port else 0.0)
        return await open_at_once(address)

    pool._open = slow  # type: ignore[method-assign]


async def ask(bench: Bench, ttft_ms: int) -> int:
    """Which engine served."""
    before = [len(engine.received) for engine in bench.engines]
    headers = bench.auth | {"x-slo-ttft-ms": str(ttft_ms)}
    async with bench.post(completion(), headers=headers) as response:
        assert response.status == 200
        await response.read()
    return [len(engine.received) - n for engine, n in zip(bench.engines, before, strict=True)].index(1)


async def test_far_instance_serves_only_what_has_time_for_the_way(start: Start) -> None:
    bench = await start(engines=2)
    cheap = wire.FleetPool(9, "far", "LL", 1.0, 300.0)  # the near one's PUE is 1.2

    def fleet() -> wire.Fleet:
        known = type(bench.fleet).fleet(bench.fleet)
        service = known.services[0]
        pools = [*service.pools, cheap]
        changed: Any = {name: getattr(service, name) for name in service.__struct_fields__} | {"pools": pools}
        return wire.Fleet(2, known.at_s, [wire.FleetService(**changed)], known.keys, known.nodes)

    def instance(url: str, n: int) -> wire.InstanceState:
        state = type(bench.fleet).instance(bench.fleet, url, n)
        if n != FAR:
            return state
        changed: Any = {name: getattr(state, name) for name in state.__struct_fields__} | {"pool_id": cheap.id}
        return wire.InstanceState(**changed)

    bench.fleet.fleet, bench.fleet.instance = fleet, instance  # type: ignore[method-assign]
    bench.publish()
    far_away(bench.server.gateway.pool, bench.engines[FAR].port, WAY_S)
    assert await ask(bench, 150) == FAR, "nothing is known of the way"
    assert await ask(bench, 150) == NEAR
    assert await ask(bench, 2000) == FAR
    (known,) = (i for i in bench.server.fleet.instances() if i.pool_id == cheap.id)
    assert WAY_S - 0.001 <= known.rtt_s < WAY_S + 0.5, (
        "whole milliseconds, rounded down, of a sleep that may wake early"
    )
    bench.publish()
    assert await ask(bench, 150) == NEAR, "a new snapshot changes nothing of it"


def test_least_of_what_was_seen_recently_counts() -> None:
    way = RoundTrip()
    assert way.observe(0.0805, 0.0) == 0.080
    assert way.observe(0.300, 10.0) == 0.080
    assert way.observe(0.0312, 20.0) == 0.031
    assert way.observe(0.200, 70.0) == 0.031, "the window before counts too"
    assert way.observe(0.200, 140.0) == 0.200, "the way has become longer"


@pytest.mark.parametrize("took_s", [0.00005, 0.0009])
def test_instances_of_one_house_are_equally_near(took_s: float) -> None:
    assert RoundTrip().observe(took_s, 0.0) == 0.0

"""Routes of gateways choose as simulated pools do, by the same weights."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from core.simulator.kernel.driver import simulate
from core.simulator.kernel.simulated import FixedCosts, FleetSpec, InstanceSpec, PoolSpec, load
from pools import wire
from tests.unit.pools.gateway.placing.test_dispatch_laws import House

WEIGHTS = {4: 1.0, 8: 2.7}
TPS = (4, 8, 4)


def house_of(route: str, **policy: object) -> House:
    """A gateway with instances of unequal size, none of which is ever late."""
    house = House(len(TPS), route=route, **policy)
    house.fake.objectives = wire.LatencyLimits()
    house.fake.tps = dict(enumerate(TPS))
    house.fake.weights = {f"A100-80GB/TP{tp}": weight for tp, weight in WEIGHTS.items()}
    house.publish()
    return house


async def placed(house: House, count: int) -> list[int]:
    """Places as many requests, which all stay; returns the TP degree that each went to."""
    found = []
    for _ in range(count):
        guest = await house.come(house.call())
        assert guest.slot is not None
        found.append(guest.slot.instance.state.tp)
    return found


def simulated(routing: str, count: int) -> list[int]:
    """Returns the same of a simulated pool."""
    costs = FixedCosts(1.0, 0.0, 0.0)
    specs = tuple(InstanceSpec(f"i{n}", "fixed", "fixed", tp, 1.0, costs=costs) for n, tp in enumerate(TPS))
    weights = tuple(WEIGHTS[tp] for tp in TPS)
    fleet = FleetSpec(specs, (PoolSpec("all", tuple(range(len(TPS))), routing),), weights=weights)
    rows = simulate(fleet, load([0.001 * n for n in range(count)], [10] * count, [100] * count)).rows
    return [TPS[i] for i in rows["instance"].tolist()]


@pytest.mark.parametrize(("route", "routing"), [("weighted_round_robin", "weighted"), ("least_loaded", "least_loaded")])
async def test_gateway_and_simulated_pool_choose_the_same_by_the_same_weights(route: str, routing: str) -> None:
    house = house_of(route)
    assert await placed(house, 40) == simulated(routing, 40)
    await house.clear()


async def test_old_credit_counts_little_when_all_weights_have_changed() -> None:
    house = house_of("weighted_round_robin")
    await placed(house, 5)
    house.fake.weights = {name: weight / 1000.0 for name, weight in house.fake.weights.items()}
    house.publish()
    counts = Counter(await placed(house, 47))
    assert counts[8] == pytest.approx(47 * 2.7 / 4.7, abs=1.0)
    await house.clear()


async def test_sites_get_the_shares_of_the_plan_when_their_instances_take_turns_by_weight() -> None:
    house = house_of("weighted_round_robin", by_share=True)
    house.fake.shares = {3: 0.25, 4: 0.75}
    house.fake.request_classes = {2: "LS"}
    house.publish()
    house.fake.fleet = one_class(house)
    house.publish()
    pools = Counter()
    for _ in range(40):
        guest = await house.come(house.call())
        assert guest.slot is not None
        pools[guest.slot.instance.pool_id, guest.slot.instance.state.tp] += 1
    assert pools[3, 4] == 10
    assert pools[4, 8] == pytest.approx(30 * 2.7 / 3.7, abs=1.0)
    await house.clear()


def one_class(house: House):
    """Returns a fleet whose third and fourth pool serve the same class, as those of two sites do."""
    made = house.fake.fleet

    def fleet() -> wire.Fleet:
        found = made()
        service = found.services[0]
        pools = [msgspec.structs.replace(pool, request_class="LL") for pool in service.pools]
        return msgspec.structs.replace(found, services=[msgspec.structs.replace(service, pools=pools)])

    return fleet

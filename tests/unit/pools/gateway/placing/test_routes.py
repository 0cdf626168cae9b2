"""Routes of gateways choose as simulated pools do, by the same weights."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import msgspec
import pytest

from core.controllers.request.routing import Choice
from core.simulator.kernel.driver import simulate
from core.simulator.kernel.simulated import FixedCosts, FleetSpec, InstanceSpec, PoolSpec, load
from pools import wire
from pools.gateway.fleet.instance import Instance
from pools.gateway.placing.splitter import Splitter
from pools.gateway.requests.call import Call
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


@pytest.mark.parametrize(
    ("route", "routing"),
    [
        ("weighted_round_robin", "weighted"),
        ("least_loaded", "least_loaded"),
        ("round_robin", "round_robin"),
    ],
)
async def test_gateway_and_simulated_pool_choose_the_same_by_the_same_weights(route: str, routing: str) -> None:
    house = house_of(route)
    assert await placed(house, 40) == simulated(routing, 40)
    await house.clear()


async def test_request_goes_where_the_prompts_that_wait_are_done_with_first() -> None:
    house = house_of("least_backlog")
    assert await placed(house, 1) == [8], "all are alike, and it weighs most"
    house.instances[1].dispatched(20_000, stream=True)
    assert await placed(house, 2) == [4, 4]
    house.instances[0].dispatched(100_000, stream=True)
    house.instances[2].dispatched(100_000, stream=True)
    guest = await house.come(house.call(prompt=4000))
    assert guest.slot is not None
    assert (guest.slot.instance.state.tp, guest.slot.choice.reason) == (8, "least backlog")
    await house.clear()


async def test_limits_are_not_said_to_be_broken_when_the_clock_is_about_to_change() -> None:
    reasons = {}
    for deadline in (False, True):
        house = house_of("least_backlog", deadline=deadline)
        house.fake.objectives = wire.LatencyLimits(ttft_s=1e-3)
        house.publish()
        guest = await house.come(house.call())
        assert guest.slot is not None
        reasons[deadline] = guest.slot.choice.reason
        await house.clear()
    assert reasons == {False: "least backlog; it cannot keep the limits", True: "least backlog"}


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


async def test_request_goes_where_it_is_predicted_to_end_first() -> None:
    house = house_of("predicted")
    assert await placed(house, 1) == [8]
    house.instances[1].dispatched(1_000_000, stream=True)
    assert await placed(house, 1) == [4]
    await house.clear()


class Here:
    """An executor that works at once."""

    def submit(self, work, *arguments):
        work(*arguments)

    def shutdown(self, **_): ...


def parts(house: House, splitter: Splitter, count: int) -> list[tuple[int | None, ...]]:
    """Plans as many calls; returns the numbers of the instances that each goes to."""
    found = []
    for _ in range(count):
        plan = splitter.plan(house.call(prompt=2000, predicted=400))
        assert plan is not None
        slots = (plan.first, plan.second)
        found.append(tuple(None if slot is None else int(slot.instance.uid[-2:]) for slot in slots))
    return found


def splitting(route: str, split: str, count: int = 4, **policy: object) -> tuple[House, Splitter]:
    house = House(count, route=route, split=split, **policy)
    return house, Splitter(house.view, house.dispatcher, Here())


def step_of(instance: Instance, answers: int) -> float:
    """Returns the seconds of an iteration with so many answers."""
    return replace(instance.candidate(), running=answers - 1).tpot_s


def sent(house: House, n: int, call: Call) -> None:
    """The call is at an instance."""
    house.dispatcher.take(call, (house.instances[n], Choice("", None, None, None, None, None, False, "")))


@pytest.mark.parametrize("route", ["round_robin", "least_loaded"])
async def test_pairs_of_a_split_are_taken_by_the_route(route: str) -> None:
    house, splitter = splitting(route, "prompt")
    assert parts(house, splitter, 4) == [(0, 2), (1, 3), (0, 2), (1, 3)]


@pytest.mark.parametrize(("share", "pairs"), [(0.5, {(0, 2)}), (0.25, {(0, 1)}), (0.99, {(0, 3)})])
async def test_part_of_the_instances_does_first_parts(share: float, pairs: set[tuple[int, int]]) -> None:
    house, splitter = splitting("predicted", "prompt", tuning=wire.RequestTuning(split_first_share=share))
    assert set(parts(house, splitter, 1)) == pairs


async def test_part_is_the_one_by_rates_when_the_policy_says_so() -> None:
    tuning = wire.RequestTuning(split_by_rates=True)
    shares = []
    for prompt, predicted in ((4000, 20), (100, 2000)):
        house, splitter = splitting("round_robin", "prompt", count=8, tuning=tuning)
        plans = [splitter.plan(house.call(prompt=prompt, predicted=predicted)) for _ in range(8)]
        shares.append(len({plan.first.instance.uid for plan in plans if plan is not None}))
    assert shares[0] > shares[1]


async def test_of_unlike_instances_the_same_one_does_prompts_whatever_their_names() -> None:
    tuning = wire.RequestTuning(split_by_rates=True)
    prompts = set()
    for tps in ((4, 8), (8, 4)):
        house, splitter = splitting("round_robin", "prompt", count=2, tuning=tuning)
        house.fake.tps = dict(enumerate(tps))
        house.publish()
        ((first, _),) = set(parts(house, splitter, 2))
        prompts.add(tps[first])
    assert len(prompts) == 1


async def test_answers_go_where_they_take_least_energy_and_prompts_by_turns() -> None:
    house, splitter = splitting("least_energy", "prompt")
    assert [pair[0] for pair in parts(house, splitter, 4)] == [0, 1, 0, 1]
    await house.clear()
    house, splitter = splitting("least_energy", "prompt")
    for _ in range(4):
        sent(house, 3, house.call(prompt=100, predicted=400))
    assert {pair[1] for pair in parts(house, splitter, 2)} == {3}, "together, while the pace is kept"


async def test_answers_that_are_to_come_count_where_one_more_must_keep_its_pace() -> None:
    house, splitter = splitting("least_energy", "prompt")
    alone_s, together_s = (step_of(house.instances[3], answers) for answers in (1, 8))
    house.fake.objectives = wire.LatencyLimits(tpot_s=(alone_s + together_s) / 2.0)
    house.publish()
    assert {pair[1] for pair in parts(house, splitter, 8)} == {2, 3}


@pytest.mark.parametrize("candidates", [1, 2])
async def test_only_those_with_the_fewest_requests_are_looked_at(candidates: int) -> None:
    tuning = wire.RequestTuning(split_candidates=candidates)
    house, splitter = splitting("predicted", "prompt", tuning=tuning)
    sent(house, 0, house.call(prompt=16_000, predicted=4000))
    for _ in range(2):
        sent(house, 1, house.call(prompt=1, predicted=1))
    assert parts(house, splitter, 1) == [(2, 0 if candidates == 1 else 1)]


async def test_first_parts_go_where_least_is_generated_and_not_by_name() -> None:
    house, splitter = splitting("predicted", "prompt", count=2)
    sent(house, 0, house.call(prompt=100, predicted=400))
    assert parts(house, splitter, 3) == [(1, 0)] * 3  # parts of prompts generate nothing
    assert [house.instances[n].prompts_only for n in (0, 1)] == [0, 3]


async def test_parts_of_prompts_are_counted_until_they_end() -> None:
    house, splitter = splitting("predicted", "prompt", count=2)
    plan = splitter.plan(house.call(prompt=2000, predicted=400))
    assert plan is not None
    instance = plan.first.instance
    assert (instance.in_flight, instance.prompts_only) == (1, 1)
    plan.first.end()
    plan.first.end()
    assert (instance.in_flight, instance.prompts_only) == (0, 0)


async def test_cache_is_sent_in_chunks_or_at_once() -> None:
    for chunked, chunk_tokens in ((True, 512), (False, None)):
        house, splitter = splitting("predicted", "prompt", tuning=wire.RequestTuning(split_chunked=chunked))
        plan = splitter.plan(house.call(prompt=2000, predicted=400))
        assert plan is not None
        assert plan.chunk_tokens == chunk_tokens


@pytest.mark.parametrize(("busy", "idle"), [(0, 1), (1, 0)])
async def test_request_is_whole_on_the_instance_that_is_done_first_with_all_of_it(busy: int, idle: int) -> None:
    house, splitter = splitting("predicted", "any", count=2)
    for _ in range(20):
        sent(house, busy, house.call(prompt=16_000, predicted=4000))
    assert parts(house, splitter, 1) == [(idle, None)]


def one_class(house: House):
    """Returns a fleet whose third and fourth pool serve the same class, as those of two sites do."""
    made = house.fake.fleet

    def fleet() -> wire.Fleet:
        found = made()
        service = found.services[0]
        pools = [msgspec.structs.replace(pool, request_class="LL") for pool in service.pools]
        return msgspec.structs.replace(found, services=[msgspec.structs.replace(service, pools=pools)])

    return fleet

"""The contract of both worlds on splits: the same request on the same loads goes to the same instances, and is cut at
the same token.

Equal are the facts that both worlds have. A simulated instance also tells how much of a prompt is done and which of it
was cached, and its predictions are corrected by the clock (`SplitTuning.calibrate_s`); a live client may bound its
answer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from core.algorithms.split.split_point import Backlog
from core.controllers.request.routing import Choice
from core.observations.request.split_configs import split_config
from core.policy import presets
from core.simulator.kernel import kernel
from core.simulator.kernel.commands import FleetView, RequestView, Sequences
from core.simulator.kernel.driver import simulate
from core.simulator.kernel.simulated import FleetSpec, PoolSpec, load
from core.simulator.policies import Plan, build, read_policy
from core.simulator.policies.dynaserve.dynaserve_policy import GlobalScheduler
from core.simulator.policies.dynaserve.load_tracker import Placed
from pools.gateway.fleet.instance import Instance
from pools.gateway.placing import split_plans
from pools.gateway.placing.slot import Part
from pools.gateway.placing.splitter import Splitter
from scheduler.control import service_policy
from tests.fakes import minute as minutes
from tests.fakes.fleet import MODEL
from tests.fakes.minute import MINUTE, Place
from tests.unit.pools.gateway.placing.test_dispatch_laws import House
from tests.unit.pools.gateway.placing.test_routes import Here

NEW = (3_000, 700)  # prompt and predicted output of the request that comes
COUNT = 4
ONE_SITE = replace(MINUTE, places=(Place("east", 1.2, (8, 8), ()),))
TIGHT = {"itl_limit_s": 0.05}  # s between tokens: requests are cut; at the default they are better whole
MARGIN = presets.policy("dynaserve").tuning.split.margin_tokens


Answer = tuple[int, int, int]  # the first instance, the token after which the request goes on, and where; 0, -1: not


@dataclass(frozen=True)
class Has:
    """A request that instance `at` has; `generated` 0: its prompt is still to come.

    `cut`: the token after which it goes on at `then`, or has gone on; 0: it does not.
    """

    at: int
    prompt: int
    predicted: int
    generated: int = 0
    cut: int = 0
    then: int = -1

    @property
    def total(self) -> int:
        return self.prompt + self.predicted + MARGIN


LOADS = {
    "nothing": (),
    "decodes on the first": tuple(Has(0, 500 + 90 * n, 300, 1 + 20 * n) for n in range(12)),
    "prompts before the second": (*(Has(2, 4_000, 50) for _ in range(5)), Has(3, 2_500, 80)),
    "much everywhere": tuple(Has(n % 4, 900 + 31 * n, 200 + n, (7 * n) % 150) for n in range(40)),
    "beyond its prediction": (Has(0, 800, 20, 60), Has(1, 600, 900, 3), Has(2, 600, 900, 3), Has(3, 10, 10, 1)),
    "first parts": (Has(0, 2_000, 400, cut=1_300, then=2), Has(1, 2_000, 400, 25, cut=2_100, then=2)),
    "second parts": (Has(0, 2_000, 400, 150, cut=2_100, then=2), Has(1, 1_500, 900, 30, cut=1_500, then=3)),
}


def goes_on(own: Has) -> bool:
    """Says whether its first part is done."""
    return own.cut > 0 and own.generated > 0 and own.prompt + own.generated - 1 >= own.cut


# -- live ------------------------------------------------------------------------------------------


def house_of(policy: str, **knobs: Any) -> House:
    known = presets.policy(policy, knobs)
    asked = service_policy.request_policy(known.knobs, known.tuning)
    house = House(COUNT, **{name: getattr(asked, name) for name in asked.__struct_fields__})
    house.fake.engine_limits = service_policy.engine_limits(known.knobs, known.tuning, [MINUTE.objective])
    house.publish()
    return house


def give(house: House, own: Has) -> None:
    """The gateway has sent the request there."""
    call = house.call(prompt=own.prompt, predicted=own.predicted)
    places = [own.at, own.then] if own.cut else [own.at]
    parts = [Part(own.cut, own.total, bool(second)) if own.cut else None for second in range(len(places))]
    slots = [
        house.dispatcher.take(call, (house.instances[n], _chosen(house.instances[n])), part)
        for n, part in zip(places, parts, strict=True)
    ]
    if goes_on(own):
        slots[0].end()
        slots[1].arrives()
    if own.generated:
        slots[-1 if goes_on(own) else 0].started()
    for slot in slots:
        slot.meter = SimpleNamespace(events=own.generated)


def _chosen(instance: Instance) -> Choice:
    return Choice(instance.uid, None, None, None, None, None, False, "")


def busy_house(policy: str, has: tuple[Has, ...], **knobs: Any) -> House:
    house = house_of(policy, **knobs)
    for own in has:
        give(house, own)
    return house


def live(policy: str, has: tuple[Has, ...], **knobs: Any) -> Answer:
    house = busy_house(policy, has, **knobs)
    plan = Splitter(house.view, house.dispatcher, Here()).plan(house.call(prompt=NEW[0], predicted=NEW[1]))
    assert plan is not None
    if plan.second is None:
        return _number(plan.first.instance), 0, -1
    return _number(plan.first.instance), plan.cut_tokens, _number(plan.second.instance)


def _number(instance: Instance) -> int:
    return int(instance.uid[-2:])


# -- simulated -------------------------------------------------------------------------------------


def plan_of(policy: str, **knobs: Any) -> Plan:
    return build(read_policy({"name": policy, **knobs}), minutes.world(ONE_SITE))


def sequences(number: int, has: tuple[Has, ...]) -> Sequences:
    """Returns what a simulated instance has, the running ones first."""
    there = [(n, own) for n, own in enumerate(has) if (own.then if goes_on(own) else own.at) == number]
    there.sort(key=lambda item: not item[1].generated)
    rows = [
        (
            n,
            own.prompt + own.generated - 1 if own.generated else 0,
            own.generated,
            0 if own.generated else min(own.prompt, own.cut or own.prompt),
            own.predicted,
        )
        for n, own in there
    ]
    columns = np.array(rows, dtype=np.int64).reshape(-1, 5).T
    none = np.zeros(len(rows))
    return Sequences(sum(own.generated > 0 for _, own in there), *columns, none, none)


def busy_fleet(policy: str, has: tuple[Has, ...], **knobs: Any) -> tuple[GlobalScheduler, FleetView]:
    plan = plan_of(policy, **knobs)
    router = plan.router
    assert isinstance(router, GlobalScheduler)
    here = [sequences(n, has) for n in range(COUNT)]
    running = np.array([own.running for own in here])
    view = replace(
        minutes.view(ONE_SITE, plan),
        running=running,
        waiting=np.array([len(own.number) for own in here]) - running,
        sequences=lambda n: here[n],
    )
    for n, own in enumerate(has):
        router.tracker.note(Placed(n, own.prompt, own.total, own.cut, own.then), own.at)
    for n in range(COUNT):  # as at the requests that came before
        router.tracker.states(n, view)
    return router, view


def simulated(policy: str, has: tuple[Has, ...], **knobs: Any) -> Answer:
    router, view = busy_fleet(policy, has, **knobs)
    found = router.place(RequestView(len(has), view.now_s, NEW[0], 0, NEW[1], np.inf, 0, 0, 0), view)
    assert found is not None
    return found.instance, found.split, found.second


# -- the same --------------------------------------------------------------------------------------


@pytest.mark.parametrize("load_name", LOADS)
async def test_request_is_cut_at_the_same_token_when_the_loads_are_the_same(load_name: str) -> None:
    has = LOADS[load_name]
    assert live("dynaserve", has, **TIGHT) == simulated("dynaserve", has, **TIGHT)


@pytest.mark.parametrize("load_name", LOADS)
async def test_request_is_whole_on_the_same_instance_when_the_loads_are_the_same(load_name: str) -> None:
    has = LOADS[load_name]
    found = simulated("dynaserve", has)
    assert live("dynaserve", has) == found
    assert found[1:] == (0, -1)


def to_do(backlog: Backlog) -> tuple[Any, ...]:
    """Returns all that a decision goes by."""
    costs = backlog.costs
    return backlog.work.tolist(), backlog.admitted, backlog.scale, costs.values.tolist(), costs.decode_s.tolist()


@pytest.mark.parametrize("load_name", LOADS)
async def test_instances_have_the_same_to_do_when_they_have_the_same_requests(load_name: str) -> None:
    house, (router, view) = busy_house("dynaserve", LOADS[load_name]), busy_fleet("dynaserve", LOADS[load_name])
    tuned = house.view.services[MODEL].policy.tuning
    config = split_config("any", tuned.split_max_probes, tuned.split_margin_tokens, tuned.split_tolerance)
    assert config == router._config.cut
    for n, instance in enumerate(house.instances):
        assert to_do(split_plans.backlog(instance, config, tuned)) == to_do(router.tracker.backlog(n, view))


async def test_loads_make_a_difference() -> None:
    assert len({simulated("dynaserve", has, **TIGHT) for has in LOADS.values()}) >= 4


CHANGED = (
    ("live", {"tuning": {"split": {"first_share": 0.75}}}),
    ("live", {"tuning": {"split": {"max_probes": 2}}}),
    ("live", {"tuning": {"split": {"candidates": 1}}}),
    ("live", {"itl_limit_s": 0.1}),
    ("simulated", {"tuning": {"split": {"tolerance": 1.0}}}),
    ("simulated", {"tuning": {"split": {"itl_margin": 0.9}}}),
)


@pytest.mark.parametrize(("world", "knobs"), CHANGED)
async def test_request_is_cut_elsewhere_when_one_world_is_changed(world: str, knobs: dict[str, Any]) -> None:
    of_live, of_simulated = (knobs, {}) if world == "live" else ({}, knobs)
    assert any(
        live("dynaserve", has, **TIGHT | of_live) != simulated("dynaserve", has, **TIGHT | of_simulated)
        for has in LOADS.values()
    )


# -- by turns --------------------------------------------------------------------------------------


def by_turns(policy: str, count: int) -> list[Answer]:
    """Returns the same of requests one after the other, of a simulated policy without a router."""
    plan = plan_of(policy)
    assert plan.router is None
    members = [tuple(n for n, own in enumerate(plan.members) if own.pool == pool.name) for pool in plan.pools]
    pools = [PoolSpec(p.name, own, p.routing, p.handover) for p, own in zip(plan.pools, members, strict=True)]
    fleet = FleetSpec(tuple(own.spec for own in plan.members), tuple(pools))
    coming = load([60.0 * n for n in range(count)], [NEW[0]] * count, [NEW[1]] * count)
    outcome = simulate(fleet, coming, keep_events=10**4)
    first = {n: i for kind, n, i, _ in outcome.events if kind == kernel.HANDED_OVER}
    last = outcome.rows["instance"].tolist()
    return [(first[n], NEW[0], last[n]) if n in first else (last[n], 0, -1) for n in range(count)]


async def test_disaggregated_requests_go_on_after_their_prompt_by_turns() -> None:
    house = house_of("pd_disagg")
    splitter, found = Splitter(house.view, house.dispatcher, Here()), []
    for _ in range(5):
        plan = splitter.plan(house.call(prompt=NEW[0], predicted=NEW[1]))
        assert plan is not None
        assert plan.second is not None
        found.append((_number(plan.first.instance), plan.cut_tokens, _number(plan.second.instance)))
    assert found == by_turns("pd_disagg", 5)


async def test_colocated_requests_stay_whole_by_turns() -> None:
    house = house_of("pd_coloc")
    splitter, found = Splitter(house.view, house.dispatcher, Here()), []
    for _ in range(5):
        call = house.call(prompt=NEW[0], predicted=NEW[1])
        assert splitter.plan(call) is None
        guest = await house.come(call)
        assert guest.slot is not None
        found.append((_number(guest.slot.instance), 0, -1))
    assert found == by_turns("pd_coloc", 5)
    await house.clear()

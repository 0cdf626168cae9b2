"""Laws of the dispatcher over random comings and goings, without sockets: what holds whatever happens when."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pools import wire
from pools.gateway.accounts.gateway_metrics import Metrics
from pools.gateway.classify.classified import Classified
from pools.gateway.errors import ApiError
from pools.gateway.fleet.instance import Instance
from pools.gateway.fleet.view import FleetView
from pools.gateway.http.request import Request
from pools.gateway.placing.clock_requests import ClockRequests
from pools.gateway.placing.dispatch import Dispatcher, RetryBudget
from pools.gateway.placing.instance_choice import Router
from pools.gateway.placing.projected_admission import AdmissionGate, configuration
from pools.gateway.placing.projections import InstanceProjection
from pools.gateway.placing.slot import Slot
from pools.gateway.requests.call import Call
from pools.gateway.requests.endpoint import COMPLETIONS
from tests.fakes.fleet import MODEL, FakeFleet, key
from tests.unit.core.boards import Row, table, walk

LAW = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
NAMES = ("SS", "SL", "LS", "LL")
BEGAN_S = 1.75e9  # Unix time of the first arrival
HEAD_START_S = {"priority": 30.0, "flex": -60.0, None: 0.0}


@dataclass(eq=False)
class Guest:
    """A request, and what became of it."""

    call: Call
    task: asyncio.Task[Slot | None]
    slots: list[Slot] = field(default_factory=list)
    left: bool = False
    refused: ApiError | None = None
    nowhere: bool = False  # refused: there is no instance left

    @property
    def slot(self) -> Slot | None:
        return self.slots[-1] if self.slots else None


class House:
    """A dispatcher with its fleet, and the guests that came so far."""

    def __init__(self, instances: int, gate: Any = None, **policy: Any) -> None:
        self.fake = FakeFleet([f"http://127.0.0.1:{n + 1}" for n in range(instances)])
        self.fake.policy = wire.RequestPolicy(**policy)
        self.view = FleetView()
        self.publish()
        self.router = Router(Metrics().routing_s, random.Random(1))
        self.dispatcher = Dispatcher(self.view, self.router, None, gate)
        self.guests: list[Guest] = []

    def publish(self) -> None:
        self.view.apply(self.fake.fleet(), self.fake.states(), time.monotonic())

    @property
    def instances(self) -> list[Instance]:
        return self.view.services[MODEL].ready

    def call(self, at_s: float = 0.0, prompt: int = 100, predicted: int = 50, **fields: Any) -> Call:
        request = Request(b"POST", COMPLETIONS.path, {}, b"", keep_alive=True)
        request.started_at_s = BEGAN_S + at_s
        owner = key(f"secret of {fields.get('tenant', 1)}", fields.pop("tenant", 1))
        class_name = fields.pop("class_name", "LL")
        fields.setdefault("stream", True)
        call = Call(request, self.view.services[MODEL], owner, COMPLETIONS, **fields)
        call.classified = Classified(prompt, True, predicted, "history", class_name, predicted)
        return call

    async def come(self, call: Call, tried: Sequence[str] = ()) -> Guest:
        guest = Guest(call, asyncio.ensure_future(self.dispatcher.place(call, tried)))
        self.guests.append(guest)
        await self.settle()
        return guest

    async def again(self, guest: Guest) -> None:
        """Its engine has failed: it goes elsewhere."""
        tried = [slot.instance.uid for slot in guest.slots]
        guest.task = asyncio.ensure_future(self.dispatcher.place(guest.call, tried))
        await self.settle()

    async def settle(self) -> None:
        """Lets all that is to happen now happen, and takes down what did."""
        for _ in range(4):
            await asyncio.sleep(0)
        for guest in self.guests:
            if not guest.task.done() or guest.task.cancelled():
                continue
            error = guest.task.exception()
            if isinstance(error, ApiError):
                guest.refused = error
                continue
            slot = guest.task.result()
            guest.nowhere = slot is None
            if slot is not None and slot is not guest.slot:
                assert slot.call is guest.call
                guest.slots.append(slot)

    @property
    def held(self) -> list[Guest]:
        return [guest for guest in self.guests if guest.slot is not None and guest.slot._occupied]

    @property
    def waiting(self) -> list[Guest]:
        return [guest for guest in self.guests if not guest.task.done()]

    async def clear(self) -> None:
        """All end, those that wait after those that run."""
        while self.held or self.waiting:
            before = len(self.held) + len(self.waiting)
            for guest in self.held:
                assert guest.slot is not None
                guest.slot.end()
            self.dispatcher.look_around()
            await self.settle()
            assert len(self.held) + len(self.waiting) < before, "somebody waits though there is room"


# -- nothing is lost, placed twice, or forgotten ------------------------------------------------------

COMING = st.tuples(
    st.just("come"),
    st.tuples(
        st.integers(1, 5000),
        st.integers(1, 900),
        st.sampled_from(NAMES),
        st.booleans(),
        st.integers(1, 3),
        st.integers(-3, 3),
    ),
)
DEEDS = st.lists(
    COMING
    | COMING
    | st.tuples(
        st.sampled_from(
            ["begin", "end", "end", "leave", "retry", "fail", "report", "drain", "squash", "reorder", "cross", "cross"]
        ),
        st.integers(0, 30),
    )
    | st.tuples(st.just("order"), st.sampled_from(["fcfs", "sjf", "spf", "srtf", "edf", "llf"])),
    max_size=40,
)


async def do(house: House, what: str, n: Any, number: int) -> None:
    """One deed; those that need somebody whom there is not are none."""
    held, waiting = house.held, house.waiting
    if what == "come":
        prompt, predicted, class_name, stream, tenant, priority = n
        fields = {"class_name": class_name, "stream": stream, "tenant": tenant, "priority": priority}
        await house.come(house.call(number * 0.1, prompt, predicted, **fields))
    elif what == "order":
        house.fake.policy = msgspec.structs.replace(house.fake.policy, order=n)
        house.publish()
    elif what == "report":
        house.fake.waiting = n % 3
        house.publish()
    elif what == "drain":
        house.fake.state = "draining" if n % 3 == 0 else "ready"
        house.publish()
    elif what == "fail":
        if house.instances:
            house.instances[n % len(house.instances)].health.failed(time.monotonic(), refused=n % 2 == 0)
    elif what == "leave" and waiting:
        guest = waiting[n % len(waiting)]
        guest.left = True
        guest.task.cancel()
    elif what == "cross" and held and waiting:  # clients leave in the very moment in which one's place is given
        deeds = [guest.task.cancel for guest in waiting]
        end = held[n % len(held)].slot.end  # type: ignore[union-attr]
        for guest in waiting:
            guest.left = True
        for deed in (*deeds, end) if n % 2 else (end, *deeds):
            deed()
    elif what == "squash":
        for waiter in house.dispatcher.waiters(MODEL)[: n % 9]:
            waiter.squash(5.0)
    elif what == "reorder":
        house.dispatcher.reorder(house.dispatcher.waiters(MODEL)[::-1][: n % 9])
    elif what in ("begin", "end", "retry") and held:
        guest = held[n % len(held)]
        assert guest.slot is not None
        if what == "begin":
            guest.slot.started()
        else:
            guest.slot.end()
            if n % 5 == 0:
                guest.slot.end()  # more than once does no harm
        if what == "retry":
            await house.again(guest)
    house.dispatcher.look_around()
    await house.settle()


def check(house: House, most: int) -> None:
    """What holds at any moment."""
    held, waiting = house.held, house.waiting
    assert house.dispatcher.waiting == len(waiting), "who is not placed stands in a line, and nobody else does"
    slots = [guest.slot for guest in held]
    assert len({id(slot) for slot in slots}) == len(slots)
    for instance in house.view.instances():
        here = [slot for slot in slots if slot is not None and slot.instance is instance]
        assert set(instance.slots) == set(here)
        assert instance.in_flight == len(here)
        assert 0 <= instance.unstarted <= min(most, len(here))
        assert instance.queued_prompt_tokens >= 0
        streams = sum(slot.call.stream and not slot.begun for slot in here)
        assert instance.unstarted >= streams, "of a stream it is known when it begins"
    usable = house.view.services[MODEL].choosable((), time.monotonic())
    if waiting and usable:
        assert all(instance.unstarted >= most for instance in usable), "nobody waits where there is room"


@given(
    deeds=DEEDS,
    instances=st.integers(1, 3),
    most=st.integers(1, 3),
    weights=st.none() | st.just({"tenant-1": 3.0}),
    route=st.sampled_from(
        ["least_energy", "least_loaded", "least_backlog", "weighted_round_robin", "round_robin", "predicted"]
    ),
)
@LAW
async def test_every_request_is_placed_once_or_refused_and_all_counts_return_to_nothing(
    deeds: list[tuple[str, Any]], instances: int, most: int, weights: dict[str, float] | None, route: str
) -> None:
    house = House(instances, engine_queue=most, tenant_weights=weights, route=route, max_queued_requests=12)
    for number, (what, n) in enumerate(deeds):
        await do(house, what, n, number)
        check(house, most)
    house.fake.state = "ready"
    house.publish()
    await house.clear()
    for guest in house.guests:
        outcomes = (bool(guest.slots), guest.left, guest.refused is not None, guest.nowhere)
        assert any(outcomes), "nobody is forgotten"
        assert guest.refused is None or guest.refused.code in ("queue_full", "squashed")
        assert not guest.nowhere or guest.slots or "drain" in dict(deeds), "there were instances"
    for instance in house.view.instances():
        assert (instance.in_flight, instance.unstarted, len(instance.slots)) == (0, 0, 0)
        assert instance.queued_prompt_tokens == 0
    house.dispatcher.look_around()
    assert house.dispatcher.waiting == 0
    assert not house.dispatcher._queues


@pytest.mark.parametrize("first", ["the client", "the place"])
async def test_place_is_not_lost_when_its_client_leaves_as_it_is_given(first: str) -> None:
    house = House(1, engine_queue=1)
    occupant = await house.come(house.call())
    leaver, stayer = await house.come(house.call(1.0)), await house.come(house.call(2.0))
    assert occupant.slot is not None
    deeds = [leaver.task.cancel, occupant.slot.end]
    for deed in deeds if first == "the client" else deeds[::-1]:
        deed()
    await house.settle()
    assert leaver.task.cancelled()
    assert house.held == [stayer]
    check(house, 1)
    await house.clear()


# -- orders -----------------------------------------------------------------------------------------

WAITING = st.lists(
    st.tuples(
        st.integers(0, 200),  # arrival, in tenths of a second
        st.integers(1, 8000),
        st.integers(1, 900),
        st.sampled_from(NAMES),
        st.integers(-12, 12),
        st.sampled_from(["priority", "flex", None]),
    ),
    min_size=1,
    max_size=15,
)
AGING = 7.0


def wanted(house: House, call: Call, order: str, now_s: float) -> float:
    """The key of FREESH 3.3 and C.2, from the arrival, Lat and the client's hints; the smaller goes first.

    A laxity below 0 counts as 0, and then the work decides; no hint makes a request urgent.
    """
    service = house.view.services[MODEL]
    found = house.router.alone(service, house.dispatcher.request_of(service, call))
    assert found is not None
    lat_s, arrival_s = found[1], call.request.started_at_s
    hinted_s = HEAD_START_S[call.tier] - 10.0 * max(-10, min(10, call.priority))
    if order == "llf" and arrival_s + 1.4 * lat_s - now_s - lat_s < 0.0:
        return lat_s
    return {
        "fcfs": arrival_s - hinted_s,
        "spf": (call.prompt_tokens or 0) + AGING * (arrival_s - hinted_s),
        "sjf": (call.predicted_tokens or 0) + AGING * (arrival_s - hinted_s),
        "srtf": lat_s - hinted_s,
        "edf": arrival_s + 1.4 * lat_s - hinted_s,
        "llf": arrival_s + 1.4 * lat_s - lat_s,
    }[order]


async def served(house: House, occupant: Guest) -> list[Guest]:
    """Lets one after the other go; says in which order they came to their places."""
    order, running = [], occupant
    while True:
        before = {id(guest) for guest in house.held}
        assert running.slot is not None
        running.slot.end()
        await house.settle()
        fresh = [guest for guest in house.held if id(guest) not in before]
        if not fresh:
            assert not house.waiting
            return order
        (running,) = fresh
        order.append(running)


@pytest.mark.parametrize("order", ["fcfs", "sjf", "spf", "srtf", "edf", "llf"])
@given(rows=WAITING, after_s=st.floats(0.0, 60.0))
@LAW
async def test_those_that_wait_go_in_the_order_of_the_policy_over_all_classes(
    order: str, rows: list[Any], after_s: float
) -> None:
    now_s = BEGAN_S + after_s
    with mock.patch("time.time", return_value=now_s):
        await check_order(order, rows, now_s)


async def check_order(order: str, rows: list[Any], now_s: float) -> None:
    house = House(1, engine_queue=1, order=order, aging_tokens_per_s=AGING)
    occupant = await house.come(house.call())
    for tenths, prompt, predicted, class_name, priority, tier in sorted(rows, key=lambda row: row[0]):
        fields = {"class_name": class_name, "priority": priority, "tier": tier}
        await house.come(house.call(tenths / 10, prompt, predicted, **fields))
    assert house.dispatcher.waiting == len(rows)
    found = await served(house, occupant)
    keys = [wanted(house, guest.call, order, now_s) for guest in found]
    assert keys == pytest.approx(sorted(keys), abs=1e-3)
    for class_name in NAMES:  # of equals the first goes first
        own = [
            (key_, house.guests.index(g))
            for key_, g in zip(keys, found, strict=True)
            if g.call.class_name == class_name
        ]
        assert [n for _, n in own] == [n for _, n in sorted(own, key=lambda pair: (round(pair[0], 6), pair[1]))]
    await house.clear()


def may_overtake_s(order: str, behind: Call, ahead: Call, house: House) -> float:
    """How much later than `behind` a request like `ahead` may come and still go before it: so nobody starves."""
    more_tokens = max(0, (behind.predicted_tokens or 0) - (ahead.predicted_tokens or 0))
    service = house.view.services[MODEL]
    lats = [house.router.alone(service, house.dispatcher.request_of(service, call)) for call in (behind, ahead)]
    more_s = max(0.0, lats[0][1] - lats[1][1]) if lats[0] and lats[1] else math.inf
    return {"fcfs": 0.0, "sjf": more_tokens / AGING, "edf": 1.4 * more_s, "llf": 0.4 * more_s}[order]


@pytest.mark.parametrize("order", ["fcfs", "sjf", "edf", "llf"])
@given(
    rows=st.lists(st.tuples(st.integers(0, 30), st.integers(1, 4000), st.integers(1, 900)), min_size=2, max_size=25),
    serve_each=st.integers(1, 3),
)
@LAW
async def test_nobody_is_overtaken_for_ever_when_others_keep_coming(
    order: str, rows: list[Any], serve_each: int
) -> None:
    """Requests come while others go, all of them in time. SRTF, which has no aging, is left out, as is LLF among those
    that are late: there `max_wait_s` is the end."""
    with mock.patch("time.time", return_value=BEGAN_S):
        await check_overtaking(order, rows, serve_each)


async def check_overtaking(order: str, rows: list[Any], serve_each: int) -> None:
    house = House(1, engine_queue=1, order=order, aging_tokens_per_s=AGING)
    running = await house.come(house.call())
    at_s, done = 0.0, []

    async def next_one() -> None:
        nonlocal running
        assert running.slot is not None
        running.slot.end()
        await house.settle()
        done.append(running)
        running = house.held[0] if house.held else await house.come(house.call(at_s, 1, 1))

    for number, (gap_s, prompt, predicted) in enumerate(rows):
        at_s += gap_s
        await house.come(house.call(at_s, prompt, predicted))
        if number % serve_each == 0:
            await next_one()
    while house.waiting:
        await next_one()
    for place, guest in enumerate(done):
        for later in done[place + 1 :]:  # `guest` went before it
            lead_s = guest.call.request.started_at_s - later.call.request.started_at_s
            assert lead_s <= may_overtake_s(order, later.call, guest.call, house) + 1e-3
    await house.clear()


@pytest.mark.parametrize("order", ["fcfs", "sjf", "edf"])
async def test_long_request_is_served_within_its_bound_when_short_ones_never_end(order: str) -> None:
    """Short ones come as fast as they are served, for ever: with aging the long one has its turn."""
    house = House(1, engine_queue=1, order=order, aging_tokens_per_s=20.0)
    running = await house.come(house.call())
    patient = await house.come(house.call(0.0, 100, 900))
    for second in range(1, 200):
        await house.come(house.call(float(second), 100, 10))
        assert running.slot is not None
        running.slot.end()
        await house.settle()
        (running,) = house.held
        if running is patient:
            break
    bound_s = {"fcfs": 1, "sjf": (900 - 10) / 20.0, "edf": 60}[order]
    assert running is patient
    assert second <= bound_s + 1
    for guest in house.waiting:
        guest.task.cancel()
    await house.clear()


@pytest.mark.parametrize("order", ["srtf", "llf"])  # under LLF all are late: they came long ago
async def test_long_request_ends_with_429_when_short_ones_never_end_and_the_order_has_no_aging(order: str) -> None:
    house = House(1, engine_queue=1, order=order, max_wait_s=0.05)
    running = await house.come(house.call())
    patient = await house.come(house.call(0.0, 100, 900))
    for second in range(1, 1000):
        await house.come(house.call(float(second), 100, 10))
        assert running.slot is not None
        running.slot.end()
        await house.settle()
        if patient.task.done():
            break
        (running,) = house.held
        assert running is not patient
        await asyncio.sleep(0.001)
    assert patient.refused is not None
    assert (patient.refused.status, patient.refused.code) == (429, "queue_timeout")
    assert (patient.call.queue_s or 0.0) > 0.04, "the loop's clock has milliseconds"
    for guest in house.waiting:
        guest.task.cancel()
    await house.clear()


# -- tenants ----------------------------------------------------------------------------------------


@given(
    costs=st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3000), st.integers(1, 900)), min_size=6, max_size=40),
    weights=st.tuples(*(st.sampled_from([0.5, 1.0, 4.0]) for _ in range(3))),
    order=st.sampled_from(["fcfs", "sjf", "llf"]),
)
@LAW
async def test_tenants_get_their_shares_to_one_request_each_while_they_wait(
    costs: list[tuple[int, int, int]], weights: tuple[float, ...], order: str
) -> None:
    """While two tenants both wait, what they are served over their weights differs by one request's tokens of each."""
    by_tenant = {f"tenant-{n}": weight for n, weight in enumerate(weights, start=1)}
    house = House(1, engine_queue=1, order=order, tenant_weights=by_tenant)
    occupant = await house.come(house.call(tenant=9))
    for number, (tenant, prompt, predicted) in enumerate(costs):
        await house.come(house.call(number * 0.1, prompt, predicted, tenant=tenant))
    cost: dict[str, float] = dict.fromkeys(by_tenant, 0.0)
    largest = dict.fromkeys(by_tenant, 0.0)
    left = dict.fromkeys(by_tenant, 0)
    for guest in house.waiting:
        name = guest.call.key.tenant
        left[name] += 1
        largest[name] = max(largest[name], _tokens(guest.call) / by_tenant[name])
    for guest in await served(house, occupant):
        name = guest.call.key.tenant
        busy = [other for other in by_tenant if left[other]]
        cost[name] += _tokens(guest.call) / by_tenant[name]
        left[name] -= 1
        for other in busy:
            if left[name] and left[other]:
                assert abs(cost[name] - cost[other]) <= largest[name] + largest[other] + 1e-6
    await house.clear()


async def test_new_weights_hold_for_those_that_wait_when_the_policy_changes() -> None:
    """A line under steady load never drains: it cannot be waited for."""
    house = House(1, engine_queue=1, tenant_weights={})
    occupant = await house.come(house.call(tenant=9))
    for number in range(16):
        await house.come(house.call(number * 0.1, tenant=1 + number % 2))
    house.fake.policy = msgspec.structs.replace(house.fake.policy, tenant_weights={"tenant-2": 3.0})
    house.publish()
    await house.come(house.call(2.0, tenant=1))
    first = [guest.call.key.tenant for guest in (await served(house, occupant))[:8]]
    assert first.count("tenant-2") == 6
    await house.clear()


def _tokens(call: Call) -> int:
    return (call.prompt_tokens or 0) + (call.predicted_tokens or 0)


# -- admission --------------------------------------------------------------------------------------

SPEED = table(kv_blocks=60, block_tokens=4, max_sequences=6, chunk_tokens=32)
ERROR = 0.3


def projection(house: House, instance: Instance) -> InstanceProjection:
    made = object.__new__(InstanceProjection)
    made.configuration = configuration(house.view.services[MODEL], instance)
    made._speed = SPEED
    made._refuses = False
    return made


def as_rows(instance: Instance, generated: dict[str, int]) -> list[Row]:
    """What runs there, as the paper's scoreboard has it: predictions raised by the error, bounded by the maximum.

    The token generated last is not in the cache yet.
    """
    rows = []
    for slot in instance.slots:
        call = slot.call
        made, prompt = generated.get(call.request_id, 0), call.prompt_tokens or 1
        most = min(call.max_tokens or 1, SPEED.shape.kv_tokens - prompt)
        raised = min(math.ceil((call.predicted_tokens or 1) * (1 + ERROR) - 1e-9), most)
        left = max(1, (most if made >= raised else raised) - made)
        rows.append(Row(prompt + made - 1 if made else 0, 0 if made else prompt, left))
    return rows


class FakeMeter:
    """Says how many tokens have come."""

    def __init__(self) -> None:
        self.events = 0


@given(
    rows=st.lists(st.tuples(st.integers(1, 120), st.integers(1, 60), st.integers(0, 40)), min_size=1, max_size=14),
    steps=st.lists(st.tuples(st.sampled_from(["token", "token", "end"]), st.integers(0, 10)), max_size=25),
)
@example(rows=[(77, 41, 12), (1, 41, 12), (1, 41, 12)], steps=[])  # prompts of one token wait for room in a chunk, too
@example(rows=[(71, 26, 8), (107, 24, 7)], steps=[("token", 0)])  # fills the cache to its last block
@LAW
async def test_cache_is_never_overfilled_when_requests_are_admitted_by_projection(
    rows: list[tuple[int, int, int]], steps: list[tuple[str, int]]
) -> None:
    """After each admission the batch is walked to its end, token by token: it stays within the cache and the places."""
    gate = AdmissionGate(ClockRequests())
    house = House(1, gate, admission="projection", predictor_error=ERROR, engine_queue=100)
    (instance,) = house.instances
    gate._projections[instance.uid] = projection(house, instance)
    generated: dict[str, int] = {}
    placed: set[str] = set()
    room = SPEED.shape.kv_blocks

    def look() -> None:
        now = {slot.call.request_id for slot in instance.slots}
        if now - placed:  # somebody has been let in
            found = walk(as_rows(instance, generated), SPEED.shape.block_tokens, SPEED.shape.chunk_tokens)
            assert max(found.kv_blocks) <= room
            assert len(now) <= SPEED.shape.max_sequences
        placed.update(now)

    for prompt, predicted, more in rows:
        await house.come(house.call(0.0, prompt, predicted, max_tokens=predicted + more))
        look()
    for what, n in steps:
        held = house.held
        if not held:
            break
        slot = held[n % len(held)].slot
        assert slot is not None
        if what == "end" or generated.get(slot.call.request_id, 0) >= (slot.call.max_tokens or 1) - 1:
            slot.end()
        else:
            slot.meter = slot.meter or FakeMeter()  # type: ignore[assignment]
            slot.meter.events += 1  # type: ignore[union-attr]
            generated[slot.call.request_id] = slot.meter.events  # type: ignore[union-attr]
            slot.started()
            house.dispatcher.room(MODEL)
        await house.settle()
        look()
    await house.clear()
    assert all(guest.slots for guest in house.guests), "all had their turn"
    assert instance.in_flight == 0


# -- retries ----------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.sampled_from(["earn", "spend", "spend"]), st.floats(0.0, 5.0)), max_size=400))
@LAW
def test_retries_never_exceed_their_budget(steps: list[tuple[str, float]]) -> None:
    """Over any stretch: a fifth of the requests that came, three a second, and what had been saved, 100 at most."""
    budget = RetryBudget()
    now_s, seen = 1000.0, [(1000.0, 0, 0)]
    earned = spent = 0
    for what, gap_s in steps:
        now_s += gap_s * (random.Random(earned).random() < 0.3)
        if what == "earn":
            budget.earn()
            earned += 1
        else:
            spent += budget.spend(now_s)
        seen.append((now_s, earned, spent))
    for at_s, earned_then, spent_then in seen:
        allowed = RetryBudget.MOST + RetryBudget.SHARE * (earned - earned_then) + RetryBudget.PER_S * (now_s - at_s)
        assert spent - spent_then <= allowed + 1e-6


def test_retries_are_to_be_had_again_when_time_has_passed() -> None:
    budget = RetryBudget()
    assert sum(budget.spend(1000.0) for _ in range(500)) == 100
    assert sum(budget.spend(1002.0) for _ in range(500)) == 6
    for _ in range(51):
        budget.earn()
    assert sum(budget.spend(1002.0) for _ in range(500)) == 10

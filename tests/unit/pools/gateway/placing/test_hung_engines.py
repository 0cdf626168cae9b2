"""Engines that hang: how soon that is seen, what is no hang, and where their requests go."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, replace
from typing import Any, cast

import pytest
from msgspec import structs

from pools.gateway.fleet.instance import NO_NODE
from pools.gateway.http.connections import Connections
from pools.gateway.placing import hung_engines
from pools.gateway.placing.hung_engines import HungEngines
from pools.gateway.placing.slot import Slot
from pools.gateway.requests.sse import Meter
from tests.unit.pools.gateway.conftest import Bench, Start, completion, until
from tests.unit.pools.gateway.placing.test_dispatch_laws import House

BEGAN_S = 1000.0


@dataclass
class Owner:
    """Stands for a call that was sent somewhere, and counts its moves (Recallable)."""

    moves: int = 0

    def call_back(self, squash_for_s: float | None = None) -> None:
        raise AssertionError("only requests that are late are called back")

    def send_again(self, engine_priority: int) -> bool:
        raise AssertionError("nobody orders here")

    def move(self) -> bool:
        self.moves += 1
        return True


@dataclass
class Events:
    """Stands for a stream's meter."""

    events: int = 0


class Watched:
    """Looks twice a second at instances of which the first has requests."""

    def __init__(self, instances: int = 2) -> None:
        self.house = House(instances)
        self.hung = HungEngines(self.house.dispatcher)
        self.now_s = BEGAN_S
        self.owners: list[Owner] = []

    def send(self, ttft_s: float | None = 0.2, **fields: Any) -> Slot:
        """A request to the first instance."""
        call = self.house.call(**fields)
        routed = self.house.router.route(
            call.service, self.house.instances[:1], self.house.dispatcher.request_of(call.service, call)
        )
        assert routed is not None
        slot = Slot(self.house.dispatcher, call, (routed[0], replace(routed[1], ttft_s=ttft_s)))
        slot.sent_s, slot.owner = self.now_s, Owner()
        self.owners.append(slot.owner)
        return slot

    def look(self, seconds: float) -> int:
        """Goes on in steps of half a second. Returns how often an engine was found to hang until now."""
        for _ in range(round(2 * seconds)):
            self.now_s += 0.5
            self.hung.look(self.house.view.instances(), self.now_s)
        return self.hung.found

    @property
    def moved(self) -> int:
        return sum(owner.moves for owner in self.owners)


async def test_engine_hangs_when_nothing_comes_for_three_seconds_and_its_requests_move() -> None:
    watched = Watched()
    slots = [watched.send() for _ in range(4)]
    slots[0].started()  # a stream that had begun is left alone
    assert watched.look(3.0) == 0
    assert watched.look(0.5) == 1
    first, second = watched.house.instances
    assert not first.health.usable(watched.now_s)
    assert slots[0].call.service.choosable((), watched.now_s) == [second]
    assert (watched.owners[0].moves, watched.moved, watched.hung.moved) == (0, 3, 3)


async def test_engine_does_not_hang_while_anything_comes_from_it() -> None:
    watched = Watched()
    streaming, waiting = watched.send(), watched.send()
    streaming.started()
    meter = Events()
    streaming.meter = cast(Meter, meter)
    for _ in range(20):
        meter.events += 1
        assert watched.look(1.0) == 0
    assert waiting.instance.health.usable(watched.now_s)
    for _ in range(4):
        waiting.instance.health.worked()  # whole answers
        assert watched.look(2.0) == 0
    assert watched.look(3.5) == 1


async def test_long_prompt_is_waited_for_as_long_as_is_projected() -> None:
    watched = Watched()
    watched.send(ttft_s=20.0, prompt=100_000)
    watched.send(ttft_s=0.1)
    assert watched.look(60.0) == 0
    assert watched.look(1.0) == 1


@pytest.mark.parametrize(("limit_s", "patience_s"), [(4.0, 12.0), (None, 30.0)])
async def test_objective_counts_where_nothing_is_projected(limit_s: float | None, patience_s: float) -> None:
    watched = Watched()
    slot = watched.send(ttft_s=None)
    slot.call.service.limits = replace(slot.call.service.limits, ttft_s=limit_s)
    assert watched.look(patience_s) == 0
    assert watched.look(1.0) == 1


async def test_answer_that_is_no_stream_may_take_as_long_as_it_may_be() -> None:
    watched = Watched()
    slot = watched.send(stream=False, max_tokens=100)
    assert slot.choice.tpot_s is not None
    longest_s = hung_engines.LEAST_S + 3.0 * 100 * slot.choice.tpot_s
    assert watched.look(longest_s // 0.5 * 0.5) == 0
    assert slot.instance.suspect, "but its engine's /health is asked"
    assert watched.look(1.0) == 1
    unbounded = Watched()
    unbounded.send(stream=False)
    assert unbounded.look(600.0) == 0


async def test_pause_of_the_gateway_itself_is_no_hang() -> None:
    watched = Watched()
    watched.send()
    assert watched.look(2.0) == 0
    watched.now_s += 60.0
    assert watched.look(3.0) == 0, "what came meanwhile may not have been read yet"
    assert watched.look(0.5) == 1


async def test_requests_move_when_their_instance_is_ejected_for_another_reason() -> None:
    watched = Watched()
    slot = watched.send()
    watched.look(0.5)
    slot.instance.health.failed(watched.now_s, refused=True)
    watched.look(0.5)
    assert watched.moved == 1
    watched.look(1.0)
    assert watched.moved == 1, "what is sent there later is a probe"


async def test_engine_is_suspect_when_its_streams_stand_still_though_nobody_waits_for_a_first_byte() -> None:
    watched = Watched()
    slot = watched.send()
    slot.started()
    slot.meter = cast(Meter, Events(events=1))
    watched.look(1.0)
    assert not slot.instance.suspect
    watched.look(1.0)
    assert slot.instance.suspect
    slot.instance.answered_s = watched.now_s
    watched.look(1.0)
    assert not slot.instance.suspect, "its /health has answered"
    assert watched.look(60.0) == 0, "streams that have begun have a bound of their own"


async def test_engines_beside_one_that_is_ejected_are_suspect_until_they_show_life() -> None:
    watched = Watched(8)
    slot = watched.send()
    mates, others = watched.house.instances[1:4], watched.house.instances[4:]
    for other in others:
        other.node = "node-2"
    watched.look(3.0)
    assert not any(mate.suspect for mate in mates)
    assert watched.look(0.5) == 1
    assert all(mate.suspect for mate in mates)
    assert not any(other.suspect for other in others)
    service = slot.call.service
    assert service.choosable((), watched.now_s) == others
    left = [i.uid for i in others]
    assert service.choosable(left, watched.now_s) == mates, "better than none"
    mates[0].health.worked()
    mates[1].answered_s = watched.now_s + 0.5
    watched.look(0.5)
    assert [mate.suspect for mate in mates] == [False, False, True]
    slot.instance.health.failed(watched.now_s, hangs=True)
    watched.look(0.5)
    assert [mate.suspect for mate in mates] == [False, False, True], "it is out of rotation still: nothing is new"


async def test_requests_move_from_an_engine_that_hangs_and_is_not_ready_any_more() -> None:
    watched = Watched()
    slot = watched.send()
    watched.look(1.0)
    fake = watched.house.fake
    (node, state), *_ = fake.states().items()
    (first, *others) = state.instances
    reported = [structs.replace(first, state="starting"), *others]  # so says an agent that cannot ask it
    watched.house.view.apply(fake.fleet(), {node: structs.replace(state, instances=reported)}, time.monotonic())
    assert slot.instance not in watched.house.instances
    assert (watched.look(1.5), watched.moved) == (0, 0)
    assert (watched.look(1.0), watched.moved) == (1, 1)


async def test_workers_that_registered_themselves_are_no_neighbours() -> None:
    watched = Watched(3)
    for instance in watched.house.instances:
        instance.node = NO_NODE
    watched.send()
    assert watched.look(3.5) == 1
    assert not any(instance.suspect for instance in watched.house.instances[1:])


# -- with a gateway --------------------------------------------------------------------------------


async def hang(bench: Bench, after_head: bool = False) -> None:
    engine = bench.engines[0]
    if after_head:
        engine.silent_after = 0
    else:
        engine.held = asyncio.Event()


async def ask(bench: Bench, **fields: Any) -> tuple[int, str]:
    async with bench.post(completion(**fields)) as response:
        return response.status, (await response.text())[-14:]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hung_engines, "LEAST_S", 0.5)
    monkeypatch.setattr(hung_engines, "OVERDUE", 0.25)


@pytest.mark.parametrize("after_head", [False, True])
async def test_forty_requests_are_served_elsewhere_when_their_engine_hangs(
    start: Start, quick: None, after_head: bool
) -> None:
    bench = await start(engines=3)
    await hang(bench, after_head)
    answers = await asyncio.gather(*(ask(bench, stream=True) for _ in range(40)))
    assert set(answers) == {(200, "data: [DONE]\n\n")}
    hung = bench.server.runtime.hung
    assert hung.moved >= 5, "it had its part"
    rows = bench.rows()
    assert len({row.request_id for row in rows}) == len(rows) == 40, "one record for each"
    assert {row.status for row in rows} == {"ok"}
    assert sum(row.attempts - 1 for row in rows) == hung.moved, "each try at an engine is on record"
    # A test machine that stands still for so short a patience makes others look as if they hang: each may add a try.
    assert {1, 2} <= {row.attempts for row in rows} <= set(range(1, 2 + hung.found))
    assert all(row.instance_uid != bench.fleet.instance("", 0).uid for row in rows)
    page = bench.server.runtime.metrics_page(0, Connections()).decode()
    assert f"greenserve_gateway_moved_requests_total {hung.moved}\n" in page
    await until(lambda: sum(engine.aborted for engine in bench.engines) == hung.moved)


async def test_move_of_a_stream_that_others_may_continue_is_one_retry(start: Start, quick: None) -> None:
    bench = await start(engines=2)
    await hang(bench)
    budget = bench.server.runtime.dispatcher.retries
    spend, spent = budget.spend, []
    budget.spend = lambda now_s: spent.append(now_s) or spend(now_s)  # type: ignore[method-assign, func-returns-value]
    headers = bench.auth | {"x-greenserve-continue": "true"}
    async with bench.post(completion(stream=True, temperature=0), headers=headers) as response:
        assert (await response.text()).endswith("data: [DONE]\n\n")
    row = await bench.row()
    assert (row.status, row.attempts, len(spent)) == ("ok", 2, 1)


async def test_moved_request_still_has_all_attempts_that_may_fail(start: Start, quick: None) -> None:
    bench = await start(engines=4)
    await hang(bench)
    for engine in bench.engines[1:3]:
        engine.status = 503
    assert await ask(bench, stream=True) == (200, "data: [DONE]\n\n")
    assert (await bench.row()).attempts == 4


async def test_request_stays_when_there_is_nowhere_else_for_it(start: Start, quick: None) -> None:
    bench = await start(engines=1)
    await hang(bench)
    asking = asyncio.create_task(ask(bench, stream=True))
    await until(lambda: bench.server.runtime.hung.found > 0)
    assert bench.engine.held is not None
    bench.engine.held.set()
    assert await asking == (200, "data: [DONE]\n\n")
    assert bench.server.runtime.hung.moved == 0


async def test_requests_stay_when_the_budget_for_retries_is_spent(start: Start, quick: None) -> None:
    bench = await start(engines=2)
    await hang(bench)
    budget = bench.server.runtime.dispatcher.retries
    budget.spend = lambda now_s: False  # type: ignore[method-assign]
    asking = [asyncio.create_task(ask(bench, stream=True)) for _ in range(4)]
    await until(lambda: bench.server.runtime.hung.found > 0)
    assert bench.engine.held is not None
    bench.engine.held.set()
    assert {status for status, _ in await asyncio.gather(*asking)} == {200}
    assert bench.server.runtime.hung.moved == 0

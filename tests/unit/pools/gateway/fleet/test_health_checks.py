"""What a gateway believes of instances when their agents, or Redis, are not heard."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from pools.gateway.fleet.health_checks import HealthChecks
from pools.gateway.fleet.instance import Instance
from pools.gateway.fleet.view import FleetView
from tests.fakes.engine import FakeEngine
from tests.fakes.fleet import MODEL, FakeFleet

DEAD = "http://127.0.0.1:1"  # nothing listens there


class House:
    """A view of an engine and of addresses where none is, and its checks."""

    def __init__(self, engine: FakeEngine, *others: str) -> None:
        self.engine = engine
        self.fake = FakeFleet([engine.url, *others])
        self.view = FleetView()
        self.checks = HealthChecks(self.view)
        self.heard()

    def heard(self) -> None:
        self.view.apply(self.fake.fleet(), self.fake.states(), time.monotonic())

    def fall_silent(self) -> None:
        self.checks.look(time.monotonic() + 6.0)

    @property
    def ready(self) -> list[Instance]:
        return self.view.services[MODEL].ready


Make = Callable[..., Awaitable[House]]


@pytest.fixture
async def house() -> AsyncIterator[Make]:
    made: list[House] = []

    async def make(*others: str) -> House:
        made.append(House(await FakeEngine().start(), *others))
        return made[-1]

    yield make
    for one in made:
        await one.checks.close()
        await one.engine.stop()


async def test_engines_are_asked_only_while_there_is_doubt(house: Make) -> None:
    one = await house()
    for _ in range(2):
        await one.checks.check()
    assert one.engine.looks == 1, "it was new, and its agent is heard"
    one.fall_silent()
    (instance,) = one.ready
    instance.health.worked()
    await one.checks.check()
    assert one.engine.looks == 1, "it has just answered a request"
    await one.checks.check()
    assert one.engine.looks == 2
    instance.health.worked()
    instance.suspect = True
    await one.checks.check()
    assert one.engine.looks == 3


async def test_silent_instance_stays_while_it_answers_and_is_lost_when_nothing_listens(house: Make) -> None:
    one = await house(DEAD)
    one.fall_silent()
    assert len(one.ready) == 2
    await one.checks.check()
    assert len(one.ready) == 2, "once may be chance"
    assert [i.health.usable(time.monotonic()) for i in one.ready] == [True, False], "... but it gets no requests"
    await one.checks.check()
    assert [i.url for i in one.ready] == [one.engine.url]
    assert one.view.services[MODEL].coming, "its agent may come back, or another instance come up"
    assert (one.checks.silent, one.checks.out) == (2, 1)
    one.heard()
    assert len(one.ready) == 2, "its agent says that it is ready"


async def test_lost_instance_is_found_again_without_its_agent(house: Make) -> None:
    one = await house()
    one.fall_silent()
    port = one.engine.port
    await one.engine.stop()
    for _ in range(2):
        await one.checks.check()
    assert one.view.not_ready() == "no instance is ready"
    await one.engine.start(port)
    await one.checks.check()
    (instance,) = one.ready
    assert instance.health.usable(time.monotonic())


async def test_instance_is_ejected_when_its_health_is_bad_twice_and_then_probed(house: Make) -> None:
    one = await house(DEAD)
    one.fall_silent()
    one.engine.status = 500
    (instance, _) = one.ready
    await one.checks.check()
    assert instance.health.usable(time.monotonic())
    await one.checks.check()
    assert not instance.health.usable(time.monotonic())
    assert instance in one.ready, "something listens there: it may serve after all"
    one.engine.status = 200
    await one.checks.check()
    assert instance.health.usable(time.monotonic()), "a request may probe it at once"
    instance.health.chosen()
    assert not instance.health.usable(time.monotonic())


async def test_unreachable_instance_is_in_again_as_soon_as_it_answers(house: Make) -> None:
    one = await house()
    (instance,) = one.ready
    instance.health.failed(time.monotonic(), refused=True)
    await one.checks.check()
    assert instance.health.ejections == 0, "its agent is heard all the time, and need not be waited for"


async def test_new_instance_that_cannot_be_reached_gets_no_request_and_the_reason_is_reported(
    house: Make, caplog: pytest.LogCaptureFixture
) -> None:
    one = await house(DEAD)
    await one.checks.check()
    assert [i.health.usable(time.monotonic()) for i in one.ready] == [True, False], "its agent is heard all the time"
    (found,) = one.checks.unreachable()
    assert (found.url, found.node) == (DEAD, one.ready[1].node)
    assert "the connection is refused" in found.why
    await one.checks.check()
    assert one.checks.unreachable() == [found], "since the same moment"
    assert sum("cannot be reached" in record.getMessage() for record in caplog.records) == 1
    one.view.apply(FakeFleet([one.engine.url]).fleet(), FakeFleet([one.engine.url]).states(), time.monotonic())
    one.checks.look(time.monotonic())
    assert one.checks.unreachable() == [], "it is gone"


async def test_instance_is_reported_until_it_answers(house: Make) -> None:
    one = await house()
    port = one.engine.port
    await one.engine.stop()
    await one.checks.check()
    assert len(one.checks.unreachable()) == 1
    await one.engine.start(port)
    one.engine.status = 503
    await one.checks.check()
    assert one.checks.unreachable()[0].why == "/health answers 503"
    one.engine.status = 200
    await one.checks.check()
    assert one.checks.unreachable() == []


async def test_snapshot_of_an_earlier_life_serves_once_its_engines_answer(house: Make) -> None:
    one = await house(DEAD)
    view = FleetView()
    checks = HealthChecks(view)
    try:
        view.recall(one.fake.fleet(), one.fake.states(), time.monotonic() - 100.0)
        assert view.not_ready() == "no instance is ready"
        await checks.check()
        assert [i.url for i in view.services[MODEL].ready] == [one.engine.url]
    finally:
        await checks.close()


# -- panic -----------------------------------------------------------------------------------------


def ejected(refused: int, failing: int, of: int, **fleet: object) -> tuple[FleetView, list[Instance], float]:
    """A view whose first instances cannot be reached, and whose next ones fail; all instances; and the moment."""
    fake = FakeFleet([f"http://127.0.0.1:{port}" for port in range(1, 1 + of)], **fleet)  # type: ignore[arg-type]
    view, now_s = FleetView(), time.monotonic()
    view.apply(fake.fleet(), fake.states(), now_s)
    instances = list(view.services[MODEL].ready)
    for n, instance in enumerate(instances[: refused + failing]):
        instance.health.failed(now_s, refused=n < refused, hangs=True)
    return view, instances, now_s


@pytest.mark.parametrize(
    ("refused", "failing", "of", "expected"),
    [
        (0, 2, 4, [2, 3]),  # half look well
        (0, 3, 4, [0, 1, 2, 3]),  # most do not: whoever looks is to blame
        (0, 4, 4, [0, 1, 2, 3]),
        (2, 1, 4, [2, 3]),  # where no connection can be made nobody is served, whoever is to blame
        (4, 0, 4, [0, 1, 2, 3]),  # none is left: one of them may be back
        (0, 1, 2, [1]),  # of few it is likely that they are dead: half of all requests would go there
        (0, 2, 3, [2]),
        (0, 2, 2, [0, 1]),
    ],
)
def test_all_of_a_class_are_sent_to_when_most_look_dead(
    refused: int, failing: int, of: int, expected: list[int]
) -> None:
    view, instances, now_s = ejected(refused, failing, of)
    chosen = view.services[MODEL].choosable((), now_s)
    assert [instances.index(i) for i in chosen] == expected


def test_a_class_panics_alone() -> None:
    view, instances, now_s = ejected(0, 3, 8, request_classes=dict.fromkeys(range(4, 8), "SS"))
    service = view.services[MODEL]
    assert service.panicking(now_s) == [3]
    assert service.in_rotation(3, now_s) == instances[:4]
    instances[4].health.failed(now_s, hangs=True)
    assert service.in_rotation(0, now_s) == instances[5:]


def test_panic_is_counted_and_logged_once_each_time(caplog: pytest.LogCaptureFixture) -> None:
    view, instances, now_s = ejected(0, 3, 4)
    checks = HealthChecks(view)
    for _ in range(3):
        checks.look(now_s)
    assert (checks.panics, checks.panicking) == (1, 1)
    assert sum("do not look well" in record.getMessage() for record in caplog.records) == 1
    instances[0].health.worked()
    checks.look(now_s)
    assert (checks.panics, checks.panicking) == (1, 0)


def test_silence_is_logged_by_node_and_once(caplog: pytest.LogCaptureFixture) -> None:
    view, _, now_s = ejected(0, 0, 2)
    checks = HealthChecks(view)
    for later_s in (0.0, 6.0, 7.0):
        checks.look(now_s + later_s)
    assert [r.getMessage().startswith("agents that are not heard: node-1") for r in caplog.records] == [True]

"""Projections and emergencies at the gateway: who is let in, which clocks are asked for, who is moved or given back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from core.controllers.clock import retail_clock
from core.controllers.clock.retail_clock import RetailConfig
from core.controllers.request.admission import Requests, RequestView
from core.engine import measured
from core.engine.corrections import KNOTS, Correction, configuration
from core.engine.engine_model import engine_model
from core.engine.step_tables import round_up
from core.predictors.engine_speed import engine_speed
from core.predictors.length_errors import LEAST
from core.types import SetSmClock
from pools import wire
from pools.gateway.fleet.view import Service
from pools.gateway.placing import own_boards, projections
from pools.gateway.placing.clock_requests import LEASE_S, RENEW_S, ClockRequests, PendingClockRequest
from pools.gateway.placing.emergencies import Emergencies
from pools.gateway.placing.projected_admission import AdmissionGate
from pools.gateway.placing.projections import InstanceProjection
from tests.fakes.fleet import MODEL, FakeFleet
from tests.unit.pools.gateway.conftest import Bench, Start, completion, until
from tests.unit.pools.gateway.fleet.test_fleet_view import view_of
from tests.unit.pools.gateway.placing.test_dispatch_laws import House


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    """Projections are loaded before the first test: that takes longer than most of them."""
    InstanceProjection("Llama3-70B", "A100-80GB", 4, "vllm-v1").warm_up()


class Here:
    """An executor that works at once."""

    def submit(self, work: Any, *arguments: Any) -> None:
        work(*arguments)

    def shutdown(self, **_: Any) -> None: ...


async def judged(start: Start, engines: int = 1, tp: int = 4, **policy: Any) -> tuple[Bench, list[PendingClockRequest]]:
    bench = await start(engines)
    bench.fleet.policy, bench.fleet.tp = wire.RequestPolicy(**{"admission": "projection", **policy}), tp
    bench.publish()
    asks: list[PendingClockRequest] = []
    bench.server.clocks.send = asks.append
    gate = bench.server.gate
    gate._loader = Here()  # type: ignore[assignment]
    (service,) = [s for s in bench.server.fleet.services.values() if s.name == MODEL]
    for instance in service.ready:
        gate._projection(service, instance)
    return bench, asks


def limited(bench: Bench, **limits: float | None) -> None:
    """Another objective for the service."""
    fleet = bench.fleet.fleet()
    first = msgspec.structs.replace(fleet.services[0], objectives=wire.LatencyLimits(**limits))
    fleet = msgspec.structs.replace(fleet, services=[first, *fleet.services[1:]])
    bench.server.fleet.apply(fleet, bench.fleet.states(), time.monotonic())


async def stream(bench: Bench, **fields: Any) -> int:
    async with bench.post(completion(stream=True, **fields)) as response:
        await response.read()
        return int(response.status)


async def test_request_waits_when_the_cache_would_overflow_and_goes_when_there_is_room(start: Start) -> None:
    bench, _ = await judged(start, tp=2, predictor_error=0.0)
    # Llama3-70B on two A100: some 24,000 tokens of cache, for a few long ones that may grow.
    capacity = bench.server.fleet.services[MODEL].ready[0].candidate().kv_room_tokens
    fits = int(capacity // 8000)
    assert fits > 1
    bench.engine.held = asyncio.Event()
    tasks = [
        asyncio.create_task(stream(bench, prompt=[1] * 7000, max_tokens=1000, vllm_xargs={"sim_output_tokens": 1}))
        for _ in range(fits + 3)
    ]
    await until(lambda: bench.server.gateway.dispatcher.waiting >= 3)
    assert len(bench.engine.received) <= fits
    bench.engine.held.set()
    assert [await task for task in tasks] == [200] * (fits + 3)
    assert bench.server.gateway.dispatcher.waiting == 0


@pytest.mark.parametrize(
    ("tuning", "expected"),
    [
        ({}, (0.15, 0.1, 1024)),
        ({"throttle_tbt_s": 0.3, "throttle_retry_s": 0.5, "throttle_max_tokens": 200}, (0.3, 0.5, 200)),
        ({"throttle_max_tokens": 3000}, (0.15, 0.1, 2000)),  # the call's own
    ],
)
async def test_projections_go_by_the_tuning(tuning: dict[str, Any], expected: tuple[float, float, int]) -> None:
    house = House(1, admission="projection", tuning=wire.RequestTuning(**tuning))
    service, call = house.view.services[MODEL], house.call(max_tokens=2000)
    config = projections._config(service, 0.3, [call.limits(service)])
    assert (config.tbt_s, config.retry_s, own_boards.most_tokens(service, call)) == expected


async def test_projections_are_made_anew_when_speeds_are_to_come_from_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []
    made = engine_speed("Llama3-70B", "A100-80GB", 4, "vllm-v1", _kv_tokens())
    monkeypatch.setattr(projections, "engine_speed", lambda *_, trees: asked.append(trees) or made)
    gate = AdmissionGate(ClockRequests(), Here())  # type: ignore[arg-type]
    house = House(1, gate, admission="projection")
    for ips in ("engine", "trees"):
        tuning = wire.RequestTuning(throttle_ips=ips)
        house.fake.policy = wire.RequestPolicy(admission="projection", tuning=tuning)
        house.publish()
        for _ in range(2):
            await house.come(house.call())
    assert asked == [False, True]
    await house.clear()


async def test_projections_follow_what_is_measured_of_engines() -> None:
    gate = AdmissionGate(ClockRequests(), Here())  # type: ignore[arg-type]
    house = House(1, gate, admission="projection")
    service = house.view.services[MODEL]
    (instance,) = service.ready

    def seconds() -> float:
        gate.narrow(service, [instance], house.call())
        gate.keep({instance.uid}, [service])
        gate.narrow(service, [instance], house.call())
        projection = gate._projections[instance.uid]
        return float(projection._speed.seconds[-1, 7, 1])

    before = seconds()
    key = configuration("Llama3-70B", "A100-80GB", 4, "vllm-v1")
    try:
        measured.calibrate({key: Correction((1.3,) * KNOTS, (1.0,) * KNOTS)})
        assert seconds() == pytest.approx(1.3 * before)
    finally:
        measured.calibrate({})
    assert seconds() == pytest.approx(before)
    await house.clear()


async def test_request_that_must_wait_is_judged_again_soon_though_nothing_else_happens() -> None:
    times_s: list[float] = []

    class Reluctant(AdmissionGate):
        def narrow(self, service: Service, choosable: Any, call: Any) -> Any:
            times_s.append(time.monotonic())
            return choosable if len(times_s) > 3 else []

    tuning = wire.RequestTuning(throttle_retry_s=0.03)
    house = House(1, Reluctant(ClockRequests()), admission="projection", tuning=tuning)
    guest = await house.come(house.call())
    assert guest.slot is None
    await asyncio.wait_for(guest.task, 1.0)
    assert times_s[-1] - times_s[1] >= 0.06
    await house.settle()
    await house.clear()


async def test_predictions_are_raised_by_their_measured_error_and_the_decision_says_whose_it_is(start: Start) -> None:
    bench, asks = await judged(start, predictor_error_measured=True, throttle=True)
    limited(bench, tpot_s=0.2, e2e_s=10.0)
    errors = bench.server.runtime.classifier.errors

    async def asked(expected: str) -> float:
        prompt = [len(asks)] * 300  # one that has not been seen
        assert await stream(bench, prompt=prompt, max_tokens=1000, vllm_xargs={"sim_output_tokens": 5}) == 200
        assert f" Predictions are raised by {expected}" in asks[-1].summary
        return asks[-1].mhz

    unmeasured = await asked("30%: the default, until 64 requests have ended.")
    for _ in range(LEAST):
        errors.observe(MODEL, 100, 200)
    measured = await asked("100%: measured on 6")
    bench.fleet.policy = msgspec.structs.replace(
        bench.fleet.policy, predictor_error=0.0, predictor_error_measured=False
    )
    bench.publish()
    limited(bench, tpot_s=0.2, e2e_s=10.0)
    fixed = await asked("0%: as it is set.")
    assert fixed < unmeasured < measured


async def test_lost_request_is_served_and_said_to_be(start: Start) -> None:
    bench, asks = await judged(start, throttle=True)
    limited(bench, tpot_s=0.15, e2e_s=0.05)
    assert await stream(bench) == 200
    row = await bench.row()
    assert (row.status, row.lost) == ("ok", True)
    assert asks[-1].mhz == 1410.0, "the top clock, while a lost request is in the batch"
    assert asks[-1].reason == "lost"


async def test_lowest_clock_is_asked_for_at_admission_when_there_is_time(start: Start) -> None:
    bench, asks = await judged(start, throttle=True)
    limited(bench, tpot_s=0.2, e2e_s=500.0)
    assert await stream(bench) == 200
    (first,) = asks
    assert first.mhz < 800.0
    assert (first.reason, first.node) == ("within_limits", "node-1")
    limited(bench, tpot_s=0.2, e2e_s=0.6)
    assert await stream(bench) == 200
    assert asks[-1].mhz > first.mhz


async def test_retail_asks_for_a_clock_at_each_arrival_and_holds_nobody_back(start: Start) -> None:
    """As the simulator's policy `retail`: no admission, and the lowest clock by the regression."""
    bench, asks = await judged(start, admission="none", retail=True)
    limited(bench, tpot_s=0.15, e2e_s=500.0)
    assert await stream(bench) == 200
    (first,) = asks
    assert (first.mhz, first.reason) == (210.0, "within_limits"), "there is all the time in the world"
    limited(bench, tpot_s=0.15, e2e_s=1e-6)
    bench.engine.head_delay_s = 0.3
    statuses = await asyncio.gather(*(stream(bench, prompt=[n] * 300, max_tokens=400) for n in range(3)))
    assert statuses == [200] * 3
    assert (asks[-1].mhz, asks[-1].reason) == (1410.0, "at_limit")
    assert not any(row.lost or row.queue_s for row in bench.rows())


async def test_retail_decides_as_the_simulator_does_when_it_sees_the_same(start: Start) -> None:
    bench, asks = await judged(start, admission="none", retail=True)
    limited(bench, tpot_s=0.15, e2e_s=8.0)
    bench.engine.head_delay_s = 0.3
    await asyncio.gather(*(stream(bench, max_tokens=150) for _ in range(4)))
    speed = engine_speed("Llama3-70B", "A100-80GB", 4, "vllm-v1", _kv_tokens())
    config = RetailConfig(speed.clocks_mhz, retail_clock.fit(speed, 1155, 211))
    asked = []
    state = None
    for n in range(1, 5):  # four that came at once, each with its whole answer to come
        waiting = Requests.of([RequestView(m, 300, 129, 150, 8.0) for m in range(n)])
        state, effects = retail_clock.step(state, retail_clock.observe(0.0, "i", 0.0, (waiting,), 0.3), config)
        asked += [c.mhz for c in effects.commands if isinstance(c, SetSmClock)]
    assert [ask.mhz for ask in asks] == asked
    assert 210.0 < asked[-1] < 1410.0, "or it would say nothing"


def _kv_tokens() -> int:
    return int(engine_model("Llama3-70B", "A100-80GB", 4, "vllm-v1").kv_capacity_tokens)


async def test_clocks_are_taken_back_when_the_rule_is_no_longer_the_gateways(start: Start) -> None:
    bench, asks = await judged(start, admission="none", retail=True)
    assert await stream(bench) == 200
    uid = asks[-1].uid
    bench.server.runtime.look_around(time.monotonic())
    assert bench.server.clocks.asked(uid) is not None
    bench.fleet.policy = wire.RequestPolicy()
    bench.publish()
    bench.server.runtime.look_around(time.monotonic())
    assert bench.server.clocks.asked(uid) is None
    assert asks[-1].lease_s == 0.0


async def test_nothing_is_asked_for_when_clocks_are_not_the_gateways(start: Start) -> None:
    bench, asks = await judged(start)
    assert await stream(bench) == 200
    assert asks == []


def test_unknown_configuration_is_let_in_without_being_judged(caplog: pytest.LogCaptureFixture) -> None:
    fake = FakeFleet(["http://127.0.0.1:1"], policy=wire.RequestPolicy(admission="projection"))
    view = view_of(fake)
    (instance,) = view.services[MODEL].ready
    instance._state = msgspec.structs.replace(instance.state, gpu_type="B300")
    gate = AdmissionGate(ClockRequests(), Here())  # type: ignore[arg-type]
    assert gate.narrow(view.services[MODEL], [instance], None) == [instance]  # type: ignore[arg-type]
    assert "without being judged" in caplog.text


def test_clock_is_asked_for_again_before_its_lease_is_over() -> None:
    (instance,) = view_of(FakeFleet(["http://127.0.0.1:1"])).services[MODEL].ready
    sent: list[float] = []
    clocks = ClockRequests(lambda ask: sent.append(ask.sent_s))
    clocks.ask(instance, 900.0, "within_limits", "", 0.0)
    clocks.ask(instance, 900.0, "within_limits", "", 1.0)
    assert sent == [0.0], "asked for already"
    clocks.renew(RENEW_S - 0.1)
    clocks.renew(RENEW_S)
    assert sent == [0.0, RENEW_S]
    assert 2 * RENEW_S < LEASE_S
    clocks.ask(instance, 600.0, "within_limits", "", 4.0)
    assert (clocks.asked(instance.uid), sent[-1]) == (600.0, 4.0)
    leases: list[float] = []
    clocks.send = lambda ask: leases.append(ask.lease_s)
    clocks.drop(instance.uid)
    clocks.renew(100.0)
    assert leases == [0.0], "taken back, and not renewed"


# -- emergencies -----------------------------------------------------------------------------------


@dataclass
class Hand:
    """Looks when the test says so, and not each half second."""

    by_itself: Emergencies

    def look(self, services: Iterable[Service], now_s: float) -> None: ...


async def pressed(start: Start, engines: int, **policy: Any) -> tuple[Bench, list[PendingClockRequest]]:
    bench = await start(engines)
    runtime = bench.server.runtime
    runtime.emergencies = Hand(runtime.emergencies)  # type: ignore[assignment]
    bench.fleet.policy = wire.RequestPolicy(emergencies=True, **policy)
    bench.publish()
    asks: list[PendingClockRequest] = []
    bench.server.clocks.send = asks.append
    return bench, asks


def look(bench: Bench, now_s: float) -> None:
    emergencies_of(bench).look(bench.server.fleet.services.values(), now_s)


def emergencies_of(bench: Bench) -> Emergencies:
    assert isinstance(bench.server.runtime.emergencies, Hand)
    return bench.server.runtime.emergencies.by_itself


def slow(bench: Bench, mhz: float) -> None:
    """Instances report this clock."""
    for instance in bench.server.fleet.instances():
        instance._state = msgspec.structs.replace(instance.state, sm_clock_mhz=mhz)
        instance._candidate = None


async def test_ladder_is_climbed_when_requests_that_wait_would_be_late(start: Start) -> None:
    bench, asks = await pressed(start, 1, engine_queue=2)
    limited(bench, ttft_s=2.0)
    bench.fleet.policy = wire.RequestPolicy(emergencies=True, engine_queue=2)
    bench.engine.held = asyncio.Event()
    slow(bench, 600.0)
    tasks = [asyncio.create_task(stream(bench, prompt=[n] + [1] * 6000)) for n in range(8)]
    await until(lambda: bench.server.gateway.dispatcher.waiting == 6)
    now_s = time.monotonic()
    look(bench, now_s)
    assert asks, "rung 2: more are late than reordering can save"
    assert (asks[-1].mhz, asks[-1].reason) == (1410.0, "clock_ramped")
    look(bench, now_s + 15.0)
    look(bench, now_s + 30.0)
    await until(lambda: bench.server.gateway.dispatcher.waiting < 6)
    bench.engine.held.set()
    statuses = await asyncio.gather(*tasks)
    await until(lambda: len(bench.rows()) == 8)
    squashed = [row for row in bench.rows() if row.status == "rejected"]
    assert squashed, "rung 4: they have waited in vain for too long"
    assert all("overloaded" in row.error for row in squashed)
    assert statuses.count(503) == len(squashed)
    assert statuses.count(200) == 8 - len(squashed)
    for later_s in (60.0, 66.0):
        look(bench, now_s + later_s)
    assert bench.server.clocks.asked(asks[-1].uid) is None, "calm again"


async def test_requests_that_have_not_begun_go_elsewhere_when_another_instance_is_in_time(start: Start) -> None:
    bench, _ = await pressed(start, 2)
    table = bench.server.fleet.services[MODEL].ready[0].candidate().table
    assert table is not None
    limited(bench, ttft_s=2.5 * table.prefill(round_up(8000), 0)[0])  # of three prompts two are in time
    stuck, free = bench.engines
    stuck.head_delay_s = 5.0
    service = bench.server.fleet.services[MODEL]
    first, second = service.ready
    service.ready = [first]
    tasks = [asyncio.create_task(stream(bench, prompt=[n] + [1] * 7999)) for n in range(3)]
    await until(lambda: len(stuck.received) == 3)
    service.ready = [first, second]
    now_s = time.monotonic()
    look(bench, now_s)
    await asyncio.sleep(0.1)
    assert not free.received, "the first rungs are not over yet"
    service.ready = [first]
    tasks += [asyncio.create_task(stream(bench, prompt=[n] + [1] * 7999)) for n in range(3, 5)]
    await until(lambda: len(stuck.received) == 5)
    service.ready = [first, second]
    look(bench, now_s + 1.0)  # it has become worse
    await until(lambda: len(free.received) >= 1)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await until(lambda: len(bench.rows()) == 5)
    moved = [row for row in bench.rows() if row.instance_uid == second.uid]
    assert len(moved) == len(free.received)
    assert {row.attempts for row in moved} == {1}, "to be moved is no failure"
    assert {(i.in_flight, i.unstarted, len(i.slots)) for i in (first, second)} == {(0, 0, 0)}


async def test_nobody_is_disturbed_when_all_are_in_time(start: Start) -> None:
    bench, asks = await pressed(start, 1)
    bench.engine.head_delay_s = 0.2
    task = asyncio.create_task(stream(bench))
    await until(lambda: len(bench.engine.received) == 1)
    look(bench, time.monotonic())
    assert await task == 200
    assert asks == []
    assert not emergencies_of(bench).counts

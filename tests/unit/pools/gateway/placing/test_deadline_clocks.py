"""Clocks by deadlines at the gateway: what it asks for, of which instances, and how often."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from core.algorithms.clock.deadline_clock import NO_SLACK_S, left_of_limits
from core.controllers.clock import deadline_clock
from core.controllers.clock.deadline_clock import DeadlineConfig, DeadlineObservation, DeadlineState
from core.controllers.request.routing import Choice
from core.engine import measured
from core.engine.compiled_model import model_row
from core.engine.corrections import KNOTS, Correction, configuration
from core.engine.engine_model import engine_model, gpu
from core.engine.overheads import Overheads, clock_switch_s
from core.ports import EngineLimits
from core.types import Limits
from pools import wire
from pools.gateway.fleet.instance import Instance
from pools.gateway.fleet.view import Service
from pools.gateway.placing.clock_requests import RENEW_S, ClockRequests, PendingClockRequest
from pools.gateway.placing.deadline_clocks import APART_S, DeadlineClocks
from pools.gateway.placing.deadline_looks import EngineCosts, observe
from pools.gateway.placing.projected_admission import AdmissionGate
from pools.gateway.placing.slot import Part
from pools.gateway.requests.sse import Meter
from tests.fakes.fleet import MODEL
from tests.unit.pools.gateway.conftest import Start, completion, until
from tests.unit.pools.gateway.placing.test_dispatch_laws import Guest, House
from tests.unit.pools.gateway.placing.test_projected_admission import Here

KIND = "Llama3-70B", "A100-80GB", 4, "vllm-v1"
TOP, GPU_FLOOR, VOLTAGE_FLOOR = 1410.0, 210.0, gpu("A100-80GB").f_v
SWITCH_S = clock_switch_s(Overheads(), *KIND[1:3])
KV_TOKENS = int(engine_model(*KIND).kv_capacity_tokens)


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    """Looks are loaded before the first test: that takes longer than most of them."""
    EngineCosts.of(*KIND).warm_up()


class Counted(Meter):
    """A stream of so many tokens so far."""

    def __init__(self, events: int) -> None:
        self.events = events


class Paced:
    """A house whose service has its clocks by deadlines; its loader works at once unless said otherwise."""

    def __init__(self, instances: int = 1, loader: Any = None, **policy: Any) -> None:
        self.asks: list[PendingClockRequest] = []
        self.requests = ClockRequests(lambda ask: self.asks.append(replace(ask)))
        self.clocks = DeadlineClocks(self.requests, loader or Here())
        gate = AdmissionGate(self.requests, deadlines=self.clocks)
        shares = {"clock_ttft_share": 1.0, "clock_tpot_share": 1.0}
        own = {"route": "least_backlog", "deadline": True, "tuning": wire.RequestTuning(profile_step_mhz=60.0)}
        self.house = House(instances, gate, **{**own, **shares, **policy})

    @property
    def service(self) -> Service:
        return self.house.view.services[MODEL]

    @property
    def instance(self) -> Instance:
        return self.house.instances[0]

    def limited(self, **limits: float | None) -> None:
        self.house.fake.objectives = wire.LatencyLimits(**limits)
        self.house.publish()

    def report(self, **fields: Any) -> None:
        """The agent reports this of the first instance."""
        self.instance._state = msgspec.structs.replace(self.instance.state, **fields)

    def keep(self) -> None:
        services = self.house.view.services.values()
        self.clocks.keep({i.uid for i in self.house.view.instances()}, services, time.monotonic())

    def look(self) -> None:
        self.clocks.look(self.house.view.services, time.monotonic())

    async def come(self, prompt: int = 500, apart: bool = True, **fields: Any) -> Guest:
        if apart:
            await asyncio.sleep(2 * APART_S)
        guest = await self.house.come(self.house.call(prompt=prompt, **fields))
        assert guest.slot is not None
        return guest

    def seen(self, now_s: float | None = None) -> DeadlineObservation:
        return observe(self.service, self.instance, KV_TOKENS, time.monotonic() if now_s is None else now_s)

    @property
    def mhz(self) -> float | None:
        return self.requests.asked(self.instance.uid)


@pytest.fixture
def paced() -> Paced:
    return Paced()


# -- what is asked for -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("knobs", "floor_mhz"),
    [({}, GPU_FLOOR), ({"clock_floor": "voltage"}, VOLTAGE_FLOOR), ({"clock_floor_mhz": 600.0}, 600.0)],
)
async def test_idle_instance_is_at_the_floor_and_one_with_a_heap_of_prompts_at_the_top(
    knobs: dict[str, Any], floor_mhz: float
) -> None:
    paced = Paced(**knobs)
    paced.keep()
    assert paced.mhz == floor_mhz
    for _ in range(20):
        await paced.come(prompt=2000)
    assert paced.mhz == TOP
    await paced.house.clear()
    paced.look()
    assert paced.mhz == floor_mhz
    assert {ask.node for ask in paced.asks} == {"node-1"}


async def test_clock_is_as_low_as_the_deadline_of_the_first_token_allows(paced: Paced) -> None:
    clocks = {}
    for ttft_s in (0.2, 0.4, 20.0):
        paced.limited(ttft_s=ttft_s, tpot_s=1.0)
        await paced.come(prompt=1000)
        clocks[ttft_s] = paced.mhz or 0.0
        await paced.house.clear()
        paced.look()
    assert TOP >= clocks[0.2] > clocks[0.4] > clocks[20.0] == GPU_FLOOR


async def test_clock_rises_when_time_passes_and_no_first_byte_comes(paced: Paced) -> None:
    paced.limited(ttft_s=0.5, tpot_s=1.0)
    guest = await paced.come(prompt=1000)
    before = paced.mhz or 0.0
    await asyncio.sleep(0.2)
    paced.look()
    assert TOP >= (paced.mhz or 0.0) > before
    assert guest.slot is not None
    guest.slot.started()
    guest.slot.meter = Counted(1)
    paced.look()
    assert (paced.mhz or 0.0) < before, "the prompt is done with"
    await paced.house.clear()


async def test_it_is_the_controllers_step_on_what_the_gateway_sees(paced: Paced) -> None:
    paced.house.fake.engine_limits = EngineLimits(1024, 16, chunk_tokens=256)
    paced.limited(ttft_s=0.6, tpot_s=0.2)
    for _ in range(2):
        await paced.come(prompt=800)
    before = DeadlineState(paced.mhz)
    paced.look()
    limits = EngineLimits(1024, 16, chunk_tokens=256)
    config = DeadlineConfig(model_row(engine_model(*KIND)), limits, GPU_FLOOR, 60.0, switch_s=SWITCH_S)
    state, _ = deadline_clock.step(before, paced.seen(), config)
    assert paced.mhz == state.target_mhz
    assert GPU_FLOOR < (paced.mhz or 0.0) < TOP, "or it would say nothing"
    whole, _ = deadline_clock.step(before, paced.seen(), replace(config, limits=EngineLimits()))
    assert whole.target_mhz != state.target_mhz, "the engine's limits count"
    await paced.house.clear()


# -- what is seen ------------------------------------------------------------------------------------


async def test_prompt_waits_in_whole_until_its_first_byte_and_is_due_by_its_share_of_the_limit() -> None:
    paced = Paced(clock_ttft_share=0.9, clock_tpot_share=0.8)
    paced.limited(ttft_s=2.0, tpot_s=0.1)
    paced.instance.rtt_s = 0.05
    guest = await paced.come(prompt=700)
    seen = paced.seen()
    received_s = guest.call.request.received_s
    assert seen.prompts.tolist() == [(700, 0, pytest.approx(received_s + 1.8 - 0.05))]
    assert (seen.decodes, seen.slack_s, seen.tpot_s) == (0, NO_SLACK_S, pytest.approx(0.08))
    assert guest.slot is not None
    guest.slot.started()
    assert (len(paced.seen().prompts), paced.seen().decodes) == (0, 1)
    await paced.house.clear()
    assert paced.seen().idle


async def test_an_answers_slack_is_its_tokens_time_less_what_has_passed(paced: Paced) -> None:
    paced.limited(ttft_s=2.0, tpot_s=0.1)
    now_s = time.monotonic()
    for events, ago_s in ((11, 0.4), (31, 0.6)):
        guest = await paced.come(prompt=300)
        assert guest.slot is not None
        guest.slot.started()
        guest.slot.meter = Counted(events)
        guest.slot.begun_s = now_s - ago_s
    seen = paced.seen(now_s)
    assert (seen.decodes, seen.context_tokens) == (2, 600 + 11 + 31)
    assert seen.slack_s == pytest.approx(10 * 0.1 - 0.4), "the least of both"
    await paced.house.clear()


async def test_tokens_of_another_engine_are_no_head_start(paced: Paced) -> None:
    """An answer goes on here: what was written elsewhere took its time there."""
    paced.limited(tpot_s=0.1)
    guest = await paced.come()
    assert guest.slot is not None
    guest.slot.meter = Counted(200)
    guest.slot.started()
    guest.slot.meter.events = 203
    assert paced.seen(guest.slot.begun_s).slack_s == pytest.approx(0.2)  # of three tokens two have had a gap
    await paced.house.clear()


async def test_a_part_of_a_request_counts_where_it_is_under_way(paced: Paced) -> None:
    paced.limited(ttft_s=2.0, tpot_s=0.1)
    choice = Choice("", None, None, None, None, None, False, "")
    dispatcher, call = paced.house.dispatcher, paced.house.call(prompt=700)
    first, second = (
        dispatcher.take(call, (paced.instance, choice), Part(cut, 760, second=later))
        for cut, later in ((500, False), (700, True))
    )
    assert [left for left, _, _ in paced.seen().prompts.tolist()] == [500], "of the prompt the part that is done here"
    assert paced.seen().decodes == 0, "the second part is still to come"
    second.arrives()
    seen = paced.seen()
    assert (len(seen.prompts), seen.decodes, seen.context_tokens) == (1, 1, 700), "its prompt is done elsewhere"
    for slot in (first, second):
        slot.end()


async def test_clock_by_iteration_is_the_top_while_a_prompt_waits_behind_the_next() -> None:
    paced = Paced(deadline=False, iteration=True, clock_floor="voltage")
    paced.limited(ttft_s=60.0, tpot_s=1.0)
    await paced.come(prompt=1500)
    assert paced.mhz == VOLTAGE_FLOOR
    await paced.come(prompt=1500)
    assert paced.mhz == TOP
    await paced.house.clear()
    ahead = Paced(clock_floor="voltage")
    ahead.limited(ttft_s=60.0, tpot_s=1.0)
    for _ in range(2):
        await ahead.come(prompt=1500)
    assert ahead.mhz == VOLTAGE_FLOOR, "both are in time"
    await ahead.house.clear()


async def test_answer_that_is_no_stream_is_taken_to_be_just_in_time(paced: Paced) -> None:
    guest = await paced.come(stream=False)
    assert guest.slot is not None
    guest.slot.started()
    assert paced.seen().slack_s == 0.0
    await paced.house.clear()


async def test_limits_are_those_of_the_class_or_the_requests_own(paced: Paced) -> None:
    paced.limited(ttft_s=2.0, tpot_s=0.1)
    await paced.come(own_limits=Limits(ttft_s=1.0, tpot_s=0.07))
    await paced.come()
    seen = paced.seen()
    due_s = seen.prompts["due_s"]
    assert due_s[1] - due_s[0] > 1.0
    assert seen.tpot_s == 0.07
    await paced.house.clear()


async def test_limit_on_e2e_is_one_between_the_tokens_of_the_predicted_answer(paced: Paced) -> None:
    paced.limited(e2e_s=20.0)
    await paced.come(predicted=400)
    seen = paced.seen()
    assert seen.tpot_s == pytest.approx(0.05)
    assert np.isinf(seen.prompts["due_s"]).all()
    await paced.house.clear()


async def test_prompts_are_in_the_order_in_which_the_engine_takes_them_in() -> None:
    for by_priority, expected in ((False, [900, 300, 600]), (True, [300, 600, 900])):
        paced = Paced(order="spf", aging_tokens_per_s=0.0, engine_priority=by_priority)
        for prompt in (900, 300, 600):
            await paced.come(prompt=prompt)
        assert paced.seen().prompts["left"].tolist() == expected
        await paced.house.clear()


async def test_what_others_have_sent_is_in_the_batch_when_the_agent_reports_more(paced: Paced) -> None:
    paced.report(running=40, waiting=3, kv_usage=0.5)
    assert paced.seen().idle, "others ask for what theirs need"
    waits = await paced.come(prompt=400)
    begun = await paced.come(prompt=400)
    assert begun.slot is not None
    begun.slot.started()
    seen = paced.seen()
    assert (len(seen.prompts), seen.decodes) == (1, 1 + 40), "of 43 there are 41 of others, at most 40 of them run"
    assert seen.context_tokens == int(0.5 * KV_TOKENS)
    paced.report(running=2, waiting=0, kv_usage=0.0)
    assert (paced.seen().decodes, paced.seen().context_tokens) == (1, 400)
    assert waits.slot is not None
    await paced.house.clear()


@pytest.mark.parametrize("taken", [0.1, 0.5, 0.8, 1.0])
async def test_less_is_left_of_limits_as_cache_or_batch_fill(paced: Paced, taken: float) -> None:
    paced.house.fake.engine_limits = EngineLimits(max_num_seqs=20)
    paced.limited(tpot_s=0.2)
    await paced.come()
    paced.report(kv_usage=taken, running=5)
    seen = paced.seen()
    assert seen.share == left_of_limits(taken, seen.decodes / 20, seen.decodes)
    paced.report(kv_usage=0.0, running=int(20 * taken))
    seen = paced.seen()
    assert seen.decodes > 0.9 * 20 * taken - 1
    assert seen.share == pytest.approx(left_of_limits(0.0, seen.decodes / 20, seen.decodes))
    assert seen.tpot_s == 0.2
    await paced.house.clear()


# -- when, and of whom -------------------------------------------------------------------------------


async def test_nothing_is_sent_twice_while_the_clock_stays(paced: Paced) -> None:
    paced.keep()
    await paced.come()
    count = len(paced.asks)
    for _ in range(20):
        paced.look()
        paced.keep()
    assert len(paced.asks) == count
    paced.requests.renew(time.monotonic() + RENEW_S)
    assert len(paced.asks) == count + 1
    await paced.house.clear()


async def test_requests_that_come_at_once_are_one_look_and_one_soon_after(paced: Paced) -> None:
    paced.keep()
    await asyncio.sleep(APART_S)
    before = paced.clocks.looks
    for _ in range(30):
        await paced.come(prompt=1000, apart=False)
    assert paced.clocks.looks - before < 10, "each would be as many looks"
    await asyncio.sleep(3 * APART_S)
    assert paced.mhz == TOP, "the last one has been looked at too"
    await paced.house.clear()


async def test_draining_instance_is_looked_at_until_its_last_request_has_ended(paced: Paced) -> None:
    paced.limited(ttft_s=0.3, tpot_s=1.0)
    await paced.come(prompt=300)
    instance, before = paced.instance, paced.mhz or 0.0
    paced.house.fake.state = "draining"
    paced.house.publish()
    assert not paced.service.ready
    await asyncio.sleep(0.3)
    paced.keep()
    paced.look()
    assert (paced.requests.asked(instance.uid) or 0.0) > before
    for guest in paced.house.held:
        assert guest.slot is not None
        guest.slot.end()
    paced.look()
    assert paced.requests.asked(instance.uid) == GPU_FLOOR
    paced.house.publish()
    paced.keep()
    assert paced.requests.asked(instance.uid) is None
    assert paced.asks[-1].lease_s == 0.0


async def test_clock_is_taken_back_when_the_policy_is_another(paced: Paced) -> None:
    await paced.come()
    uid = paced.instance.uid
    assert paced.mhz is not None
    paced.house.fake.policy = wire.RequestPolicy()
    paced.house.publish()
    paced.look()
    assert paced.requests.asked(uid) is None
    count = len(paced.asks)
    await paced.come()
    paced.keep()
    assert len(paced.asks) == count
    await paced.house.clear()


async def test_what_another_rule_has_asked_for_since_stays(paced: Paced) -> None:
    paced.keep()
    paced.house.fake.policy = wire.RequestPolicy(throttle=True, admission="projection")
    paced.house.publish()
    paced.requests.ask(paced.instance, 990.0, "within_limits", "by another rule", time.monotonic())
    paced.keep()
    assert paced.mhz == 990.0


async def test_clock_is_asked_for_again_when_somebody_has_taken_it_back(paced: Paced) -> None:
    """The ladder of emergencies drops what it asked for, and asks by the same hand."""
    paced.keep()
    paced.requests.drop(paced.instance.uid)
    paced.keep()
    assert paced.mhz == GPU_FLOOR


async def test_idle_instance_is_at_another_floor_when_the_policy_has_another(paced: Paced) -> None:
    paced.keep()
    paced.keep()
    assert paced.mhz == GPU_FLOOR
    policy = paced.house.fake.policy
    paced.house.fake.policy = msgspec.structs.replace(policy, clock_floor_mhz=600.0)
    paced.house.publish()
    paced.keep()
    assert [ask.mhz for ask in paced.asks] == [GPU_FLOOR, 600.0]


async def test_top_is_the_gpus_own_when_the_engine_model_knows_a_lower_one(paced: Paced) -> None:
    paced.report(max_mhz=1500.0)
    for _ in range(20):
        await paced.come(prompt=2000)
    assert paced.mhz == 1500.0
    await paced.house.clear()


# -- loading -----------------------------------------------------------------------------------------


class Later(Here):
    """An executor that works when the test says so."""

    def __init__(self) -> None:
        self.work: list[Any] = []

    def submit(self, work: Any, *arguments: Any) -> None:
        self.work.append(lambda: work(*arguments))


async def test_nothing_is_asked_for_until_the_engine_model_is_loaded() -> None:
    loader = Later()
    paced = Paced(loader=loader)
    paced.keep()
    await paced.come()
    paced.look()
    assert (paced.asks, len(loader.work)) == ([], 1)
    loader.work.pop()()
    paced.look()
    assert paced.mhz is not None
    await paced.house.clear()


async def test_clock_stays_at_the_top_when_the_engine_model_does_not_know_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    paced = Paced()
    paced.report(gpu_type="B300")
    paced.keep()
    paced.look()
    assert paced.asks == []
    assert "stay at the top" in caplog.text


async def test_clocks_follow_what_is_measured_of_engines(paced: Paced) -> None:
    paced.limited(ttft_s=1.0, tpot_s=1.0)
    guest = await paced.come(prompt=2000)
    assert guest.slot is not None
    guest.slot.pace = guest.slot.pace and guest.slot.pace._replace(due_s=time.monotonic() + 0.6)
    paced.look()
    before = paced.mhz or 0.0
    try:
        measured.calibrate({configuration(*KIND): Correction((1.3,) * KNOTS, (1.0,) * KNOTS)})
        paced.keep()
        paced.look()
        assert TOP >= (paced.mhz or 0.0) > before
    finally:
        measured.calibrate({})
    await paced.house.clear()


# -- the whole gateway -------------------------------------------------------------------------------


async def test_gateway_looks_by_itself_while_it_serves_and_when_nothing_is_to_be_done(start: Start) -> None:
    bench = await start(1)
    asks: list[float] = []
    bench.server.clocks.send = lambda ask: asks.append(ask.mhz)
    bench.server.runtime.deadlines._loader = Here()  # type: ignore[assignment]
    bench.fleet.policy = wire.RequestPolicy(route="least_backlog", deadline=True)
    bench.fleet.objectives = wire.LatencyLimits(ttft_s=0.5, tpot_s=1.0)
    bench.publish()
    await until(lambda: asks == [GPU_FLOOR])
    bench.engine.held = asyncio.Event()
    task = asyncio.create_task(_status(bench.post(completion(prompt=[1] * 1000, stream=True))))
    await until(lambda: asks[-1] == TOP)  # its first token is late
    bench.engine.held.set()
    assert await task == 200
    await until(lambda: asks[-1] == GPU_FLOOR)


async def _status(request: Any) -> int:
    async with request as response:
        await response.read()
        return int(response.status)

"""Several gateways at one engine: together they know its whole batch, and each judges it as one that sent all."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core.controllers.request.routing import Choice
from pools import wire
from pools.gateway.fleet.instance import Instance
from pools.gateway.fleet.view import Service
from pools.gateway.placing import own_boards, projections
from pools.gateway.placing.clock_requests import ClockRequests, PendingClockRequest
from pools.gateway.placing.deadline_clocks import DeadlineClocks
from pools.gateway.placing.deadline_looks import EngineCosts, observe
from pools.gateway.placing.projected_admission import AdmissionGate, configuration
from pools.gateway.placing.projections import InstanceProjection
from pools.gateway.placing.shared_boards import SharedBoards, sent_since
from pools.gateway.placing.slot import Slot
from pools.wire import GATEWAY_BOARDS_TTL_S, GatewayBoards
from tests.fakes.fleet import MODEL
from tests.unit.pools.gateway.placing.test_dispatch_laws import House
from tests.unit.pools.gateway.placing.test_routes import Here

KIND = "Llama3-70B", "A100-80GB", 4, "vllm-v1"
TOP = 1410.0
THROTTLE: dict[str, Any] = {"admission": "projection", "throttle": True}
RETAIL: dict[str, Any] = {"retail": True}
DEADLINE: dict[str, Any] = {"deadline": True, "tuning": wire.RequestTuning(profile_step_mhz=60.0)}
ITERATION: dict[str, Any] = {"iteration": True, "tuning": wire.RequestTuning(profile_step_mhz=60.0)}
RULES = pytest.mark.parametrize(
    "policy", [THROTTLE, RETAIL, DEADLINE, ITERATION], ids=["throttle", "retail", "deadline", "iteration"]
)


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    known().warm_up()
    EngineCosts.of(*KIND).warm_up()


@cache
def known() -> InstanceProjection:
    """Made once: it takes longer than most tests."""
    return InstanceProjection(*KIND)


@dataclass(frozen=True)
class Sent:
    """A request that was sent `ago_s` ago, and has generated so many tokens since; None: it has not begun."""

    prompt: int
    predicted: int
    generated: int | None = None
    ago_s: float = 0.0
    lost: bool = False


class Gateway:
    """A gateway at one engine, which asks for its clock within limits that leave much time unless said otherwise."""

    def __init__(self, **policy: Any) -> None:
        self.asks: list[PendingClockRequest] = []
        self.boards = SharedBoards()
        self.clocks = ClockRequests(self.asks.append)
        self.deadlines = DeadlineClocks(self.clocks, Here(), self.boards)  # type: ignore[arg-type]
        self.gate = AdmissionGate(self.clocks, Here(), self.deadlines, self.boards)  # type: ignore[arg-type]
        self.house = House(1, self.gate, **policy)
        self.limited(tpot_s=1.0, e2e_s=900.0)
        self.gate._models[configuration(self.service, self.instance)] = known()
        if policy.get("retail"):
            self.projection.fit(self.service)

    def limited(self, **limits: float | None) -> None:
        self.house.fake.objectives = wire.LatencyLimits(**limits)
        self.house.publish()

    @property
    def service(self) -> Service:
        return self.house.view.services[MODEL]

    @property
    def instance(self) -> Instance:
        return self.house.instances[0]

    @property
    def projection(self) -> InstanceProjection:
        found = self.gate._projection(self.service, self.instance)
        assert found is not None
        return found

    @property
    def mhz(self) -> float | None:
        return self.clocks.asked(self.instance.uid)

    def has(self, sent: Sent, now_s: float) -> Slot:
        """Has a request under way."""
        call = self.house.call(prompt=sent.prompt, predicted=sent.predicted, lost=sent.lost)
        call.request.received_s = now_s - sent.ago_s
        choice = Choice(self.instance.uid, None, None, None, None, None, False, "")
        slot = self.house.dispatcher.take(call, (self.instance, choice))
        slot.sent_s = now_s - sent.ago_s
        if sent.generated is not None:
            slot.meter = SimpleNamespace(events=sent.generated)  # type: ignore[assignment]
            slot.begun_s, slot.tokens_before = slot.sent_s, 0
        return slot

    def published(self) -> GatewayBoards:
        """Returns what it tells others, as they read it."""
        return wire.decode(wire.encode(own_boards.published([self.service], [self.instance])), GatewayBoards)

    def hears(self, published: dict[str, GatewayBoards | None], late_s: float = 0.0) -> None:
        self.boards.hear(published, time.monotonic() + late_s, time.time() + late_s)

    def look(self) -> None:
        self.gate.look(self.house.view.services)
        self.deadlines.look(self.house.view.services, time.monotonic())

    async def come(self, **fields: Any) -> Any:
        return await self.house.come(self.house.call(**fields))


SENT = st.builds(
    Sent,
    prompt=st.integers(1, 3000),
    predicted=st.integers(1, 400),
    generated=st.none() | st.integers(0, 500),
    ago_s=st.floats(0.02, 2.0),
    lost=st.sampled_from((False, False, False, True)),
)


@given(sent=st.lists(SENT, min_size=1, max_size=24), seed=st.integers(0, 10**6), count=st.integers(2, 4))
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_each_of_several_gateways_judges_as_one_that_sent_everything(sent: list[Sent], seed: int, count: int) -> None:
    """Whoever sent which: the same rows in the same order, and so the same projection and the same clock."""
    gaps_s = [own.ago_s for own in sent]  # two of one moment have no order
    sent = [replace(own, ago_s=sum(gaps_s[n:])) for n, own in enumerate(sent)]
    owners = np.random.default_rng(seed).integers(0, count, len(sent)).tolist()
    for policy in (THROTTLE, DEADLINE):
        one, several, now_s = Gateway(**policy), [Gateway(**policy) for _ in range(count)], time.monotonic()
        for own, owner in zip(sent, owners, strict=True):
            one.has(own, now_s)
            several[owner].has(own, now_s)
        published = {f"g{n}": gateway.published() for n, gateway in enumerate(several)}
        for n, gateway in enumerate(several):
            gateway.hears({name: message for name, message in published.items() if name != f"g{n}"})
            if gateway.instance.slots:
                compared(one, gateway, policy)


def compared(one: Gateway, gateway: Gateway, policy: dict[str, Any]) -> None:
    uid, now_s = gateway.instance.uid, time.monotonic()
    if policy is DEADLINE:
        alone = observe(one.service, one.instance, 10**6, now_s)
        shared = observe(gateway.service, gateway.instance, 10**6, now_s, gateway.boards.paces(uid))
        assert (shared.decodes, shared.context_tokens) == (alone.decodes, alone.context_tokens)
        assert (shared.tpot_s, shared.slack_s) == pytest.approx((alone.tpot_s, alone.slack_s), abs=0.05)
        for name in ("left", "due_s"):
            np.testing.assert_allclose(shared.prompts[name], alone.prompts[name], atol=0.05)
        return
    batches = [
        projections._batch(projections._with(own_boards.board_of(own.service, own.instance), own.boards.boards(uid)))
        for own in (one, gateway)
    ]
    whole, shared_batch = batches
    assert shared_batch.lost == whole.lost
    for name in (
        "prompt_tokens",
        "predicted_tokens",
        "max_tokens",
        "computed_tokens",
        "generated_tokens",
        "deadline_s",
    ):
        np.testing.assert_allclose(getattr(shared_batch.running, name), getattr(whole.running, name), atol=0.05)
    clocks = [
        own.projection.lowest_clock(own.service, own.instance, None, 0.3, own.boards.boards(uid))
        for own in (one, gateway)
    ]
    assert clocks[0] is not None
    assert clocks[1] is not None
    assert clocks[1][0] == pytest.approx(clocks[0][0], abs=15.0), "to a step: looked at a moment later"


@RULES
async def test_clock_goes_up_by_what_another_gateway_has_at_the_engine(policy: dict[str, Any]) -> None:
    ours, theirs = Gateway(**policy), Gateway(**policy)
    now_s = time.monotonic()
    for gateway in (ours, theirs):
        gateway.limited(ttft_s=5.0, tpot_s=0.06, e2e_s=15.0)
    for _ in range(90):
        theirs.has(Sent(1500, 300, 1, 0.2), now_s)
    await ours.come(prompt=1500, predicted=300)
    alone_mhz = ours.mhz
    ours.hears({"g2": theirs.published()})
    ours.look()
    assert alone_mhz is not None
    assert ours.mhz is not None
    assert ours.mhz > alone_mhz + 100.0, "heard of, without another request here"
    await ours.house.clear()


@RULES
async def test_clock_is_the_top_one_while_another_gateway_tells_nothing_and_says_so(policy: dict[str, Any]) -> None:
    ours, theirs = Gateway(**policy), Gateway(**policy)
    ours.hears({"gateway.2@gw-3": theirs.published()})
    await ours.come()
    low_mhz = ours.mhz
    assert low_mhz is not None
    assert low_mhz < 800.0
    ours.hears({"gateway.2@gw-3": None})
    ours.look()
    assert ours.mhz == TOP, "it is there, and what it has is not known"
    assert (ours.asks[-1].reason, ours.asks[-1].summary) == (
        "no_data",
        "The top clock: gateway.2@gw-3 has not published what it sent there.",
    )
    await asyncio.sleep(0.02)  # a look at deadlines comes no sooner
    await ours.come()
    assert ours.mhz == TOP, "nor does an admission lower it"
    ours.hears({})
    ours.look()
    assert ours.mhz is not None
    assert ours.mhz < 800.0, "it is gone"
    await ours.house.clear()


@RULES
async def test_clock_is_the_top_one_while_nobody_can_be_heard(policy: dict[str, Any]) -> None:
    ours = Gateway(**policy)
    ours.boards.expect()
    await ours.come()
    assert ours.mhz == TOP
    assert "what other gateways have sent is not heard" in ours.asks[-1].summary
    ours.hears({})
    ours.look()
    assert ours.mhz is not None
    assert ours.mhz < 800.0
    later_s = time.monotonic() + 2.0 * GATEWAY_BOARDS_TTL_S
    assert not ours.boards.unknown(later_s), "who has come since hears nothing of this one either"
    ours.hears({"g2": ours.published()})
    assert ours.boards.unknown(later_s), "what others publish holds for a second"
    await ours.house.clear()


async def test_requests_of_another_gateway_are_not_an_unknown_senders() -> None:
    ours, theirs = Gateway(**THROTTLE), Gateway(**THROTTLE)
    for _ in range(3):
        theirs.has(Sent(100, 50, 1, 0.1), time.monotonic())
    ours.hears({"g2": theirs.published()})
    await ours.come()
    state = msgspec.structs.replace(ours.instance.state, running=4)
    ours.instance.update(state, ours.instance.pool, 0, (ours.instance.reported_at_s or 0.0) + 1.0)
    ours.look()
    assert ours.mhz != TOP
    state = msgspec.structs.replace(state, running=5)
    ours.instance.update(state, ours.instance.pool, 0, (ours.instance.reported_at_s or 0.0) + 1.0)
    ours.look()
    assert ours.mhz == TOP
    await ours.house.clear()


async def test_requests_that_come_to_two_gateways_at_once_do_not_fill_an_engine_twice() -> None:
    """Neither has heard of the other's new ones: each takes the other to have sent as many as itself."""
    ours, theirs = Gateway(**THROTTLE), Gateway(**THROTTLE)
    for gateway, other in ((ours, theirs), (theirs, ours)):
        gateway.hears({"other": other.published()})
        gateway.house.dispatcher._try_again_later = lambda service: None  # type: ignore[method-assign]
    room = ours.instance.candidate().kv_room_tokens
    each = int(room // 12)
    fits = int(room // (each + 200 * 1.3))
    for _ in range(fits + 2):
        for gateway in (ours, theirs):
            await gateway.come(prompt=each, predicted=200)
    taken = [len(gateway.instance.slots) for gateway in (ours, theirs)]
    assert fits - 2 <= sum(taken) <= fits + 1, "one too many, which both let in in the same moment"
    before = sum(taken)
    for gateway, other in ((ours, theirs), (theirs, ours)):
        gateway.hears({"other": other.published()})
    ours.house.dispatcher.look_around()
    await ours.house.settle()
    assert before <= len(ours.instance.slots) + len(theirs.instance.slots) <= fits + 1, "no more"
    for gateway in (ours, theirs):
        await gateway.house.clear()


def test_another_hosts_clock_makes_no_deadline_later() -> None:
    """Its Unix time may be behind or ahead of ours; its monotonic clock has nothing to do with ours."""
    board = wire.EngineBoard(1, None, [100.0], [10], [10], [10], [0], [False], [130.0], [False])
    message = GatewayBoards(100.2, 1000.0, {"e": board})
    for wall_s, published_s in ((1000.1, 49.9), (1000.0, 50.0), (990.0, 50.0), (2000.0, 50.0 - GATEWAY_BOARDS_TTL_S)):
        boards = SharedBoards()
        boards.hear({"g2": message}, 50.0, wall_s)
        (found,) = boards.boards("e")
        assert found.published_s == pytest.approx(published_s)
        assert found.board.deadline_s[0] + found.offset_s == pytest.approx(published_s + 29.8)
        boards.hear({"g2": message}, 50.1, wall_s + 0.1)
        assert boards.boards("e")[0].published_s == pytest.approx(published_s), "the same message again is no newer"


def test_rows_since_a_moment_are_those_that_were_sent_after_it() -> None:
    board = wire.EngineBoard(
        4, 0.1, [1.0, 2.0, 3.0], [1, 2, 3], [4, 5, 6], [7, 8, 9], [0] * 3, [True] * 3, [9.0] * 3, [False] * 3
    )
    later = sent_since(board, 2.0)
    assert (later.answers, later.sent_s, later.prompt_tokens, later.max_tokens) == (1, [3.0], [3], [9])

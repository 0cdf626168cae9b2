"""Requests are served within their class's limits where a policy gives classes limits of their own."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.controllers.request import admission
from core.controllers.request.routing import RouteRequest
from core.policy.tuning import LadderTuning
from core.types import Limits
from pools import wire
from pools.gateway.fleet.instance import Instance
from pools.gateway.placing.clock_requests import ClockRequests, PendingClockRequest
from pools.gateway.placing.emergencies import Emergencies
from pools.gateway.placing.projections import InstanceProjection
from pools.gateway.placing.slot import Slot
from pools.gateway.requests.call import Call
from tests.fakes.fleet import MODEL
from tests.unit.pools.gateway.placing.test_dispatch_laws import NAMES, House

STRICT = wire.LatencyLimits(0.25, 0.1, 60.0)


def house_of(*request_classes: str, strict: Sequence[str] = ("SS",), **policy: Any) -> House:
    """Instances of these classes, in a fleet where some classes have stricter limits than the service."""
    house = House(len(request_classes), **policy)
    house.fake.request_classes = dict(enumerate(request_classes))
    house.fake.limits = dict.fromkeys(strict, STRICT)
    house.publish()
    return house


def busy(instance: Instance, prompt_tokens: int = 4000) -> None:
    """Its next first token comes after this prompt's: 0.25 s is over by then, and 2 s are not."""
    instance.dispatched(prompt_tokens, stream=True)


def queue_s(instance: Instance) -> float:
    return instance.candidate().queue_s


# -- which limits ------------------------------------------------------------------------------------


def test_call_keeps_its_class_s_limits_and_what_it_asks_for_itself() -> None:
    house = house_of("SS", "LL")
    service = house.view.services[MODEL]
    of_small, of_large = (house.call(class_name=name) for name in ("SS", "LL"))
    assert of_small.limits(service) == Limits(0.25, 0.1, 60.0)
    assert of_large.limits(service) == service.limits == Limits(2.0, 0.15, 60.0)
    of_small.own_limits = Limits(tpot_s=0.5)
    assert of_small.limits(service) == Limits(0.25, 0.5, 60.0), "of what it does not ask for, the class's"
    of_small.own_limits = Limits(ttft_s=3.0)
    assert of_small.limits(service) == Limits(3.0, 0.1, 60.0)
    of_small.own_limits = Limits(tpot_s=0.5)
    assert house.dispatcher.request_of(service, of_small).limits == of_small.limits(service)


def test_request_has_the_service_s_limits_before_it_is_classified() -> None:
    house = house_of("SS", strict=NAMES)
    call = house.call()
    call.classified = None
    assert house.dispatcher.request_of(house.view.services[MODEL], call).limits == Limits(2.0, 0.15, 60.0)


@given(class_name=st.sampled_from(NAMES), own=st.none() | st.builds(Limits, st.floats(0.1, 9.0), st.floats(0.01, 1.0)))
def test_limits_are_the_service_s_where_no_class_has_its_own(class_name: str, own: Limits | None) -> None:
    """As before classes could have any: the request's own in the place of the service's."""
    house = house_of("LL", strict=())
    service, call = house.view.services[MODEL], house.call(class_name=class_name, own_limits=own)
    limits = service.limits if own is None else Limits(own.ttft_s, own.tpot_s, service.limits.e2e_s)
    expected = RouteRequest(100, 50, NAMES.index(class_name), limits)
    assert house.dispatcher.request_of(service, call) == expected


# -- routing and order -------------------------------------------------------------------------------


@pytest.mark.parametrize(("strict", "goes_to"), [(("SS",), "LL"), ((), "SS")])
async def test_request_goes_to_a_larger_class_when_its_own_is_late_by_its_class_s_limit(
    strict: Sequence[str], goes_to: str
) -> None:
    house = house_of("SS", "LL", strict=strict)
    small, _ = house.instances
    busy(small)
    assert 0.25 < queue_s(small) < 2.0
    guest = await house.come(house.call(class_name="SS"))
    assert guest.slot is not None
    assert guest.slot.instance.request_class == goes_to
    assert guest.slot.choice.meets_slo


@pytest.mark.parametrize(("share", "goes_to"), [(0.1, "LL"), (1.0, "SS")])
async def test_request_goes_to_a_larger_class_when_its_own_is_late_by_the_share_that_plans_keep(
    share: float, goes_to: str
) -> None:
    house = house_of("SS", "LL", strict=(), plan_ttft_share=share)
    small, _ = house.instances
    busy(small)
    assert 0.2 < queue_s(small) < 2.0
    guest = await house.come(house.call(class_name="SS"))
    assert guest.slot is not None
    assert guest.slot.instance.request_class == goes_to


@pytest.mark.parametrize(("strict", "first"), [(("SS", "LL"), "LL"), ((), "SS")])
async def test_earliest_deadline_goes_first_by_the_limits_of_classes(strict: Sequence[str], first: str) -> None:
    """A longer answer takes longer alone; with a limit that leaves no more time it is due before a shorter one."""
    house = house_of("LL", strict=strict, order="edf", engine_queue=1)
    if strict:
        house.fake.limits["LL"] = wire.LatencyLimits(0.1, 0.05, 2.0)
        house.publish()
    occupant = await house.come(house.call())
    short = await house.come(house.call(0.0, 100, 30, class_name="SS"))
    long = await house.come(house.call(0.1, 100, 60, class_name="LL"))
    assert occupant.slot is not None
    occupant.slot.end()
    await house.settle()
    assert house.held == [{"SS": short, "LL": long}[first]]
    for guest in house.waiting:
        guest.task.cancel()
    await house.clear()


# -- admission ---------------------------------------------------------------------------------------


async def test_batch_is_judged_by_the_strictest_pace_of_those_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    house = house_of("LL", strict=("SS",))
    service, (instance,) = house.view.services[MODEL], house.instances
    projection = InstanceProjection("Llama3-70B", "A100-80GB", 4, "vllm-v1")

    step, limits_s = admission.step, []

    def noted(state: Any, obs: Any, config: admission.AdmissionConfig) -> Any:
        limits_s.append(config.tbt_s)
        return step(state, obs, config)

    monkeypatch.setattr(admission, "step", noted)

    def judged_s(call: Call) -> float | None:
        assert projection.admits(service, instance, call, 0.3)
        return limits_s[-1]

    assert judged_s(house.call(class_name="LL")) == 0.15
    assert judged_s(house.call(class_name="SS")) == 0.1
    small = await house.come(house.call(class_name="SS"))
    assert small.slot is not None
    assert judged_s(house.call(class_name="LL")) == 0.1, "beside one that is promised more"
    small.slot.end()
    assert judged_s(house.call(class_name="LL", own_limits=Limits(tpot_s=0.5))) == 0.5
    await house.clear()


# -- the ladder --------------------------------------------------------------------------------------


class Ladder:
    """The ladder over a house's fleet, looked at when the test says so."""

    def __init__(self, house: House) -> None:
        self.house = house
        self.asks: list[PendingClockRequest] = []
        self.emergencies = Emergencies(house.dispatcher, ClockRequests(self.asks.append))

    def ramped(self, after_s: float = 0.0) -> set[str]:
        """Looks once, and says of which classes instances are at the top clock."""
        self.asks.clear()
        self.emergencies.look(self.house.view.services.values(), time.monotonic() + after_s)
        classes = {instance.uid: instance.request_class for instance in self.house.instances}
        return {classes[ask.uid] for ask in self.asks}


async def late_by(house: House, class_name: str, prompt_tokens: int) -> Slot:
    """A request that has just been sent, whose first token takes longer than its limit."""
    guest = await house.come(house.call(class_name=class_name, prompt=prompt_tokens))
    assert guest.slot is not None
    guest.call.request.received_s = time.monotonic()
    return guest.slot


@pytest.mark.parametrize(("strict", "expected"), [(("SS",), {"SS"}), ((), set())])
async def test_ladder_is_climbed_when_a_request_is_late_by_its_class_s_limit(
    strict: Sequence[str], expected: set[str]
) -> None:
    house = house_of("SS", strict=strict, emergencies=True)
    await late_by(house, "SS", 4000)
    assert Ladder(house).ramped() == expected
    await house.clear()


async def test_ladder_is_climbed_to_the_last_rung_of_the_policy() -> None:
    house = house_of("SS", strict=("SS",), emergencies=True, emergencies_up_to="reorder")
    await late_by(house, "SS", 4000)
    assert Ladder(house).ramped() == set()
    await house.clear()


async def test_ladder_is_looked_at_once_in_its_period() -> None:
    tuning = wire.RequestTuning(ladder=LadderTuning(period_s=2.0))
    house = house_of("SS", strict=("SS",), emergencies=True, tuning=tuning)
    slot, ladder = await late_by(house, "SS", 4000), Ladder(house)
    assert ladder.ramped() == {"SS"}
    slot.end()
    for after_s, looked in ((1.9, False), (2.1, True)):
        ladder.ramped(after_s)
        (state,) = ladder.emergencies._states.values()
        assert state.ramped
        assert (state.calm_since_s is not None) == looked
    await house.clear()


async def test_ladder_is_there_when_only_classes_have_a_limit_of_the_first_token() -> None:
    house = house_of("SS", emergencies=True)
    house.fake.objectives = wire.LatencyLimits()
    house.publish()
    await late_by(house, "SS", 4000)
    assert Ladder(house).ramped() == {"SS"}
    await house.clear()


async def test_request_without_a_limit_is_never_late() -> None:
    house = house_of("SS", "LL", emergencies=True)
    house.fake.objectives = wire.LatencyLimits()
    house.publish()
    slot = await late_by(house, "LL", 16000)
    assert Ladder(house).ramped(60.0) == set()
    slot.call.own_limits = Limits(ttft_s=0.5)
    assert Ladder(house).ramped() == {"LL"}, "unless it asks for one itself"
    await house.clear()


@pytest.mark.parametrize(
    ("waits", "there", "seen_at"), [("SS", ("SL", "LL"), "SL"), ("SL", ("SS",), "SS"), ("LS", ("SL", "LL"), "LL")]
)
async def test_those_that_wait_are_seen_where_they_will_be_served_when_their_class_has_no_instance(
    waits: str, there: Sequence[str], seen_at: str
) -> None:
    house = house_of(*there, strict=(waits,), emergencies=True, engine_queue=1)
    for name in there:
        await house.come(house.call(class_name=name, prompt=1))
    guest = await house.come(house.call(class_name=waits, prompt=1000))
    guest.call.request.received_s = time.monotonic() - 0.2
    assert house.waiting == [guest]
    assert Ladder(house).ramped(0.1) == {seen_at}
    for left in house.waiting:
        left.task.cancel()
    await house.clear()

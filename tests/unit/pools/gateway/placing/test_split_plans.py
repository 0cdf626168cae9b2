"""What a split is decided on follows the engine that is there: its limits, and the times that its agent measures."""

from __future__ import annotations

import msgspec
import pytest

from core.algorithms.split.split_point import SplitConfig, burden_s, first_token_s
from core.algorithms.split.virtual_passes import TOKEN_BUDGET
from core.ports import EngineLimits
from pools import wire
from pools.gateway.fleet.instance import Instance
from pools.gateway.placing import split_plans
from pools.gateway.placing.splitter import Splitter
from tests.unit.pools.gateway.placing.test_dispatch_laws import House
from tests.unit.pools.gateway.placing.test_routes import Here

CONFIG = SplitConfig()
RUNNING, KV_USAGE = 32, 0.2


def reported(instance: Instance, at_s: float, step_s: float, **fields: object) -> None:
    """The agent reports once more: so many run, and the gaps between their tokens."""
    state = msgspec.structs.replace(
        instance.state, running=RUNNING, kv_usage=KV_USAGE, tpot_s=step_s, waiting=0, **fields
    )
    instance.update(state, instance.pool, instance.rank, at_s)


def predicted_s(instance: Instance, prompt_tokens: float = 0.0) -> float:
    limits = instance.state.engine_limits or EngineLimits()
    passes = split_plans.engine_passes(
        split_plans._model(instance), limits.max_num_batched_tokens, limits.max_num_seqs, limits.itl_limit_s or 0.0
    )
    return passes.mean_pass_s(1410.0, KV_USAGE, RUNNING, prompt_tokens, 1000.0)


def follow(instance: Instance, step_s: float, tuning: wire.RequestTuning, reports: int = 60) -> float:
    """A decision after each of so many reports, which come each second; returns the scale that is left."""
    begun_s = 1e9
    for n in range(reports):
        reported(instance, begun_s + n, step_s)
        found = split_plans.backlog(instance, CONFIG, tuning)
        assert found.scale == instance.scale
        assert found.steady.scale == instance.scale
    return instance.scale


@pytest.mark.parametrize("factor", [0.5, 1.0, 2.0])
async def test_times_are_corrected_when_an_engine_is_slower_or_faster_than_the_model(factor: float) -> None:
    instance = House(1).instances[0]
    assert follow(instance, factor * predicted_s(instance), wire.RequestTuning()) == pytest.approx(factor, rel=0.01)


async def test_waiting_times_follow_the_correction() -> None:
    instance = House(1).instances[0]
    before = split_plans.backlog(instance, CONFIG, wire.RequestTuning())
    follow(instance, 2.0 * predicted_s(instance), wire.RequestTuning())
    after = split_plans.backlog(instance, CONFIG, wire.RequestTuning())
    assert first_token_s(after, 3000) == pytest.approx(2.0 * first_token_s(before, 3000), rel=0.01)
    assert burden_s(after, 3000) == pytest.approx(2.0 * burden_s(before, 3000), rel=0.01)


async def test_prompts_beside_the_tokens_are_no_slowness() -> None:
    """An engine as fast as the model is believed to be, though each step has a chunk of prompt in it."""
    house = House(1)
    instance, begun_s, chunk = house.instances[0], 1e9, 200.0
    step_s = predicted_s(instance, chunk)
    assert step_s > 1.1 * predicted_s(instance)
    for n in range(30):
        reported(instance, begun_s + n, step_s)
        split_plans.backlog(instance, CONFIG, wire.RequestTuning())
        tokens = round(chunk / step_s / 5)
        for _ in range(5):
            instance.started(instance.dispatched(tokens, stream=True), tokens)
            instance.ended()
    assert instance.scale == pytest.approx(1.0, rel=0.02)


@pytest.mark.parametrize(
    "tuning", [wire.RequestTuning(split_calibrate_s=0.0), wire.RequestTuning(split_calibrate_s=1000.0)]
)
async def test_times_are_corrected_as_often_as_the_policy_says(tuning: wire.RequestTuning) -> None:
    instance = House(1).instances[0]
    found = follow(instance, 2.0 * predicted_s(instance), tuning)
    assert found == (1.0 if tuning.split_calibrate_s == 0.0 else pytest.approx(2.0**0.1))


async def test_nothing_is_learned_when_nobody_waits_for_a_token_or_the_engine_stood_still() -> None:
    instance = House(1).instances[0]
    begun_s = 1e9
    for n in range(5):
        instance.update(msgspec.structs.replace(instance.state, tpot_s=None), instance.pool, 0, begun_s + n)
        split_plans.backlog(instance, CONFIG, wire.RequestTuning())
    follow(instance, 100.0 * predicted_s(instance), wire.RequestTuning())
    assert instance.scale == 1.0


@pytest.mark.parametrize("tokens", [512, 8192])
async def test_budget_is_the_one_that_the_agent_reports(tokens: int) -> None:
    house = House(1)
    default_s = house.instances[0].candidate().top_token_s
    house.fake.engine_limits = EngineLimits(max_num_batched_tokens=tokens)
    house.publish()
    instance = house.instances[0]
    found = split_plans.backlog(instance, CONFIG, wire.RequestTuning())
    assert found.costs.values[TOKEN_BUDGET] == found.steady.costs[TOKEN_BUDGET] == tokens
    own_s = instance.candidate().top_token_s
    assert own_s != default_s


async def test_each_part_is_predicted_by_its_own_tokens_and_the_whole_by_both() -> None:
    house = House(2, route="predicted", split="prompt")
    call = house.call(prompt=2000, predicted=400)
    plan = Splitter(house.view, house.dispatcher, Here()).plan(call)
    assert plan is not None
    assert plan.second is not None
    one, two = plan.first.choice, plan.second.choice
    alone = house.router.alone(house.view.services["llama3-70b"], house.dispatcher.request_of(call.service, call))
    assert alone is not None
    assert one.ttft_s == pytest.approx(alone[0])
    assert two.ttft_s is not None
    assert two.ttft_s < 0.5 * alone[0]
    for choice in (one, two):
        assert choice.e2e_s == pytest.approx(alone[1], rel=0.05)
        assert choice.window_s == pytest.approx(1.4 * alone[1], rel=0.05)


async def test_queues_are_predicted_once_when_many_requests_are_split() -> None:
    """Ten prompts wait on one instance and none on the other, which has their answers still to come."""
    house = House(2, route="predicted", split="prompt")
    splitter = Splitter(house.view, house.dispatcher, Here())
    instances = {
        plan.first.instance.uid: plan
        for plan in (splitter.plan(house.call(prompt=2000, predicted=400)) for _ in range(10))
        if plan
    }
    (plan,) = instances.values()
    assert plan.second is not None
    first, second = plan.first.instance.candidate(), plan.second.instance.candidate()
    assert (first.queued_prompt_tokens, second.queued_prompt_tokens) == (20_000, 0)
    assert (first.load, second.load) == (10, 0)
    assert plan.second.instance.parts == 10

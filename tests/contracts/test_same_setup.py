"""The contract of both worlds on engines and routes, which no loop decides: a preset sets them up alike."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest

from core.policy import presets
from core.policy.presets import PRESETS
from core.ports import EngineLimits
from core.simulator.kernel.simulated import InstanceSpec
from core.simulator.policies import build, read_policy
from pools import wire
from pools.gateway.fleet.view import Service
from pools.gateway.placing.measured_aging import MeasuredAging
from scheduler.control import service_policy
from tests.fakes import minute as minutes
from tests.fakes.minute import MINUTE

pytestmark = pytest.mark.usefixtures("usual_periods")

# Presets whose fleet the simulator lays out by itself, the others' stands in the scenario.
LAID_OUT = sorted(name for name in PRESETS if PRESETS[name].family != "static")
ROUTES = {
    "least_loaded": "least_loaded",
    "weighted_round_robin": "weighted",
    "round_robin": "round_robin",
    "least_backlog": "least_backlog",
    "least_energy": "least_energy",  # of answers alone: whole requests have a router
}


def limits_of(spec: InstanceSpec, known: EngineLimits) -> EngineLimits:
    """Returns what a simulated engine keeps; `known`: who may give way by how much says nothing where nobody does."""
    own = spec.scheduling
    return EngineLimits(
        max_num_batched_tokens=spec.tokens_per_iteration,
        max_num_seqs=spec.max_sequences,
        itl_limit_s=own.itl_limit_s or None,
        chunk_tokens=own.chunk_tokens,
        preempts_s=own.preempts_s,
        margin_s=own.margin if own.preempts_s else known.margin_s,
    )


def gateway_service(asked: wire.RequestPolicy) -> Service:
    """Returns the service as a gateway has it that has seen no answers."""
    limits = wire.LatencyLimits(**asdict(MINUTE.objective))
    return Service(wire.FleetService("chat", MINUTE.model, MINUTE.engine, 8192, limits, "only", [], [], policy=asked))


@pytest.mark.parametrize("policy", LAID_OUT)
def test_engines_and_routes_are_set_up_the_same(policy):
    known = presets.policy(policy)
    limits = service_policy.engine_limits(known.knobs, known.tuning, [MINUTE.objective])
    asked = service_policy.request_policy(known.knobs, known.tuning)
    plan = build(read_policy({"name": policy}), minutes.world(MINUTE))
    for spec in (member.spec for member in plan.members):
        assert limits_of(spec, limits) == limits
        order = "spf" if spec.scheduling.order == "srtf" and not spec.scheduling.token_s else spec.scheduling.order
        assert order == asked.order
        assert asked.aging_measured is (order == "sjf" and known.knobs.aging_tokens_per_s is None)
        if asked.aging_measured:
            assert spec.scheduling.aging == MeasuredAging().tokens_per_s(gateway_service(asked), 0.0)
        else:
            assert spec.scheduling.aging == (asked.aging_tokens_per_s if order == "sjf" else 0.0)
    if known.knobs.split == "prompt" and known.family == "greenserve":
        own = ROUTES[asked.route]
        prompts = "round_robin" if own == "least_energy" else own
        assert [pool.routing for pool in plan.pools] == [prompts, own]
    elif asked.route in ROUTES and asked.route != "least_energy":
        assert {pool.routing for pool in plan.pools} == {ROUTES[asked.route]}
    else:
        assert plan.router is not None


def test_aging_that_is_set_is_a_number_at_gateways_too() -> None:
    own = presets.policy("muserve", {"aging_tokens_per_s": 7.0})
    asked = service_policy.request_policy(own.knobs, own.tuning)
    assert (asked.aging_tokens_per_s, asked.aging_measured) == (7.0, False)
    by_prompts = presets.policy("least_loaded", {"order": "spf"})
    asked = service_policy.request_policy(by_prompts.knobs, by_prompts.tuning)
    assert (asked.aging_tokens_per_s, asked.aging_measured) == (20.0, False)


def test_window_and_margin_of_laxity_are_one_setting_for_gateways_and_engines() -> None:
    policy = presets.policy("freesh")
    tuning = replace(policy.tuning, queue=replace(policy.tuning.queue, window_factor=1.6, margin_s=0.5))
    limits = service_policy.engine_limits(policy.knobs, tuning, [MINUTE.objective])
    assert (limits.window_factor, limits.margin_s) == (1.6, 0.5)
    assert service_policy.request_policy(policy.knobs, tuning).tuning.queue_window_factor == 1.6
    config = read_policy({"name": "freesh", "tuning": {"queue": {"window_factor": 1.6, "margin_s": 0.5}}})
    assert (config.window_factor, config.margin_s) == (1.6, 0.5)

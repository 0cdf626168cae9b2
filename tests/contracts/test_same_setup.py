"""The contract of both worlds on what no slow loop decides: engines, routes and clocks are set up alike by a preset."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from core.observations import asking, clock_given
from core.observations.clock_given import clock_limits
from core.policy import presets
from core.policy.presets import PRESETS
from core.ports import EngineLimits
from core.simulator.kernel.simulated import InstanceSpec
from core.simulator.policies import build, read_policy
from core.types import Limits, Loop
from pools.agent.clocks import clock_rules
from scheduler.control import service_policy
from tests.fakes import minute as minutes
from tests.fakes.minute import MINUTE
from tests.fakes.taken_steps import differences, taken

pytestmark = pytest.mark.usefixtures("usual_periods")

# Presets whose fleet the simulator lays out by itself, the others' stands in the scenario.
LAID_OUT = sorted(name for name in PRESETS if PRESETS[name].family != "static")
ROUTES = {"least_loaded": "least_loaded", "weighted_round_robin": "weighted", "round_robin": "round_robin"}


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
        assert spec.scheduling.aging == (asked.aging_tokens_per_s if order == "sjf" else 0.0)
    if asked.route in ROUTES:
        assert {pool.routing for pool in plan.pools} == {ROUTES[asked.route]}
    else:
        assert plan.router is not None


BY_READINGS = [name for name in LAID_OUT if PRESETS[name].knobs.clock in ("miad", "profile")]


def live_clock(policy: str) -> tuple[Any, Limits]:
    """Returns the configuration of the rule that agents make of what is published, and the limits that it acts at."""
    known = presets.policy(policy)
    rule = clock_rules.rule_of(service_policy.clock_rule(known.knobs, known.tuning), figures=None)
    return rule.config, clock_limits(MINUTE.objective, Limits(), known.knobs)


def simulated_clocks(policy: str) -> list[tuple[Any, Limits]]:
    """Returns the same of each step that the clock loop takes, and of each instance."""
    plan = build(read_policy({"name": policy}), minutes.world(MINUTE))
    (clock,) = [own for own in plan.controls if own.name == Loop.CLOCK]
    with asking.noting() as notes:
        clock.step(minutes.view(MINUTE, plan))
    steps = [(own.config, getattr(own.observation, "instances", [own.observation])) for own in taken(notes)]
    return [(config, one.limits) for config, instances in steps for one in instances]


def clock_differences(policy: str, known: tuple[Any, Limits]) -> list[str]:
    config, limits = known
    found = []
    for other, seen in simulated_clocks(policy):
        if PRESETS[policy].knobs.clock == "profile":  # which reads no E2E limit
            seen = replace(seen, e2e_s=limits.e2e_s)
        found += [*differences(config, other), *differences(limits, seen)]
    return found


@pytest.mark.parametrize("policy", BY_READINGS)
def test_clocks_act_by_the_same_rule_and_limits(policy):
    assert simulated_clocks(policy)
    assert clock_differences(policy, live_clock(policy)) == []


@pytest.mark.parametrize("policy", ["freesh", "greenserve"])
def test_clocks_differ_when_a_margin_is_changed_in_one_world(policy, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(clock_given, "planned", lambda limits, *shares: limits)
        known = live_clock(policy)
    assert clock_differences(policy, known)

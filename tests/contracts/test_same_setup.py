"""The contract of both worlds on engines and routes, which no loop decides: a preset sets them up alike."""

from __future__ import annotations

import pytest

from core.policy import presets
from core.policy.presets import PRESETS
from core.ports import EngineLimits
from core.simulator.kernel.simulated import InstanceSpec
from core.simulator.policies import build, read_policy
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

"""The policies on the simulator itself: every request is served, and no command comes too late."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from core.controllers.fleet.scale_threshold import ScaleThresholdConfig
from core.controllers.fleet.shard_threshold import ShardThresholdConfig
from core.engine.overheads import clock_switch_s
from core.simulator.kernel import kernel
from core.simulator.kernel.driver import simulate
from core.simulator.kernel.simulated import FleetSpec, PoolSpec, load
from core.simulator.policies import FreeshConfig, ThresholdConfig, build, declared_loads
from tests.unit.core.simulator.policies.worlds import world


@pytest.fixture(scope="module")
def requests():
    """Five minutes each at 2, 30 and 4 requests a second, of two cells."""
    rng = np.random.default_rng(3)
    at = np.concatenate([300.0 * n + np.sort(rng.uniform(0, 300.0, 300 * rps)) for n, rps in enumerate((2, 30, 4))])
    prompt, output = rng.integers(50, 2000, at.size), rng.integers(5, 400, at.size)
    return load(at, prompt, output, request_class=(output >= 100).astype(np.int64))


@pytest.mark.parametrize(
    "config",
    [
        ThresholdConfig(scale=ScaleThresholdConfig(150.0), shard=ShardThresholdConfig(30.0)),
        FreeshConfig(carbon_period_s=150.0, scale_period_s=150.0, shard_period_s=30.0, step_s=25.0),
    ],
    ids=lambda config: config.name,
)
def test_every_request_is_served_when_the_fleet_changes_under_it(config, requests):
    first = requests.arrival_s < 150.0
    columns = (requests.arrival_s, requests.cell, requests.prompt_tokens, requests.output_tokens)
    found = replace(
        world({"east": 32, "west": 32}, tps=(2, 4, 8), classes=("short", "long")),
        declared=declared_loads(*(column[first] for column in columns), 2),
        intensity=lambda site, from_s, to_s, step_s: ((200.0 if (site == "east") == (from_s < 450.0) else 400.0),) * 6,
    )
    plan = build(config, found)
    members = [[n for n, m in enumerate(plan.members) if m.pool == pool.name] for pool in plan.pools]
    names = [pool.name for pool in plan.pools]
    fleet = FleetSpec(
        tuple(member.spec for member in plan.members),
        tuple(PoolSpec(pool.name, tuple(own), pool.routing) for pool, own in zip(plan.pools, members, strict=True)),
        tuple(names.index(name) for name in plan.cell_pool),
        tuple(member.weight for member in plan.members),
    )
    switch = lambda spec: clock_switch_s(found.overheads, spec.gpu, spec.tp)  # noqa: E731
    outcome = simulate(fleet, requests, controls=plan.controls, clock_switch_s=switch)
    assert len(outcome.rows) == len(requests)
    assert (outcome.rows["status"] == kernel.DONE).all()
    assert outcome.refused == 0
    assert outcome.spent_j["transition"].sum() > 0.0
    assert len(outcome.instances) > len(plan.members)

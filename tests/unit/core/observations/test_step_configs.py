"""The simulated loops are configured as live ones are, whatever the policy says."""

from __future__ import annotations

import pytest

from core.observations.step_configs import (
    carbon_config,
    clock_config,
    pool_config,
    right_size_config,
    scale_dynamo_config,
    scale_threshold_config,
    shard_dynamo_config,
    shard_threshold_config,
    threshold_clock_config,
)
from core.policy.presets import PRESETS, policy
from core.simulator.policies import config, dynamollm, greenserve, muserve
from core.simulator.policies.freesh import Freesh
from core.simulator.policies.greenserve.loops import Greenserve
from core.types import Loop
from tests.unit.core.simulator.policies.worlds import world

EQ1 = {"eq1": {"floor_rps": 0.1, "min_saving": 0.2, "time_limit_s": 3.0}}
CHANGED = {
    "freesh": {"alpha": 1.4, "objective": "cost", "negative_intensity": "follow", "tuning": EQ1},
    "greenserve": {"alpha": 1.4, "changes_per_hour": 2, "tuning": {"right_size": {"burst": 0.5, "hold_s": 5.0}}},
    "threshold": {
        "alpha": 1.4,
        "scale_period_s": 60.0,
        "tuning": {
            "eq1": {"floor_rps": 0.1},
            "threshold": {"kv_high": 0.9, "busy_low": 0.2, "clock_step_mhz": 15.0, "gain": 0.2, "streak": 5},
        },
    },
    "dynamo": {
        "alpha": 1.4,
        "hand_down": False,
        "tuning": {
            "dynamo": {"shard_alpha": 1.3, "down_after": 4, "wave": 3, "clocks": "all"},
            "starts": {"warm_pool": 1},
        },
    },
}


def policies(family):
    """Returns the presets of a family, each as it is and with other settings."""
    names = [name for name, preset in PRESETS.items() if preset.family == family]
    return [policy(name, own) for name in names for own in ({}, CHANGED[family])]


@pytest.mark.parametrize("own", policies("freesh"), ids=lambda own: own.name)
def test_freeshs_programs_are_configured_alike(own):
    found = Freesh(config.freesh_of(own), world({"east": 8}))
    assert found.carbon_config == carbon_config(own.knobs, own.tuning)
    assert found.pool_config == pool_config(own.knobs, own.tuning)


@pytest.mark.parametrize("own", policies("dynamo"), ids=lambda own: own.name)
def test_dynamollms_loops_are_configured_alike(own):
    found = dynamollm.of(own)
    assert found.scale == scale_dynamo_config(own.knobs, own.tuning, 1800.0)
    assert found.shard == shard_dynamo_config(own.knobs, own.tuning, 300.0)


@pytest.mark.parametrize("family", ["dynamo", "greenserve", "freesh", "placement"])
def test_clock_rules_are_configured_alike(family):
    changes = {"miad": {"increase": 1.5}, "profile": {"min_saving": 0.1}, "slack": {"reserve": 0.2}}
    for preset in (preset for preset in PRESETS.values() if preset.family == family):
        for changed in (None, changes):
            own = policy(preset.name, {"tuning": changed} if changed else {})
            expected = clock_config(own.knobs, own.tuning, config.period_s(own, Loop.CLOCK))
            assert expected is None or simulated_rule(own) == expected


def simulated_rule(own):
    """Returns the configuration of a policy's clock rule as its simulated loops have it."""
    if own.family == "freesh":
        return config.freesh_of(own).clock
    if own.family == "placement":
        return muserve.of(own).clock
    if own.family == "dynamo":
        return dynamollm.of(own).clock
    return Greenserve(greenserve.of(own), world({"east": 16}, tps=(2, 4, 8)))._clock_config


@pytest.mark.parametrize("own", policies("greenserve"), ids=lambda own: own.name)
def test_greenserves_loop_is_configured_alike(own):
    assert greenserve.of(own).fleet == right_size_config(own.knobs, own.tuning, config.period_s(own, Loop.SCALE))


@pytest.mark.parametrize("own", policies("threshold"), ids=lambda own: own.name)
def test_loops_by_thresholds_are_configured_alike(own):
    found = config.threshold_of(own)
    assert found.scale == scale_threshold_config(own.knobs, own.tuning, own.knobs.scale_period_s)
    assert found.shard == shard_threshold_config(own.knobs, own.tuning, 300.0)
    assert found.clock == threshold_clock_config(own.tuning, 5.0)

from __future__ import annotations

import pytest

from core.simulator.fields import ScenarioError, Section
from core.simulator.policies import FreeshConfig, StaticConfig, ThresholdConfig, read_overheads, read_policy


def policy(**values):
    return read_policy(values)


def test_plain_name_gives_the_defaults():
    assert read_policy({"name": "threshold"}) == ThresholdConfig()
    assert read_policy({"name": "freesh"}) == FreeshConfig()
    assert read_policy({"name": "single_pool"}) == StaticConfig("single_pool")


def test_keys_are_read_when_given():
    found = policy(
        name="freesh", loops=["clock", "scale"], scale_period_s=600, alpha=1.25, weights_cached=False, warm_pool=2
    )
    assert isinstance(found, FreeshConfig)
    assert found.loops == ("scale", "clock")  # slowest first
    assert (found.scale_period_s, found.alpha) == (600.0, 1.25)
    assert (found.starting.warm_pool, found.starting.weights_cached) == (2, False)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"name": "fresh"}, "unknown 'fresh'; known: greenserve, greenserve_epochs, freesh, .*threshold"),
        ({"name": "freesh", "alfa": 1.2}, "policy.alfa: unknown field; did you mean alpha"),
        ({"name": "freesh", "loops": ["scael"]}, "policy.loops: unknown 'scael'; known: carbon, scale, shard, clock"),
        ({"name": "threshold", "loops": ["carbon"]}, "policy.loops: unknown 'carbon'; known: scale, shard, clock"),
        ({"name": "freesh", "alpha": 0.9}, "policy.alpha: must be at least 1"),
        ({"name": "freesh", "step_s": 3600}, "policy.step_s: must be at most carbon_period_s"),
        ({"name": "freesh", "objective": "money"}, "policy.objective: unknown 'money'; known: carbon, energy"),
        ({"name": "freesh", "weights_cached": 1}, "policy.weights_cached: must be true or false"),
        ({"name": "threshold", "kv_low": 0.8}, "policy.kv_low: must be below kv_high"),
        ({"name": "threshold", "busy_high": 1.5}, "policy.busy_high: must be at most 1"),
        (
            {"name": "least_loaded", "clock": "miad"},
            "policy.clock: does nothing in a simulated least_loaded; known here: aging_tokens_per_s",
        ),
        ({}, "policy.name: missing"),
    ],
)
def test_error_names_the_field_and_the_remedy_when_wrong(values, message):
    with pytest.raises(ScenarioError, match=message):
        policy(**values)


def test_overheads_override_the_published_ones():
    found = read_overheads(Section("overheads", {"engine_s": 5, "sync_s": 0.3, "clock_switch_s": {"V100-16GB": 0}}))
    assert (found.start.engine_s, found.start.weights_s, found.sync_s) == (5.0, 15.0, 0.3)
    assert found.clock_switch_s["V100-16GB"] == 0.0
    assert found.clock_switch_s["A100-80GB"] == 0.2


def test_overheads_are_refused_when_a_key_is_unknown():
    with pytest.raises(ScenarioError, match=r"overheads\.boot_s: unknown field"):
        read_overheads(Section("overheads", {"boot_s": 5}))
    with pytest.raises(ScenarioError, match=r"overheads\.clock_switch_s\.H100: unknown field"):
        read_overheads(Section("overheads", {"clock_switch_s": {"H100": 0.1}}))

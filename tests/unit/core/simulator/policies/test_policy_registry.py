"""Simulated policies take the settings that their loops read, by today's names and by those of version 0.1."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields
from typing import Any

import pytest

from core.policy.knobs import Knobs
from core.policy.presets import PRESETS
from core.simulator.fields import ScenarioError
from core.simulator.policies import StaticConfig, put_over, read_policy
from core.simulator.policies.policy_registry import FAMILIES, POLICIES

KNOBS = {item.name: item for item in fields(Knobs)}
# What goes with a share: these families take one in two places.
PARTNERS = {
    ("greenserve", "ttft_share"): ("plan_ttft_share", "clock_ttft_share"),
    ("threshold", "ttft_share"): ("clock_ttft_share", "clock_tpot_share"),
    ("threshold", "tpot_share"): ("clock_ttft_share", "clock_tpot_share"),
}
VALUES: dict[str, Any] = {
    "partition": "medians",
    "frozen": ["scale"],
    "max_rps": {"tp1": 1.5},
    "slo_factor": 10.0,
    "tp": 2,
    "scale_period_s": 25.0,
    "tuning.placement.group_gpus": [1, 2],
    "tuning.right_size.look_s": 30,
    "tuning.split.by_rates": False,
    "tuning.threshold.kv_high": 0.9,
    "tuning.threshold.busy_high": 0.9,
}


def others(key: str, rules: Any, present: Any, choices: tuple[str, ...]) -> Iterator[Any]:
    """Yields values of which one is not the present one."""
    if key in VALUES:
        yield VALUES[key]
    elif choices := choices or rules["choices"]:
        yield from choices
    elif isinstance(present, bool):
        yield not present
    elif isinstance(present, int) and rules["below"] is None:
        yield present + 2
    else:
        yield from (3, 0.35)


def readings() -> Iterator[Any]:
    """Yields each family with each of its settings, and values for it."""
    for family, own in FAMILIES.items():
        names = [name for name in POLICIES if PRESETS[name].family == family]
        preset = PRESETS[names[0]]
        for key, choices in own.reads.knobs.items():
            values = list(others(key, KNOBS[key].metadata, getattr(preset.knobs, key), choices))
            yield pytest.param(names, family, key, values, id=f"{family}-{key}")
        for path in own.reads.tuning:
            record, _, single = path.partition(".")
            for item in fields(getattr(preset.tuning, record)):
                if single in ("", item.name):
                    key = f"tuning.{record}.{item.name}"
                    values = list(others(key, item.metadata, getattr(getattr(preset.tuning, record), item.name), ()))
                    yield pytest.param(names, family, key, values, id=f"{family}-{key}")


def keys_of(family: str, key: str, value: Any) -> dict[str, Any]:
    if key.startswith("tuning."):
        _, record, name = key.split(".")
        return {"tuning": {record: {name: value}}}
    partners = PARTNERS.get((family, key.partition("_")[2]), (key,))
    return dict.fromkeys(partners if key in partners else (key,), value)


def configs(names: list[str], family: str, key: str, values: list[Any]) -> Iterator[tuple[Any, Any]]:
    """Yields what each policy of a family is read as, without and with the setting, where it may have the value."""
    for name, value in ((name, value) for name in names for value in values):
        with suppress(ScenarioError):
            own = {"name": name, **({"clock": "primal_dual"} if key.startswith("tuning.primal_dual") else {})}
            yield read_policy(own), read_policy({**own, **keys_of(family, key, value)})


@pytest.mark.parametrize(("names", "family", "key", "values"), list(readings()))
def test_every_setting_that_is_taken_changes_what_the_loops_are_given(names, family, key, values):
    assert any(plain != changed for plain, changed in configs(names, family, key, values))


@pytest.mark.parametrize("name", POLICIES)
def test_a_knob_that_no_simulated_loop_reads_is_taken_as_the_preset_has_it(name):
    family, own = FAMILIES.get(PRESETS[name].family), PRESETS[name].knobs
    unread = KNOBS.keys() - (family.reads.knobs.keys() if family else set())
    assert read_policy({"name": name, **{key: getattr(own, key) for key in unread}}) == read_policy({"name": name})


def test_static_policies_are_read_by_their_names():
    found = [read_policy({"name": name}) for name in ("single_pool", "multi_pool", "least_loaded", "disaggregated")]
    assert found == [StaticConfig("single_pool"), StaticConfig("multi_pool"), StaticConfig("least_loaded"), found[-1]]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (
            {"name": "freesh", "loops": ["clock"], "routing": "weighted", "latency_margin": 0.7, "step_s": 600},
            {
                "name": "freesh",
                "frozen": ["carbon", "scale"],
                "shard": "off",
                "route": "weighted_round_robin",
                "clock_ttft_share": 0.7,
                "clock_tpot_share": 0.7,
                "tuning": {"eq1": {"steps": 3}},
            },
        ),
        (
            {"name": "dynamollm", "headroom": 1.2, "alpha": 1.3, "margin": 0.8, "emergency": False, "warm_pool": 2},
            {
                "name": "dynamollm",
                "alpha": 1.2,
                "plan_ttft_share": 0.4,
                "clock_ttft_share": 0.4,
                "plan_tpot_share": 0.8,
                "clock_tpot_share": 0.8,
                "emergencies": False,
                "tuning": {"dynamo": {"shard_alpha": 1.3}, "starts": {"warm_pool": 2}},
            },
        ),
        (
            {"name": "scale_inst", "loops": ["scale", "clock"]},
            {"name": "scale_inst", "clock": "profile", "clock_period_s": 5},
        ),
        (
            {"name": "right_size", "shortest_first": False, "wait_share": 0.6, "loops": ["clock"]},
            {
                "name": "greenserve",
                "order": "fcfs",
                "plan_ttft_share": 0.6,
                "clock_ttft_share": 0.6,
                "scale": "static",
            },
        ),
        (
            {"name": "triton", "engines": 1, "autoscale": True, "clock": True, "admission": True},
            {
                "name": "triton",
                "scale": "throttle",
                "scale_period_s": 10,
                "clock": "throttle",
                "admission": "projection",
                "tuning": {"throttle": {"engines": 1}},
            },
        ),
        (
            {"name": "alpaserve", "scaling": True, "act_s": 2, "spread": 0.2, "tuning": {"slack": {"reserve": 0.1}}},
            {
                "name": "alpaserve",
                "clock": "slack",
                "clock_period_s": 2,
                "tuning": {"placement": {"spread": 0.2}, "slack": {"reserve": 0.1}},
            },
        ),
        (
            {"name": "dynaserve", "split": "disaggregated", "routing": "round_robin", "gain": 0.2},
            {"name": "dynaserve", "split": "prompt", "route": "round_robin", "tuning": {"split": {"gain": 0.2}}},
        ),
        ({"name": "dynaserve", "tolerance": 0.002}, {"name": "dynaserve"}),  # the default of its former meaning
        ({"name": "dynaserve", "tolerance": 0.01}, {"name": "dynaserve", "tuning": {"split": {"tolerance": 0.01}}}),
        (
            {"name": "threshold", "pools": "per_class", "loops": [], "kv_high": 0.8},
            {
                "name": "threshold",
                "partition": "dynamo",
                **{"scale": "static", "shard": "off", "clock": "fixed"},
                "tuning": {"threshold": {"kv_high": 0.8}},
            },
        ),
    ],
    ids=lambda keys: keys["name"],
)
def test_names_of_before_mean_the_same(old, new):
    assert read_policy(old) == read_policy(new)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"name": "freesh", "route": "least_loaded", "routing": "weighted"}, "policy.routing: is called route now, "),
        ({"name": "freesh", "loops": 3}, "policy.loops: must be a list of names, not 3"),
        ({"name": "freesh", "step_s": "x"}, "policy.step_s: must be a number, not 'x'"),
        ({"name": "freesh", "tuning": {"eq1": {"step": 3}}}, "policy.tuning.eq1.step: unknown field; known: floor_rps"),
        ({"name": "freesh", "tuning": {"primal": {"gain": 1}}}, "policy.tuning.primal: unknown record; known: eq1"),
        ({"name": "freesh", "tuning": {"split": {"gain": 1}}}, "policy.tuning.split.gain: does nothing in a simulated"),
        ({"name": "freesh", "decrease_mhz": 50}, r"unknown field; did you mean tuning\.miad\.decrease_mhz\?"),
        ({"name": "threshold", "pools": "two"}, "policy.pools: unknown 'two'; known: one, per_class"),
        ({"name": "retail", "clock": "throttle"}, "policy.clock: unknown 'throttle'; known: retail, fixed"),
        ({"name": "greenserve", "objective": "co2"}, "policy.objective: unknown 'co2'; known: carbon, energy, cost"),
        ({"name": "epochs"}, "policy: unknown 'epochs'; known: greenserve, greenserve_epochs, freesh"),
    ],
)
def test_a_wrong_key_is_named_as_it_is_written(keys, message):
    with pytest.raises(ScenarioError, match=message):
        read_policy(keys)


def test_a_runs_keys_are_put_over_the_scenarios_field_by_field():
    own = {"name": "throttllem", "engines": 1, "period_s": 20, "tuning": {"throttle": {"ips": "trees"}}}
    found = put_over(own, {"scale_period_s": 30, "tuning": {"throttle": {"retry_s": 0.2}}}, "throttllem")
    throttle = {"engines": 1, "ips": "trees", "retry_s": 0.2}
    assert found == {"name": "throttllem", "scale_period_s": 30, "tuning": {"throttle": throttle}}
    assert put_over(own, {"tp": 2}, "triton") == {"name": "triton", "tp": 2}
    assert put_over({"name": "right_size", "alpha": 1.1}, {"order": "fcfs"}, "greenserve")["alpha"] == 1.1
    with pytest.raises(ScenarioError, match=r"policy\.autoscale: must be true or false"):
        put_over(own, {"autoscale": "yes"}, "throttllem")

"""Policies' knobs: every preset is what its paper says, and nonsense is refused with words."""

from dataclasses import asdict, fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.policy.presets import DEFAULT, PRESETS, Knobs, documented, knobs, parse
from core.simulator.policies.policy_registry import POLICIES
from core.types import Loop
from pools import wire

BASELINES = {
    "freesh": ("freesh_baseline", "min_energy"),
    "dynamollm": ("single_pool", "multi_pool", "scale_inst", "scale_shard", "scale_freq"),
    "throttllem": ("triton", "retail"),
    "muserve": ("alpaserve", "alpaserve_sched", "alpaserve_scaling"),
    "dynaserve": ("pd_coloc", "pd_disagg"),
}


def differ(one, other):
    return {name for name, value in asdict(PRESETS[one]).items() if value != asdict(PRESETS[other])[name]}


OWN = {DEFAULT, "right_size"}


def test_every_policy_and_baseline_of_the_papers_is_there():
    assert set(PRESETS) == {*OWN, *BASELINES, *(name for names in BASELINES.values() for name in names)}
    assert all(knobs(name) == found for name, found in PRESETS.items())


def test_names_are_the_simulators_where_it_has_the_policy():
    missing = set(PRESETS) - set(POLICIES)
    assert missing <= {*OWN, "freesh_baseline"}


def test_baselines_differ_in_the_knob_that_their_paper_names():
    assert differ("single_pool", "multi_pool") == {"partition", "class_limits"}
    assert differ("scale_inst", "multi_pool") == {"scale", "hand_down", "proactive"}
    assert differ("scale_shard", "multi_pool") == {"shard"}
    assert differ("scale_freq", "multi_pool") == {"clock", "clock_period_s"}
    assert differ("freesh", "min_energy") == {"objective"}
    assert differ("alpaserve", "alpaserve_sched") == {"order"}
    assert differ("alpaserve_sched", "alpaserve_scaling") == {"clock"}
    assert differ("pd_coloc", "pd_disagg") == {"split"}
    assert differ("triton", "retail") == {"clock"}
    assert differ("throttllem", "triton") == {"scale", "scale_period_s", "shadow", "clock", "admission"}


def test_request_policy_has_a_knob_for_each_field():
    names = {item.name for item in fields(Knobs)}
    assert {name for name in wire.RequestPolicy.__struct_fields__ if name not in names} == {"throttle", "retail"}
    assert all(
        getattr(Knobs(), name) == getattr(wire.RequestPolicy(), name)
        for name in wire.RequestPolicy.__struct_fields__
        if name in names
    )


def test_every_knob_has_words():
    assert documented().keys() == {item.name for item in fields(Knobs)}
    assert all(documented().values())


@pytest.mark.parametrize(
    ("name", "overrides", "words"),
    [
        ("x", {}, "unknown policy 'x'; known are greenserve"),
        ("freesh", {"clok": 1}, "unknown knob 'clok'; known are carbon"),
        ("freesh", {"clock": "slow"}, "clock is one of fixed, miad"),
        ("freesh", {"clock": 1}, "clock is a text, not 1"),
        ("freesh", {"alpha": 0.9}, "alpha is at least 1, not 0.9"),
        ("freesh", {"alpha": "1"}, "alpha is a number or null, not '1'"),
        ("freesh", {"alpha": float("nan")}, "alpha is a finite number"),
        ("freesh", {"shadow": 1}, "shadow is true or false, not 1"),
        ("freesh", {"tp": True}, "tp is a whole number, not True"),
        ("freesh", {"max_wait_s": 0}, "max_wait_s is above 0"),
        ("freesh", {"tenant_weights": {"acme": 0}}, "tenant_weights of acme is above 0"),
        ("freesh", {"tenant_weights": {"acme": "x"}}, "tenant_weights of acme is a number"),
        ("freesh", {"scale": "dynamo"}, "needs carbon=off"),
        ("freesh", {"shard": "dynamo"}, "set carbon=off"),
        ("single_pool", {"partition": ""}, "name it, for example partition=whole"),
        ("throttllem", {"shard": "mix"}, "it needs shard=off"),
        ("freesh", ["clock"], "knobs are an object"),
    ],
)
def test_nonsense_is_refused_with_words(name, overrides, words):
    with pytest.raises(ValueError, match=words):
        knobs(name, overrides)


def test_knobs_are_set_when_they_make_sense():
    found = knobs("dynamollm", {"clock": "fixed", "alpha": 2, "tenant_weights": {"acme": 2}})
    assert (found.clock, found.alpha, found.tenant_weights) == ("fixed", 2.0, {"acme": 2})
    assert found.shard == "dynamo"


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("shadow", "on", True),
        ("shadow", "false", False),
        ("alpha", "1.5", 1.5),
        ("alpha", "none", None),
        ("tp", "4", 4),
        ("clock", "fixed", "fixed"),
        ("carbon", "off", "off"),
        ("tenant_weights", "acme:2,birch:0.5", {"acme": 2.0, "birch": 0.5}),
        ("scale_period_s", "20", 20.0),
    ],
)
def test_text_becomes_a_value_of_the_knobs_kind(key, text, value):
    assert parse(key, text) == value


@pytest.mark.parametrize(("key", "text"), [("alpha", "much"), ("tp", "4.5"), ("nope", "1"), ("tenant_weights", "acme")])
def test_text_is_refused_when_it_is_no_value(key, text):
    with pytest.raises(ValueError, match=key):
        parse(key, text)


@given(
    st.sampled_from(list(PRESETS)),
    st.dictionaries(
        st.sampled_from([f.name for f in fields(Knobs)]), st.none() | st.booleans() | st.integers() | st.text()
    ),
)
def test_any_overrides_are_taken_or_refused_with_words(name, overrides):
    try:
        found = knobs(name, overrides)
    except ValueError:
        return
    assert all(getattr(found, key) == value for key, value in overrides.items())


def test_periods_and_rest_are_the_policys():
    assert PRESETS["throttllem"].period_s(Loop.SCALE, 1800.0) == 10.0
    assert PRESETS["freesh"].period_s(Loop.SCALE, 1800.0) == 1800.0
    assert PRESETS["dynamollm"].period_s(Loop.CLOCK, 1.0) == 5.0
    assert [loop for loop in Loop if PRESETS["single_pool"].has_no_choice(loop)] == list(Loop)
    assert [loop for loop in Loop if PRESETS["greenserve"].has_no_choice(loop)] == []

"""Settings are named, read and written in one way on command lines, in forms and in what is stored."""

from __future__ import annotations

import types

import pytest

from core.policy import value_rules
from core.policy.knobs import Knobs
from core.policy.presets import PRESETS, policy
from core.policy.setting_texts import SETTINGS, by_name, documented, parse, stored, text_of, value_of, without_effect
from core.policy.tuning import Tuning


def test_every_setting_has_words():
    words = documented()
    assert words.keys() == SETTINGS.keys()
    assert {"clock", "tenant_weights", "miad.increase", "placement.group_gpus"} <= words.keys()
    assert words["shard"].startswith("off | mix | dynamo | threshold. mix: ")
    assert words["changes_per_hour"].endswith("in any hour; none: as many as pay")
    assert words["max_wait_s"].endswith("(read live alone: the simulator has no queue at the gateway)")
    assert "(read in What-if alone: a live GPU is one" in words["placement.spread"]


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_says_what_no_value_stands_for_where_it_may_have_none(name):
    record, _, key = name.rpartition(".")
    owner = type(getattr(Tuning(), record)) if record else Knobs
    optional = types.NoneType in value_rules.kinds(owner)[key] or SETTINGS[name].default in ("", ())
    assert bool(SETTINGS[name].metadata["unset"]) == optional


@pytest.mark.parametrize("preset", PRESETS)
def test_what_is_written_is_read_as_it_was(preset):
    found = PRESETS[preset]
    values = {name: value_of(found, name) for name in SETTINGS}
    assert {name: parse(name, text_of(value)) for name, value in values.items()} == values
    assert by_name(stored(values)) == values
    again = policy(preset, stored(values))
    assert (again.knobs, again.tuning) == (found.knobs, found.tuning)


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("shadow", "on", True),
        ("shadow", "false", False),
        ("alpha", "1.5", 1.5),
        ("clock_period_s", "none", None),
        ("tp", "4", 4),
        ("clock", "fixed", "fixed"),
        ("carbon", "off", "off"),
        ("tenant_weights", "acme:2,birch:0.5", {"acme": 2.0, "birch": 0.5}),
        ("scale_period_s", "20", 20.0),
        ("frozen", "carbon, scale", ("carbon", "scale")),
        ("placement.group_gpus", "2,4", (2, 4)),
        ("dynamo.wave", "4", 4),
        ("throttle.tbt_s", "none", None),
    ],
)
def test_text_becomes_a_value_of_the_knobs_kind(key, text, value):
    assert parse(key, text) == value


@pytest.mark.parametrize(
    ("key", "text", "words"),
    [
        ("alpha", "much", "alpha: must be a number, not 'much'"),
        ("alpha", "0.5", "alpha: must be at least 1"),
        ("tp", "4.5", "tp: must be a number"),
        ("nope", "1", "unknown knob 'nope'; known are carbon"),
        ("tenant_weights", "acme", "tenant_weights: is written like acme:2"),
        ("miad.increase", "1", "miad.increase: must be above 1"),
        ("miad.up", "1", "unknown setting 'miad.up'; known are miad.increase, miad.decrease_mhz"),
        ("placement.group_gpus", "two", "placement.group_gpus: must be whole numbers, not 'two'"),
    ],
)
def test_text_is_refused_when_it_is_no_value(key, text, words):
    with pytest.raises(ValueError, match=words):
        parse(key, text)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"tuning": {"slack": {"in_flight": False}}}, "slack.in_flight has no effect live: engines do not tell"),
        ({"tuning": {"split": {"latency_s": 0.3}}}, "split.latency_s has no effect live: a live link is"),
        (
            {"alpha": 1.2, "tuning": {"placement": {"spread": 0.9}}},
            "placement.spread has no effect live: a live GPU is one",
        ),
    ],
)
def test_what_no_live_loop_knows_is_said(overrides, words):
    said = without_effect(overrides)
    assert len(said) == 1
    assert words in said[0]


def test_nothing_is_said_of_what_live_loops_read():
    own = {"alpha": 1.2, "max_wait_s": 5.0, "order": "edf", "split": "prompt", "tuning": {"eq1": {"floor_rps": 1.0}}}
    assert without_effect(own) == ()

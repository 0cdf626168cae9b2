"""What a live service may run, and how far that is from the presets, which only shrinks."""

from __future__ import annotations

from dataclasses import asdict, fields

import pytest

from core.policy.knobs import Knobs
from core.policy.live_presets import ABSENT, DIFFERS, KNOBS, LIVE, choices, documented, knobs, known, parse
from core.policy.presets import PRESETS, policy
from pools import wire

SIMULATED_ONLY = {
    *("carbon_period_s", "clock_floor_mhz", "clock_ttft_share", "clock_tpot_share", "chunk_tokens", "preempts_s"),
    "emergencies_up_to",
}


def test_every_preset_but_the_thresholds_runs_live():
    assert set(PRESETS) - set(LIVE) == {"threshold"}
    assert choices() == [(name, name) for name in LIVE]
    assert all(knobs(name) == found for name, found in LIVE.items())


def test_live_services_run_what_the_presets_say_but_for_a_list_that_shrinks():
    for name, found in LIVE.items():
        row = asdict(PRESETS[name].knobs)
        assert {key: value for key, value in asdict(found).items() if value != row[key]} == DIFFERS.get(name, {})
    assert sum(map(len, DIFFERS.values())) <= 8
    assert {item.name for item in fields(Knobs)} - set(KNOBS) <= SIMULATED_ONLY
    assert sum(map(len, ABSENT.values())) <= 7


def test_request_policy_has_a_knob_for_each_field():
    names = {item.name for item in fields(Knobs)}
    assert {name for name in wire.RequestPolicy.__struct_fields__ if name not in names} == {"throttle", "retail"}
    assert all(
        getattr(Knobs(), name) == getattr(wire.RequestPolicy(), name)
        for name in wire.RequestPolicy.__struct_fields__
        if name in names
    )


def test_words_and_choices_are_those_of_live_knobs():
    assert documented().keys() == KNOBS.keys()
    assert all(documented().values())
    assert known("route") == ("least_energy", "least_carbon", "least_loaded", "weighted_round_robin")
    assert "threshold |" not in documented()["scale"]


@pytest.mark.parametrize(
    ("name", "overrides", "words"),
    [
        ("threshold", {}, "unknown policy 'threshold'; known are greenserve_epochs"),
        ("freesh", {"preempts_s": 2.0}, "preempts_s: only What-if can set it so far"),
        ("freesh", {"tuning": {"miad": {"increase": 3.0}}}, "tuning: only What-if can set it so far"),
        ("single_pool", {"route": "round_robin"}, "route: only What-if knows round_robin so far"),
        ("dynaserve", {"itl_limit_s": None}, "itl_limit_s: only What-if knows none so far"),
        ("freesh", {"clock": "slow"}, "clock: unknown 'slow'; known: fixed, miad"),
        ("freesh", {"scale": "dynamo"}, "needs carbon=off"),
    ],
)
def test_what_no_live_loop_knows_is_refused_with_words(name, overrides, words):
    with pytest.raises(ValueError, match=words):
        knobs(name, overrides)


def test_overrides_are_put_over_what_is_live():
    found = knobs("greenserve", {"clock": "fixed"})
    assert (found.clock, found.order, found.alpha) == ("fixed", "sjf", 1.02)
    assert policy("greenserve", {"clock": "fixed"}).knobs.order == "spf"


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
    ],
)
def test_text_becomes_a_value_of_the_knobs_kind(key, text, value):
    assert parse(key, text) == value


@pytest.mark.parametrize(
    ("key", "text"), [("alpha", "much"), ("tp", "4.5"), ("nope", "1"), ("preempts_s", "2"), ("tenant_weights", "acme")]
)
def test_text_is_refused_when_it_is_no_value(key, text):
    with pytest.raises(ValueError, match=key):
        parse(key, text)

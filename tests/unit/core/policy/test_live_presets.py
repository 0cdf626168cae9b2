"""What a live service may run, and how far that is from the presets, which only shrinks."""

from __future__ import annotations

from dataclasses import asdict, fields

import pytest

from core.policy.knobs import Knobs
from core.policy.live_presets import ABSENT, DIFFERS, LIVE, UNREAD, choices, knobs, without_effect
from core.policy.live_presets import policy as live_policy
from core.policy.presets import PRESETS, policy
from core.policy.tuning import Tuning
from pools import wire

SIMULATED_ONLY: set[str] = set()
UNREAD_TUNING = {"throttle.engines", "split.calibrate_s", "split.gain"}


def test_every_preset_runs_live():
    assert choices() == [(name, name) for name in LIVE]
    assert all(knobs(name) == found for name, found in LIVE.items())


def test_live_services_run_what_the_presets_say_but_for_a_list_that_shrinks():
    for name, found in LIVE.items():
        row = asdict(PRESETS[name].knobs)
        assert {key: value for key, value in asdict(found).items() if value != row[key]} == DIFFERS.get(name, {})
    assert sum(map(len, DIFFERS.values())) == 0
    assert {item.name for item in fields(Knobs) if not item.metadata["live"]} <= SIMULATED_ONLY
    assert set(UNREAD) <= UNREAD_TUNING
    assert sum(map(len, ABSENT.values())) == 0


def test_request_policy_has_a_knob_for_each_field():
    names = {item.name for item in fields(Knobs)}
    others = {name for name in wire.RequestPolicy.__struct_fields__ if name not in names}
    assert others == {"throttle", "retail", "tuning"}
    for name in wire.RequestTuning.__struct_fields__:
        record, _, field = name.partition("_")
        own = getattr(Tuning(), record)
        assert getattr(wire.RequestTuning(), name) == (getattr(own, field) if field else own)
    assert all(
        getattr(Knobs(), name) == getattr(wire.RequestPolicy(), name)
        for name in wire.RequestPolicy.__struct_fields__
        if name in names
    )


@pytest.mark.parametrize(
    ("name", "overrides", "words"),
    [
        ("nonsense", {}, "unknown policy 'nonsense'; known are greenserve_epochs"),
        ("freesh", {"clock": "slow"}, "clock: unknown 'slow'; known: fixed, miad"),
        ("freesh", {"scale": "dynamo"}, "needs carbon=off"),
        ("freesh", {"tuning": {"miad": {"increase": 1.0}}}, "tuning.miad.increase: must be above 1"),
    ],
)
def test_what_no_policy_may_be_is_refused_with_words(name, overrides, words):
    with pytest.raises(ValueError, match=words):
        live_policy(name, overrides)


def test_overrides_are_put_over_what_is_live():
    found = live_policy("greenserve", {"clock": "fixed", "tuning": {"right_size": {"look_s": 30.0}}})
    assert (found.knobs.clock, found.knobs.clock_period_s, found.knobs.alpha) == ("fixed", 0.5, 1.02)
    assert found.tuning.right_size.look_s == 30.0
    assert policy("greenserve", {"clock": "fixed"}).knobs.clock_period_s == 0.5


@pytest.mark.parametrize(
    ("name", "overrides", "words"),
    [
        ("muserve", {"tuning": {"slack": {"in_flight": False}}}, "slack.in_flight has no effect live: engines do not"),
        ("dynaserve", {"tuning": {"split": {"gain": 0.3}}}, "split.gain has no effect live so far"),
        ("muserve", {"tuning": {"placement": {"goal": 0.9}}}, "placement.goal has no effect live: a live GPU is one"),
    ],
)
def test_what_no_live_loop_knows_is_taken_and_said(name, overrides, words):
    said = without_effect(name, overrides)
    assert len(said) == 1
    assert words in said[0]
    for key in overrides:
        if key in ABSENT:
            assert getattr(live_policy(name, overrides).knobs, key) == getattr(LIVE[name], key)


def test_nothing_is_said_of_what_live_loops_read():
    own = {"alpha": 1.2, "max_wait_s": 5.0, "order": "edf", "split": "prompt", "tuning": {"eq1": {"floor_rps": 1.0}}}
    assert without_effect("freesh", own) == ()

"""Laws of an alert's life: none lost, none doubled, no wavering, however late or often somebody looks."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telemetry.alerts.alert_rules import rules
from telemetry.alerts.alert_state_machine import Change, Level, Reading, Rule, Watch, look, step

PERIOD_S, PAUSE_S = 15.0, 60.0
RULE = Rule("hot", "Hot", Level.WARN, 10.0, 8.0, "W", for_s=30.0, resolve_s=45.0, step="cool {subject}")

values = st.one_of(st.none(), st.floats(0.0, 20.0))
gaps = st.floats(0.0, 200.0)
looks = st.lists(st.tuples(gaps, values), max_size=60)


def after(*seen: float | None, rule: Rule = RULE) -> Watch:
    watch = None
    for n, value in enumerate(seen):
        watch = step(rule, watch, value, n * PERIOD_S, PAUSE_S)
    assert watch is not None
    return watch


def test_alert_opens_once_its_rule_has_held_for_long_enough():
    assert not after(12.0, 12.0).open
    opened = after(12.0, 12.0, 12.0)
    assert opened.open
    assert opened.breach_since_s == 0.0


def test_waiting_begins_anew_when_the_rule_did_not_hold_in_between():
    assert not after(12.0, 9.9, 12.0, 12.0).open


def test_alert_stays_open_between_clear_and_threshold():
    assert after(12.0, 12.0, 12.0, *[9.0] * 50).open


def test_alert_ends_once_it_has_been_calm_for_long_enough():
    assert after(12.0, 12.0, 12.0, 1.0, 1.0, 1.0).open
    assert not after(12.0, 12.0, 12.0, 1.0, 1.0, 1.0, 1.0).open


def test_unknown_opens_nothing_and_ends_nothing():
    assert not after(12.0, None, 12.0, 12.0).open
    assert after(12.0, 12.0, 12.0, *[None] * 50).open
    assert after(12.0, 12.0, 12.0, 1.0, 1.0, 1.0, None, 1.0, 1.0, 1.0).open


def test_waiting_begins_anew_when_nobody_looked_for_a_while():
    watch = step(RULE, None, 12.0, 0.0, PAUSE_S)
    watch = step(RULE, watch, 12.0, PAUSE_S + 1.0, PAUSE_S)
    assert not watch.open
    assert step(RULE, watch, 12.0, PAUSE_S + 1.0 + RULE.for_s, PAUSE_S).open


@given(looks)
def test_looking_again_at_the_same_or_an_earlier_time_changes_nothing(seen):
    watch, now_s = None, 0.0
    for gap_s, value in seen:
        now_s += gap_s
        watch = step(RULE, watch, value, now_s, PAUSE_S)
        for again in (value, 0.0, 20.0, None):
            assert step(RULE, watch, again, now_s, PAUSE_S) == watch
            assert step(RULE, watch, again, now_s - gap_s, PAUSE_S) == watch


@given(looks)
def test_an_alert_opens_only_on_a_breach_and_ends_only_on_calm(seen):
    watch, now_s = None, 0.0
    for gap_s, value in seen:
        now_s += gap_s
        was_open = watch is not None and watch.open
        following = step(RULE, watch, value, now_s, PAUSE_S)
        if following.open and not was_open:
            assert value is not None
            assert value >= RULE.threshold
            assert following.breach_since_s is not None
            assert now_s - following.breach_since_s >= RULE.for_s
        if was_open and not following.open:
            assert value is not None
            assert value < RULE.clear
        watch = following


@given(looks, st.integers(0, 20))
def test_no_alert_is_lost_when_the_breach_goes_on(seen, more):
    """Whatever went before: once it has held for `for_s` of ordinary looks, it is open."""
    watch, now_s = None, 0.0
    for gap_s, value in seen:
        now_s += gap_s
        watch = step(RULE, watch, value, now_s, PAUSE_S)
    for _ in range(math.ceil(RULE.for_s / PERIOD_S) + 2 + more):
        now_s += PERIOD_S
        watch = step(RULE, watch, 12.0, now_s, PAUSE_S)
    assert watch is not None
    assert watch.open


@given(st.lists(st.floats(9.0, 11.0), max_size=200))
def test_a_value_that_wavers_about_its_threshold_raises_one_alert_at_most(seen):
    watch, raised = None, 0
    for n, value in enumerate(seen):
        following = step(RULE, watch, value, n * PERIOD_S, PAUSE_S)
        raised += following.open and not (watch is not None and watch.open)
        watch = following
    assert raised <= 1


@given(looks)
def test_raised_and_resolved_take_turns_in_a_round(seen):
    """Keeps watches as `evaluation` does: the next round is given those that were kept; idle ones are forgotten."""
    watches: dict[tuple[str, str], Watch] = {}
    open_now, now_s = False, 0.0
    for gap_s, value in seen:
        now_s += gap_s
        readings = [Reading("hot", "a", value, "it is hot")]
        for each in look({"hot": RULE}, watches, readings, {"hot"}, now_s, PAUSE_S):
            if each.change is Change.RAISED:
                assert not open_now
                open_now = True
            elif each.change is Change.RESOLVED:
                assert open_now
                open_now = False
            elif each.change is Change.SEEN:
                assert open_now
            watches[each.key] = each.watch
            if each.watch.idle:
                del watches[each.key]


def test_alert_ends_when_its_subject_is_gone_and_stays_when_its_source_is_silent():
    watch = replace(after(12.0, 12.0, 12.0), at_s=0.0)
    gone: dict[tuple[str, str], Watch] = {("hot", "a"): watch}
    for n in range(1, 6):
        for each in look({"hot": RULE}, gone, [], {"hot"}, n * PERIOD_S, PAUSE_S):
            gone[each.key] = each.watch
    assert not gone["hot", "a"].open
    assert look({"hot": RULE}, {("hot", "a"): watch}, [], set(), PERIOD_S, PAUSE_S) == []


def test_nothing_is_remembered_of_what_is_well():
    assert look({"hot": RULE}, {}, [Reading("hot", "a", 1.0, "cool")], {"hot"}, 0.0, PAUSE_S) == []


def test_rules_of_the_catalogue_make_sense_and_can_be_set_otherwise():
    found = rules(300.0, {"node_silent": {"threshold": 60, "level": "warn"}})
    assert found["node_silent"].threshold == 60.0
    assert found["node_silent"].level is Level.WARN
    assert all(rule.name == name and rule.clear <= rule.threshold for name, rule in found.items())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"nod_silent": {"threshold": 1}}, "there is no alert rule 'nod_silent'"),
        ({"node_silent": {"treshold": 1}}, "node_silent: 'treshold' cannot be set"),
        ({"node_silent": {"threshold": "1"}}, "threshold must be a number"),
        ({"node_silent": {"threshold": 1}}, "clear must be at most threshold"),
        ({"node_silent": {"for_s": -1}}, "for_s and resolve_s"),
        ({"node_silent": {"level": "loud"}}, "loud"),
    ],
)
def test_a_bad_change_of_a_rule_is_named(change, words):
    with pytest.raises(ValueError, match=words):
        rules(300.0, change)

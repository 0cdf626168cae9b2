"""Shard by thresholds: another TP degree after a streak, and help between two scale epochs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core.controllers.fleet.shard_threshold import (
    ShardThresholdConfig,
    ShardThresholdObservation,
    ShardThresholdState,
    step,
)
from core.observations.recording import recall, record
from core.types import Mode, PoolKey, Reason, SetTpDegrees
from tests.unit.core.controllers.fleet.test_scale_threshold import TP4, TP8, counts, pool, profile

CONFIG = ShardThresholdConfig()


def seen(*pools, recent_rps=1.0):
    gpus = {("east", "H100"): 32, ("west", "H100"): 16}
    return ShardThresholdObservation(1000.0, gpus, pools, {own.name: recent_rps for own in pools})


LARGE = pool(rps=1.0, workers={"east": {TP8: 1}})  # TP4 carries it too, on half the GPUs


def test_degree_changes_when_another_drew_less_in_a_streak_of_epochs():
    state, reasons = None, []
    for _ in range(3):
        state, effects = step(state, seen(LARGE), CONFIG)
        reasons.append(effects.rationale.reason)
    assert reasons == [Reason.NOT_WORTH_IT, Reason.NOT_WORTH_IT, Reason.HEURISTIC]
    assert effects.commands == (SetTpDegrees(PoolKey("east", "all"), {TP4: 1}),)
    assert "all -> H100/TP4" in effects.rationale.summary
    assert dict(state.modes["all"]) == {"east": TP4, "west": TP4}, "where it has no instance too"
    assert state.better == {}
    (east, west) = effects.decisions
    assert (east.changed, west.changed) == (True, False)
    assert {own.label: own.chosen for own in east.rationale.alternatives} == {
        "all: H100/TP4": True,
        "all: H100/TP8": False,
    }


def test_streak_begins_anew_when_an_epoch_finds_nothing_better():
    state = None
    for own in (LARGE, LARGE, pool(rps=9.0, workers={"east": {TP8: 1}}), LARGE):
        state, effects = step(state, seen(own), CONFIG)
    assert effects.commands == ()
    assert state.better["all"].epochs == 1
    assert step(state, seen(LARGE), replace(CONFIG, streak=2))[1].commands


def test_degree_stays_when_it_would_save_less_than_the_gain():
    near = {TP4: profile(4.0, 1500.0), TP8: profile(10.0, 1600.0)}
    own = pool(rps=3.9, workers={"east": {TP8: 1}}, profiles=near, offered={"east": (TP4, TP8)})
    _, effects = step(None, seen(own), replace(CONFIG, gain=0.5))
    assert (effects.rationale.reason, effects.commands) == (Reason.NO_CHANGE, ())
    assert effects.rationale.summary == "No other TP degree draws less."


def test_class_is_helped_at_once_when_the_last_minutes_need_more():
    own = pool(rps=9.0, workers={"east": {TP8: 1}})
    _, effects = step(None, seen(own, recent_rps=25.0), CONFIG)
    assert counts(effects) == {("east", TP8): 3}
    assert "needs 27.5 requests/s before scale comes round" in effects.rationale.summary


def test_no_class_shrinks_when_it_has_more_than_it_needs():
    own = pool(rps=9.0, workers={"east": {TP8: 4}})
    assert step(None, seen(own, recent_rps=1.0), CONFIG)[1].commands == ()


def test_other_types_of_gpu_are_not_weighed():
    small = Mode("L40S", 1)
    own = replace(LARGE, profiles={**LARGE.profiles, small: profile(9.0, 50.0)}, offered={"east": (TP8, small)})
    state, effects = step(None, seen(own), CONFIG)
    assert effects.rationale.reason is Reason.NO_CHANGE
    assert state.modes["all"]["east"] == TP8


def test_all_that_crosses_its_border_can_be_recorded():
    state, _ = step(None, seen(LARGE), CONFIG)
    given = (state, seen(LARGE, recent_rps=25.0), CONFIG)
    assert recall(record(given)) == given
    assert isinstance(recall(record(state)), ShardThresholdState)


@pytest.mark.parametrize("wrong", [{"alpha": 0.9}, {"period_s": 0.0}, {"gain": 1.0}, {"streak": 0}])
def test_configuration_is_refused_when_it_makes_no_sense(wrong):
    with pytest.raises(ValueError, match="gain"):
        ShardThresholdConfig(**wrong)

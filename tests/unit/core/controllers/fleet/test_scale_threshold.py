"""Scale by thresholds: capacity for the peak, more while busy, and no less unless idle."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core.controllers.fleet.scale_threshold import (
    ScaleThresholdConfig,
    ScaleThresholdObservation,
    ScaleThresholdState,
    ThresholdPool,
    step,
)
from core.observations.recording import recall, record
from core.types import ClassDemand, Mode, ModeProfile, PoolKey, Reason, ScaleTo, Source

TP4, TP8 = Mode("H100", 4), Mode("H100", 8)
CONFIG = ScaleThresholdConfig()


def profile(max_rps, power_w):
    return ModeProfile(max_rps, power_w, 0.1, 0.05, 5.0, Source.MODELLED)


def pool(rps=10.0, name="all", workers=None, **more):
    usual = {
        "profiles": {TP4: profile(4.0, 1500.0), TP8: profile(10.0, 3000.0)},
        "offered": {"east": (TP4, TP8), "west": (TP4, TP8)},
        "workers": workers or {},
    }
    return ThresholdPool(name, ClassDemand(name, (rps,)), **{**usual, **more})


def seen(*pools, observed=True, gpus=None):
    return ScaleThresholdObservation(1000.0, observed, gpus or {("east", "H100"): 32, ("west", "H100"): 16}, pools)


def counts(effects, name="all"):
    """The workers of a pool's decisions, by site and mode."""
    return {
        (own.pool.site, mode): count
        for own in effects.decisions
        if own.pool.request_class == name
        for mode, count in own.workers.items()
    }


def test_class_has_instances_for_its_peak_with_headroom_and_in_the_mode_that_draws_least():
    state, effects = step(None, seen(pool(rps=25.0)), CONFIG)
    assert counts(effects) == {("east", TP8): 3}
    assert effects.commands == (ScaleTo(PoolKey("east", "all"), {TP8: 3}),)
    assert effects.rationale.reason is Reason.HEURISTIC
    assert dict(state.modes["all"]) == {"east": TP8, "west": TP8}
    assert effects.next_tick_s == 1000.0 + CONFIG.period_s
    assert step(None, seen(pool(rps=1.0)), CONFIG)[0].modes["all"]["east"] == TP4


def test_sites_are_used_in_order_when_the_first_is_full():
    _, effects = step(None, seen(pool(rps=50.0)), CONFIG)
    assert counts(effects) == {("east", TP8): 4, ("west", TP8): 2}


@pytest.mark.parametrize(
    ("use", "instances"), [(0.9, 6), (0.7, 4), (0.5, 4), (0.4, 1), (0.1, 1), (None, 4)]
)  # 4 x 0.9 / 0.7 is 5.1
def test_pool_grows_while_busy_and_shrinks_only_when_idle(use, instances):
    there = pool(rps=5.0, workers={"east": {TP8: 4}}, use=use)
    _, effects = step(None, seen(there, gpus={("east", "H100"): 64}), CONFIG)
    assert sum(counts(effects).values()) == instances
    assert ("not known" in effects.rationale.summary) == (use is None)


def test_same_workers_are_no_command_when_they_do():
    _, effects = step(None, seen(pool(rps=25.0, workers={"east": {TP8: 3}}, use=0.3)), CONFIG)
    assert effects.commands == ()
    assert effects.rationale.reason is Reason.NO_CHANGE
    assert [own.changed for own in effects.decisions] == [False, False]


def test_what_stands_stays_when_no_load_is_known_and_all_gpus_are_used_where_nothing_stands():
    there = pool(workers={"east": {TP8: 1}})
    _, held = step(None, seen(there, observed=False), CONFIG)
    assert (held.commands, held.decisions, held.rationale.reason) == ((), (), Reason.NO_DATA)
    _, first = step(None, seen(pool(rps=0.0), observed=False), CONFIG)
    assert counts(first) == {("east", TP4): 8, ("west", TP4): 4}
    assert first.rationale.reason is Reason.HEURISTIC


def test_class_without_traffic_keeps_one_instance():
    _, effects = step(None, seen(pool(rps=0.0, workers={"east": {TP8: 4}}, use=0.0)), CONFIG)
    assert counts(effects) == {("east", TP8): 1}
    free = replace(CONFIG, floor_rps=0.0)
    assert sum(counts(step(None, seen(pool(rps=0.0)), free)[1]).values()) == 1


def test_pools_share_in_proportion_to_their_need_when_there_is_too_little():
    _, effects = step(None, seen(pool(rps=90.0, name="short"), pool(rps=30.0, name="long")), CONFIG)
    assert sum(counts(effects, "short").values()) == 4
    assert sum(counts(effects, "long").values()) == 2
    assert effects.rationale.reason is Reason.INFEASIBLE
    assert "short needs 99 requests/s and gets 40" in effects.rationale.summary
    assert {own.rationale.reason for own in effects.decisions if own.pool.request_class == "short"} == {
        Reason.INFEASIBLE
    }


def test_class_is_served_and_reported_when_no_mode_keeps_its_limits():
    none = {TP4: profile(0.0, 900.0), TP8: profile(0.0, 1800.0)}
    _, effects = step(None, seen(pool(profiles=none, failed="TTFT of 2 s")), CONFIG)
    assert counts(effects) == {("east", TP4): 1}
    assert effects.rationale.reason is Reason.INFEASIBLE
    assert "no mode keeps its limits (TTFT of 2 s)" in effects.rationale.summary


def test_mode_is_what_stands_there_then_what_is_known_then_what_draws_least():
    there = pool(rps=25.0, workers={"east": {TP4: 4, TP8: 1}, "west": {}})
    state, effects = step(ScaleThresholdState({"all": {"east": TP8, "west": TP4}}), seen(there), CONFIG)
    assert dict(state.modes["all"]) == {"east": TP4, "west": TP4}, "most of its GPUs"
    moved = {own.pool.site: own.rationale.summary for own in effects.decisions}
    assert moved["east"].startswith("all at east: 4 x H100/TP4 + 1 x H100/TP8 -> 7 x H100/TP4, for 27.5 requests/s")
    state, _ = step(None, seen(pool(rps=25.0, offered={"east": (), "west": (TP4,)})), CONFIG)
    assert dict(state.modes["all"]) == {"west": TP4}


def test_all_that_crosses_its_border_can_be_recorded():
    obs = seen(pool(rps=25.0, workers={"east": {TP8: 2}}, use=0.8))
    state, effects = step(None, obs, CONFIG)
    again = recall(record((state, obs, CONFIG)))
    assert again == (state, obs, CONFIG)
    assert step(*again)[1].commands == effects.commands


@pytest.mark.parametrize("wrong", [{"alpha": 0.9}, {"period_s": 0.0}, {"kv_low": 0.7}, {"kv_low": 0.0}])
def test_configuration_is_refused_when_it_makes_no_sense(wrong):
    with pytest.raises(ValueError, match="kv_low"):
        ScaleThresholdConfig(**wrong)

"""DynamoLLM's scale epoch: counts, what is handed on, starting ahead, and not flapping."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.algorithms.fleet.hand_down import ClassLoad, size, within
from core.controllers.fleet.scale_dynamo import (
    ScaleDynamoConfig,
    ScaleDynamoObservation,
    ScaleDynamoState,
    step,
)
from core.engine.measured import Basis
from core.types import ForwardLoad, Mode, PoolKey, Reason, ScaleTo, Source

NODE = Mode("H100-SXM-80GB", 8)
S, M, L = (PoolKey("north", name) for name in ("SS", "MM", "LL"))
PLAIN = ScaleDynamoConfig(proactive=False, down_after=1)


def classes(*loads: float | tuple[float | None, ...] | None, most: float = 100.0) -> tuple[ClassLoad, ...]:
    return tuple(
        ClassLoad(key, load if isinstance(load, tuple) else (load,) * 12, most)
        for key, load in zip((S, M, L), loads, strict=False)
    )


def observe(loads: tuple[ClassLoad, ...], nodes: dict[PoolKey, int] | None = None, now_s: float = 0.0, **more):
    figures = {"nodes_available": None, "warm_start_s": 33.0, "cold_start_s": 420.0, **more}
    return ScaleDynamoObservation(now_s, 300.0, NODE, loads, nodes or {}, **figures)


def counts(effects) -> dict[PoolKey, int]:
    return {c.pool: sum(c.workers.values()) for c in effects.commands if isinstance(c, ScaleTo)}


def shares(effects) -> dict[PoolKey, float]:
    return {c.pool: c.share for c in effects.commands if isinstance(c, ForwardLoad)}


def test_only_the_largest_class_is_rounded_up_when_load_is_handed_down():
    _, effects = step(None, observe(classes(250.0, 130.0, 340.0), basis=Basis(Source.MEASURED, 5.0)), PLAIN)
    # 2.5 -> 2, 0.5 on; 0.5 + 1.3 = 1.8 -> 1, 0.8 on; 0.8 + 3.4 = 4.2 -> 5
    assert counts(effects) == {S: 2, M: 1, L: 5}
    assert shares(effects) == pytest.approx({S: 0.5 / 2.5, M: 0.8 / 1.8})
    assert [c.to for c in effects.commands if isinstance(c, ForwardLoad)] == [M, L]
    json.dumps(effects.rationale.inputs, allow_nan=False)
    assert effects.rationale.inputs["profiles"] == {NODE.name: {"source": "measured", "measured_at_s": 5.0}}


def test_every_class_is_rounded_up_when_load_is_not_handed_down():
    _, effects = step(None, observe(classes(250.0, 130.0, 340.0)), replace(PLAIN, hand_down=False))
    assert counts(effects) == {S: 3, M: 2, L: 4}
    assert not shares(effects)


def test_pool_merges_with_the_next_when_its_load_falls():
    state, effects = step(None, observe(classes(60.0, 300.0, 100.0), {S: 1, M: 3, L: 1}), PLAIN)
    assert counts(effects) == {S: 0, L: 2}
    assert shares(effects)[S] == 1.0
    config = replace(PLAIN, hand_down=False)
    state, effects = step(None, observe(classes(20.0, 300.0, 100.0), {S: 1, M: 3, L: 1}), config)
    assert counts(effects) == {S: 0, M: 4}
    assert shares(effects) == {S: 1.0, M: 0.0} or shares(effects) == {S: 1.0}
    assert state.merged == {S}
    state, effects = step(state, observe(classes(40.0, 300.0, 100.0), {M: 4, L: 1}, 1800.0), config)
    assert state.merged == {S}  # not before `split_above`
    state, effects = step(state, observe(classes(60.0, 300.0, 100.0), {M: 4, L: 1}, 3600.0), config)
    assert counts(effects)[S] == 1


def test_load_costs_more_nodes_when_its_host_keeps_tighter_limits():
    small, large = classes(50.0, 0.0)
    _, easy = step(None, observe((small, large)), PLAIN)
    _, hard = step(None, observe((replace(small, hosted={"MM": 20.0}), large)), PLAIN)
    assert (counts(easy)[M], counts(hard)[M]) == (1, 3)


def test_class_is_unserved_when_no_node_can_serve_it():
    small, large = classes(50.0, 30.0)
    _, effects = step(None, observe((replace(small, max_load=0.0), large)), PLAIN)
    assert effects.rationale.reason is Reason.INFEASIBLE
    assert "No node serves SS" in effects.rationale.summary
    _, effects = step(None, observe((replace(small, max_load=0.0, hosted={"MM": 100.0}), large)), PLAIN)
    assert (counts(effects), shares(effects)) == ({M: 1}, {S: 1.0})
    assert effects.rationale.reason is Reason.HEURISTIC


def test_nodes_are_shared_out_when_there_are_too_few():
    _, effects = step(None, observe(classes(400.0, 400.0, 400.0), nodes_available=6), PLAIN)
    assert counts(effects) == {S: 2, M: 2, L: 2}
    assert effects.rationale.reason is Reason.INFEASIBLE
    assert [own.rationale.reason for own in effects.decisions] == [Reason.INFEASIBLE] * 3


def test_each_class_has_its_own_reason_when_they_differ():
    loads = tuple(replace(own, basis="week") for own in classes(None, 110.0, 95.0))
    _, effects = step(None, observe(loads, {S: 2, M: 1, L: 1}), PLAIN)
    own = {decision.pool: decision for decision in effects.decisions}
    assert {key: (sum(d.workers.values()), d.changed) for key, d in own.items()} == {
        S: (2, False),
        M: (1, False),
        L: (2, True),
    }
    assert [own[key].rationale.reason for key in (S, M, L)] == [Reason.NO_DATA, Reason.NO_CHANGE, Reason.HEURISTIC]
    assert own[S].rationale.summary == "SS: 2 nodes stay, no forecast."
    assert own[L].rationale.summary == "LL: 1 -> 2 nodes, for 95 tokens/s forecast (week)."
    assert own[M].rationale.inputs["handed_on"] > 0.0
    assert own[M].rationale.inputs == effects.rationale.inputs["classes"]["MM"]


def test_pool_keeps_its_nodes_when_its_forecast_is_unknown():
    _, effects = step(None, observe(classes(None, 110.0, 90.0), {S: 2, M: 1, L: 1}), PLAIN)
    assert counts(effects) == {}
    assert effects.rationale.reason is Reason.NO_DATA


@pytest.mark.parametrize(("hand_down", "nodes"), [(True, {S: 1, L: 1}), (False, {S: 2})])
def test_what_is_handed_to_a_largest_class_that_no_request_ever_came_of_has_a_node(hand_down, nodes):
    _, effects = step(None, observe(classes(130.0, None, None)), replace(PLAIN, hand_down=hand_down))
    assert counts(effects) == nodes
    _, effects = step(None, observe(classes(20.0, None, None)), replace(PLAIN, hand_down=hand_down))
    assert counts(effects) == {L: 1}
    _, effects = step(None, observe(classes(None, None, None)), PLAIN)
    assert counts(effects) == {}


def test_instances_start_one_start_up_time_before_the_epoch_that_needs_them():
    rise = (100.0,) * 6 + (380.0,) * 6
    config = replace(PLAIN, proactive=True)
    state, effects = step(None, observe(classes(0.0, 0.0, rise), {L: 1}), config)
    assert counts(effects) == {}
    assert effects.next_tick_s == 1800.0 - 420.0
    later = (100.0,) * 2 + (380.0,) * 6
    state, effects = step(state, observe(classes(0.0, 0.0, later), {L: 1}, 1380.0), config)
    assert counts(effects) == {}  # the warm pool's can wait
    assert effects.next_tick_s == 1800.0 - 33.0
    state, effects = step(state, observe(classes(0.0, 0.0, (100.0,) + (380.0,) * 6), {L: 1}, 1767.0), config)
    assert counts(effects) == {L: 4}
    assert "3 of them ahead" in effects.rationale.summary
    assert effects.next_tick_s == 1800.0
    _, effects = step(state, observe(classes(0.0, 0.0, (380.0,) * 6), {L: 4}, 1800.0), config)
    assert counts(effects) == {}


def test_those_beyond_the_warm_pool_start_earlier():
    later = (100.0,) * 2 + (380.0,) * 6
    config = replace(PLAIN, proactive=True, warm_pool=1)
    state = ScaleDynamoState(0)
    _, effects = step(state, observe(classes(0.0, 0.0, later), {L: 1}, 1380.0), config)
    assert counts(effects) == {L: 3}
    _, effects = step(state, observe(classes(0.0, 0.0, later[1:]), {L: 3}, 1767.0), config)
    assert counts(effects) == {L: 4}


def test_instances_start_two_epochs_ahead_when_a_start_takes_longer_than_one():
    rise = (100.0,) * 12 + (380.0,) * 6
    config = replace(PLAIN, proactive=True, warm_pool=0)
    obs = observe(classes(0.0, 0.0, rise), {L: 1}, cold_start_s=2400.0)
    state, effects = step(None, obs, config)
    assert counts(effects) == {}
    assert effects.next_tick_s == 3600.0 - 2400.0
    obs = observe(classes(0.0, 0.0, rise[4:]), {L: 1}, 1200.0, cold_start_s=2400.0)
    _, effects = step(state, obs, config)
    assert counts(effects) == {L: 4}


def test_pool_shrinks_only_after_several_epochs_that_want_it():
    config = replace(PLAIN, down_after=2)
    state, effects = step(None, observe(classes(0.0, 0.0, 90.0), {L: 4}), config)
    assert counts(effects) == {}
    same, effects = step(state, observe(classes(0.0, 0.0, 90.0), {L: 4}, 900.0), config)
    assert counts(effects) == {}
    assert same.low == state.low  # a tick within the epoch does not count
    _, effects = step(state, observe(classes(0.0, 0.0, 90.0), {L: 4}, 1800.0), config)
    assert counts(effects) == {L: 1}
    calmer, _ = step(state, observe(classes(0.0, 0.0, 350.0), {L: 4}, 1800.0), config)
    assert not calmer.low


def test_pool_does_not_shrink_when_the_next_epoch_needs_it():
    dip = (90.0,) * 6 + (280.0,) * 6
    _, effects = step(None, observe(classes(0.0, 0.0, dip), {L: 4}), PLAIN)
    assert counts(effects) == {L: 3}


def test_pool_never_shrinks_between_epochs():
    _, effects = step(ScaleDynamoState(0), observe(classes(0.0, 0.0, 90.0), {L: 4}, 600.0), PLAIN)
    assert counts(effects) == {}


def test_shares_are_logged_only_when_they_change():
    state, effects = step(None, observe(classes(150.0, 0.0, 90.0)), PLAIN)
    assert shares(effects)
    _, effects = step(state, observe(classes(150.0, 0.0, 90.0), {S: 1, L: 2}, 1800.0), PLAIN)
    assert not effects.commands
    assert effects.rationale.reason is Reason.NO_CHANGE


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.floats(0.0, 900.0), st.floats(20.0, 200.0)), min_size=1, max_size=9), st.booleans())
def test_nodes_carry_the_load_and_are_no_more_than_rounding_each_up(drawn, hand_down):
    own = tuple(ClassLoad(PoolKey("north", f"c{i}"), (load,) * 12, most) for i, (load, most) in enumerate(drawn))
    config = replace(PLAIN, hand_down=hand_down, merge_below=0.0, min_nodes=0)
    state, effects = step(None, observe(own), config)
    got = [counts(effects).get(item.key, 0) for item in own]
    needs = [load / most for load, most in drawn]
    assert sum(got) >= sum(needs) - 1e-6
    assert sum(got) <= sum(math.ceil(need - 1e-9) for need in needs)
    if hand_down:
        assert sum(got) == math.ceil(sum(needs) - 1e-6) or sum(got) <= sum(needs) + 1.0 + 1e-6
    # Follow the load along the shares: no pool gets more than it carries.
    carried = 0.0
    for item, need, count in zip(own, needs, got, strict=True):
        arriving = carried + need
        carried = arriving * state.shares[item.key]
        assert arriving - carried <= count + 1e-6


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=5), st.integers(0, 20))
def test_no_more_nodes_are_given_than_there_are(nodes, available):
    found, cut = within(list(nodes), [0.9 * n for n in nodes], available)
    assert sum(found) == min(sum(nodes), available)
    assert cut == sum(nodes) - sum(found)
    assert all(0 <= got <= had for got, had in zip(found, nodes, strict=True))


def test_sizing_is_empty_when_there_is_no_class():
    assert size((), (), lambda i, need: 0).nodes == ()


@pytest.mark.parametrize("wrong", [{"epoch_s": 0.0}, {"headroom": 0.5}, {"down_after": 0}, {"merge_below": 0.9}])
def test_configuration_is_refused_when_it_makes_no_sense(wrong):
    with pytest.raises(ValueError, match="epoch_s"):
        ScaleDynamoConfig(**wrong)

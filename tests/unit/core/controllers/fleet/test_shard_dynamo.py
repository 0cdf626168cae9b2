"""DynamoLLM's shard epoch: what pays, in which order, and who serves meanwhile."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.algorithms.placement.node_layouts import arrange
from core.controllers.fleet.explain import workers_text
from core.controllers.fleet.shard_dynamo import ShardDynamoConfig, ShardDynamoObservation, ShardPool, _View, step
from core.engine.engine_model import engine_model, gpu
from core.engine.load_profile import clocks, modelled
from core.engine.overhead_table import OverheadTable, reshard_key, start_key
from core.engine.overheads import weight_bytes
from core.types import ChangeKind, Limits, Mode, PoolKey, Reason
from tests.unit.laws import examples

GPU, MODEL = "H100-SXM-80GB", "Llama2-70B"
KEY = PoolKey("north", "MM")
ROOM = 0.9 * 80e9 - 2e9
CONFIG = ShardDynamoConfig()


def profile(tp: int):
    worker = engine_model(MODEL, GPU, tp)
    return modelled(worker, 640.0, 200.0, clocks(worker.gpu_params))


PROFILES = {tp: profile(tp) for tp in (2, 4, 8)}


def pool(rps: float, *layouts: tuple[int, ...], **more) -> ShardPool:
    nodes = {f"n{i}": layout for i, layout in enumerate(layouts)}
    figures = {"weight_bytes": weight_bytes(MODEL), "room_bytes": ROOM, "start_s": 33.0, **more}
    return ShardPool(KEY, MODEL, GPU, nodes, (rps / 2, rps), Limits(0.4, 0.1), PROFILES, **figures)


def observe(*pools: ShardPool, now_s: float = 0.0, overheads: OverheadTable | None = None) -> ShardDynamoObservation:
    return ShardDynamoObservation(now_s, pools, overheads or OverheadTable(), 0.95, 300e9)


def after(found: ShardPool, effects) -> ShardPool:
    return replace(found, nodes={**found.nodes, **{c.node: c.target for c in effects.commands}})


def test_a_smaller_degree_is_taken_when_the_load_is_small():
    before = pool(3.0, (8,))
    _, effects = step(None, observe(before), CONFIG)
    (command,) = effects.commands
    assert (command.node, command.source) == ("n0", (8,))
    assert sum(command.target) < 8
    assert effects.rationale.reason is Reason.OPTIMAL
    assert effects.rationale.inputs["MM at north"]["saving_j"] > effects.rationale.inputs["MM at north"]["transition_j"]
    json.dumps(effects.rationale.inputs, allow_nan=False)
    known = effects.rationale.inputs["MM at north"]["profiles"]
    assert known == {Mode(GPU, tp).name: {"source": "modelled"} for tp in PROFILES}


def test_mix_stays_when_it_is_the_best():
    _, effects = step(None, observe(pool(3.0, (2,))), CONFIG)
    assert (effects.commands, effects.rationale.reason) == ((), Reason.NO_CHANGE)


def test_mix_stays_when_the_transition_costs_more_than_it_saves():
    slow = OverheadTable({reshard_key(MODEL, GPU, (8,), target): 280.0 for target in ((2,), (4,), (2, 2), (2, 4))})
    _, effects = step(None, observe(pool(3.0, (8,)), overheads=slow), CONFIG)
    assert (effects.commands, effects.rationale.reason) == ((), Reason.NOT_WORTH_IT)
    assert "would save" in effects.rationale.summary


def test_mix_changes_at_any_cost_when_it_cannot_carry_the_need():
    slow = OverheadTable({reshard_key(MODEL, GPU, (2, 2, 2, 2), target): 280.0 for target in ((8,), (4, 4), (2, 4))})
    carries = 4 * PROFILES[2].top().within(Limits(0.4, 0.1))[0]
    _, effects = step(None, observe(pool(1.05 * float(carries), (2, 2, 2, 2)), overheads=slow), CONFIG)
    assert len(effects.commands) == 1
    assert "cannot carry" in effects.rationale.summary
    # It carries the load, if not the head-room, and nobody could take that while the engine synchronises.
    _, effects = step(None, observe(pool(0.99 * float(carries), (2, 2, 2, 2)), overheads=slow), CONFIG)
    assert (effects.commands, effects.rationale.reason) == ((), Reason.NOT_WORTH_IT)


def test_nothing_changes_when_no_mix_carries_the_need():
    _, effects = step(None, observe(pool(1000.0, (8,))), CONFIG)
    assert (effects.commands, effects.rationale.reason) == ((), Reason.INFEASIBLE)


def test_nodes_change_in_waves_when_there_are_many():
    """Five nodes of small instances for a load that large ones carry on less power: two at a time."""
    config = replace(CONFIG, wave=2)
    found, state, waves, now_s = pool(60.0, *[(2, 2, 2, 2)] * 5), None, [], 0.0
    for _ in range(8):
        state, effects = step(state, observe(found, now_s=now_s), config)
        waves.append([command.node for command in effects.commands])
        found, now_s = after(found, effects), effects.next_tick_s
        if now_s >= config.epoch_s:
            break
    assert max(len(wave) for wave in waves) == 2
    assert len(waves[0]) == 2
    everything = [node for wave in waves for node in wave]
    assert len(everything) == len(set(everything)) >= 3
    assert not state.changes


def test_the_largest_saving_goes_first():
    _, effects = step(None, observe(pool(4.0, (2, 2), (8,), (8,))), replace(CONFIG, wave=1))
    (command,) = effects.commands
    assert (command.node, command.target) == ("n1", ())  # n0 loses one of its small instances, later


def test_capacity_is_given_up_only_when_the_others_have_changed():
    """To end the node of most saving first would leave nobody to take the other's load."""
    _, effects = step(None, observe(pool(4.0, (2, 2), (8,))), replace(CONFIG, wave=1))
    (command,) = effects.commands
    assert (command.node, command.target) == ("n0", (2,))


def test_next_best_mix_is_taken_when_the_best_cannot_be_reached():
    """One node, TP8: TP2 would be best, but a GPU has no room for the weights of both."""
    _, effects = step(None, observe(pool(3.0, (8,))), CONFIG)
    assert [command.target for command in effects.commands] == [(4,)]
    _, effects = step(None, observe(pool(3.0, (8,), room_bytes=weight_bytes(MODEL))), CONFIG)
    assert [command.target for command in effects.commands] == [(2,)]


def test_each_pool_has_its_own_reason_when_they_differ():
    other = PoolKey("south", "MM")
    _, effects = step(None, observe(pool(3.0, (8,)), replace(pool(3.0, (2,)), key=other)), CONFIG)
    changing, staying = effects.decisions
    assert (changing.pool, changing.changed) == (KEY, True)
    assert (staying.pool, staying.changed, staying.rationale.reason) == (other, False, Reason.NO_CHANGE)
    for own in (changing, staying):
        (chosen,) = [row.label for row in own.rationale.alternatives if row.chosen]
        assert chosen == f"MM at {own.pool.site}: {workers_text(own.workers)}"


def test_reason_names_the_nodes_when_a_change_goes_on_between_epochs():
    before = pool(60.0, *[(2, 2, 2, 2)] * 5)
    state, first = step(None, observe(before), CONFIG)
    _, then = step(state, observe(after(before, first), now_s=first.next_tick_s), CONFIG)
    (own,) = then.decisions
    assert own.rationale.reason is Reason.OPTIMAL
    (command,) = then.commands
    assert own.rationale.summary == f"MM at north: the change of this epoch goes on with {command.node}."
    assert own.rationale.inputs == {"nodes": {command.node: {"source": [2, 2, 2, 2], "target": [4, 4]}}}


def test_no_other_wave_starts_while_one_is_under_way():
    config = replace(CONFIG, wave=1)
    found = pool(60.0, *[(2, 2, 2, 2)] * 5)
    state, first = step(None, observe(found), config)
    state, second = step(state, observe(found, now_s=first.next_tick_s / 2), config)
    assert len(first.commands) == 1
    assert second.commands == ()
    assert state.changes[KEY].busy_until_s.keys() == {first.commands[0].node}


def reshards(found: ShardPool) -> list:
    """All commands, wave after wave, that turn instances into others."""
    state, now_s, commands = None, 0.0, []
    while now_s < CONFIG.epoch_s:
        state, effects = step(state, observe(found, now_s=now_s), replace(CONFIG, wave=1))
        commands += [command for command in effects.commands if command.source and command.target]
        found, now_s = after(found, effects), effects.next_tick_s
    return commands


def test_load_is_shifted_first_when_both_do_not_fit():
    tight = reshards(pool(60.0, *[(2, 2, 2, 2)] * 5, room_bytes=0.6 * weight_bytes(MODEL)))  # together 0.75
    assert len(tight) >= 2
    for command in tight:
        assert not command.serves_on
        assert 60.0 / 5 - 1e-6 <= command.shift_rps < 60.0  # its share of what the pool carries
        assert command.sync_s > 0.0
    for command in reshards(pool(60.0, *[(2, 2, 2, 2)] * 5, room_bytes=weight_bytes(MODEL))):
        assert (command.serves_on, command.shift_rps) == (True, 0.0)


def test_node_stays_when_nobody_could_take_its_load():
    tight = pool(3.0, (8,), room_bytes=0.2 * weight_bytes(MODEL))
    _, effects = step(None, observe(tight), CONFIG)
    assert (effects.commands, effects.rationale.reason) == ((), Reason.NOT_WORTH_IT)
    assert "cannot take" in effects.rationale.summary


def test_an_empty_node_starts_anew_and_takes_as_long_as_was_measured():
    table = OverheadTable().measured(start_key(MODEL, GPU, 8, warm=True), 21.0)
    found = replace(pool(46.0, (8,), (8,), ()), profiles={8: PROFILES[8]})
    _, effects = step(None, observe(found, overheads=table), CONFIG)
    (command,) = [c for c in effects.commands if not c.source]
    assert (command.node, command.serves_on) == ("n2", True)
    assert command.transfer_s == 21.0


# -- changes that are not made in place -------------------------------------------------------------


def less(layout: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    return tuple((Counter(layout) - Counter(other)).elements())


def test_mix_that_pays_off_in_place_does_not_when_engines_start_anew():
    """A minute until the next epoch, of which a start takes nearly all."""
    config = replace(CONFIG, epoch_s=60.0, wave=1)
    found = pool(3.0, (8,), (8,), drain_s=10.0)
    reasons = {}
    for kind in ChangeKind:
        _, effects = step(None, observe(replace(found, change=kind, start_s=58.0)), config)
        reasons[kind] = effects.rationale.reason
        assert effects.rationale.inputs["MM at north"]["change"] == kind.value
    assert reasons == {
        ChangeKind.IN_PLACE: Reason.OPTIMAL,
        ChangeKind.SHADOW: Reason.NOT_WORTH_IT,
        ChangeKind.RESTART: Reason.NOT_WORTH_IT,
    }


def changing(kind: ChangeKind, rps: float, *layouts: tuple[int, ...], table: OverheadTable | None = None, **more):
    """The state after the first tick, and its commands that turn instances into others."""
    found = pool(rps, *layouts, change=kind, drain_s=6.0, **more)
    state, effects = step(None, observe(found, overheads=table), CONFIG)
    commands = [command for command in effects.commands if command.source and less(command.target, command.source)]
    assert commands
    return state, effects, commands


def test_change_with_shadows_takes_a_start_and_the_old_ones_serve_on():
    table = OverheadTable({start_key(MODEL, GPU, tp, warm=True): 20.0 + tp for tp in (2, 4, 8)})
    state, effects, commands = changing(ChangeKind.SHADOW, 3.0, (8,), table=table)
    (command,) = commands
    took_s = 20.0 + max(less(command.target, command.source))
    assert (command.transfer_s, command.sync_s) == (took_s, 0.0)
    assert (command.serves_on, command.kv_share, command.shift_rps) == (True, 1.0, 0.0)
    assert state.changes[KEY].busy_until_s == {command.node: took_s}
    params = gpu(GPU)
    cost_j = effects.rationale.inputs["MM at north"]["transition_j"]
    assert cost_j == pytest.approx(took_s * sum(command.target) * params.loaded_idle_w(params.f_max))


def test_restart_drains_first_and_leaves_its_load_to_others():
    state, _, commands = changing(ChangeKind.RESTART, 60.0, *[(2, 2, 2, 2)] * 5)
    assert len(commands) == 1, "another one at once, and the others could not carry the load"
    (command,) = commands
    assert (command.transfer_s, command.sync_s, command.serves_on) == (0.0, 6.0 + 33.0, False)
    assert command.shift_rps == pytest.approx(60.0 / 5)
    assert state.changes[KEY].busy_until_s[command.node] == 39.0


@pytest.mark.parametrize("kind", [ChangeKind.RESTART, ChangeKind.IN_PLACE])
def test_decision_says_whether_its_times_were_measured(kind):
    found = pool(3.0, (8,), change=kind, drain_s=6.0)
    key = reshard_key(MODEL, GPU, (8,), (4,), in_place=kind is ChangeKind.IN_PLACE)
    for table, took_s in ((OverheadTable(), None), (OverheadTable({key: 21.0}), 21.0)):
        command = _View(found, observe(found, overheads=table), CONFIG)._command("n0", (8,), (4,))
        assert (command.change, command.measured) == (kind, took_s is not None)
        assert took_s is None or command.transfer_s + command.sync_s == pytest.approx(took_s)


def test_node_stays_when_a_restart_would_leave_nobody_to_serve():
    _, effects = step(None, observe(pool(3.0, (8,), change=ChangeKind.RESTART)), CONFIG)
    assert (effects.commands, effects.rationale.reason) == ((), Reason.NOT_WORTH_IT)
    assert "cannot take" in effects.rationale.summary


@pytest.mark.parametrize("kind", [ChangeKind.SHADOW, ChangeKind.RESTART])
def test_instances_that_both_layouts_have_are_neither_stopped_nor_started(kind):
    """One of two small ones goes: nothing starts, and the other serves on."""
    _, effects = step(None, observe(pool(2.0, (2, 2), change=kind, drain_s=6.0)), CONFIG)
    (command,) = effects.commands
    assert (command.source, command.target) == ((2, 2), (2,))
    assert (command.transfer_s, command.sync_s, command.serves_on, command.shift_rps) == (0.0, 0.0, True, 0.0)
    assert effects.rationale.inputs["MM at north"]["transition_j"] == 0.0


def test_one_becomes_one_in_place_and_others_end_first_or_start_after_it():
    """One by one, as live engines do: the times of ends and starts come to those of the plan."""
    whole = {"change": ChangeKind.IN_PLACE, "drain_s": 6.0, "one_by_one": True}
    plan_s = 2.0 * weight_bytes(MODEL) / 8.0 / 300e9 + 0.95  # half of the weights come from each of two
    grows, _ = priced(pool(3.0, (2,), **whole), (2,), (4,))
    merges, _ = priced(pool(3.0, (4, 4), **whole), (4, 4), (8,))
    splits, _ = priced(pool(3.0, (8,), **whole), (8,), (4, 4))
    less_of_them, lost = priced(pool(3.0, (2, 2), **whole), (2, 2), (2,))
    more_of_them, _ = priced(pool(3.0, (2,), **whole), (2,), (2, 2))
    assert grows.transfer_s + grows.sync_s <= plan_s
    assert merges.transfer_s >= 6.0
    assert splits.sync_s >= 33.0
    assert (merges.serves_on, splits.serves_on) == (False, False)
    assert (less_of_them.transfer_s, less_of_them.serves_on, lost[0]) == (0.0, True, 0.0)
    assert (more_of_them.transfer_s, more_of_them.serves_on) == (33.0, True)
    moves = {(one.source, one.target, one.weights_share) for one in merges.transfers}
    assert moves == {(n, n + 4, 1 / 8) for n in range(4)}


def priced(found: ShardPool, source: tuple[int, ...], target: tuple[int, ...]):
    view = _View(found, observe(found), CONFIG)
    command = view._command("n0", source, target)
    return command, view._lost_rps(command)


@pytest.mark.parametrize("rps", [2.0, 12.0])
def test_full_form_draws_no_more_than_the_simplified_one(rps):
    found = pool(rps, (8,), (8,))
    drawn = {}
    for form in ("top", "all"):
        _, effects = step(None, observe(found), replace(CONFIG, clocks=form))
        drawn[form] = effects.rationale.inputs["MM at north"]["best_power_w"]
    assert drawn["all"] <= drawn["top"]


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.sampled_from([(8,), (4, 4), (2, 2, 2, 2), (2, 4), (4,), (2,), ()]), min_size=1, max_size=4),
    st.floats(0.0, 60.0),
    st.integers(1, 3),
    st.sampled_from(ChangeKind),
)
def test_load_is_carried_at_every_moment_when_it_was_before(layouts, rps, wave, kind):
    """Waves until nothing is to do: GPUs suffice, and what serves while a wave is under way carries the load."""
    config = replace(CONFIG, wave=wave, epoch_s=3600.0)
    found, state, now_s = pool(rps, *layouts, change=kind, drain_s=6.0), None, 0.0
    most = {tp: float(PROFILES[tp].top().within(Limits(0.4, 0.1))[0]) for tp in PROFILES}
    enough = sum(most[tp] for layout in layouts for tp in layout) >= 1.1 * max(rps, 0.05)
    for _ in range(12):
        state, effects = step(state, observe(found, now_s=now_s), config)
        if enough:
            stops = [c.source if kind is ChangeKind.IN_PLACE else less(c.source, c.target) for c in effects.commands]
            lost = sum(
                (1.0 - c.kv_share) * sum(most[tp] for tp in c.source) if c.serves_on else sum(most[tp] for tp in gone)
                for c, gone in zip(effects.commands, stops, strict=True)
            )
            carries = sum(most[tp] for layout in found.nodes.values() for tp in layout)
            assert carries - lost >= rps - 1e-5
        found, now_s = after(found, effects), effects.next_tick_s
        assert all(sum(layout) <= 8 for layout in found.nodes.values())
        if not state.changes:
            break
    else:
        pytest.fail("the pool never came to rest")


@settings(max_examples=examples(40), deadline=None)
@given(
    st.lists(st.sampled_from([(8,), (4, 4), (2, 2, 2, 2), (2, 4), (4,), (1, 1, 2), ()]), min_size=1, max_size=5),
    st.lists(st.sampled_from([1, 2, 4, 8]), max_size=12),
)
def test_degrees_are_placed_when_there_are_gpus_enough(layouts, degrees):
    nodes = {f"n{i}": layout for i, layout in enumerate(layouts)}
    wanted = {tp: degrees.count(tp) for tp in set(degrees)}
    found = arrange(nodes, wanted, 8)
    if sum(degrees) > 8 * len(nodes):
        assert found is None
        return
    assert found is not None
    assert sorted(tp for layout in found.values() for tp in layout) == sorted(degrees)
    assert all(sum(layout) <= 8 for layout in found.values())


@given(st.lists(st.sampled_from([(8,), (4, 4), (2, 2, 2, 2), (2, 4), (4,)]), min_size=1, max_size=5))
def test_nodes_stay_when_the_mix_does(layouts):
    nodes = {f"n{i}": layout for i, layout in enumerate(layouts)}
    degrees = [tp for layout in layouts for tp in layout]
    assert arrange(nodes, {tp: degrees.count(tp) for tp in set(degrees)}, 8) == nodes


def test_measured_overheads_replace_published_ones():
    table = OverheadTable()
    assert table.get("x", 5.0) == 5.0
    table = table.measured("x", 10.0)
    assert table.get("x", 5.0) == 10.0
    assert 6.9 < table.measured("x", 0.0).get("x", 5.0) < 10.0
    with pytest.raises(ValueError, match="cannot take"):
        table.measured("x", -1.0)
    assert math.isfinite(table.get("x", 0.0))


@pytest.mark.parametrize("wrong", [{"clocks": "some"}, {"wave": 0}, {"alpha": 0.5}, {"epoch_s": 0.0}])
def test_configuration_is_refused_when_it_makes_no_sense(wrong):
    with pytest.raises(ValueError, match="clocks are"):
        ShardDynamoConfig(**wrong)

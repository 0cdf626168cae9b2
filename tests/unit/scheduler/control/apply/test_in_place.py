"""Which instances go over to other GPUs in place, to which, and when they wait for them."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from core.types import Mode
from scheduler.control.apply.in_place import Turn, turns
from scheduler.control.apply.node_placement import NodeRoom, Standing, Wanted, place
from tests.unit.laws import examples

GPU = "H100-SXM-80GB"
H2, H4, H8 = (Mode(GPU, tp) for tp in (2, 4, 8))
SITE = 1


def standing(id_, mode, first, node=1, pool=1, **more):
    gpus = tuple(range(first, first + mode.tp))
    return Standing(id_, pool, SITE, node, "MM", mode, True, "ready", gpus, order=id_, reshards=True, **more)


def room(*free, node=1):
    return NodeRoom(node, SITE, {GPU: free})


def wanted(workers, pool=1, in_place=True):
    return Wanted(pool, SITE, "MM", workers, in_place=in_place)


def test_instance_grows_onto_the_free_gpus_of_its_node():
    found = turns([wanted({H8: 1})], [standing(1, H4, 0)], [room(4, 5, 6, 7)])
    (turn,) = found.turns
    assert (turn.id, turn.mode, set(turn.gpu_ids)) == (1, H8, set(range(8)))
    assert [s.mode for s in found.standing] == [H8]
    assert found.rooms[0].free[GPU] == ()
    assert not place([wanted({H8: 1})], found.standing, found.rooms).changes


def test_smaller_instance_keeps_gpus_of_its_own_and_gives_the_others_back():
    found = turns([wanted({H4: 2})], [standing(1, H8, 0)], [room()])
    (turn,) = found.turns
    assert set(turn.gpu_ids) < set(range(8))
    assert set(turn.gpu_ids) | set(found.rooms[0].free[GPU]) == set(range(8))
    plan = place([wanted({H4: 2})], found.standing, found.rooms)
    assert [(start.mode, set(start.gpu_ids)) for start in plan.starts] == [(H4, set(found.rooms[0].free[GPU]))]
    assert not plan.drains


def test_one_of_two_serves_until_the_other_has_ended_and_left_its_gpus():
    two = [standing(1, H4, 0), standing(2, H4, 4)]
    found = turns([wanted({H8: 1})], two, [room()])
    assert found.turns == ()
    plan = place([wanted({H8: 1})], found.standing, found.rooms)
    (gone,) = plan.drains
    assert (plan.starts, plan.waiting, plan.unplaceable) == ((), (), ())
    left = [s for s in two if s.id != gone]
    (turn,) = turns([wanted({H8: 1})], left, [room(*next(s.gpu_ids for s in two if s.id == gone))]).turns
    assert (turn.id, set(turn.gpu_ids)) == (left[0].id, set(range(8)))


def test_nearest_in_size_changes_when_several_could():
    three = [standing(1, H2, 0), standing(2, H4, 2), standing(3, H2, 6)]
    plan = turns([wanted({H8: 1})], three, [room()])
    assert [s.mode for s in plan.standing] == [H2, H8, H2]


def test_nothing_changes_in_place_when_an_engine_or_the_policy_does_not():
    free = [room(4, 5, 6, 7)]
    for own, pool in (
        (replace(standing(1, H4, 0), reshards=False), wanted({H8: 1})),
        (standing(1, H4, 0), wanted({H8: 1}, in_place=False)),
        (replace(standing(1, H4, 0), state="starting"), wanted({H8: 1})),
        (replace(standing(1, H4, 0), warm=True), wanted({H8: 1})),
        (standing(1, H4, 0, beside=True), wanted({H8: 1})),
        (standing(1, H4, 0), wanted({Mode("A100-80GB", 8): 1})),
        (standing(1, H4, 0, node=9), wanted({H8: 1})),
        (standing(1, H4, 0), wanted({H4: 1})),
        (standing(1, H4, 0), wanted({})),
    ):
        assert turns([pool], [own], free).turns == ()


def test_old_instance_of_a_shadow_ends_and_does_not_change():
    old, shadow = standing(1, H4, 0), replace(standing(2, H8, 8, node=2), state="starting", replaces=(1,))
    assert turns([wanted({H8: 2})], [old, shadow], [room(4, 5, 6, 7)]).turns == ()


LAYOUTS = st.lists(st.sampled_from([H2, H4, H8]), min_size=1, max_size=4).filter(lambda m: sum(x.tp for x in m) <= 8)


@given(st.lists(LAYOUTS, min_size=1, max_size=3), st.lists(LAYOUTS, min_size=1, max_size=3))
@settings(max_examples=examples(80), deadline=None)
def test_no_gpu_is_given_twice_and_every_mix_is_reached(before, after):
    """Law: turn after turn, with drains that end and starts that come up at once, a node's pool gets what it wants."""
    nodes = max(len(before), len(after))
    present = []
    for node, layout in enumerate(before):
        at = 8 * node
        for mode in layout:
            present.append(standing(len(present) + 1, mode, at, node=node))
            at += mode.tp
    workers = {mode: sum(layout.count(mode) for layout in after) for layout in after for mode in layout}
    want = [wanted(workers)]
    for _ in range(12):
        held = [gpu for s in present for gpu in s.gpu_ids]
        assert len(held) == len(set(held))
        rooms = [room(*(gpu for gpu in range(8 * n, 8 * n + 8) if gpu not in held), node=n) for n in range(nodes)]
        found = turns(want, present, rooms)
        plan = place(want, found.standing, found.rooms)
        if not found.turns and not plan.changes:
            break
        new = {turn.id: turn for turn in found.turns}
        for s in present:
            if (turn := new.get(s.id)) is not None:
                assert all(gpu // 8 == s.node_id for gpu in turn.gpu_ids)
                assert len(set(turn.gpu_ids)) == turn.mode.tp
        present = [_turned(s, new.get(s.id)) for s in present if s.id not in plan.drains]
        for start in plan.starts:
            number = max((s.id for s in present), default=0) + 100
            own = standing(number, start.mode, 0, node=start.node_id)
            present.append(replace(own, gpu_ids=start.gpu_ids))
    assert not plan.unplaceable
    assert sorted(s.mode for s in present) == sorted(mode for layout in after for mode in layout)


def _turned(s: Standing, turn: Turn | None) -> Standing:
    return s if turn is None else replace(s, mode=turn.mode, gpu_ids=turn.gpu_ids)

"""Which instance stands where: each rule by itself, and the laws that are true of any fleet."""

from dataclasses import replace
from itertools import count

from hypothesis import given, settings
from hypothesis import strategies as st

from core.types import Mode
from scheduler.control.apply.node_placement import NodeRoom, Placement, Standing, Start, Wanted, place
from tests.unit.laws import examples

A2, A4, A8 = (Mode("A100-80GB", tp) for tp in (2, 4, 8))
H4 = Mode("H100-SXM-80GB", 4)
SITE, OTHER_SITE = 1, 2


def room(node, free, site=SITE, kind="A100-80GB"):
    """A node; GPU ids are node * 100 + index."""
    return NodeRoom(node, site, {kind: tuple(node * 100 + i for i in range(free))})


def standing(id_, pool, mode, node=1, cls="SS", state="ready", running=True, site=SITE):
    gpus = tuple(node * 1000 + id_ * 10 + i for i in range(mode.tp))
    return Standing(id_, pool, site, node, cls, mode, running, state, gpus, order=id_)


def wanted(pool, workers, cls="SS", site=SITE):
    return Wanted(pool, site, cls, workers)


def test_nothing_changes_when_what_runs_is_what_is_wanted():
    plan = place([wanted(1, {A4: 2})], [standing(1, 1, A4), standing(2, 1, A4)], [room(1, 0)])
    assert not plan.changes


def test_new_instance_takes_the_fullest_node_when_several_fit():
    plan = place([wanted(1, {A4: 1})], [], [room(1, 8), room(2, 4), room(3, 2)])
    assert plan.starts == (Start(1, 2, A4, (200, 201, 202, 203)),)


def test_large_one_is_placed_first_when_small_ones_would_break_its_node():
    plan = place([wanted(1, {A2: 2}), wanted(2, {A8: 1}, "LL")], [], [room(1, 8), room(2, 4)])
    assert {(start.mode, start.node_id) for start in plan.starts} == {(A8, 1), (A2, 2)}
    assert not plan.unplaceable


def test_instance_stays_on_its_site_when_another_site_has_room():
    plan = place([wanted(1, {A4: 1})], [], [room(1, 2), room(2, 8, site=OTHER_SITE)])
    assert plan.unplaceable == ((1, A4),)


def test_mode_is_not_placed_when_the_gpu_type_differs():
    assert place([wanted(1, {H4: 1})], [], [room(1, 8)]).unplaceable == ((1, H4),)


def test_new_instance_waits_when_another_service_gives_up_its_gpus():
    leaving = NodeRoom(1, SITE, {"A100-80GB": (100, 101)}, {"A100-80GB": 2})
    plan = place([wanted(1, {A4: 1})], [], [leaving])
    assert (plan.starts, plan.waiting, plan.unplaceable) == ((), ((1, A4),), ())


def test_instance_changes_pool_when_another_pool_wants_its_mode():
    plan = place([wanted(2, {A4: 1}, "LS")], [standing(1, 1, A4)], [room(1, 4)])
    assert plan == Placement(moves={1: 2})


def test_own_class_goes_first_when_a_surplus_instance_could_serve_two_pools():
    """A partition changes: pool 11 is the new SS pool, and both SS and LS want a TP4."""
    plan = place(
        [wanted(12, {A4: 1}, "LS"), wanted(11, {A4: 1}, "SS")],
        [standing(1, 1, A4, cls="SS"), standing(2, 2, A4, cls="LS")],
        [room(1, 0)],
    )
    assert plan == Placement(moves={1: 11, 2: 12})


def test_surplus_is_drained_when_another_of_its_class_is_ready():
    plan = place([wanted(1, {A4: 1})], [standing(1, 1, A4), standing(2, 1, A4)], [room(1, 0)])
    assert plan.drains == (2,)


def test_starting_instance_goes_first_when_one_is_surplus():
    plan = place([wanted(1, {A4: 1})], [standing(1, 1, A4, state="starting"), standing(2, 1, A4)], [room(1, 0)])
    assert plan.drains == (1,)


def test_last_ready_one_stays_when_its_replacement_is_not_ready():
    before = [standing(1, 1, A4)]
    plan = place([wanted(1, {A8: 1})], before, [room(1, 4), room(2, 8)])
    assert (plan.drains, plan.bridges) == ((), (1,))
    assert [start.node_id for start in plan.starts] == [2]
    starting = standing(2, 1, A8, node=2, state="starting")
    plan = place([wanted(1, {A8: 1})], [*before, starting], [room(1, 4), room(2, 0)])
    assert not plan.changes
    plan = place([wanted(1, {A8: 1})], [*before, standing(2, 1, A8, node=2)], [room(1, 4), room(2, 0)])
    assert plan.drains == (1,)


def test_last_ready_one_goes_when_its_gpus_are_all_there_is():
    plan = place([wanted(1, {A8: 1})], [standing(1, 1, A4)], [room(1, 4)])
    assert plan.drains == (1,)
    assert plan.waiting == ((1, A8),)


def test_last_ready_one_stays_when_some_of_those_that_replace_it_can_come_up_without_its_gpus():
    wants, old = [wanted(1, {A2: 4})], standing(1, 1, A4)
    plan = place(wants, [old], [room(1, 4)])
    assert (len(plan.starts), plan.drains, plan.unplaceable) == (2, (), ((1, A2), (1, A2)))
    news = [standing(n, 1, A2, state="starting") for n in (2, 3)]
    assert not place(wants, [old, *news], [room(1, 0)]).changes
    plan = place(wants, [old, *(standing(n, 1, A2) for n in (2, 3))], [room(1, 0)])
    assert (plan.drains, plan.waiting) == ((1,), ((1, A2), (1, A2)))


def test_last_ready_one_goes_when_its_class_is_not_wanted_any_more():
    assert place([wanted(1, {A4: 0})], [standing(1, 1, A4)], [room(1, 0)]).drains == (1,)


def test_small_one_does_not_take_the_room_when_a_large_one_waits_for_a_drain():
    leaving = standing(1, 1, A4, cls="LL", running=False, state="draining")
    plan = place([wanted(1, {A8: 1}, "LL"), wanted(2, {A2: 1})], [leaving], [room(1, 4)])
    assert plan.waiting == ((1, A8),)
    assert plan.unplaceable == ((2, A2),)
    assert not plan.starts


def test_small_ones_make_room_when_free_gpus_are_scattered():
    """Two nodes of 8, each with a TP4 kept: 8 GPUs are free, yet a TP8 fits nowhere."""
    kept = [standing(1, 1, A4, node=1), standing(2, 1, A4, node=2)]
    wants = [wanted(1, {A4: 2}), wanted(2, {A8: 1}, "LL")]
    plan = place(wants, kept, [room(1, 4), room(2, 4)])
    assert len(plan.drains) == 1
    assert plan.waiting == ((2, A8),)
    gone = plan.drains[0]
    assert [start.node_id for start in plan.starts] == [3 - gone]


def test_nothing_is_displaced_when_a_bridge_stands_where_the_large_one_would():
    """Small ones that were displaced all the same started anew, and were displaced again."""
    live = [standing(1, 1, A2), standing(2, 1, A4), standing(3, 2, A2, cls="LL")]
    plan = place([wanted(1, {A4: 1, A8: 1}), wanted(2, {A2: 1}, "LL")], live, [room(1, 0)])
    assert (plan.drains, plan.unplaceable) == ((1,), ((1, A8),))


def test_instances_of_a_silent_node_are_left_alone_when_it_does_not_report():
    plan = place([wanted(1, {A4: 1})], [standing(1, 1, A4, node=9)], [room(1, 4)])
    assert plan.drains == ()
    assert [start.node_id for start in plan.starts] == [1]


def test_draining_one_is_not_counted_when_its_pool_wants_one():
    plan = place([wanted(1, {A4: 1})], [standing(1, 1, A4, running=False, state="draining")], [room(1, 0)])
    assert plan.waiting == ((1, A4),)


@st.composite
def fleets(draw):
    """Nodes of 8 with instances of sizes 2, 4 and 8 on them, and wants that need not fit."""
    numbers = count(1)
    nodes, live = [], []
    for node in range(1, draw(st.integers(1, 3)) + 1):
        left = 8
        for _ in range(draw(st.integers(0, 4))):
            mode = draw(st.sampled_from([A2, A4, A8]))
            if mode.tp > left:
                continue
            left -= mode.tp
            pool = draw(st.integers(1, 3))
            running = draw(st.booleans())
            state = draw(st.sampled_from(["ready", "starting"])) if running else "draining"
            live.append(standing(next(numbers), pool, mode, node, f"C{pool}", state, running))
        nodes.append(room(node, left))
    wants = [
        Wanted(
            pool,
            SITE,
            f"C{pool}",
            draw(st.dictionaries(st.sampled_from([A2, A4, A8]), st.integers(0, 2))),
            draw(st.booleans()),
        )
        for pool in (1, 2, 3)
    ]
    return wants, live, nodes


@given(fleets())
@settings(max_examples=examples(80), deadline=None)
def test_every_plan_allocates_only_free_gpus_when_anything_is_wanted(fleet):
    wants, live, nodes = fleet
    plan = place(wants, live, nodes)
    taken = [gpu for start in plan.starts for gpu in start.gpu_ids]
    free = {gpu for node in nodes for ids in node.free.values() for gpu in ids}
    assert len(taken) == len(set(taken))
    assert set(taken) <= free
    assert all(len(start.gpu_ids) == start.mode.tp for start in plan.starts)
    assert not set(plan.drains) & (set(plan.moves) | set(plan.bridges))
    running = {s.id: s for s in live if s.running}
    assert set(plan.drains) | set(plan.moves) | set(plan.bridges) <= set(running)
    for want in wants:
        for mode, number in want.workers.items():
            stay = sum(
                plan.moves.get(s.id, s.pool_id) == want.pool_id and s.mode == mode
                for s in running.values()
                if s.id not in plan.drains and s.id not in plan.bridges
            )
            new = sum((s.pool_id, s.mode) == (want.pool_id, mode) for s in plan.starts)
            later = (*plan.waiting, *plan.unplaceable).count((want.pool_id, mode))
            assert stay + new + later == number


@given(fleets())
@settings(max_examples=examples(40), deadline=None)
def test_plan_settles_when_it_is_carried_out_step_by_step(fleet):
    """Agents carry plans out between them: after a few rounds nothing changes, unless something fits nowhere."""
    wants, live, nodes = fleet
    numbers = count(1000)
    for _ in range(12):
        plan = place(wants, live, nodes)
        if not plan.changes and all(s.running and s.state == "ready" for s in live):
            break
        live, nodes = carry_out(plan, wants, live, nodes, numbers)
    else:
        raise AssertionError("still changing after 12 rounds")
    if not plan.unplaceable:
        assert not plan.waiting
        assert not plan.bridges


def carry_out(plan, wants, live, nodes, numbers):
    classes = {want.pool_id: want.request_class for want in wants}
    gone = [s for s in live if not s.running]
    after = [
        Standing(
            s.id,
            plan.moves.get(s.id, s.pool_id),
            s.site_id,
            s.node_id,
            classes[plan.moves.get(s.id, s.pool_id)],
            s.mode,
            s.id not in plan.drains,
            "ready" if s.id not in plan.drains else "draining",
            s.gpu_ids,
            s.order,
            s.replaces,
        )
        for s in live
        if s.running
    ]
    free = {node.id: set(node.free["A100-80GB"]) for node in nodes}
    for s in gone:
        free[s.node_id] |= set(s.gpu_ids)
    for start in plan.starts:
        free[start.node_id] -= set(start.gpu_ids)
        number = next(numbers)
        after.append(
            Standing(
                number,
                start.pool_id,
                SITE,
                start.node_id,
                classes[start.pool_id],
                start.mode,
                True,
                "starting",
                start.gpu_ids,
                number,
                start.replaces,
            )
        )
    return after, [NodeRoom(node.id, node.site_id, {"A100-80GB": tuple(sorted(free[node.id]))}) for node in nodes]


def shadowing(pool, workers, cls="SS"):
    return Wanted(pool, SITE, cls, workers, shadow=True)


def test_old_one_serves_until_its_shadow_is_ready_when_gpus_are_free():
    wants = [shadowing(1, {A2: 1})]
    plan = place(wants, [standing(1, 1, A4)], [room(1, 4)])
    assert plan.starts == (Start(1, 1, A2, (100, 101), replaces=(1,)),)
    assert not plan.drains
    new = Standing(2, 1, SITE, 1, "SS", A2, True, "starting", (100, 101), 2, replaces=(1,))
    assert not place(wants, [standing(1, 1, A4), new], [room(1, 2)]).changes
    ready = Standing(2, 1, SITE, 1, "SS", A2, True, "ready", (100, 101), 2, replaces=(1,))
    assert place(wants, [standing(1, 1, A4), ready], [room(1, 2)]) == Placement(drains=(1,))


def test_every_old_one_waits_for_its_own_when_several_are_replaced():
    wants = [shadowing(1, {A2: 2})]
    olds = [standing(n, 1, A4) for n in (1, 2, 3)]
    starts = place(wants, olds, [room(1, 4)]).starts
    assert [start.replaces for start in starts] == [(1,), (2, 3)]


def test_old_one_serves_until_its_shadow_at_another_site_is_ready():
    wants = [shadowing(1, {}), Wanted(2, OTHER_SITE, "SS", {A4: 1}, shadow=True)]
    plan = place(wants, [standing(1, 1, A2), standing(2, 1, A2)], [room(1, 0), room(9, 4, site=OTHER_SITE)])
    (start,) = plan.starts
    assert (start.pool_id, start.node_id, start.replaces) == (2, 9, (1, 2))
    assert plan.drains == ()


def test_shadow_goes_when_the_old_one_is_wanted_again():
    new = Standing(2, 1, SITE, 1, "SS", A2, True, "starting", (100, 101), 2, replaces=(1,))
    plan = place([shadowing(1, {A4: 1})], [standing(1, 1, A4), new], [room(1, 2)])
    assert plan.drains == (2,)


def test_old_one_drains_first_when_its_shadow_finds_no_gpus():
    plan = place([shadowing(1, {A8: 1})], [standing(1, 1, A4), standing(2, 1, A4)], [room(1, 0)])
    assert plan.drains == (1, 2)
    assert plan.waiting == ((1, A8),)


def test_surplus_goes_at_once_when_nothing_replaces_it():
    plan = place([shadowing(1, {A4: 1})], [standing(1, 1, A4), standing(2, 1, A4)], [room(1, 4)])
    assert plan.drains == (2,)


def test_one_goes_on_serving_when_another_partition_has_nobody_yet():
    old = [standing(1, 1, A4, cls="SS"), standing(2, 2, A2, cls="LL")]
    wants = [wanted(3, {A8: 1}, "ALL")]
    plan = place(wants, old, [room(1, 8)])
    assert plan.bridges == (1,)
    assert plan.drains == (2,)
    full = place([wanted(3, {A8: 2}, "ALL")], old, [room(1, 4), room(2, 8)])
    assert full.bridges == (1,)  # the second TP8 waits for the first to serve
    alone = place(wants, [standing(1, 1, A4, cls="SS")], [room(1, 4)])
    assert alone.drains == (1,)  # nothing else could come up


def roomy(id_, pool, mode, **values):
    return replace(standing(id_, pool, mode, **values), roomy=True)


def test_shadow_starts_beside_the_old_one_when_no_gpu_is_free_and_memory_holds_both():
    """Rule 6, and what follows: the old one serves until the new one is ready, and only then drains."""
    want = replace(wanted(1, {A2: 1}), shadow=True)
    old = roomy(1, 1, A4)
    plan = place([want], [old], [room(1, 0)])
    assert plan.starts == (Start(1, 1, A2, old.gpu_ids[:2], (1,), beside=True),)
    assert (plan.drains, plan.waiting, plan.unplaceable) == ((), (), ())
    new = replace(standing(2, 1, A2, state="starting"), gpu_ids=old.gpu_ids[:2], replaces=(1,), beside=True)
    assert not place([want], [old, new], [room(1, 0)]).changes
    assert place([want], [old, replace(new, state="ready")], [room(1, 0)]).drains == (1,)
    assert place([want], [old, replace(new, state="failed")], [room(1, 0)]).drains == (1,), "it gets the memory"


def test_shadow_goes_by_free_gpus_first_and_waits_when_the_old_ones_memory_is_full_or_too_few():
    want = replace(wanted(1, {A2: 1}), shadow=True)
    (start,) = place([want], [roomy(1, 1, A4)], [room(1, 2)]).starts
    assert (start.gpu_ids, start.replaces, start.beside) == ((100, 101), (1,), False)
    for workers, old in (({A2: 1}, standing(1, 1, A4)), ({A8: 1}, roomy(1, 1, A4))):
        plan = place([replace(wanted(1, workers), shadow=True)], [old], [room(1, 4)] if A8 in workers else [room(1, 0)])
        assert not plan.starts
        assert plan.waiting
    assert not place([wanted(1, {A2: 1})], [roomy(1, 1, A4)], [room(1, 0)]).starts, "not in a pool without shadows"


def test_only_one_starts_beside_an_old_one():
    plan = place([replace(wanted(1, {A2: 2}), shadow=True)], [roomy(1, 1, A4)], [room(1, 0)])
    assert [(start.beside, start.replaces) for start in plan.starts] == [(True, (1,))]
    assert plan.waiting == ((1, A2),)

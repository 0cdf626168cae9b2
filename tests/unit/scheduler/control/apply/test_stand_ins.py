"""Somebody serves while a placement changes: what stays for that, what is started for that, and when it goes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count

import pytest
from hypothesis import given, settings

from core.types import Mode
from scheduler.control.apply import stand_ins
from scheduler.control.apply.node_placement import NodeRoom, Placement, Standing, Wanted, place
from tests.unit.laws import examples
from tests.unit.scheduler.control.apply.test_node_placement import (
    A2,
    A4,
    A8,
    H4,
    OTHER_SITE,
    carry_out,
    fleets,
    room,
    standing,
    wanted,
)


def serve_on(wants: Sequence[Wanted], live: Sequence[Standing], nodes: Sequence[NodeRoom]) -> Placement:
    return stand_ins.serve_on(place(wants, live, nodes), wants, live, nodes)


def started(plan: Placement) -> list[tuple[int, int, Mode]]:
    return [(start.pool_id, start.node_id, start.mode) for start in plan.starts]


def test_last_ready_one_stays_while_another_class_comes_up() -> None:
    """What is wanted of its own class fits only where it stands, and another class starts elsewhere."""
    wants = [wanted(1, {A8: 1}, "LL"), wanted(2, {H4: 1}, "SS")]
    old, nodes = standing(1, 1, A4, cls="LL"), [room(1, 4), room(2, 4, kind="H100-SXM-80GB")]
    plan = serve_on(wants, [old], nodes)
    assert (started(plan), plan.drains, plan.bridges) == ([(2, 2, H4)], (), (1,))
    other, nodes = standing(2, 2, H4, node=2, cls="SS", state="starting"), [room(1, 4), room(2, 0)]
    assert not serve_on(wants, [old, other], nodes).changes
    plan = serve_on(wants, [old, replace(other, state="ready")], nodes)
    assert (plan.drains, plan.waiting) == ((1,), ((1, A8),))


def test_last_ready_one_makes_room_for_a_large_one_once_it_serves_elsewhere() -> None:
    wants = [wanted(1, {A2: 1, A8: 1})]
    old, nodes = standing(1, 1, A2), [room(1, 6), room(2, 4)]
    plan = serve_on(wants, [old], nodes)
    assert (started(plan), plan.drains) == ([(1, 2, A2)], ())
    new, nodes = standing(2, 1, A2, node=2, state="starting"), [room(1, 6), room(2, 2)]
    assert not serve_on(wants, [old, new], nodes).changes
    plan = serve_on(wants, [old, replace(new, state="ready")], nodes)
    assert (plan.drains, plan.waiting) == ((1,), ((1, A8),))


def test_another_one_serves_in_place_of_the_last_whose_gpus_are_all_that_a_new_one_could_stand_on() -> None:
    wants = [wanted(1, {A2: 1}), wanted(2, {}, site=OTHER_SITE)]
    old, home = standing(1, 1, A4), room(1, 0)
    plan = serve_on(wants, [old], [home, room(2, 8, site=OTHER_SITE)])
    assert (started(plan), plan.drains) == ([(2, 2, A4)], ())
    other, there = standing(2, 2, A4, node=2, state="starting", site=OTHER_SITE), room(2, 4, site=OTHER_SITE)
    assert not serve_on(wants, [old, other], [home, there]).changes
    other = replace(other, state="ready")
    plan = serve_on(wants, [old, other], [home, there])
    assert (plan.drains, plan.waiting) == ((1,), ((1, A2),))
    plan = serve_on(wants, [other], [room(1, 4), there])
    assert (started(plan), plan.drains) == ([(1, 1, A2)], ())
    new = standing(3, 1, A2, state="starting")
    assert not serve_on(wants, [other, new], [room(1, 2), there]).changes
    assert serve_on(wants, [other, replace(new, state="ready")], [room(1, 2), there]).drains == (2,)


@pytest.mark.parametrize(("free", "mode"), [(8, A4), (2, A2)])
def test_it_has_a_wanted_mode_where_the_last_ones_own_finds_no_gpus(free: int, mode: Mode) -> None:
    wants = [wanted(1, {A2: 1}), wanted(2, {}, site=OTHER_SITE)]
    nodes = [room(1, 0), room(2, free, site=OTHER_SITE)]
    assert started(serve_on(wants, [standing(1, 1, A4)], nodes)) == [(2, 2, mode)]


def test_another_is_started_in_place_of_one_that_failed() -> None:
    wants = [wanted(1, {A2: 1}), wanted(2, {}, site=OTHER_SITE)]
    live = [standing(1, 1, A4), standing(2, 2, A4, node=2, state="failed", site=OTHER_SITE)]
    plan = serve_on(wants, live, [room(1, 0), room(2, 4, site=OTHER_SITE)])
    assert (started(plan), plan.drains) == ([(2, 2, A4)], (2,))


def test_last_ready_one_goes_first_where_no_gpus_are_free() -> None:
    plan = serve_on([wanted(1, {A2: 1})], [standing(1, 1, A4)], [room(1, 0)])
    assert (plan.drains, plan.waiting) == ((1,), ((1, A2),))


def test_last_ready_one_goes_when_nothing_is_wanted_any_more() -> None:
    assert serve_on([wanted(1, {A4: 0})], [standing(1, 1, A4)], [room(1, 8)]).drains == (1,)


def test_last_ready_one_goes_first_where_what_waits_needs_the_free_gpus() -> None:
    plan = serve_on([wanted(1, {A8: 1})], [standing(1, 1, A2)], [room(1, 6)])
    assert (started(plan), plan.drains, plan.waiting) == ([], (1,), ((1, A8),))


@given(fleets())
@settings(max_examples=examples(80), deadline=None)
def test_somebody_serves_until_all_that_is_wanted_does(
    fleet: tuple[list[Wanted], list[Standing], list[NodeRoom]],
) -> None:
    """Agents carry plans out between them. Nobody is left only where what is wanted needs all GPUs."""
    wants, live, nodes = fleet
    numbers = count(1000)
    for _ in range(16):
        plan = serve_on(wants, live, nodes)
        ready = [s for s in live if s.running and s.state == "ready"]
        if ready and all(s.id in plan.drains for s in ready) and any(any(w.workers.values()) for w in wants):
            assert not plan.starts
            assert all(s.id in plan.drains for s in live if s.running)
            assert plan.waiting
        if not plan.changes and all(s.running and s.state == "ready" for s in live):
            break
        live, nodes = carry_out(plan, wants, live, nodes, numbers)
    else:
        raise AssertionError("still changing after 16 rounds")

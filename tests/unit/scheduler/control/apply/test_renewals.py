"""Instances that were started for less than is needed now are replaced one by one, and somebody always serves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from scheduler.control.apply import renewals
from scheduler.control.apply.node_placement import NodeRoom, Placement, Standing, Start, Wanted, place
from tests.unit.scheduler.control.apply.test_node_placement import A2, A4, room, standing, wanted


def renew(wants: Sequence[Wanted], live: Sequence[Standing], nodes: Sequence[NodeRoom]) -> Placement:
    return renewals.renew(place(wants, live, nodes), live, nodes)


def outdated(id_: int, pool: int = 1, **values: object) -> Standing:
    return replace(standing(id_, pool, A2), outdated=True, **values)


def test_oldest_one_gets_a_successor_on_free_gpus_and_drains_once_that_is_ready() -> None:
    wants, olds = [wanted(1, {A2: 2})], [outdated(1), outdated(2)]
    plan = renew(wants, olds, [room(1, 2)])
    assert plan.starts == (Start(1, 1, A2, (100, 101), (1,)),)
    assert not plan.drains
    new = replace(standing(3, 1, A2, state="starting"), replaces=(1,))
    assert not renew(wants, [*olds, new], [room(1, 4)]).changes, "one at a time, however many GPUs are free"
    ready = replace(new, state="ready")
    assert renew(wants, [*olds, ready], [room(1, 4)]).drains == (1,)
    leaving = replace(olds[0], running=False, state="draining")
    assert not renew(wants, [leaving, olds[1], ready], [room(1, 4)]).changes
    (second,) = renew(wants, [olds[1], ready], [room(1, 4)]).starts
    assert second.replaces == (2,)
    last = replace(standing(4, 1, A2), replaces=(2,))
    assert renew(wants, [olds[1], ready, last], [room(1, 4)]).drains == (2,)
    assert not renew(wants, [ready, last], [room(1, 4)]).changes


def test_old_one_serves_on_when_its_successor_fails() -> None:
    failed = replace(standing(2, 1, A2, state="failed"), replaces=(1,))
    assert not renew([wanted(1, {A2: 1})], [outdated(1), failed], [room(1, 4)]).changes


def test_one_drains_first_where_no_gpus_are_free_and_another_of_its_class_serves() -> None:
    wants = [wanted(1, {A2: 2})]
    assert renew(wants, [outdated(1), outdated(2)], [room(1, 0)]).drains == (1,)
    leaving = replace(outdated(1), running=False, state="draining")
    plan = renew(wants, [leaving, outdated(2)], [room(1, 0)])
    assert (plan.drains, plan.waiting) == ((), ((1, A2),))
    assert [start.mode for start in renew(wants, [outdated(2)], [room(1, 2)]).starts] == [A2]


def test_last_one_of_a_class_stays_where_no_gpus_are_free() -> None:
    other = replace(standing(2, 2, A2, cls="LL"))
    wants = [wanted(1, {A2: 1}), wanted(2, {A2: 1}, "LL")]
    assert not renew(wants, [outdated(1), other], [room(1, 0)]).changes


@pytest.mark.parametrize("state", ["starting", "failed"])
def test_nothing_is_renewed_while_another_one_is_not_ready(state: str) -> None:
    wants = [wanted(1, {A2: 2})]
    assert not renew(wants, [outdated(1), standing(2, 1, A2, state=state)], [room(1, 4)]).changes


def test_what_the_plan_wants_goes_first() -> None:
    plan = renew([wanted(1, {A2: 1, A4: 1})], [outdated(1)], [room(1, 8)])
    assert [(start.mode, start.replaces) for start in plan.starts] == [(A4, ())]


def test_one_that_sleeps_is_left_alone_until_it_serves() -> None:
    asleep = replace(outdated(1), warm=True, state="sleeping")
    assert not renew([wanted(1, {})], [asleep], [room(1, 4)]).starts

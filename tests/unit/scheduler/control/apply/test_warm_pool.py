"""What becomes of surplus instances: asleep up to the pool's number, and gone where others need their GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from core.types import Mode
from scheduler.control.apply.node_placement import NodeRoom, Standing, Start, Wanted, place
from scheduler.control.apply.warm_pool import Kept, keep

A2, A4 = Mode("A100-80GB", 2), Mode("A100-80GB", 4)


def standing(id_: int, pool: int = 1, mode: Mode = A4, warm: bool = False, state: str = "ready") -> Standing:
    gpus = tuple(100 + id_ * 10 + i for i in range(mode.tp))
    return Standing(id_, pool, 1, 1, "SS", mode, True, state, gpus, order=id_, warm=warm)


def room(free: int = 0) -> NodeRoom:
    return NodeRoom(1, 1, {"A100-80GB": tuple(range(free))})


def kept(
    workers: Mapping[Mode, int], present: Sequence[Standing], free: int = 0, warm: int = 1, more: Sequence[Wanted] = ()
) -> Kept:
    wanted = [Wanted(1, 1, "SS", workers), *more]
    return keep(place(wanted, present, [room(free)]), wanted, present, [room(free)], {1: warm})


def test_surplus_engine_falls_asleep_instead_of_draining() -> None:
    assert kept({A4: 1}, [standing(1), standing(2)]) == Kept(frozenset({2}))


def test_no_more_sleep_than_the_pool_keeps() -> None:
    three = [standing(1), standing(2, warm=True, state="sleeping"), standing(3), standing(4)]
    assert kept({A4: 1}, three).asleep == {2}
    assert kept({A4: 1}, three, warm=2).asleep == {2, 3}
    assert kept({A4: 1}, three, warm=0).asleep == set()


def test_warm_engine_is_woken_before_one_is_started() -> None:
    present = [standing(1), standing(2, warm=True, state="sleeping")]
    wanted = [Wanted(1, 1, "SS", {A4: 2})]
    plan = place(wanted, present, [room(4)])
    assert plan.starts == ()
    found = keep(plan, wanted, present, [room(4)], {1: 1})
    assert found == Kept(frozenset(), frozenset({2}), (Start(1, 1, A4, (0, 1, 2, 3)),)), "and another one warms up"


def test_one_is_started_to_sleep_when_gpus_are_free() -> None:
    assert kept({A4: 1}, [standing(1)], free=4).starts == (Start(1, 1, A4, (0, 1, 2, 3)),)
    assert kept({A4: 1}, [standing(1)], free=2).starts == ()
    assert kept({}, [], free=8).starts == (), "of which mode, nobody knows"


def test_new_worker_has_its_gpus_before_a_warm_one_does() -> None:
    assert kept({A4: 1}, [], free=4) == Kept()
    assert kept({A4: 1}, [], free=8).starts == (Start(1, 1, A4, (4, 5, 6, 7)),)


def test_warm_engine_drains_when_another_pool_waits_for_its_gpus() -> None:
    present = [standing(1), standing(2, warm=True, state="sleeping")]
    assert kept({A4: 1}, present).asleep == {2}
    other = Wanted(2, 1, "LL", {A2: 1})
    assert kept({A4: 1}, present, more=[other]) == Kept()


def test_engine_that_still_comes_up_for_work_is_not_put_to_sleep() -> None:
    assert kept({A4: 1}, [standing(1), standing(2, state="starting")]) == Kept()


def test_nothing_is_done_to_those_of_a_silent_node() -> None:
    present = [standing(1, warm=True, state="sleeping")]
    wanted = [Wanted(1, 1, "SS", {A4: 1})]
    assert keep(place(wanted, present, []), wanted, present, [], {1: 1}) == Kept()

"""Carrying out what is wanted: no GPU twice, nobody lost, and it gets there."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.simulator.kernel.commands import Drain, Keep, Move, Reshard, Start
from core.simulator.policies import Plan, PoolPlan
from core.simulator.policies.config import Starting
from core.simulator.policies.fleet_changes import Fleet
from core.simulator.policies.loops import LoopControl, first_members
from core.simulator.policies.node_occupancy import InstanceShape
from core.simulator.policies.view_observations import first_view
from core.types import ChangeKind
from tests.unit.core.simulator.policies.fake_fleet import FakeFleet
from tests.unit.core.simulator.policies.worlds import H100, MODEL, world
from tests.unit.laws import examples

SITES = {"east": 16, "west": 8}


def kind(tp, site="east"):
    return InstanceShape(site, MODEL, H100, tp)


class Wishes:
    """A fleet in which pools a and b get what a list says: [(from_s, {(pool, kind): count})]."""

    def __init__(self, wishes, sites=SITES, drain_s=20.0, starting=None, change=ChangeKind.IN_PLACE):
        self.world = world(sites, tps=(2, 4, 8), classes=("a", "b"))
        self.fleet = Fleet(self.world, ("a", "b"), starting or Starting(), change)
        self.wishes = list(wishes)
        self.fleet.want(self.wishes.pop(0)[1])
        members = first_members(self.fleet, first_view(self.world))
        control = LoopControl("clock", 5.0, self.decide, self.fleet)
        plan = Plan(members, (PoolPlan("a", "weighted"), PoolPlan("b", "weighted")), ("a", "b"), (control,))
        self.fake = FakeFleet(plan, self.world.sites, 2, drain_s)

    def decide(self, view, decisions):
        while self.wishes and self.wishes[0][0] <= view.now_s:
            self.fleet.want(self.wishes.pop(0)[1])
        return []

    def commands(self, kind):
        return [(at_s, command) for at_s, command in self.fake.log if isinstance(command, kind)]


def test_old_instance_serves_until_the_new_one_is_up_when_gpus_are_free():
    run = Wishes([(0, {(0, kind(8)): 1}), (10, {(0, kind(4)): 1})])
    run.fake.run(20)
    assert run.fake.serving() == [8]
    run.fake.run(60)
    assert run.fake.serving() == [4]
    ((at_s, start),) = run.commands(Start)
    assert (at_s, start.ready_in_s, start.replaces) == (10.0, 33.0, ("a-east-H100-SXM-80GB-tp8-1",))
    assert not run.commands(Drain)  # the successor sees to it


def test_old_instance_serves_until_another_is_up_when_its_successor_is_called_off():
    run = Wishes([(0, {(0, kind(2)): 1}), (10, {(0, kind(4)): 1}), (20, {(0, kind(8)): 1})])
    for until_s in range(5, 50, 5):
        run.fake.run(until_s)
        assert run.fake.serving() == [2], until_s
    run.fake.run(90)
    assert run.fake.serving() == [8]


def test_old_instance_stays_when_it_is_wanted_again_before_its_successor_is_up():
    run = Wishes([(0, {(0, kind(8)): 1}), (10, {(0, kind(4)): 1}), (30, {(0, kind(4)): 1, (0, kind(8)): 1})])
    run.fake.run(35)
    assert run.fake.serving() == [8]
    run.fake.run(120)
    assert run.fake.serving() == [4, 8]
    assert len(run.commands(Start)) == 1
    assert [command.instance for _, command in run.commands(Keep)] == ["a-east-H100-SXM-80GB-tp8-1"]


def test_a_node_at_a_time_makes_room_where_nobody_else_serves():
    """Each of the two TP8 needs the GPUs of a TP4, on a node of its own; nobody serves at the other site."""
    wishes = [(0, {(0, kind(8)): 1, (0, kind(4)): 2}), (10, {(0, kind(4)): 1}), (100, {(0, kind(8, "west")): 1})]
    wishes += [(200, {(0, kind(4)): 1, (0, kind(8, "west")): 1}), (300, {(0, kind(8)): 2})]
    run = Wishes(wishes, change=ChangeKind.SHADOW)
    for until_s in range(5, 500, 5):
        run.fake.run(until_s)
        assert run.fake.serving(), until_s
    assert run.fake.serving() == [8, 8]


def test_instance_is_resharded_in_place_when_no_gpu_is_free():
    run = Wishes([(0, {(0, kind(8)): 2}), (10, {(0, kind(8)): 1, (0, kind(4)): 2})])
    run.fake.run(60)
    assert run.fake.serving() == [4, 4, 8]
    assert [len(command.into) for _, command in run.commands(Reshard)] == [2]
    assert not run.commands(Start)


def test_two_small_instances_become_a_large_one_when_they_share_a_node():
    run = Wishes([(0, {(0, kind(4)): 4}), (10, {(0, kind(8)): 2})])
    run.fake.run(60)
    assert run.fake.serving() == [8, 8]


@pytest.mark.parametrize("change", [ChangeKind.SHADOW, ChangeKind.RESTART])
def test_old_instance_ends_before_the_new_ones_start_when_no_gpu_is_free(change):
    run = Wishes([(0, {(0, kind(8)): 2}), (10, {(0, kind(8)): 1, (0, kind(4)): 2})], change=change)
    run.fake.run(25)
    assert run.fake.serving() == [8]
    assert not run.commands(Start)
    run.fake.run(80)
    assert run.fake.serving() == [4, 4, 8]
    assert not run.commands(Reshard)
    assert [at_s for at_s, _ in run.commands(Start)] == [30.0, 30.0], "the drain takes 20 s"


def test_old_ones_but_the_last_drain_at_once_when_there_are_no_shadows():
    """GPUs are free, so that the new ones start at once too."""
    found = {}
    for change in (ChangeKind.SHADOW, ChangeKind.RESTART):
        run = Wishes([(0, {(0, kind(4)): 2}), (10, {(0, kind(2)): 4})], change=change)
        run.fake.run(20)
        found[change] = run.fake.serving()
        assert [at_s for at_s, _ in run.commands(Start)] == [10.0] * 4
        run.fake.run(100)
        assert run.fake.serving() == [2, 2, 2, 2]
    assert found == {ChangeKind.SHADOW: [4, 4], ChangeKind.RESTART: [4]}


def test_the_last_one_serves_on_where_its_gpus_are_not_needed():
    """Of three on both nodes of a site, the one beside which the new one finds a whole node."""
    old = {(0, kind(2)): 1, (0, kind(4)): 3}
    run = Wishes([(0, old), (10, {(0, kind(8)): 1})], change=ChangeKind.RESTART)
    run.fake.run(25)
    assert run.fake.serving() == [2]
    run.fake.run(100)
    assert run.fake.serving() == [8]
    stays = (0, kind(4))
    old = {stays: 1, (1, kind(2)): 1, (1, kind(4)): 2}  # the small one stands on the node that the new one needs
    run = Wishes([(0, old), (10, {stays: 1, (1, kind(8)): 1})], change=ChangeKind.RESTART)
    run.fake.run(25)
    assert run.fake.serving(pool="b") == [4]
    run.fake.run(100)
    assert run.fake.serving(pool="b") == [8]
    full = Wishes([(0, {(0, kind(8, "west")): 1}), (10, {(0, kind(4, "west")): 2})], change=ChangeKind.RESTART)
    full.fake.run(25)
    assert full.fake.serving() == [], "its GPUs are all that there are"
    full.fake.run(100)
    assert full.fake.serving() == [4, 4]


def test_free_gpus_are_those_that_nobody_has_or_waits_for():
    run = Wishes([(0, {(0, kind(8)): 1}), (10, {(0, kind(8)): 2})], change=ChangeKind.SHADOW)
    before = run.fleet.free(run.fake.view())
    assert {site: list(nodes.values()) for site, nodes in before.items()} == {
        "east": [{H100: 0}, {H100: 8}],
        "west": [{H100: 8}],
    }
    run.fleet.want({(0, kind(8)): 1, (0, kind(4)): 1})
    (_, second), _ = (list(enumerate(nodes.values())) for nodes in run.fleet.free(run.fake.view()).values())
    assert second == (1, {H100: 4})
    run.fake.run(60)
    assert list(run.fleet.free(run.fake.view())["east"].values()) == [{H100: 0}, {H100: 0}]


def test_instance_changes_its_pool_when_another_pool_lacks_what_its_own_has_to_spare():
    run = Wishes([(0, {(0, kind(8)): 2}), (10, {(0, kind(8)): 1, (1, kind(8)): 1})])
    run.fake.run(60)
    assert (run.fake.serving(pool="a"), run.fake.serving(pool="b")) == ([8], [8])
    assert not run.commands(Start)
    ((_, move),) = run.commands(Move)
    assert move.pool == "b"


def test_gpus_that_drain_are_not_free():
    run = Wishes([(0, {(0, kind(8)): 2}), (10, {(0, kind(8)): 1, (1, kind(4)): 1})], drain_s=300.0)
    run.fake.run(200)
    assert run.fake.serving(pool="b") == []
    run.fake.run(400)  # FakeFleet would have failed on a GPU used twice
    assert run.fake.serving(pool="b") == [4]


def test_small_instances_move_together_when_room_is_scattered():
    four = {(0, kind(4)): 2, (1, kind(4)): 2}
    run = Wishes([(0, four), (10, {(0, kind(4)): 1, (1, kind(4)): 1}), (100, {(0, kind(8)): 1, (1, kind(4)): 2})])
    run.fake.run(400)
    assert run.fake.serving() == [4, 4, 8]


def test_pools_swap_their_gpus_when_both_wait_for_each_other():
    run = Wishes([(0, {(0, kind(8)): 2, (1, kind(8, "west")): 1}), (10, {(0, kind(8, "west")): 1, (1, kind(8)): 2})])
    run.fake.run(400)
    assert (run.fake.serving(pool="a"), run.fake.serving(pool="b")) == ([8], [8, 8])


def test_start_takes_longer_when_the_warm_pool_is_used_up():
    run = Wishes([(0, {}), (10, {(0, kind(8)): 2})], starting=Starting(warm_pool=1, weights_cached=False))
    run.fake.run(20)
    assert [start.ready_in_s for _, start in run.commands(Start)] == [33.0 + 180.0, 33.0 + 180.0 + 210.0]


def test_what_fits_nowhere_is_known():
    run = Wishes([(0, {(0, kind(8)): 2}), (10, {(0, kind(8)): 3})])
    run.fake.run(60)
    assert run.fake.serving() == [8, 8]
    assert run.fleet.unplaced == ((0, kind(8)),)


@st.composite
def wishes(draw):
    found = []
    for n in range(draw(st.integers(2, 5))):
        free = dict(SITES)
        want: Counter = Counter()
        for _ in range(draw(st.integers(0, 8))):
            site, tp, pool = (
                draw(st.sampled_from(["east", "west"])),
                draw(st.sampled_from([2, 4, 8])),
                draw(st.integers(0, 1)),
            )
            if free[site] >= tp:
                free[site] -= tp
                want[pool, kind(tp, site)] += 1
        found.append((n * draw(st.sampled_from([10, 40, 300])), dict(want)))
    found.sort(key=lambda wish: wish[0])
    return found


@settings(max_examples=examples(15), deadline=None)
@given(wishes(), st.sampled_from([5.0, 60.0]), st.sampled_from(ChangeKind))
def test_fleet_becomes_what_is_wanted_whatever_came_before(found, drain_s, change):
    """TP degrees are powers of two and within each site's GPUs, so that there is always a way."""
    run = Wishes(found, drain_s=drain_s, change=change)
    run.fake.run(4_000)
    want: Counter = Counter(found[-1][1])
    have: Counter = Counter()
    for spec, state, pool in zip(run.fake.specs, run.fake.state, run.fake.pool, strict=True):
        if state:
            have[pool, kind(spec.tp, spec.site)] += 1
    assert have == want
    assert len(run.fake.log) < 200  # it comes to rest

from __future__ import annotations

import pytest

from core.simulator.kernel.commands import Start
from core.simulator.policies import ThresholdConfig, build
from core.types import Limits, SetSmClock
from tests.unit.core.simulator.policies.fake_fleet import FakeFleet
from tests.unit.core.simulator.policies.worlds import world

TOP_MHZ, FLOOR_MHZ = 1980.0, 1330.0  # of the H100; its voltage falls no further below 1330 MHz


def fleet(config=None, **more):
    found = world(more.pop("sites", {"east": 48}), **more)
    return FakeFleet(build(config or ThresholdConfig(), found), found.sites, found.cells)


def reasons(fake, loop):
    return [(d.at_s, d.reason) for d in fake.decisions if d.loop == loop]


def test_first_fleet_carries_the_declared_load():
    assert fleet(rps=2.0).serving() == [8]
    assert len(fleet(rps=60.0).serving()) == 4


def test_first_fleet_is_all_there_is_when_nothing_is_declared():
    fake = fleet(rps=None)
    assert fake.serving() == [8] * 6
    fake.load = [2.0]
    fake.run(1790)
    assert fake.serving() == [8] * 6
    fake.run(2000)  # a whole window has been seen
    assert fake.serving() == [8]


def test_instances_are_added_when_the_load_rises():
    fake = fleet(ThresholdConfig(loops=("scale", "clock")))
    fake.load = [60.0]
    fake.run(1790)
    assert fake.serving() == [8]
    fake.run(1900)
    assert fake.serving() == [8] * 4
    assert [command.ready_in_s for _, command in fake.log if isinstance(command, Start)] == [33.0] * 3


def test_pool_is_helped_between_scale_epochs_when_the_last_minutes_need_more():
    fake = fleet()
    fake.load = [60.0]
    fake.run(290)
    assert fake.serving() == [8]
    fake.run(400)
    assert fake.serving() == [8] * 4
    assert reasons(fake, "shard")[1] == (300.0, "heuristic")


def test_no_more_gpus_are_used_than_the_site_has_when_the_load_is_too_much():
    fake = fleet(sites={"east": 16})
    fake.load = [500.0]
    fake.run(2000)
    assert fake.serving() == [8, 8]
    assert (1800.0, "infeasible") in reasons(fake, "scale")


def test_instances_are_drained_when_the_load_falls():
    fake = fleet(rps=60.0)
    fake.load = [2.0]
    fake.run(2000)
    assert fake.serving() == [8]


def test_one_instance_stays_when_there_is_no_traffic():
    fake = fleet()
    fake.run(8000)
    assert fake.serving() == [8]


def test_pool_does_not_shrink_when_its_instances_are_busy():
    fake = fleet(rps=60.0)
    fake.load = [2.0]
    for i in range(4):
        fake.kv[i] = int(0.5 * fake.specs[i].kv_capacity)
    fake.run(2000)
    assert fake.serving() == [8] * 4
    for i in range(4):
        fake.kv[i] = int(0.9 * fake.specs[i].kv_capacity)
    fake.run(3800)
    assert len(fake.serving()) > 4


def test_second_site_is_used_when_the_first_is_full():
    fake = fleet(sites={"east": 16, "west": 48}, rps=60.0)
    assert (fake.serving("east"), fake.serving("west")) == ([8, 8], [8, 8])


def test_pools_share_the_gpus_when_there_are_too_few():
    fake = fleet(ThresholdConfig(partition="dynamo"), sites={"east": 32}, classes=("short", "long"), rps=100.0)
    assert (fake.serving(pool="short"), fake.serving(pool="long")) == ([8, 8], [8, 8])


def test_clock_goes_up_at_once_when_requests_wait_and_down_in_steps_when_calm():
    fake = fleet()
    fake.run(10)
    assert fake.mhz == [TOP_MHZ - 3 * 90.0]
    fake.waiting[0] = 1
    fake.run(15)
    assert fake.mhz == [TOP_MHZ]
    fake.waiting[0] = 0
    fake.run(200)
    assert fake.mhz == [FLOOR_MHZ]


@pytest.mark.parametrize(("ttft_s", "mhz"), [(0.79, FLOOR_MHZ), (0.81, TOP_MHZ)])
def test_clock_goes_up_when_a_latency_nears_its_limit(ttft_s, mhz):
    fake = fleet(limits=Limits(ttft_s=1.0))
    fake.run(100)
    fake.late_s[0] = ttft_s
    fake.run(105)
    assert fake.mhz == [mhz]


def test_clock_stays_when_load_is_middling():
    fake = fleet()
    fake.kv[0] = int(0.6 * fake.specs[0].kv_capacity)
    fake.run(300)
    assert not [command for _, command in fake.log if isinstance(command, SetSmClock)]


def test_clock_floor_is_kept_when_configured():
    fake = fleet(ThresholdConfig(clock_floor_mhz=1700.0))
    fake.run(300)
    assert fake.mhz == [1700.0]


def test_tp_degree_changes_when_another_drew_less_for_three_epochs():
    fake = fleet(tps=(2, 4, 8), rps=0.3)
    assert fake.serving() == [2]
    fake.load = [5.0]
    fake.run(1000)
    assert fake.serving() == [4]
    changes = [d.at_s for d in fake.decisions if d.loop == "shard" and "TP4" in d.summary]
    assert changes == [900.0]


def test_class_without_a_mode_is_served_all_the_same_and_reported():
    fake = fleet(limits=Limits(ttft_s=0.001))
    fake.run(100)
    assert fake.serving() == [8]
    assert fake.decisions[0].reason == "infeasible"
    assert "TP8" in fake.decisions[0].summary


def test_same_views_give_the_same_answers():
    logs = []
    for _ in range(2):
        fake = fleet(tps=(2, 4, 8), rps=20.0)
        for until_s, rps in ((2000, 40.0), (4000, 5.0), (6000, 90.0)):
            fake.load = [rps]
            fake.run(until_s)
        logs.append((fake.log, fake.decisions))
    assert logs[0] == logs[1]


def test_loop_does_not_run_when_it_is_off():
    found = world({"east": 48})
    assert [c.name for c in build(ThresholdConfig(loops=("clock",)), found).controls] == ["clock"]

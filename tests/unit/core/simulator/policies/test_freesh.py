from __future__ import annotations

from dataclasses import replace

import pytest

from core.simulator.kernel.commands import Assign, Start
from core.simulator.kernel.simulated import SimulationError
from core.simulator.policies import (
    CellLoad,
    ClassInfo,
    FreeshConfig,
    PartitionInfo,
    ServiceInfo,
    SiteInfo,
    World,
    build,
    read_policy,
)
from core.types import ChangeKind, Limits
from tests.unit.core.simulator.policies.fake_fleet import FakeFleet
from tests.unit.core.simulator.policies.worlds import H100, LIMITS, MODEL, templates, world

STEPS = 6
SITES = {"east": 32, "west": 32}


def clean(site):
    """An intensity feed where one site is clean."""
    return lambda name, from_s, to_s, step_s: ((50.0 if name == site else 500.0),) * STEPS


def fleet(config=None, **more):
    more = {"intensity": clean("west"), "tps": (2, 4, 8)} | more
    found = world(more.pop("sites", SITES), **more)
    return FakeFleet(build(config or FreeshConfig(), found), found.sites, found.cells)


def logged(fake, loop):
    return [d for d in fake.decisions if d.loop == loop]


def test_load_goes_to_the_cleaner_site():
    fake = fleet()
    assert fake.serving("west")
    assert not fake.serving("east")


@pytest.mark.parametrize("change", [ChangeKind.SHADOW, ChangeKind.RESTART])
def test_load_moves_when_the_other_site_becomes_cleaner(change):
    def turning(name, from_s, to_s, step_s):
        return clean("west" if from_s < 1800 else "east")(name, from_s, to_s, step_s)

    fake = fleet(FreeshConfig(change=change), intensity=turning)
    fake.load = [2.0]
    fake.run(1800)
    assert fake.serving("west")  # the old one serves until the new one is up
    assert not fake.serving("east")
    ((at_s, start),) = [(at_s, command) for at_s, command in fake.log if isinstance(command, Start)]
    assert (at_s, len(start.replaces)) == (1800.0, int(change is ChangeKind.SHADOW))
    fake.run(1900)
    assert fake.serving("east")
    assert not fake.serving("west")


def test_site_without_intensity_gets_nothing_while_another_has_one():
    fake = fleet(intensity=lambda name, from_s, to_s, step_s: (None,) * STEPS if name == "west" else (900.0,) * STEPS)
    assert fake.serving("east")
    assert not fake.serving("west")


def test_least_energy_is_planned_for_when_no_site_has_an_intensity():
    fake = fleet(intensity=lambda name, from_s, to_s, step_s: ())
    assert fake.serving()
    fake.load = [50.0]
    fake.run(2000)
    assert sum(fake.serving()) > 4


def test_workers_follow_the_load():
    fake = fleet()
    fake.load = [40.0]
    fake.run(2000)
    many = sum(fake.serving())
    fake.load = [1.0]
    fake.run(6000)
    assert many > 8 > sum(fake.serving()) > 0


def test_no_more_gpus_are_used_than_the_sites_have_when_the_load_is_too_much():
    fake = fleet(sites={"east": 8, "west": 8})
    fake.load = [500.0]
    fake.run(2000)
    assert sum(fake.serving()) == 16
    assert logged(fake, "carbon")[-1].reason == "infeasible"
    assert "Planned for" in logged(fake, "carbon")[-1].summary


def test_every_class_keeps_a_floor_when_there_is_no_traffic():
    fake = fleet(classes=("short", "long"), rps=None)
    fake.run(4000)
    assert fake.serving(pool="short")
    assert fake.serving(pool="long")


def test_class_without_a_mode_is_reported_and_served_when_its_slo_cannot_be_met():
    fake = fleet(limits=Limits(ttft_s=0.001))
    fake.load = [2.0]
    fake.run(2000)
    assert fake.serving()
    assert {d.reason for d in logged(fake, "carbon")} == {"infeasible"}
    assert "no mode keeps its limits" in logged(fake, "carbon")[0].summary


def test_clock_doubles_when_requests_wait_and_falls_step_by_step_when_not():
    fake = fleet(FreeshConfig(clock_floor="gpu"))
    fake.run(1800)
    assert fake.mhz == [210.0]
    fake.waiting[0] = 2
    fake.run(1805)
    assert fake.mhz == [420.0]
    fake.waiting[0] = 0
    fake.run(1810)
    assert fake.mhz == [320.0]


def test_clock_rises_when_a_latency_crosses_its_margin():
    fake = fleet(FreeshConfig(clock_floor="gpu"))
    fake.run(1800)
    fake.late_s[0] = 0.9 * (LIMITS.ttft_s or 0.0)
    fake.run(1805)
    assert fake.mhz == [420.0]


def test_clock_rises_at_the_share_of_the_latencys_own_limit_and_stops_at_its_floor():
    fake = fleet(FreeshConfig(ttft_share=0.95, tpot_share=0.5, clock_floor_mhz=700.0))
    fake.run(1800)
    assert fake.mhz == [700.0]
    fake.late_s[0] = 0.9 * (LIMITS.ttft_s or 0.0)
    fake.run(1805)
    assert fake.mhz == [700.0]
    fake.late_s[0] = 0.96 * (LIMITS.ttft_s or 0.0)
    fake.run(1810)
    assert fake.mhz == [1400.0]


def test_clock_decisions_are_logged_only_when_something_changed():
    fake = fleet()
    fake.run(600)
    clocks = logged(fake, "clock")
    assert 0 < len(clocks) <= 18  # from 1980 to 210 MHz by 100
    assert {d.reason for d in clocks} == {"slack"}


def test_mixed_pool_shares_by_what_instances_carry():
    fake = fleet(tps=(2, 8), rps=45.0, sites={"west": 32, "east": 32})
    weights = {spec.tp: weight for spec, weight in zip(fake.specs, fake.weight, strict=True)}
    assert set(weights) >= {8}
    assert all(weight > 1.0 for weight in weights.values())


def two_partitions():
    """Cells: short and long prompts x outputs. Partition a cuts by output, b by prompt; both call them s and l."""
    loose = Limits(1.0, 0.1)
    a = PartitionInfo("a", (ClassInfo("s", loose), ClassInfo("l", loose)), {0: 0, 1: 1, 2: 0, 3: 1})
    b = PartitionInfo("b", (ClassInfo("s", loose), ClassInfo("l", loose)), {0: 0, 1: 0, 2: 1, 3: 1})
    return ServiceInfo("chat", MODEL, (a, b))


def test_cells_change_pools_when_the_partition_changes():
    lengths = ((200.0, 50.0), (200.0, 900.0), (6000.0, 50.0), (6000.0, 900.0))
    declared = tuple(CellLoad(2.0, prompt, output) for prompt, output in lengths)
    found = World(
        (SiteInfo("east", {H100: 64}),),
        (two_partitions(),),
        templates(["east"], (2, 4, 8)),
        4,
        declared,
        intensity=lambda name, from_s, to_s, step_s: (300.0,) * STEPS,
    )
    plans = {p: build(FreeshConfig(partition=p), found) for p in ("a", "b")}
    assert plans["a"].cell_pool == ("s", "l", "s", "l")
    assert plans["b"].cell_pool == ("s", "s", "l", "l")
    free = build(FreeshConfig(), found)
    assert [pool.name for pool in free.pools] == ["s", "l"]
    fake = FakeFleet(free, found.sites, 4)
    for load in ((20.0, 0.1, 0.1, 0.1), (0.1, 20.0, 0.1, 5.0), (0.1, 0.1, 20.0, 0.1), (9.0, 9.0, 9.0, 9.0)):
        fake.load = list(load)
        fake.run(fake.now_s + 3600)
    for _, command in fake.log:
        if isinstance(command, Assign):
            assert set(command.pools) == {0, 1, 2, 3}
    assert tuple(fake.cell_pool) in {plans["a"].cell_pool, plans["b"].cell_pool}


def test_gpus_move_between_pools_without_the_carbon_loop():
    fake = fleet(FreeshConfig(loops=("scale", "clock")), sites={"west": 16}, classes=("short", "long"), rps=8.0)
    before = sum(fake.serving(pool="short"))
    fake.load = [30.0, 0.0]
    fake.run(4000)
    assert sum(fake.serving(pool="short")) > before
    assert fake.serving(pool="long")
    assert not logged(fake, "carbon")


def test_services_do_not_plan_for_each_others_gpus():
    found = world({"west": 16}, tps=(2, 4, 8), rps=30.0, classes=("all",), intensity=clean("west"))
    (first,) = found.services
    second = replace(first, name="code", partitions=(replace(first.partitions[0], cell_class={1: 0}),))
    both = replace(found, services=(first, second), cells=2, declared=found.declared * 2)
    plan = build(FreeshConfig(), both)
    fake = FakeFleet(plan, both.sites, 2)
    fake.load = [60.0, 60.0]
    fake.run(4000)
    assert fake.serving(pool="chat/all")
    assert fake.serving(pool="code/all")


def test_same_views_give_the_same_answers():
    logs = []
    for _ in range(2):
        fake = fleet(rps=20.0, classes=("short", "long"))
        for until_s, rps in ((2000, 40.0), (4000, 5.0), (6000, 60.0)):
            fake.load = [rps, rps / 2]
            fake.run(until_s)
        logs.append(([command for _, command in fake.log], [d.summary for d in fake.decisions]))
    assert logs[0] == logs[1]


@pytest.mark.parametrize("loops", [("carbon",), ("scale",), ("shard",), ("clock",), ("carbon", "clock")])
def test_only_the_loops_that_are_on_run(loops):
    found = world(SITES, intensity=clean("west"))
    names = tuple(c.name for c in build(FreeshConfig(loops=loops), found).controls)
    assert names == (loops if "clock" in loops else (*loops, "changes"))


def test_partition_is_refused_when_there_is_none_of_that_name():
    with pytest.raises(SimulationError, match=r"unknown 'x'; known: only"):
        build(FreeshConfig(partition="x"), world(SITES))


def test_baseline_has_the_fewest_classes_and_no_loop_when_it_begins():
    loose = Limits(1.0, 0.1)
    info = two_partitions()
    whole = PartitionInfo("whole", (ClassInfo("all", loose),), dict.fromkeys(range(4), 0))
    declared = tuple(CellLoad(2.0, prompt, 300.0) for prompt in (200.0, 200.0, 6000.0, 6000.0))
    found = World(
        (SiteInfo("east", {H100: 64}),),
        (replace(info, partitions=(*info.partitions, whole)),),
        templates(["east"], (2, 4, 8)),
        4,
        declared,
        intensity=lambda name, from_s, to_s, step_s: (300.0,) * STEPS,
    )
    plan = build(read_policy({"name": "freesh_baseline"}), found)
    assert plan.controls == ()
    assert set(plan.cell_pool) == {"all"}
    assert {member.spec.scheduling.order for member in plan.members} == {"fcfs"}
    assert {member.spec.scheduling.preempts_s for member in plan.members} == {0.0}
    assert {member.spec.mhz for member in plan.members} == {1980.0}


@pytest.mark.parametrize(("order", "preempts_s"), [("llf", 1.0), ("srtf", 0.0)])
def test_queues_are_in_the_order_of_the_policy(order, preempts_s):
    plan = build(FreeshConfig(order=order, preempts_s=preempts_s), world({"east": 64}))
    found = [member.spec.scheduling for member in plan.members]
    assert {(s.order, s.preempts_s) for s in found} == {(order, preempts_s)}
    assert all(s.token_s > s.prefill_token_s > 0.0 for s in found)

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from core.controllers.fleet.right_size import RightSizeConfig
from core.engine.engine_model import gpu
from core.simulator import shipped_scenarios
from core.simulator.fields import ScenarioError
from core.simulator.kernel.commands import Start
from core.simulator.policies import CellLoad, SiteInfo, build, read_policy
from core.simulator.policies.greenserve import GreenserveConfig
from core.simulator.policies.greenserve.demand import ServiceDemand
from core.simulator.policies.greenserve.loops import Greenserve
from core.simulator.runs.runner import requests_of, run_scenario
from core.simulator.scenario.scenario import read_scenario
from core.types import Limits, Mode, SetSmClock
from tests.unit.core.simulator.policies.fake_fleet import FakeFleet
from tests.unit.core.simulator.policies.worlds import H100, world

LIMITS = Limits(ttft_s=0.25, tpot_s=0.1)
KNOWN = GreenserveConfig(fleet=RightSizeConfig(learn_s=0.0))  # no spare instances
UNBOUND = read_policy({"name": "greenserve", "hold_s": 10, "loops": ["scale"]})


def fleet(config=None, sites=None, **more):
    found = world(sites or {"east": 48}, limits=LIMITS, **more)
    return FakeFleet(build(config or KNOWN, found), found.sites, found.cells)


def test_first_fleet_carries_the_declared_load():
    assert fleet(rps=2.0).serving() == [8]
    assert len(fleet(rps=40.0).serving()) > 2


def test_a_spare_instance_goes_once_the_load_is_known():
    fake = fleet(GreenserveConfig(), rps=2.0)
    fake.load = [2.0]
    fake.run(500)
    assert fake.serving() == [8, 8]
    fake.run(800)
    assert fake.serving() == [8]


def test_fleet_follows_the_load_within_a_start_when_it_rises():
    fake = fleet()
    fake.load = [2.0]
    fake.run(100)
    assert fake.serving() == [8]
    fake.load = [40.0]
    fake.run(150)
    assert len(fake.serving()) > 2
    assert {command.ready_in_s for _, command in fake.log if isinstance(command, Start)} == {33.0}


def test_fleet_shrinks_when_less_has_done_for_a_while():
    fake = fleet(rps=40.0)
    before = len(fake.serving())
    fake.load = [2.0]
    fake.run(60)
    assert len(fake.serving()) == before
    fake.run(300)
    assert len(fake.serving()) > 1, "capacity for what was declared goes as an hour becomes known"
    fake.run(3700)
    assert fake.serving() == [8]


def test_clocks_fall_when_the_load_is_small():
    fake = fleet(read_policy({"name": "greenserve", "scale": "static", "clock": "profile"}))
    fake.load = [2.0]
    fake.run(60)
    assert fake.serving() == [8] * 6
    last = [command.mhz for _, command in fake.log if isinstance(command, SetSmClock)][-1]
    assert last < 1980.0


def test_no_clock_is_below_the_floor_that_is_set():
    lowest = {}
    for floor in ({}, {"clock_floor": "voltage"}, {"clock_floor_mhz": 1500.0}):
        fake = fleet(read_policy({"name": "greenserve", "scale": "static", "clock": "profile", **floor}))
        fake.load = [2.0]
        fake.run(60)
        set_mhz = [command.mhz for _, command in fake.log if isinstance(command, SetSmClock)]
        lowest[next(iter(floor), "")] = min(set_mhz)
    assert lowest[""] <= lowest["clock_floor"] < lowest["clock_floor_mhz"] == 1500.0
    assert lowest["clock_floor"] >= gpu("H100-SXM-80GB").f_v


@pytest.mark.parametrize(
    ("knobs", "floor_mhz"),
    [({}, gpu(H100).f_min), ({"clock_floor": "voltage"}, gpu(H100).f_v), ({"clock_floor_mhz": 1500.0}, 1500.0)],
)
def test_instances_are_paced_by_deadlines_down_to_the_floor(knobs, floor_mhz):
    found = world({"east": 48}, limits=LIMITS, rps=2.0)
    plan = build(read_policy({"name": "greenserve", **knobs}), found)
    assert {member.spec.pacing.floor_mhz for member in plan.members} == {floor_mhz}
    assert set(plan.cell_limits) == {Limits(0.7 * 0.25, 0.95 * 0.1)}
    assert [control.name for control in plan.controls] == ["scale"]


@pytest.mark.parametrize("knobs", [{"clock": "fixed"}, {"clock": "profile"}])
def test_nobody_is_paced_when_the_clock_is_set_from_outside(knobs):
    plan = build(read_policy({"name": "greenserve", **knobs}), world({"east": 48}, limits=LIMITS, rps=2.0))
    assert {member.spec.pacing for member in plan.members} == {None}


def test_idle_fleet_is_one_instance_when_there_is_no_traffic():
    fake = fleet(rps=0.01)
    fake.load = [0.0]
    fake.run(200)
    assert fake.serving() == [8]


def by_site(**g_per_kwh):
    return lambda site, from_s, to_s, step_s: (g_per_kwh[site](from_s),) * 6


def where(fake):
    return {site for site in ("east", "west") if fake.serving(site)}


def test_fleet_is_where_the_grid_is_cleanest_and_moves_with_it():
    carbon = by_site(east=lambda at_s: 100.0 if at_s < 200.0 else 900.0, west=lambda at_s: 400.0)
    fake = fleet(sites={"east": 16, "west": 16}, intensity=carbon)
    fake.load = [2.0]
    fake.run(100)
    assert where(fake) == {"east"}
    fake.run(400)
    assert where(fake) == {"west"}


@pytest.mark.parametrize("stale", [None, float("nan")])
def test_least_energy_is_planned_when_a_sites_carbon_is_unknown(stale):
    fake = fleet(sites={"east": 16, "west": 16}, intensity=by_site(east=lambda at_s: 900.0, west=lambda at_s: stale))
    fake.load = [2.0]
    fake.run(200)
    assert where(fake) == {"east"}


def test_kinds_are_mixed_and_share_the_load_by_what_each_carries():
    """8 GPUs at each site: the cleaner one's are not enough, and a TP8 more than the rest needs."""
    carbon = by_site(east=lambda at_s: 900.0, west=lambda at_s: 100.0)
    fake = fleet(sites={"east": 8, "west": 8}, intensity=carbon, tps=(4, 8), rps=24.0)
    fake.load = [24.0]
    fake.run(120)
    assert fake.serving("west") in ([8], [4, 4])
    assert fake.serving("east") == [4]
    shares = {fake.specs[n].tp: fake.weight[n] for n in range(len(fake.specs)) if fake.state[n]}
    assert min(shares.values()) > 0.0


def demand_of(own):
    return ServiceDemand(GreenserveConfig(), own, own.services[0])


def highest_w(fake, site):
    """Of all that stands there, each instance at the most that it draws at any clock and load."""
    demand = demand_of(world({"east": 48}, limits=LIMITS, tps=(4, 8)))
    most = {tp: float(demand.load.profile(Mode(H100, tp)).watts.max()) for tp in (4, 8)}
    return sum(most[own.tp] for own, state in zip(fake.specs, fake.state, strict=True) if state and own.site == site)


def test_site_never_draws_more_than_its_power_cap_when_the_load_would_want_it():
    capped = (SiteInfo("east", {H100: 32}), SiteInfo("west", {H100: 32}, pue=1.2, power_cap_w=12_000.0))
    swap = by_site(east=lambda at_s: 500.0, west=lambda at_s: 100.0 if at_s < 300.0 else 300.0)
    fake = fleet(sites=capped, intensity=swap, tps=(4, 8), rps=10.0)
    for until_s, rps in ((100, 10.0), (200, 60.0), (300, 20.0), (400, 2.0), (600, 90.0)):
        fake.load = [rps]
        while fake.now_s <= until_s:
            fake.run(fake.now_s)
            assert 1.2 * highest_w(fake, "west") <= 12_000.0
    assert fake.serving("east")  # the rest of the load
    uncapped = fleet(sites=(capped[0], replace(capped[1], power_cap_w=None)), intensity=swap, tps=(4, 8), rps=60.0)
    assert 1.2 * highest_w(uncapped, "west") > 12_000.0


def test_site_has_no_more_changes_in_an_hour_than_its_budget_when_load_and_carbon_swing():
    config = read_policy({"name": "greenserve", "changes_per_hour": 3, "hold_s": 10, "loops": ["scale"]})
    swing = by_site(east=lambda at_s: 100.0 + 800.0 * (at_s // 200.0 % 2), west=lambda at_s: 400.0)
    free, held = (fleet(own, sites={"east": 16, "west": 16}, intensity=swing) for own in (UNBOUND, config))
    for fake in (free, held):
        for n in range(8):
            fake.load = [(2.0, 25.0)[n % 2]]
            fake.run(100.0 * (n + 1))

    def most_starts(fake):
        sites = [command.spec.site for _, command in fake.log if isinstance(command, Start)]
        return max(sites.count(site) for site in ("east", "west"))

    assert most_starts(free) > 3
    assert 0 < most_starts(held) <= 3


def test_fleet_stays_when_its_figures_stop_coming():
    fake = fleet(rps=40.0)
    fake.load = [40.0]
    fake.run(100)
    before = fake.serving()
    for _ in range(40):  # time goes on and nothing more is seen
        fake.step()
        fake.now_s += 5.0
    assert fake.serving() == before
    assert {own.reason for own in fake.decisions if own.loop == "scale" and own.at_s > 200.0} == {"no_data"}


def test_one_instance_is_left_at_the_cleanest_site_when_there_is_no_traffic():
    carbon = by_site(east=lambda at_s: 300.0, west=lambda at_s: 100.0)
    fake = fleet(sites={"east": 16, "west": 16}, intensity=carbon, rps=30.0)
    fake.load = [0.0]
    fake.run(3700)
    assert (fake.serving("east"), fake.serving("west")) == ([], [8])


def test_limits_follow_the_class_whose_prompts_have_the_least_time():
    """Short prompts wait for one long prompt's chunk, and not for two whole ones."""
    one = world({"east": 16}, limits=LIMITS)
    two = world({"east": 16}, classes=("short", "long"), limits=LIMITS)
    loads = (CellLoad(2.0, 40.0, 200.0), CellLoad(1.0, 300.0, 200.0))
    tight, loose = (demand_of(own).load.profile(Mode(H100, 8)) for own in (one, replace(two, declared=loads)))
    assert loose.ttft_s[0, 0] < tight.ttft_s[0, 0]


def test_running_requests_are_those_with_long_answers_when_answers_differ():
    two = world({"east": 16}, classes=("short", "long"), limits=LIMITS)
    loads = (CellLoad(1.0, 100.0, 100.0), CellLoad(1.0, 100.0, 900.0))
    demand = demand_of(replace(two, declared=loads))
    assert demand.lengths.output_tokens == 500.0
    assert demand.lengths.context_tokens == 100.0 + (100.0 * 50.0 + 900.0 * 450.0) / 1000.0


def test_e2e_limit_asks_for_a_tpot_where_a_mode_keeps_it():
    """200 output tokens in 8 s are 40 ms each; in 0.5 s they are not to be had, and the limit is left out."""
    for e2e_s, expected in ((8.0, pytest.approx((8.0 - 0.25) / 200.0)), (0.5, pytest.approx(0.05))):
        demand = demand_of(world({"east": 16}, limits=replace(LIMITS, e2e_s=e2e_s)))
        assert demand.load.planned(demand.offers(0.0), 0.7, 0.5).tpot_s == expected


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"loops": ["shard"]}, "policy.loops: unknown 'shard'; known: scale, clock"),
        ({"headroom": 0.9}, "policy.headroom: must be at least 1"),
        ({"min_saving": 1.0}, "policy.min_saving: must be below 1"),
        ({"margin": 1.2}, "policy.margin: must be at most 1"),
        ({"changes_per_hour": 0}, "policy.changes_per_hour: must be at least 1"),
        ({"hold": 3}, "policy.hold: unknown field"),
    ],
)
def test_error_names_the_field_and_the_remedy_when_wrong(values, message):
    with pytest.raises(ScenarioError, match=message):
        read_policy({"name": "greenserve", **values})


def test_keys_are_read_when_given():
    found = read_policy({"name": "greenserve", "loops": ["clock"], "burst": 1.2, "margin": 0.8, "scale_period_s": 5})
    assert isinstance(found, GreenserveConfig)
    assert (found.loops, found.fleet.burst, found.margin, found.fleet.period_s) == (("clock",), 1.2, 0.8, 5.0)


def pools_of(name, rps=20.0, gpus=64, **own):
    """Returns how many instances begin in each pool, and the plan."""
    plan = build(read_policy({"name": name, **own}), world({"east": gpus}, limits=Limits(0.6, 0.1), rps=rps))
    return Counter(member.pool for member in plan.members), plan


def test_a_share_of_the_instances_does_prompts_alone_when_requests_are_split():
    found, plan = pools_of("greenserve", scale="static", split="prompt", tuning={"split": {"first_share": 0.25}})
    assert found == {"chat": 2, "chat/second": 6}
    first, second = plan.pools
    assert (first.handover.to, first.handover.at) == ("chat/second", "prompt")
    assert (first.spills, second.spills) == (("chat/second",), ("chat",))
    assert plan.cell_pool == ("chat",)


def test_share_is_that_of_rates_which_both_parts_sustain():
    found, _ = pools_of("voltanallm")
    demand = ServiceDemand(read_policy({"name": "voltanallm"}), *one_service(Limits(0.6, 0.1)))
    assert found["chat"] == round(8 * demand.load.phases(Mode(H100, 8)).first_share)
    assert 0 < found["chat"] < 8


@pytest.mark.parametrize("tps", [(2, 8), (4, 8), (2, 4)])
def test_of_unlike_instances_those_that_lean_most_to_prompts_do_them(tps):
    own = Greenserve(read_policy({"name": "biscale"}), world({"east": 64}, tps, limits=Limits(0.6, 0.1))).services[0]
    modes = [Mode(H100, tp) for tp in tps]
    own.wanted = {("east", mode): 1 for mode in modes}
    leaning = {mode.tp: own.demand.load.phases(mode).leaning for mode in modes}
    by_pool = {pool: kind.tp for pool, kind in own.parts()}
    assert leaning[by_pool[own.pools[0]]] > leaning[by_pool[own.pools[1]]]


def one_service(limits):
    found = world({"east": 64}, limits=limits, rps=20.0)
    return found, found.services[0]


def test_biscale_has_as_many_instances_as_the_load_needs_and_voltanallm_all():
    few, more = (pools_of("biscale", rps)[0].total() for rps in (2.0, 60.0))
    assert few < more
    assert pools_of("voltanallm", 2.0)[0].total() == 8
    assert [control.name for control in pools_of("biscale")[1].controls] == ["scale"]
    assert pools_of("voltanallm")[1].controls == ()


def test_a_single_instance_does_both_parts():
    known = {"right_size": {"learn_s": 0.0}}
    found, _ = pools_of("biscale", 0.01, tuning=known)
    assert found == {"chat": 1}
    ran = simulated("biscale {tuning: {right_size: {learn_s: 0}}}", "workload.rate_scale=0.05", "fleet.tp_choices=[8]")
    assert len(ran.instances) == 1
    assert ran.spent_j["decode"].sum() > ran.spent_j["prefill"].sum() > 0.0


def simulated(text, *settings):
    scenario = read_scenario(
        shipped_scenarios.folder() / "dynamollm-70b-h100.yaml", ["workload.duration_s=20", *settings]
    )
    return run_scenario(scenario, requests_of(scenario), text).outcome


def test_clocks_of_the_presets_look_ahead_or_at_the_next_iteration_and_know_how_long_a_switch_takes():
    pacing = {name: pools_of(name)[1].members[0].spec.pacing for name in ("biscale", "voltanallm", "greenserve")}
    assert {name: (own.ahead, own.switch_s) for name, own in pacing.items()} == {
        "biscale": (True, 0.065),
        "voltanallm": (False, 0.065),
        "greenserve": (True, 0.065),
    }
    assert pacing["voltanallm"].step_mhz > pacing["biscale"].step_mhz


def test_answers_go_by_least_energy_and_prompts_by_turns():
    _, plan = pools_of("voltanallm")
    assert [pool.routing for pool in plan.pools] == ["round_robin", "least_energy"]

"""Policies that change nothing: the scenario's groups, or a fleet that knobs say, and the rules at each instance."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from core.simulator import shipped_scenarios
from core.simulator.kernel.simulated import Scheduling, SimulationError
from core.simulator.policies import PartitionInfo, Plan, StaticConfig, build, read_policy
from core.simulator.runs.runner import Run, requests_of, run_scenario
from core.simulator.scenario.scenario import read_scenario
from tests.unit.core.simulator.policies.fake_fleet import FakeFleet
from tests.unit.core.simulator.policies.worlds import service, world


def first_fleet(name: str, found: Any, **own: Any) -> Counter[tuple[str, str, int]]:
    """Returns how many instances begin, by site, pool and TP degree."""
    plan = build(read_policy({"name": name, **own}), found)
    return Counter((member.spec.site, member.pool, member.spec.tp) for member in plan.members)


def run(text: str, **more: str) -> Run:
    settings = ["workload.duration_s=10", *(f"{key}={value}" for key, value in more.items())]
    scenario = read_scenario(shipped_scenarios.folder() / "three-sites-carbon.yaml", settings)
    return run_scenario(scenario, requests_of(scenario), text)


def test_the_scenarios_groups_are_the_fleet_when_no_knob_says_what_it_is_to_be():
    assert read_policy({"name": "single_pool"}) == StaticConfig("single_pool")
    assert read_policy({"name": "single_pool", "tp": 8, "order": "fcfs"}) == StaticConfig("single_pool")
    assert not read_policy({"name": "single_pool", "order": "llf"}).cuts_fleet
    assert read_policy({"name": "single_pool", "tp": 4}).cuts_fleet


def test_all_gpus_of_all_sites_are_cut_as_the_knobs_say():
    found = world({"east": 16, "west": 8}, tps=(8, 4, 2))
    assert first_fleet("single_pool", found, tp=4) == {("east", "ALL", 4): 4, ("west", "ALL", 4): 2}
    assert first_fleet("single_pool", found, alpha=1.5) == {("east", "ALL", 8): 2, ("west", "ALL", 8): 1}
    loads = (world({"east": 16, "west": 8}, (8, 4, 2), rps=rps) for rps in (2.0, 20.0))
    few, more = (first_fleet("least_loaded", load, fill="enough", tp=4).total() for load in loads)
    assert (few, more) == (1, 2)
    found = world({"east": 16, "west": 8}, tps=(8, 4, 2), rps=20.0)
    for own in ({"plan_tpot_share": 0.3}, {"alpha": 2.0}):
        assert first_fleet("least_loaded", found, fill="enough", tp=4, **own).total() > more


def test_each_class_of_the_partition_has_a_pool_and_a_class_without_one_goes_to_the_next_larger():
    found = world({"east": 24}, tps=(8,), classes=("small", "large"))
    fleet = first_fleet("multi_pool", found, alpha=1.2)
    assert {pool for _, pool, _ in fleet} == {"small", "large"}
    assert fleet.total() == 3
    plan = build(read_policy({"name": "multi_pool", "alpha": 1.2}), world({"east": 8}, (8,), ("small", "large")))
    assert [member.pool for member in plan.members] == ["large"]
    assert plan.cell_pool == ("large", "large")


def test_partition_is_named_or_refused():
    info = service("small", "large")
    one = PartitionInfo("one", info.partitions[0].classes[:1], {0: 0, 1: 0})
    found = world({"east": 8}, classes=("small", "large"))
    both = type(found)(
        found.sites,
        (type(info)(info.name, info.model, (*info.partitions, one)),),
        found.templates,
        found.cells,
        found.declared,
    )
    assert {pool for _, pool, _ in first_fleet("multi_pool", both, partition="one")} == {"small"}
    with pytest.raises(SimulationError, match=r"policy\.partition: unknown 'two'; known: only, one, whole"):
        first_fleet("multi_pool", both, partition="two")


def test_gpus_are_shared_out_anew_when_another_way_carries_what_comes_much_better():
    found = world({"east": 32}, classes=("small", "large"), rps=20.0)
    fake = FakeFleet(build(read_policy({"name": "multi_pool", "partition": "only"}), found), found.sites, found.cells)
    assert (fake.serving(pool="small"), fake.serving(pool="large")) == ([8, 8], [8, 8])
    fake.load = [70.0, 1.0]
    fake.run(1_790)
    assert (fake.serving(pool="small"), fake.serving(pool="large")) == ([8, 8], [8, 8])
    fake.run(3_700)
    assert (fake.serving(pool="small"), fake.serving(pool="large")) == ([8, 8, 8], [8])


def test_instances_of_a_class_are_two_stages_when_requests_are_split():
    def plan_of(gpus: int) -> Plan:
        own = {"name": "disaggregated", "tp": 4, "tuning": {"split": {"first_share": 0.3}}}
        return build(read_policy(own), world({"east": gpus}, tps=(4,)))

    plan = plan_of(32)
    assert Counter(member.pool for member in plan.members) == {"ALL": 2, "ALL/second": 6}
    first = next(pool for pool in plan.pools if pool.name == "ALL")
    assert (first.handover.to, first.handover.at, plan.cell_pool) == ("ALL/second", "prompt", ("ALL",))
    alone = plan_of(4)
    assert ([member.pool for member in alone.members], alone.cell_pool) == (["ALL/both"], ("ALL/both",))


@pytest.mark.parametrize("fleet", ["", ", tp: 4"])
def test_instances_have_the_knobs_rules_on_groups_and_on_a_fleet_that_is_cut(fleet):
    rules = "order: spf, chunk_tokens: 256, itl_limit_s: null, max_num_seqs: 9, route: least_loaded"
    found = run(f"single_pool {{{rules}{fleet}}}")
    assert {spec.max_sequences for spec in found.fleet.instances} == {9}
    assert {pool.routing for pool in found.fleet.pools} == {"least_loaded"}
    wanted = Scheduling("srtf", prefill_token_s=1.0, margin=1.0, itl_limit_s=0.15, chunk_tokens=256)
    assert {spec.scheduling for spec in found.fleet.instances} == {wanted}


def test_instances_have_the_presets_rules_or_an_order_by_the_work_left():
    assert {spec.scheduling for spec in run("single_pool").fleet.instances} == {Scheduling()}
    llf = run("single_pool {order: llf, preempts_s: 2, tuning: {queue: {margin_s: 3}}}").fleet.instances[0].scheduling
    assert (llf.order, llf.preempts_s, llf.margin) == ("llf", 2.0, 3.0)
    assert llf.token_s > llf.prefill_token_s > 0.0


def test_a_fleet_that_is_cut_serves_on_the_gpus_of_the_sites():
    found = run("single_pool {tp: 2}")
    gpus = Counter[str]()
    for spec in found.fleet.instances:
        gpus[spec.site] += spec.tp
    assert {spec.tp for spec in found.fleet.instances} <= {1, 2}
    assert sum(gpus.values()) > 0
    assert found.outcome is not None

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.algorithms.fleet.fleet_milp import NegativeIntensity, Objective
from core.algorithms.fleet.fleet_problem import FleetProblem, why_not
from core.controllers.fleet.carbon import CarbonConfig, step
from core.types import CarbonPlan, ChoosePartition, PartitionOption, PoolKey, Reason, SetGpuBudget, SiteView
from tests.unit.core.fleets import A2, A4, A8, drawn_partitions, drawn_sites, observation, partition, site
from tests.unit.laws import examples

CONFIG = CarbonConfig()
TWO_SITES = (site("coal", 800.0, 800.0), site("wind", 50.0, 50.0))


def test_partition_and_budgets_are_commanded_when_there_is_no_plan() -> None:
    state, effects = step(None, observation(TWO_SITES, partition("p", LS=1.0, SS=4.0)), CONFIG)
    assert state is not None
    assert effects.commands == (
        ChoosePartition("p"),
        SetGpuBudget(PoolKey("wind", "LS"), {"A100-80GB": 2}),
        SetGpuBudget(PoolKey("wind", "SS"), {"A100-80GB": 4}),
    )
    assert effects.rationale.reason is Reason.OPTIMAL
    assert effects.next_tick_s == 1_600.0
    assert "Partition p, workers: 2 at wind" in effects.rationale.summary


def test_rationale_carries_inputs_and_alternatives_when_decided() -> None:
    _, effects = step(None, observation(TWO_SITES, partition("a", LS=1.0), partition("b", LS=5.0)), CONFIG)
    inputs = json.loads(json.dumps(effects.rationale.inputs, allow_nan=False))
    assert inputs["sites"][1] == {
        "name": "wind",
        "gpus": {"A100-80GB": 8},
        "pue": 1.0,
        "intensity_g_per_kwh": [50.0, 50.0],
    }
    assert inputs["partitions"][0]["classes"][0]["need_rps"] == pytest.approx(1.1)
    assert inputs["partitions"][0]["profiles"]["LS A100-80GB/TP2"]["source"] == "published"
    assert set(inputs["solver"]) == {"status", "objective", "bound", "gap", "solve_s"}
    rows = {row.label: row for row in effects.rationale.alternatives}
    assert rows["Partition a"].chosen
    assert not rows["Partition b"].chosen
    assert rows["Partition a"].power_w == pytest.approx(740.0)
    assert rows["Partition a"].energy_j == pytest.approx(740.0 * 600.0)
    assert rows["Partition a"].carbon_gco2e == pytest.approx(740.0 * 600.0 / 3.6e6 * 50.0)


def test_workers_move_when_the_wind_turns() -> None:
    option = partition("p", LS=1.0)
    state, _ = step(None, observation(TWO_SITES, option), CONFIG)
    turned = (site("coal", 40.0, 40.0), site("wind", 700.0, 700.0))
    moved, effects = step(state, observation(turned, option), CONFIG)
    assert moved is not None
    assert dict(moved.workers) == {("coal", "LS", A2): 1}
    assert "less than the present plan" in effects.rationale.summary
    assert effects.rationale.alternatives[-1].label == "Present plan"
    assert not effects.rationale.alternatives[-1].chosen


def test_plan_stays_when_the_saving_is_small() -> None:
    option = partition("p", LS=1.0)
    state, _ = step(None, observation(TWO_SITES, option), CONFIG)
    nearly = (site("coal", 49.8, 49.8), site("wind", 50.0, 50.0))
    kept, effects = step(state, observation(nearly, option), CONFIG)
    assert kept is state
    assert effects.commands == ()
    assert effects.rationale.reason is Reason.NO_CHANGE
    assert "saves only 0.4%" in effects.rationale.summary
    assert [row.label for row in effects.rationale.alternatives if row.chosen] == ["Present plan"]


def test_plan_stays_when_it_is_the_best() -> None:
    obs = observation(TWO_SITES, partition("p", LS=1.0))
    state, _ = step(None, obs, CONFIG)
    kept, effects = step(state, obs, CONFIG)
    assert kept is state
    assert "no plan found costs less" in effects.rationale.summary


def test_most_of_the_demand_is_planned_for_when_infeasible_and_the_best_effort_is_asked_for() -> None:
    config, obs = replace(CONFIG, best_effort=True), observation(TWO_SITES, partition("p", LS=50.0))
    before = CarbonPlan("p", {("wind", "LS", A2): 1})
    plan, effects = step(before, obs, config)
    assert plan is not None
    assert dict(plan.workers) == {("coal", "LS", A8): 1, ("wind", "LS", A8): 1}
    assert [command.gpus for command in effects.commands if isinstance(command, SetGpuBudget)] == [{"A100-80GB": 8}] * 2
    assert effects.rationale.reason is Reason.INFEASIBLE
    assert effects.rationale.summary.startswith("No plan carries the demand")
    assert "Planned for 4" in effects.rationale.summary
    assert 24.0 / 55.0 >= effects.rationale.inputs["planned_share"] > 0.4
    (chosen,) = [row for row in effects.rationale.alternatives if row.chosen]
    assert chosen.power_w == 2 * 2_300.0
    # It is in force already.
    again, effects = step(plan, obs, config)
    assert (again, effects.commands, effects.rationale.reason) == (plan, (), Reason.INFEASIBLE)


def test_last_plan_stays_when_infeasible() -> None:
    state = CarbonPlan("p", {("wind", "LS", A2): 1})
    kept, effects = step(state, observation(TWO_SITES, partition("p", LS=1.0, LL=50.0)), CONFIG)
    assert kept is state
    assert effects.commands == ()
    assert effects.rationale.reason is Reason.INFEASIBLE
    assert "LL needs 55.00 requests/s" in effects.rationale.summary
    assert effects.rationale.alternatives[0].failed
    assert not effects.rationale.alternatives[0].feasible
    assert effects.rationale.alternatives[-1].failed


def test_there_is_no_plan_when_the_first_epoch_is_infeasible() -> None:
    state, effects = step(None, observation(TWO_SITES, partition("p", LL=50.0)), CONFIG)
    assert state is None
    assert "there is no plan yet" in effects.rationale.summary


def test_site_is_left_out_and_named_when_its_feed_has_a_gap() -> None:
    sites = (site("coal", 800.0, 800.0), site("wind", 50.0, None))
    state, effects = step(None, observation(sites, partition("p", LS=1.0)), CONFIG)
    assert state is not None
    assert {place for place, _, _ in state.workers} == {"coal"}
    assert "Left out for want of intensity: wind" in effects.rationale.summary
    assert effects.rationale.inputs["sites"][1]["intensity_g_per_kwh"] == [50.0, None]


def test_last_plan_stays_when_no_feed_has_data() -> None:
    sites = (site("coal", None, None), site("wind", 50.0, None))
    state = CarbonPlan("p", {("wind", "LS", A2): 1})
    kept, effects = step(state, observation(sites, partition("p", LS=1.0)), CONFIG)
    assert kept is state
    assert effects.rationale.reason is Reason.NO_DATA
    assert effects.commands == ()


def test_intensity_is_not_needed_when_energy_is_the_objective() -> None:
    sites = (site("warm", None, None, pue=1.5), site("cool", None, None, pue=1.1))
    state, effects = step(None, observation(sites, partition("p", LS=1.0)), CarbonConfig(objective=Objective.ENERGY))
    assert state is not None
    assert {place for place, _, _ in state.workers} == {"cool"}
    assert "MJ" in effects.rationale.summary
    assert effects.rationale.alternatives[0].carbon_gco2e is None


@pytest.mark.parametrize(
    ("state", "failed"),
    [
        (CarbonPlan("gone", {("wind", "LS", A2): 1}), "no longer offered"),
        (CarbonPlan("p", {("wind", "LS", A8): 2}), "offers 8 A100-80GB, not 16"),
        (CarbonPlan("p", {("wind", "SL", A2): 1}), "cannot serve SL"),
        (CarbonPlan("p", {("moon", "LS", A2): 1}), "cannot serve LS"),
        (CarbonPlan("p", {("wind", "LS", A2): 1}), "LS needs 3.30 requests/s"),
    ],
)
def test_present_plan_is_replaced_when_it_breaks_a_constraint(state: CarbonPlan, failed: str) -> None:
    replaced, effects = step(state, observation(TWO_SITES, partition("p", LS=3.0)), CONFIG)
    assert replaced is not None
    assert dict(replaced.workers) == {("wind", "LS", A4): 1}
    assert failed in (effects.rationale.alternatives[-1].failed or "")


def test_every_class_is_served_when_there_is_no_traffic_at_all() -> None:
    state, _ = step(None, observation(TWO_SITES, partition("p", LS=0.0, SS=0.0)), CONFIG)
    assert state is not None
    assert {name for _, name, _ in state.workers} == {"LS", "SS"}


@pytest.mark.parametrize("knobs", [{"alpha": 0.9}, {"objective": "money"}, {"negative_intensity": "ignore"}])
def test_configuration_is_refused_when_a_knob_is_wrong(knobs: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"alpha|not a valid"):
        CarbonConfig(**knobs)  # type: ignore[arg-type]


@settings(max_examples=examples(20), deadline=None)
@given(drawn_sites(), drawn_sites(), drawn_partitions("a"), drawn_partitions("b"), st.sampled_from(NegativeIntensity))
def test_plan_in_force_keeps_every_constraint_when_the_world_changes(
    before: tuple[SiteView, ...],
    after: tuple[SiteView, ...],
    a: PartitionOption,
    b: PartitionOption,
    negative: NegativeIntensity,
) -> None:
    config = replace(CONFIG, negative_intensity=negative)
    state, _ = step(None, observation(before, a, b), config)
    plan, effects = step(state, observation(after, a, b), config)
    json.dumps(effects.rationale.inputs, allow_nan=False)
    if effects.rationale.reason is Reason.INFEASIBLE:
        assert plan is state
        assert effects.commands == ()
        return
    assert plan is not None
    problem = FleetProblem(after, (a, b), 300.0, config.alpha, config.floor_rps, config.objective, negative)
    assert why_not(problem, plan.workers, a if plan.partition == "a" else b) is None
    if effects.rationale.reason is not Reason.NO_CHANGE:
        given_ = {(c.pool.site, gpu): 0 for c in effects.commands if isinstance(c, SetGpuBudget) for gpu in c.gpus}
        for command in effects.commands:
            if isinstance(command, SetGpuBudget):
                for gpu, count in command.gpus.items():
                    given_[command.pool.site, gpu] += count
        offered = {item.name: item.gpus for item in after}
        assert all(count <= offered[place][gpu] for (place, gpu), count in given_.items())


def test_classes_share_an_instance_when_there_are_too_few_gpus_for_one_each() -> None:
    """The service got no plan, and so no instance at all."""
    config = replace(CONFIG, best_effort=True)
    few = (site("coal", 800.0, 800.0, a100=4),)
    plan, effects = step(None, observation(few, partition("p", SS=0.5, LS=1.0, LL=0.5)), config)
    assert plan is not None
    assert {name for _, name, _ in plan.workers} == {"LS", "LL"}
    assert "with SS served by LS's instances" in effects.rationale.summary
    assert effects.rationale.reason is Reason.INFEASIBLE
    fewer = (site("coal", 800.0, 800.0, a100=2),)
    plan, effects = step(None, observation(fewer, partition("p", SS=0.5, LS=1.0, LL=0.5)), config)
    assert plan is not None
    assert dict(plan.workers) == {("coal", "LL", A2): 1}
    assert "with SS, LS served by LL's instances" in effects.rationale.summary

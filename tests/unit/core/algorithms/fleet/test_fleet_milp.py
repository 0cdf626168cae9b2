import itertools
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.algorithms.fleet import fleet_milp, highs
from core.algorithms.fleet.fleet_milp import (
    FleetProblem,
    NegativeIntensity,
    Objective,
    ObjectiveWeights,
    SolverStatus,
    greedy_fleet,
    solve_fleet,
)
from core.algorithms.fleet.fleet_problem import plan_cost, plan_power_w, usable, why_not
from core.algorithms.fleet.highs import SolverResult
from core.types import Limits, PartitionOption, SiteView
from tests.unit.core.fleets import A2, A4, A8, H4, demand, drawn_partitions, drawn_sites, partition, profile, site


def problem(sites: tuple[SiteView, ...], *partitions: PartitionOption, **knobs: object) -> FleetProblem:
    return FleetProblem(sites, partitions, 300.0, **knobs)  # type: ignore[arg-type]


def test_cleanest_site_is_chosen_when_it_has_room() -> None:
    plan = solve_fleet(problem((site("coal", 800.0, 900.0), site("wind", 50.0, 60.0)), partition(LS=1.0)))
    assert plan.status is SolverStatus.OPTIMAL
    assert dict(plan.workers) == {("wind", "LS", A2): 1}
    assert plan.objective == pytest.approx(740.0 * 300.0 * (50.0 + 60.0) / 3.6e6)
    assert plan.gap == pytest.approx(0.0, abs=1e-4)


def test_demand_spreads_when_the_cleanest_site_is_full() -> None:
    plan = solve_fleet(problem((site("coal", 800.0), site("wind", 50.0, a100=4)), partition(LS=8.0)))
    assert {place for place, _, _ in plan.workers} == {"coal", "wind"}


def test_pue_counts_when_energy_is_the_objective() -> None:
    sites = (site("warm", 10.0, pue=1.6), site("cool", 900.0, pue=1.1))
    plan = solve_fleet(problem(sites, partition(LS=1.0), objective=Objective.ENERGY))
    assert [place for place, _, _ in plan.workers] == ["cool"]
    assert plan.objective == pytest.approx(740.0 * 1.1 * 300.0)


def test_cheaper_partition_is_chosen_when_there_are_two() -> None:
    plan = solve_fleet(problem((site("north"),), partition("costly", LS=5.0, SS=1.0), partition("frugal", LS=1.0)))
    assert plan.partition == "frugal"
    assert set(plan.by_partition) == {"costly", "frugal"}
    assert plan.by_partition["costly"].objective is not None


def test_mode_is_left_out_when_it_breaks_the_limits() -> None:
    option = PartitionOption(
        "p",
        (demand("LS", 1.0, Limits(e2e_s=10.0)),),
        {("LS", A2): profile(2.0, 100.0, e2e_s=11.0), ("LS", A4): profile(2.0, 900.0, e2e_s=9.0)},
    )
    plan = solve_fleet(problem((site("north"),), option))
    assert dict(plan.workers) == {("north", "LS", A4): 1}


def test_class_without_traffic_is_served_when_there_is_a_floor() -> None:
    plan = solve_fleet(problem((site("north"),), partition(LS=1.0, SS=0.0), floor_rps=0.05))
    assert {name for _, name, _ in plan.workers} == {"LS", "SS"}
    bare = solve_fleet(problem((site("north"),), partition(LS=1.0, SS=0.0)))
    assert {name for _, name, _ in bare.workers} == {"LS"}


def test_power_is_spared_when_every_gram_is_free() -> None:
    plan = solve_fleet(problem((site("sun", 0.0, 0.0, a100=8, h100=4),), partition(LS=1.0)))
    assert plan.objective == 0.0
    assert dict(plan.workers) == {("sun", "LS", A2): 1}


def test_thriftier_partition_is_chosen_when_every_gram_is_free() -> None:
    sites = (site("sun", 0.0, 0.0, a100=12),)
    plan = solve_fleet(problem(sites, partition("costly", LS=5.0), partition("frugal", LS=1.0)))
    assert plan.partition == "frugal"


def test_cheaper_of_two_is_found_when_another_site_is_far_dearer() -> None:
    option = PartitionOption(
        "p", (demand("LS", 1.0),), {("LS", A2): profile(2.0, 1_080.0), ("LS", A4): profile(2.0, 1_079.0)}
    )
    sites = (site("dear", 500_000.0), site("cheap", 0.5))
    plan = solve_fleet(problem(sites, option), gap=0.0)
    assert dict(plan.workers) == {("cheap", "LS", A4): 1}


def test_negative_intensity_counts_as_zero_when_clamped() -> None:
    plan = solve_fleet(problem((site("surplus", -100.0, -100.0),), partition(LS=1.0)))
    assert plan.objective == 0.0
    assert dict(plan.workers) == {("surplus", "LS", A2): 1}


def test_surplus_is_burnt_when_negative_intensity_is_followed() -> None:
    plan = solve_fleet(
        problem(
            (site("surplus", -100.0, -100.0),),
            partition(LS=1.0),
            negative_intensity=NegativeIntensity.FOLLOW,
        )
    )
    assert plan.objective is not None
    assert plan.objective < 0.0
    assert sum(mode.tp * count for (_, _, mode), count in plan.workers.items()) == 8


def test_site_is_not_chosen_when_a_step_has_no_intensity() -> None:
    sites = (site("blind", 1.0, None), site("coal", 900.0, 900.0))
    plan = solve_fleet(problem(sites, partition(LS=1.0)))
    assert [place for place, _, _ in plan.workers] == ["coal"]
    by_energy = solve_fleet(problem(sites, partition(LS=1.0), objective=Objective.ENERGY))
    assert by_energy.objective is not None


@pytest.mark.parametrize(
    ("option", "words"),
    [
        (partition(SS=1.0, LL=40.0), "LL needs 44.00 requests/s, the whole fleet carries at most 12.00"),
        (partition(SS=7.0, LL=7.0), r"together need more GPUs than there are .*SS 64%, LL 64%"),
        (
            PartitionOption("p", (demand("LL", 1.0),), {("LL", A2): profile(0.0, 700.0)}),
            "no worker can serve it .*A100-80GB/TP2: no capacity within the SLO",
        ),
        (PartitionOption("p", (demand("LL", 1.0),), {("LL", H4): profile(5.0, 700.0)}), "H100-SXM-80GB/TP4: no GPUs"),
        (PartitionOption("p", (demand("LL", 1.0),), {}), "no mode has a profile for it"),
    ],
)
def test_reason_names_the_class_when_infeasible(option: PartitionOption, words: str) -> None:
    plan = solve_fleet(problem((site("north"),), option))
    assert plan.status is SolverStatus.INFEASIBLE
    assert plan.objective is None
    with pytest.raises(AssertionError, match=words):
        raise AssertionError(plan.failed)


def test_feasible_partition_is_chosen_when_the_other_is_not() -> None:
    plan = solve_fleet(problem((site("north"),), partition("heavy", LS=99.0), partition("light", LS=1.0)))
    assert (plan.partition, plan.status) == ("light", SolverStatus.OPTIMAL)
    assert plan.by_partition["heavy"].failed


def test_plan_is_infeasible_when_there_are_no_partitions() -> None:
    assert solve_fleet(problem((site("north"),))).status is SolverStatus.INFEASIBLE


def test_greedy_plan_is_taken_when_the_solver_finds_nothing_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(highs, "search", lambda *_: (None, SolverResult(False, 0.5, SolverStatus.FEASIBLE)))
    plan = solve_fleet(problem((site("north"),), partition(LS=1.0)))
    assert plan.status is SolverStatus.HEURISTIC
    assert plan.workers
    assert plan.bound is not None
    assert plan.objective is not None
    assert plan.bound <= plan.objective


def test_optimality_is_not_claimed_when_another_partition_was_cut_short(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = fleet_milp._partition_plan

    def cut_short(*arguments: object) -> fleet_milp.FleetPlan:
        plan = whole(*arguments)  # type: ignore[arg-type]
        if plan.partition == "cut":
            return fleet_milp.FleetPlan(
                SolverStatus.FEASIBLE, plan.objective, 0.0, 1.0, "cut", plan.workers, plan.solve_s
            )
        return plan

    monkeypatch.setattr(fleet_milp, "_partition_plan", cut_short)
    plan = solve_fleet(problem((site("north"),), partition("cut", LS=4.0), partition("light", LS=1.0)))
    assert (plan.partition, plan.status, plan.bound) == ("light", SolverStatus.FEASIBLE, 0.0)
    assert plan.gap == pytest.approx(1.0)


def test_no_file_is_left_when_solved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    solve_fleet(problem((site("north"),), partition(LS=3.0, SS=2.0)))
    assert os.listdir(tmp_path) == []


def test_plan_is_the_best_of_all_when_counted_out() -> None:
    sites = (site("coal", 800.0, a100=4), site("wind", 100.0, a100=4, h100=4))
    option = partition(LS=9.0)
    task = problem(sites, option)
    kinds = [(place, "LS", mode) for place, modes in (("coal", (A2, A4)), ("wind", (A2, A4, H4))) for mode in modes]
    costs = []
    for counts in itertools.product(range(3), repeat=len(kinds)):
        workers = dict(zip(kinds, counts, strict=True))
        if why_not(task, workers, option) is None:
            costs.append(plan_cost(task, workers, option))
    assert solve_fleet(task, gap=0.0).objective == pytest.approx(min(cost for cost in costs if cost is not None))


@settings(max_examples=60, deadline=None)
@given(drawn_sites(), drawn_partitions("a"), drawn_partitions("b"), st.sampled_from(list(Objective)))
def test_plan_keeps_every_constraint_and_beats_greed_when_solved(
    sites: tuple[SiteView, ...], a: PartitionOption, b: PartitionOption, objective: Objective
) -> None:
    task = problem(sites, a, b, objective=objective, floor_rps=0.05, weights=ObjectiveWeights(1.0, 1e-6, 100.0))
    plan = solve_fleet(task)
    greedy = {option.name: greedy_fleet(task, option) for option in (a, b)}
    found = [item.objective for item in greedy.values() if item.objective is not None]
    if plan.objective is None:
        assert not found
        assert plan.failed
        return
    chosen = a if plan.partition == "a" else b
    assert why_not(task, plan.workers, chosen) is None
    assert all((name, mode) in usable(chosen) for _, name, mode in plan.workers)
    assert plan_power_w(plan.workers, chosen) > 0.0
    assert plan.objective <= min(found, default=plan.objective) * (1 + 2e-4) + 1e-6
    assert plan.bound is not None
    assert plan.bound <= plan.objective + 1e-6
    for name, item in greedy.items():
        if item.objective is not None:
            assert why_not(task, item.workers, a if name == "a" else b) is None


def test_a_larger_fleet_is_planned_in_time_when_demand_is_high() -> None:
    sites = tuple(site(f"s{i}", 100.0 + 37 * i, 90.0 + 41 * i, a100=64, h100=32) for i in range(12))
    names = ("SS", "SL", "LS", "LL")
    option = partition("p", **{name: 90.0 + 20 * i for i, name in enumerate(names)})
    plan = solve_fleet(problem(sites, option), time_limit_s=10.0, gap=1e-3)
    assert plan.solve_s < 11.0
    assert why_not(problem(sites, option), plan.workers, option) is None
    assert A8 in {mode for _, _, mode in plan.workers} or H4 in {mode for _, _, mode in plan.workers}

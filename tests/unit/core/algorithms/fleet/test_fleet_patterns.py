"""Eq. 1 by patterns: its bound holds, its plans keep the constraints, and crowded fleets are planned to a small gap."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from core.algorithms.fleet.fleet_milp import SolverStatus, _Search, _Task, solve_fleet
from core.algorithms.fleet.fleet_problem import FleetProblem, NegativeIntensity, plan_cost, why_not
from core.types import ClassDemand, Limits, PartitionOption, SiteView
from tests.unit.core.fleets import A2, H4, MODES, demand, drawn_partitions, drawn_sites, partition, profile, site
from tests.unit.laws import examples


def looked(problem: FleetProblem, option: PartitionOption, best: float = math.inf) -> _Task:
    task = _Task(problem, option)
    if task.bound is not None:
        task.look(_Search(time.perf_counter(), 30.0, 1e-4, 0.0, best), 1)
    return task


ALMOST_CLEAN = (site("north", 0.0, 6e-5, a100=2, h100=4), site("south", 312.0, 900.0, a100=2))
LITTLE = PartitionOption("a", (demand("SS", 0.0),), {("SS", A2): profile(1.0, 200.0), ("SS", H4): profile(1.0, 397.0)})


@settings(max_examples=examples(30), deadline=None)
@example(ALMOST_CLEAN, LITTLE, NegativeIntensity.CLAMP)
@given(drawn_sites(), drawn_partitions("a"), st.sampled_from(list(NegativeIntensity)))
def test_bound_and_plan_enclose_the_optimum_when_fleets_are_random(
    sites: tuple[SiteView, ...], option: PartitionOption, negative: NegativeIntensity
) -> None:
    problem = FleetProblem(sites, (option,), 300.0, floor_rps=0.05, negative_intensity=negative)
    exact, task = solve_fleet(problem, gap=0.0), looked(problem, option)
    if exact.objective is None:
        assert task.counts is None
        return
    slack = 1e-6 * max(1.0, abs(exact.objective))
    assert task.bound is not None
    assert task.bound <= exact.objective + slack
    if task.counts is not None:
        workers = {choice.worker: int(n) for choice, n in zip(task.choices, task.counts, strict=True) if n}
        assert why_not(problem, workers, option) is None
        cost = plan_cost(problem, workers, option)
        assert cost is not None
        assert cost >= exact.objective - slack


def test_bound_is_above_the_relaxed_one_when_the_last_worker_is_a_part() -> None:
    option = partition(LS=15.0)
    problem = FleetProblem((site("coal", 800.0), site("wind", 100.0, a100=64)), (option,), 300.0)
    task, exact = looked(problem, option), solve_fleet(problem, gap=0.0)
    assert exact.objective is not None
    assert task.bound is not None
    relaxed = _Task(problem, option).bound
    assert relaxed is not None
    assert relaxed < 0.99 * task.bound
    assert task.bound == pytest.approx(exact.objective)  # with GPUs to spare it is the optimum itself


def test_no_plan_is_looked_for_when_another_partition_has_a_better_one() -> None:
    option = partition(LS=9.0)
    problem = FleetProblem((site("coal", 800.0),), (option,), 300.0)
    first = looked(problem, option)
    assert first.counts is not None
    assert first.bound is not None
    assert looked(problem, option, best=0.5 * first.bound).counts is None


def crowded(sites: int, classes: int, load: float) -> FleetProblem:
    """Demand takes that part of all GPUs, at sites whose intensities lie far apart."""
    rng = np.random.default_rng(7)
    names = [f"c{n}" for n in range(classes)]
    profiles = {}
    for name in names:
        for mode in MODES:
            gpus = sum(mode.gpus.values())
            profiles[name, mode] = profile(gpus * rng.uniform(0.8, 1.3), gpus * rng.uniform(300.0, 420.0))
    each_rps = load * sites * 48 / classes / 1.1
    option = PartitionOption("p", tuple(ClassDemand(name, (each_rps,), Limits()) for name in names), profiles)
    places = (site(f"s{n}", rng.uniform(100.0, 2500.0), a100=32, h100=16) for n in range(sites))
    return FleetProblem(tuple(places), (option,), 300.0)


@pytest.mark.parametrize(
    ("sites", "classes", "load"),
    [(8, 6, 0.3), (16, 8, 0.6), pytest.param(16, 8, 0.3, marks=pytest.mark.slow("a program that takes seconds"))],
)
def test_crowded_fleet_is_planned_to_a_thousandth(sites: int, classes: int, load: float) -> None:
    problem = crowded(sites, classes, load)
    plan = solve_fleet(problem, time_limit_s=60.0, gap=1e-3)
    assert plan.status is SolverStatus.OPTIMAL
    assert plan.gap is not None
    assert plan.gap <= 1e-3
    assert why_not(problem, plan.workers, problem.partitions[0]) is None

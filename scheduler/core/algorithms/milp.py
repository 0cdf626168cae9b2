"""FREESH eq. 1: how many workers of which mode at which site for which request class, as an integer program.

    min   sum over sites l, classes c, modes m of  k_l P_cm n_lcm                                              (1a)
    s.t.  exactly one partition is chosen                                                                      (1b)
          sum over l, m of  Q_cm n_lcm  >=  alpha D_c(t)        for each of its classes c and each step t      (1c)
          sum over c, m of  TP_m n_lcm  <=  G_lg                for each site l and GPU type g                 (1d)
          n_lcm = 0 where the mode breaks the class's latency limits or has no capacity                        (1e)
          n_lcm whole and not negative                                                                         (1f)

n counts workers, P is a worker's power at its largest rate Q, D the forecast demand. k_l is what a watt at site l costs
over the steps: PUE x seconds (energy, J) or PUE x sum of intensity x seconds / 3.6e6 (carbon, gCO2e). Workers stay for
the whole horizon, so (1c) binds at the step of most demand. Once the partition is fixed the rest is one integer
program; (1b) is therefore decided by solving each partition and taking the best, which also gives the best plan of
every partition as an alternative. Solved by HiGHS through PuLP, in memory: no files are written.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace

import pulp

from scheduler.core.algorithms import highs
from scheduler.core.algorithms.fleet import (
    FleetPlan,
    FleetProblem,
    NegativeIntensity,
    Objective,
    Option,
    greedy_fleet,
    options,
    plan_cost,
    plan_power_w,
    why_infeasible,
)
from scheduler.core.algorithms.highs import Status
from scheduler.core.types import PartitionOption

__all__ = ["FleetPlan", "FleetProblem", "NegativeIntensity", "Objective", "Status", "greedy_fleet", "solve_fleet"]


def solve_fleet(problem: FleetProblem, time_limit_s: float = 20.0, gap: float = 1e-4) -> FleetPlan:
    """Solves eq. 1. Never raises for a problem without a solution: the plan's status and `failed` say so.

    Args:
        time_limit_s: Shared by the partitions; at the limit the best plan found is returned (`feasible`), or a greedy
            one when the solver has none (`heuristic`).
        gap: Relative distance from the bound at which a plan counts as optimal.
    """
    started = time.perf_counter()
    plans: dict[str, FleetPlan] = {}
    for index, partition in enumerate(problem.partitions):
        left_s = time_limit_s - (time.perf_counter() - started)
        plans[partition.name] = _solve_partition(
            problem, partition, max(0.1, left_s / (len(problem.partitions) - index)), gap
        )
    solve_s = time.perf_counter() - started
    solved = {name: plan for name, plan in plans.items() if plan.objective is not None}
    if not solved:
        failed = " ".join(f"{name}: {plan.failed}" for name, plan in plans.items()) or "there is no partition."
        return FleetPlan(Status.INFEASIBLE, None, None, None, "", {}, solve_s, failed, plans)
    partitions = {item.name: item for item in problem.partitions}
    best = min(
        solved.values(), key=lambda plan: (_objective(plan), plan_power_w(plan.workers, partitions[plan.partition]))
    )
    # The bound of the whole is that of the best partition; one whose search was cut short may yet beat the best plan.
    bounds = [-math.inf if plan.bound is None else plan.bound for plan in solved.values()]
    bound = min(bounds) if min(bounds) > -math.inf else None
    proven = all(
        plan.status is Status.OPTIMAL or (plan.bound is not None and plan.bound >= _objective(best))
        for plan in plans.values()
        if plan.status is not Status.INFEASIBLE
    )
    status = Status.FEASIBLE if best.status is Status.OPTIMAL and not proven else best.status
    return replace(
        best, status=status, bound=bound, gap=_gap(_objective(best), bound), solve_s=solve_s, by_partition=plans
    )


def _objective(plan: FleetPlan) -> float:
    return math.inf if plan.objective is None else plan.objective


def _gap(objective: float, bound: float | None) -> float | None:
    """Relative distance of `objective` from `bound`; None without a bound or when the objective is 0."""
    if bound is None or (objective == 0.0 and bound < 0.0):
        return None
    return max(0.0, objective - bound) / abs(objective) if objective else 0.0


def _solve_partition(problem: FleetProblem, partition: PartitionOption, time_limit_s: float, gap: float) -> FleetPlan:
    started = time.perf_counter()
    choices = options(problem, partition)
    solver = _Program(problem, partition, choices) if choices else None
    found, bound, status = solver.least_cost(time_limit_s, gap) if solver else (None, None, Status.INFEASIBLE)
    if status is Status.INFEASIBLE:
        failed = why_infeasible(problem, partition)
        return FleetPlan(status, None, None, None, partition.name, {}, time.perf_counter() - started, failed)
    if found is None:
        plan = greedy_fleet(problem, partition)
    else:
        workers = {option.worker: n for option, n in zip(choices, found, strict=True) if n}
        plan = FleetPlan(status, plan_cost(problem, workers, partition), None, None, partition.name, workers, 0.0)
    if plan.objective is not None and bound is not None:
        bound = min(bound, plan.objective)
        plan = replace(plan, bound=bound, gap=_gap(plan.objective, bound))
    return replace(plan, solve_s=time.perf_counter() - started)


class _Program:
    """Eq. 1 for one partition, as HiGHS sees it: a variable for each option, rows (1c) and (1d)."""

    def __init__(self, problem: FleetProblem, partition: PartitionOption, choices: list[Option]) -> None:
        self._choices = choices
        # Costs are scaled to about 1, for the solver's absolute tolerances.
        self._scale = max(abs(option.cost) for option in choices) or 1.0
        self._program = pulp.LpProblem("fleet", pulp.LpMinimize)
        self._counts = [self._program.add_variable(f"n{i}", 0, cat=pulp.LpInteger) for i in range(len(choices))]
        self._cost = self._sum([option.cost / self._scale for option in choices])
        for name, rps in problem.need_rps(partition).items():
            self._program += self._sum([o.max_rps if o.worker[1] == name else 0.0 for o in choices]) >= rps
        for site in problem.sites:
            for gpu, gpus in site.gpus.items():
                on = [(o.worker[0], o.worker[2].gpu) == (site.name, gpu) for o in choices]
                taken = self._sum([o.worker[2].tp if here else 0.0 for o, here in zip(choices, on, strict=True)])
                self._program += taken <= gpus

    def least_cost(self, time_limit_s: float, gap: float) -> tuple[list[int] | None, float | None, Status]:
        """Counts, bound in the objective's unit, status. No counts: infeasible, or nothing found in time (feasible)."""
        self._program.setObjective(self._cost)
        started = time.perf_counter()
        found, bound, status = self._run(time_limit_s, gap)
        if found is not None and any(option.cost == 0.0 for option in self._choices):
            # At a site of intensity 0 every plan costs the same: of the cheapest plans, take the thriftiest.
            reached = math.fsum(o.cost * n for o, n in zip(self._choices, found, strict=True)) / self._scale
            most_w = max(option.power_w for option in self._choices)
            self._program += self._cost <= reached + 1e-9
            self._program.setObjective(self._sum([option.power_w / most_w for option in self._choices]))
            thrifty, _, _ = self._run(max(0.1, time_limit_s - (time.perf_counter() - started)), gap)
            found = thrifty or found
        return found, None if bound is None else bound * self._scale, status

    def _sum(self, coefficients: list[float]) -> pulp.LpAffineExpression:
        return pulp.LpAffineExpression([(n, c) for n, c in zip(self._counts, coefficients, strict=True) if c])

    def _run(self, time_limit_s: float, gap: float) -> tuple[list[int] | None, float | None, Status]:
        outcome = highs.run(self._program, time_limit_s, gap)
        counts = [round(n.varValue) for n in self._counts] if outcome.found else None
        return counts, outcome.bound, outcome.status

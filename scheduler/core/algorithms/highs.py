"""Runs a PuLP program in HiGHS, in memory and on one thread, and tells the bound and limits that PuLP hides."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

import highspy
import pulp


class Status(StrEnum):
    OPTIMAL = "optimal"  # within the gap asked for
    FEASIBLE = "feasible"  # the best found within the time limit
    HEURISTIC = "heuristic"  # greedy: the solver found nothing within the time limit
    INFEASIBLE = "infeasible"


@dataclass(frozen=True, slots=True)
class Outcome:
    """`found`: the variables have values. Neither found nor infeasible: the time limit came first."""

    found: bool
    bound: float | None
    status: Status


def run(program: pulp.LpProblem, time_limit_s: float, gap: float) -> Outcome:
    """Solves `program`, whose variables must all be bounded by its rows. Blocks for at most about `time_limit_s`."""
    program.solve(pulp.HiGHS(msg=False, threads=1, timeLimit=time_limit_s, gapRel=gap))
    model = program.solverModel
    status = model.getModelStatus()
    if status in (highspy.HighsModelStatus.kInfeasible, highspy.HighsModelStatus.kUnboundedOrInfeasible):
        return Outcome(False, None, Status.INFEASIBLE)
    info = model.getInfo()
    bound = info.mip_dual_bound if math.isfinite(info.mip_dual_bound) else None
    found = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
    proven = found and status == highspy.HighsModelStatus.kOptimal
    return Outcome(found, bound, Status.OPTIMAL if proven else Status.FEASIBLE)

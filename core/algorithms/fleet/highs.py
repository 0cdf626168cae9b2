"""HiGHS on one thread and in memory: PuLP programs with the bound and limits that PuLP hides, and whole programs as
arrays, for those that must be built and solved in milliseconds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import highspy
import numpy as np
import pulp
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class SolverStatus(StrEnum):
    OPTIMAL = "optimal"  # within the gap asked for
    FEASIBLE = "feasible"  # the best found within the time limit
    HEURISTIC = "heuristic"  # greedy: the solver found nothing within the time limit
    INFEASIBLE = "infeasible"


@dataclass(frozen=True, slots=True)
class SolverResult:
    """`found`: the variables have values. Neither found nor infeasible: the time limit came first."""

    found: bool
    bound: float | None
    status: SolverStatus


_SMALL = 300  # columns
_INFEASIBLE = SolverResult(False, None, SolverStatus.INFEASIBLE)


def run(
    program: pulp.LpProblem, time_limit_s: float, gap: float, warm: Mapping[pulp.LpVariable, float] | None = None
) -> SolverResult:
    """Solves `program`, whose variables must all be bounded by its rows. Blocks for at most about `time_limit_s`.

    `warm` is a solution to begin from, by variable; what is left out counts as 0. An infeasible one does no harm.
    """
    program.solve(_Warm(warm, msg=False, threads=1, timeLimit=time_limit_s, gapRel=gap))
    return _outcome(program.solverModel)


class _Warm(pulp.HiGHS):  # type: ignore[misc]
    """PuLP's HiGHS begins from nothing: this one sets the solution on the solver's own model before it runs."""

    def __init__(self, warm: Mapping[pulp.LpVariable, float] | None, **options: Any) -> None:
        super().__init__(**options)
        self._warm = warm

    def callSolver(self, lp: pulp.LpProblem) -> None:  # PuLP's name
        if self._warm is not None:
            values = {variable.name: value for variable, value in self._warm.items()}
            _begin_from(lp.solverModel, [values.get(variable.name, 0.0) for variable in lp.variables()])
        super().callSolver(lp)


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """min cost x, lower <= A x <= upper, 0 <= x <= most, x whole. A is kept by column: row numbers and coefficients of
    column j are `rows[starts[j]:starts[j + 1]]` and `coefficients[starts[j]:starts[j + 1]]`."""

    cost: Floats
    most: Floats
    lower: Floats
    upper: Floats
    starts: Sequence[int]
    rows: Sequence[int]
    coefficients: Sequence[float]


@dataclass(frozen=True, slots=True, eq=False)
class Relaxed:
    """The optimum without wholeness: `cost`, which no whole solution undercuts, the values of its columns, and what one
    more of each row's limit would add to the cost (dual values)."""

    cost: float
    values: Floats
    prices: Floats


def relaxed(program: Program) -> Relaxed | None:
    """None: not even without wholeness is there a solution."""
    if not len(program.cost):
        return Relaxed(0.0, np.zeros(0), np.zeros(len(program.lower))) if _nothing_is_feasible(program) else None
    solver = _solver(program, whole=False)
    solver.run()
    if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return None
    found = solver.getSolution()
    return Relaxed(
        float(solver.getInfo().objective_function_value), np.asarray(found.col_value), np.asarray(found.row_dual)
    )


def search(
    program: Program,
    time_limit_s: float,
    gap: float,
    first: Sequence[float] | None = None,
    enough: Callable[[float, float], bool] | None = None,
) -> tuple[Ints | None, SolverResult]:
    """Searches the whole solution of least cost; its columns are (columns,), None where none was found.

    Presolve is off: it would substitute columns away that are only there to branch and cut on. So is the feasibility
    jump, and in small programs the heuristics that solve smaller ones, which take longer than such programs do.

    Args:
        first: A solution to begin from.
        enough: Called with the best cost (inf: none yet) and the bound now and then; True ends the search.
    """
    if not len(program.cost):
        nothing: Ints = np.zeros(0, dtype=np.int64)
        feasible = _nothing_is_feasible(program)
        return (nothing, SolverResult(True, 0.0, SolverStatus.OPTIMAL)) if feasible else (None, _INFEASIBLE)
    solver = _solver(program, whole=True)
    solver.setOptionValue("time_limit", time_limit_s)
    solver.setOptionValue("mip_rel_gap", gap)
    solver.setOptionValue("presolve", "off")
    solver.setOptionValue("mip_detect_symmetry", False)
    solver.setOptionValue("mip_heuristic_run_feasibility_jump", False)
    if len(program.cost) <= _SMALL:
        for heuristic in ("rins", "rens", "root_reduced_cost"):
            solver.setOptionValue(f"mip_heuristic_run_{heuristic}", False)
    if first is not None:
        _begin_from(solver, first)
    if enough is not None:

        def end_if_enough(event: Any) -> None:
            if enough(event.data_out.mip_primal_bound, event.data_out.mip_dual_bound):
                event.interrupt()

        solver.cbMipInterrupt.subscribe(end_if_enough)
    solver.run()
    outcome = _outcome(solver)
    if not outcome.found:
        return None, outcome
    return np.rint(np.asarray(solver.getSolution().col_value)).astype(np.int64), outcome


def _nothing_is_feasible(program: Program) -> bool:
    """Decides a program without columns, which HiGHS leaves undecided."""
    return bool((program.lower <= 0.0).all() and (program.upper >= 0.0).all())


def _solver(program: Program, whole: bool) -> Any:
    solver = highspy.Highs()  # type: ignore[no-untyped-call]
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("threads", 1)
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = len(program.cost), len(program.lower)
    lp.col_cost_, lp.col_lower_, lp.col_upper_ = program.cost, np.zeros(len(program.cost)), program.most
    lp.row_lower_, lp.row_upper_ = program.lower, program.upper
    lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    lp.a_matrix_.start_ = np.asarray(program.starts, dtype=np.int32)
    lp.a_matrix_.index_ = np.asarray(program.rows, dtype=np.int32)
    lp.a_matrix_.value_ = np.asarray(program.coefficients, dtype=np.float64)
    if whole:
        lp.integrality_ = [highspy.HighsVarType.kInteger] * lp.num_col_
    solver.passModel(lp)
    return solver


def _begin_from(solver: Any, values: Sequence[float]) -> None:
    solution = highspy.HighsSolution()
    solution.col_value = list(values)
    solver.setSolution(solution)


def _outcome(solver: Any) -> SolverResult:
    status = solver.getModelStatus()
    if status in (highspy.HighsModelStatus.kInfeasible, highspy.HighsModelStatus.kUnboundedOrInfeasible):
        return _INFEASIBLE
    info = solver.getInfo()
    bound = info.mip_dual_bound if math.isfinite(info.mip_dual_bound) else None
    found = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
    proven = found and status == highspy.HighsModelStatus.kOptimal
    return SolverResult(found, bound, SolverStatus.OPTIMAL if proven else SolverStatus.FEASIBLE)

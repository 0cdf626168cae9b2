"""A plan for FREESH's eq. 1 without a solver: the answer when the solver has found none in time."""

from __future__ import annotations

import math

import numpy as np

from core.algorithms.fleet.fleet_problem import FleetPlan, FleetProblem, Option, Worker, most_rps, options, plan_cost
from core.algorithms.fleet.highs import Floats, Ints, SolverStatus
from core.types import PartitionOption


def greedy_fleet(problem: FleetProblem, partition: PartitionOption, choices: list[Option] | None = None) -> FleetPlan:
    """Plans class by class, hardest first, always adding the worker of least cost per request carried.

    It can miss plans that exist; then it is `infeasible` and says so. Where workers earn (a negative intensity that is
    followed) the GPUs left over are filled with those that earn the most per GPU.

    Args:
        choices: `options(problem, partition)`, if they are at hand.
    """
    choices = options(problem, partition) if choices is None else choices
    need = problem.need_rps(partition)
    most = {name: most_rps(problem, choices, name) for name in need}
    placing = _Placing(problem, choices)
    for name in sorted(need, key=lambda name: -(need[name] / most[name] if most[name] > 0.0 else math.inf)):
        missing = placing.cover(name, need[name])
        if missing > 0.0:
            failed = f"greedy placement found no GPUs left for {missing:.2f} requests/s of {name}"
            return FleetPlan(SolverStatus.INFEASIBLE, None, None, None, partition.name, {}, 0.0, failed)
    placing.fill()
    workers = placing.workers()
    return FleetPlan(
        SolverStatus.HEURISTIC, plan_cost(problem, workers, partition), None, None, partition.name, workers, 0.0
    )


class _Placing:
    """Free GPUs and the workers placed so far; `_takes[option, pool]` are GPUs of a (site, GPU type)."""

    def __init__(self, problem: FleetProblem, choices: list[Option]) -> None:
        pools = {
            (site.name, gpu): number
            for number, (site, gpu) in enumerate((site, gpu) for site in problem.sites for gpu in site.gpus)
        }
        self._choices = choices
        self._free: Ints = np.array([count for site in problem.sites for count in site.gpus.values()], dtype=np.int64)
        self._takes: Ints = np.zeros((len(choices), len(pools)), dtype=np.int64)
        for row, option in enumerate(choices):
            for gpu, each in option.gpus.items():
                self._takes[row, pools[option.worker[0], gpu]] = each
        self._cost: Floats = np.array([option.cost for option in choices], dtype=np.float64)
        self._power_w: Floats = np.array([option.power_w for option in choices], dtype=np.float64)
        self._max_rps: Floats = np.array([option.max_rps for option in choices], dtype=np.float64)
        self._counts: Ints = np.zeros(len(choices), dtype=np.int64)

    def cover(self, name: str, need_rps: float) -> float:
        """Places workers of a class; returns the requests/s that no GPUs are left for."""
        own = np.array(
            [row for row, option in enumerate(self._choices) if option.request_class == name], dtype=np.int64
        )
        missing = need_rps
        while missing > 1e-9:
            fitting = own[(self._takes[own] <= self._free).all(axis=1)]
            if not fitting.size:
                return missing
            carried = np.minimum(self._max_rps[fitting], missing)
            order = np.lexsort((self._power_w[fitting] / carried, self._cost[fitting] / carried))
            best = int(fitting[order[0]])
            count = max(1, min(self._room(best), int(missing / self._max_rps[best])))
            self._place(best, count)
            missing -= count * float(self._max_rps[best])
        return 0.0

    def fill(self) -> None:
        """Places workers that cost less than nothing wherever they fit, most earned per GPU first."""
        earning = np.flatnonzero(self._cost < 0.0)
        each = self._cost[earning] / self._takes[earning].sum(axis=1)
        for row in earning[np.argsort(each, kind="stable")].tolist():
            self._place(row, self._room(row))

    def workers(self) -> dict[Worker, int]:
        return {self._choices[row].worker: int(self._counts[row]) for row in np.flatnonzero(self._counts)}

    def _room(self, row: int) -> int:
        taken = self._takes[row]
        return int((self._free[taken > 0] // taken[taken > 0]).min())

    def _place(self, row: int, count: int) -> None:
        self._counts[row] += count
        self._free -= count * self._takes[row]

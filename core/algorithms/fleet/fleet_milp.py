"""FREESH eq. 1: how many workers of which mode at which site for which request class, as an integer program.

    min   sum over sites l, classes c, modes m of  k_l P_cm n_lcm                                              (1a)
    s.t.  sum over l, m of  Q_cm n_lcm  >=  alpha D_c(t)        for each class c and each step t                (1b)
          sum over c, m of  G_mg n_lcm  <=  G_lg                for each site l and GPU type g                 (1c)
          all workers belong to one partition, q_s = 1          for one s, else 0                          (1d, 1f)
          n_lcm = 0 where the mode breaks the class's latency limits or has no capacity                        (1e)
          n_lcm whole and not negative

n counts workers, P is a worker's power at its largest rate Q, D the forecast demand, G_mg its GPUs of type g. k_l is
what a watt at site l costs over the steps: PUE x seconds (energy, J), PUE x sum of intensity x seconds / 3.6e6 (carbon,
gCO2e), the same with prices (cost, USD), or a weighted sum. Workers stay over all steps, so that (1b) binds at the step
of most demand. As printed, (1b) asks every class of every partition to be served, which (1d) rules out: meant are the
chosen one's. Printed (1e) multiplies the latency by the number of workers: meant is whether there are any.

Once the partition is fixed the rest is one integer program (q leaves it). Each is bounded by its linear relaxation
first, and in large fleets by patterns, which give a plan as well (`fleet_patterns`); they are searched from the lowest
bound up, and one whose bound is above the best plan found is not searched on.
A program has, beside n, the sums N_cm of n_lcm over sites, in whose terms (1b) is written: sites differ little in cost,
so that branching on one n only moves workers to another site, while branching on N settles how a class is covered.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace

import numpy as np

from core.algorithms.fleet import highs
from core.algorithms.fleet.fleet_greedy import greedy_fleet
from core.algorithms.fleet.fleet_patterns import priced
from core.algorithms.fleet.fleet_problem import (
    FleetPlan,
    FleetProblem,
    NegativeIntensity,
    Objective,
    ObjectiveWeights,
    Option,
    plan_cost,
    plan_power_w,
    why_infeasible,
    why_not,
)
from core.algorithms.fleet.fleet_problem import options as options_of
from core.algorithms.fleet.highs import Ints, SolverStatus
from core.types import CarbonPlan, PartitionOption

__all__ = [
    "FleetPlan",
    "FleetProblem",
    "NegativeIntensity",
    "Objective",
    "ObjectiveWeights",
    "SolverStatus",
    "greedy_fleet",
    "solve_fleet",
]

_COST, _MOST_COST = 1e3, 1e6  # of a plan in the solver, and of a worker there at most
_LARGE = 400  # options, from which on patterns are worth their time
_PATTERNS = 0.8  # of the time, at most, shared by the partitions
_ROUNDING = 1e-9  # relative: what two ways to add up the same cost may differ by


def solve_fleet(
    problem: FleetProblem,
    time_limit_s: float = 20.0,
    gap: float = 1e-4,
    warm: CarbonPlan | None = None,
    patience_s: float = 0.0,
) -> FleetPlan:
    """Solves eq. 1. Never raises for a problem without a solution: the plan's status and `failed` say so.

    Args:
        time_limit_s: Shared by the partitions; at the limit the best plan found is returned (`feasible`), or a greedy
            one when the solver has none (`heuristic`).
        gap: Relative distance from the bound at which a plan counts as optimal.
        warm: The last plan, to begin from where it still keeps the constraints.
        patience_s: For as long the search goes on to a gap of 0, before one within `gap` is good enough.
    """
    started = time.perf_counter()
    search = _Search(started, time_limit_s, gap, patience_s)
    tasks = [_Task(problem, partition) for partition in problem.partitions]
    plans: dict[str, FleetPlan] = {}
    searched = sorted((task for task in tasks if task.bound is not None), key=_bound)
    for position, task in enumerate(searched):
        if len(task.choices) > _LARGE:
            task.look(search, len(searched) - position)
    searched.sort(key=_bound)
    for position, task in enumerate(searched):
        plan = _partition_plan(task, search, warm, len(searched) - position)
        search.note(plan)
        plans[task.partition.name] = plan
    plans = {task.partition.name: plans.get(task.partition.name) or _infeasible(task) for task in tasks}
    return replace(_best_of(problem, plans, gap), solve_s=time.perf_counter() - started, by_partition=plans)


def _bound(task: _Task) -> float:
    return -math.inf if task.bound is None else task.bound


def _best_of(problem: FleetProblem, plans: dict[str, FleetPlan], gap: float) -> FleetPlan:
    """Returns the plan of least cost, of least power among equals.

    Its bound is the least of all that might have been found.
    """
    possible = [plan for plan in plans.values() if plan.status is not SolverStatus.INFEASIBLE]
    solved = [plan for plan in possible if plan.objective is not None]
    if not solved:
        failed = " ".join(f"{name}: {plan.failed}" for name, plan in plans.items()) or "there is no partition."
        return FleetPlan(SolverStatus.INFEASIBLE, None, None, None, "", {}, 0.0, failed)
    partitions = {item.name: item for item in problem.partitions}
    best = min(solved, key=lambda plan: (_cost(plan), plan_power_w(plan.workers, partitions[plan.partition])))
    bounds = [-math.inf if plan.bound is None else plan.bound for plan in possible]
    bound = min(_cost(best), *bounds) if min(bounds) > -math.inf else None
    distance = _gap(_cost(best), bound)
    status = best.status
    if status is not SolverStatus.HEURISTIC:
        status = SolverStatus.OPTIMAL if distance is not None and distance <= gap + _ROUNDING else SolverStatus.FEASIBLE
    return replace(best, status=status, bound=bound, gap=distance)


def _cost(plan: FleetPlan) -> float:
    return math.inf if plan.objective is None else plan.objective


def _gap(objective: float, bound: float | None) -> float | None:
    """Returns the relative distance of `objective` from `bound`; None without a bound or when the objective is 0."""
    if bound is None or (objective == 0.0 and bound < 0.0):
        return None
    return max(0.0, objective - bound) / abs(objective) if objective else 0.0


@dataclass(slots=True)
class _Search:
    """The limits that all partitions share: the time, the gap, and the cost of the best plan so far."""

    started: float
    time_limit_s: float
    gap: float
    patience_s: float
    best: float = math.inf

    def note(self, plan: FleetPlan) -> None:
        self.best = min(self.best, _cost(plan))

    def cannot_win(self, bound: float) -> bool:
        """Says whether no plan above the bound can undercut the best one by more than the gap.

        Equal cost may win by its power.
        """
        return bound > self.cutoff

    @property
    def cutoff(self) -> float:
        return self.best - self.gap * abs(self.best) if math.isfinite(self.best) else math.inf

    def share_s(self, total_s: float, partitions: int) -> float:
        """The next partition's share of what is left of `total_s`: all but a tenth for each of the others.

        They come by rising bound. Mostly the first one wins, and then the others end at once.
        """
        return (total_s - (time.perf_counter() - self.started)) * max(1.0 / partitions, 1.1 - 0.1 * partitions)


class _Task:
    """A partition, its options, its program and what no plan of it can undercut (None: there is no plan)."""

    def __init__(self, problem: FleetProblem, partition: PartitionOption) -> None:
        self.problem, self.partition = problem, partition
        self.choices = options_of(problem, partition)
        self.scale = max((abs(option.cost) for option in self.choices), default=0.0) or 1.0
        self.program = _program(problem, partition, self.choices, [option.cost / self.scale for option in self.choices])
        relaxed = highs.relaxed(self.program)
        # The solver's tolerances are absolute. What a plan costs is scaled to about a thousand, for they could hide a
        # difference between cheap workers where the dearest is far dearer.
        cost = _COST if relaxed is None else relaxed.cost or _COST
        grow = min(_COST / max(abs(cost), _COST / _MOST_COST), _MOST_COST)
        self.scale /= grow
        self.program = replace(self.program, cost=self.program.cost * grow)
        if grow > _COST:  # they could hide it from this optimum, too
            relaxed = highs.relaxed(self.program)
        elif relaxed is not None:
            relaxed = replace(relaxed, cost=relaxed.cost * grow, prices=relaxed.prices * grow)
        self.relaxed = relaxed
        self.bound = None if relaxed is None else relaxed.cost * self.scale
        self.counts: Ints | None = None  # of a plan that is at hand

    def look(self, search: _Search, left: int) -> None:
        """Finds a tighter bound, and a plan unless the bound says that it cannot win."""
        assert self.relaxed is not None
        time_limit_s = search.share_s(_PATTERNS * search.time_limit_s, left)
        cutoff = search.cutoff / self.scale
        found = priced(self.program, self.relaxed, len(self.partition.classes), time_limit_s, search.gap, cutoff)
        self.bound, self.counts = max(_bound(self), found.bound * self.scale), found.counts
        if found.counts is not None and search.patience_s <= 0.0:
            search.best = min(search.best, float(self.program.cost[: len(self.choices)] @ found.counts) * self.scale)

    def begin_from(self, warm: CarbonPlan | None) -> list[float] | None:
        """Returns a plan as the program's columns: the one at hand or, if it is better, the last one."""
        found = [counts for counts in (self._known(warm), self.counts) if counts is not None]
        costs = self.program.cost[: len(self.choices)]
        best = min(found, key=lambda counts: float(costs @ counts), default=None)
        return None if best is None else [*best.astype(float).tolist(), *_sums(self.choices, best.tolist())]

    def _known(self, warm: CarbonPlan | None) -> Ints | None:
        """The last plan, where it is of this partition and still keeps the constraints."""
        if warm is None or warm.partition != self.partition.name:
            return None
        if why_not(self.problem, warm.workers, self.partition) is not None:
            return None
        return np.array([warm.workers.get(option.worker, 0) for option in self.choices], dtype=np.int64)


def _infeasible(task: _Task) -> FleetPlan:
    failed = why_infeasible(task.problem, task.partition)
    return FleetPlan(SolverStatus.INFEASIBLE, None, None, None, task.partition.name, {}, 0.0, failed)


def _partition_plan(task: _Task, search: _Search, warm: CarbonPlan | None, left: int) -> FleetPlan:
    """Returns the best plan of a partition; where a search could not win, the plan at hand or a greedy one, and its
    bound."""
    started = time.perf_counter()
    assert task.bound is not None
    bound = task.bound
    counts = task.counts
    if not search.cannot_win(bound):
        counts, outcome = _search_task(task, search, warm, left)
        if outcome.status is SolverStatus.INFEASIBLE:
            return replace(_infeasible(task), solve_s=time.perf_counter() - started)
        bound = bound if outcome.bound is None else max(bound, outcome.bound * task.scale)
        counts = task.counts if counts is None else counts
    if counts is not None and any(option.cost == 0.0 for option in task.choices):
        counts = _thriftiest(task, counts, max(0.1, search.share_s(search.time_limit_s, left)), search.gap)
    if counts is None:
        plan = greedy_fleet(task.problem, task.partition, task.choices)
        if plan.objective is None:  # greed can miss plans that exist
            plan = replace(plan, status=SolverStatus.HEURISTIC)
    else:
        workers = {option.worker: int(n) for option, n in zip(task.choices, counts, strict=False) if n}
        cost = plan_cost(task.problem, workers, task.partition)
        plan = FleetPlan(SolverStatus.FEASIBLE, cost, None, None, task.partition.name, workers, 0.0)
    if plan.objective is not None:
        bound = min(bound, plan.objective)
        distance = _gap(plan.objective, bound)
        proven = counts is not None and distance is not None and distance <= search.gap + _ROUNDING
        plan = replace(plan, gap=distance, status=SolverStatus.OPTIMAL if proven else plan.status)
    return replace(plan, bound=bound, solve_s=time.perf_counter() - started)


def _search_task(
    task: _Task, search: _Search, warm: CarbonPlan | None, left: int
) -> tuple[Ints | None, highs.SolverResult]:
    time_limit_s = max(0.1, search.share_s(search.time_limit_s, left))
    patient_until = time.perf_counter() + search.share_s(search.patience_s, left)

    def enough(cost: float, bound: float) -> bool:
        if search.cannot_win(bound * task.scale):
            return True
        if search.patience_s <= 0.0 or math.isinf(cost) or time.perf_counter() < patient_until:
            return False
        return cost - bound <= search.gap * abs(cost)

    gap = 0.0 if search.patience_s > 0.0 else search.gap
    return highs.search(task.program, time_limit_s, gap, task.begin_from(warm), enough)


def _thriftiest(task: _Task, counts: Ints, time_limit_s: float, gap: float) -> Ints:
    """At a site of intensity 0 every plan costs the same: of the plans of `counts`' cost, the one of least power."""
    costs = task.program.cost[: len(task.choices)]
    reached = math.fsum((costs * counts[: len(task.choices)]).tolist())
    most_w = max(option.power_w for option in task.choices) or 1.0
    power = [option.power_w / most_w for option in task.choices]
    within = (costs.tolist(), reached + 1e-9 * max(1.0, reached))
    program = _program(task.problem, task.partition, task.choices, power, within)
    thrifty, _ = highs.search(program, time_limit_s, gap, counts.tolist())
    return counts if thrifty is None else thrifty


def _groups(choices: list[Option]) -> dict[tuple[str, object], list[int]]:
    """Joins in groups the options of the same class and mode at different sites."""
    groups: dict[tuple[str, object], list[int]] = {}
    for number, option in enumerate(choices):
        groups.setdefault(option.worker[1:], []).append(number)
    return groups


def _sums(choices: list[Option], counts: list[float]) -> list[float]:
    return [math.fsum(counts[n] for n in members) for members in _groups(choices).values()]


def _program(
    problem: FleetProblem,
    partition: PartitionOption,
    choices: list[Option],
    costs: list[float],
    within: tuple[list[float], float] | None = None,
) -> highs.Program:
    """Builds eq.

    1 of one partition, with `costs` for each option's worker: columns n, then N; rows (1b), (1c), N = sum of n.

    `within` is one more row: coefficients of n, and what they may add up to.
    """
    need = problem.need_rps(partition)
    pools = {(site.name, gpu): gpus for site in problem.sites for gpu, gpus in site.gpus.items()}
    groups = _groups(choices)
    row_of_class = {name: row for row, name in enumerate(need)}
    row_of_pool = {pool: len(need) + row for row, pool in enumerate(pools)}
    first_link = len(need) + len(pools)
    most: list[float] = []
    columns: list[list[tuple[int, float]]] = []
    for option in choices:
        site, name, _ = option.worker
        columns.append([(row_of_pool[site, gpu], float(each)) for gpu, each in option.gpus.items()])
        room = min(pools[site, gpu] // each for gpu, each in option.gpus.items())
        # A worker that earns nothing is never worth having when the others of its kind carry the class already.
        most.append(room if option.cost < 0.0 else min(room, math.ceil(need[name] / option.max_rps)))
    for link, members in enumerate(groups.values()):
        for number in members:
            columns[number].append((first_link + link, 1.0))
        one = choices[members[0]]
        columns.append([(row_of_class[one.request_class], one.max_rps), (first_link + link, -1.0)])
        most.append(math.fsum(most[number] for number in members))
    lower = [*need.values(), *[-math.inf] * len(pools), *[0.0] * len(groups)]
    upper = [*[math.inf] * len(need), *map(float, pools.values()), *[0.0] * len(groups)]
    if within is not None:
        for number, coefficient in enumerate(within[0]):
            if coefficient:
                columns[number].append((len(lower), coefficient))
        lower.append(-math.inf)
        upper.append(within[1])
    starts = np.cumsum([0, *map(len, columns)])
    return highs.Program(
        np.array([*costs, *[0.0] * len(groups)]),
        np.array(most, dtype=np.float64),
        np.array(lower),
        np.array(upper),
        starts.tolist(),
        [row for column in columns for row, _ in column],
        [coefficient for column in columns for _, coefficient in column],
    )

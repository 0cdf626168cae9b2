"""The fleet problem of FREESH eq. 1: its input, its answer, what a plan costs and carries, and a greedy plan.

The exact solution is in `milp`, which states the program.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from scheduler.core.algorithms.highs import Status
from scheduler.core.types import Limits, Mode, ModeProfile, PartitionOption, SiteView
from scheduler.core.units import gco2e

Worker = tuple[str, str, Mode]  # (site, class, mode)


class Objective(StrEnum):
    """What a plan costs. Money follows once sites carry a price: it is one more weight of a watt at a site."""

    CARBON = "carbon"  # gCO2e over the steps
    ENERGY = "energy"  # J over the steps, PUE included


class NegativeIntensity(StrEnum):
    """What a marginal intensity below 0 does to the objective."""

    CLAMP = "clamp"  # counts as 0: clean, but no reason to burn more
    FOLLOW = "follow"  # taken as it is: more power there is better


@dataclass(frozen=True, slots=True)
class FleetProblem:
    """Input of eq. 1. `floor_rps` is planned for classes with less demand: each is served somewhere."""

    sites: tuple[SiteView, ...]
    partitions: tuple[PartitionOption, ...]
    step_s: float
    alpha: float = 1.1
    floor_rps: float = 0.0
    objective: Objective = Objective.CARBON
    negative_intensity: NegativeIntensity = NegativeIntensity.CLAMP

    def need_rps(self, partition: PartitionOption) -> dict[str, float]:
        """alpha x the largest demand of any step, for each class (1c)."""
        return {
            item.name: self.alpha * max(self.floor_rps, max(item.demand_rps, default=0.0)) for item in partition.classes
        }

    def weight(self, site: SiteView) -> float | None:
        """k_l, what one watt at the site costs over the steps; None: an intensity is missing, so it cannot be known."""
        horizon_s = len(site.intensity_g_per_kwh) * self.step_s
        if self.objective == Objective.ENERGY:
            return site.pue * (horizon_s or self.step_s)
        total = 0.0
        for value in site.intensity_g_per_kwh:
            if value is None:
                return None
            clamped = max(0.0, value) if self.negative_intensity == NegativeIntensity.CLAMP else value
            total += gco2e(self.step_s, clamped, site.pue)
        return total if site.intensity_g_per_kwh else None


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """A solution. `objective` and `bound` are in the objective's unit; `gap` is relative. None: there is none.

    `failed` says in words why an infeasible problem is. `by_partition` holds the best plan of each partition.
    """

    status: Status
    objective: float | None
    bound: float | None
    gap: float | None
    partition: str
    workers: Mapping[Worker, int]
    solve_s: float
    failed: str = ""
    by_partition: Mapping[str, FleetPlan] = field(default_factory=dict)


def mode_failure(profile: ModeProfile, limits: Limits) -> str | None:
    """Why a mode cannot serve a class (1e), or None when it can. An unknown figure or limit rules nothing out."""
    if profile.max_rps <= 0.0:
        return "no capacity within the SLO"
    for name, value, limit in (
        ("TTFT", profile.ttft_s, limits.ttft_s),
        ("TPOT", profile.tpot_s, limits.tpot_s),
        ("E2E", profile.e2e_s, limits.e2e_s),
    ):
        if value is not None and limit is not None and value > limit:
            return f"{name} {value:.3g} s over {limit:g} s"
    return None


def usable(partition: PartitionOption) -> dict[tuple[str, Mode], ModeProfile]:
    """The partition's (class, mode) pairs that keep the class's limits (1e)."""
    limits = {item.name: item.limits for item in partition.classes}
    return {
        (name, mode): profile
        for (name, mode), profile in sorted(partition.profiles.items())
        if name in limits and mode_failure(profile, limits[name]) is None
    }


def plan_power_w(workers: Mapping[Worker, int], partition: PartitionOption) -> float:
    """Power at the GPUs with every worker at its largest rate."""
    return math.fsum(
        count * partition.profiles[name, mode].power_w for (_, name, mode), count in workers.items() if count
    )


def plan_cost(problem: FleetProblem, workers: Mapping[Worker, int], partition: PartitionOption) -> float | None:
    """(1a) of a plan; None when a site in it has no known weight."""
    weights = {site.name: problem.weight(site) for site in problem.sites}
    total = 0.0
    for (site, name, mode), count in workers.items():
        weight = weights.get(site)
        if count and weight is None:
            return None
        total += count * (weight or 0.0) * partition.profiles[name, mode].power_w
    return total


def why_not(problem: FleetProblem, workers: Mapping[Worker, int], partition: PartitionOption) -> str | None:
    """The constraint that a plan breaks, in words; None when it keeps them all."""
    profiles = usable(partition)
    sites = {site.name: site for site in problem.sites}
    capacity: dict[str, float] = dict.fromkeys((item.name for item in partition.classes), 0.0)
    used: dict[tuple[str, str], int] = {}
    for (site, name, mode), count in workers.items():
        if not count:
            continue
        if site not in sites or (name, mode) not in profiles:
            return f"{mode.name} at {site} cannot serve {name} now"
        if problem.weight(sites[site]) is None:
            return f"{site} has no intensity for every step"
        capacity[name] += count * profiles[name, mode].max_rps
        used[site, mode.gpu] = used.get((site, mode.gpu), 0) + count * mode.tp
    for (site, gpu), count in used.items():
        if count > sites[site].gpus.get(gpu, 0):
            return f"{site} offers {sites[site].gpus.get(gpu, 0)} {gpu}, not {count}"
    for name, need in problem.need_rps(partition).items():
        if capacity[name] < need - 1e-6 * max(1.0, need):  # the tolerance of the solver
            return f"{name} needs {need:.2f} requests/s, the plan carries {capacity[name]:.2f}"
    return None


@dataclass(frozen=True, slots=True)
class Option:
    """One kind of worker that may be used: what one of it costs and carries."""

    worker: Worker
    cost: float
    power_w: float
    max_rps: float


def options(problem: FleetProblem, partition: PartitionOption) -> list[Option]:
    """The variables of eq. 1 for a partition: (1e) applied, sites of unknown weight left out."""
    profiles = usable(partition)
    return [
        Option((site.name, name, mode), weight * profile.power_w, profile.power_w, profile.max_rps)
        for site in problem.sites
        if (weight := problem.weight(site)) is not None
        for (name, mode), profile in profiles.items()
        if site.gpus.get(mode.gpu, 0) >= mode.tp
    ]


def greedy_fleet(problem: FleetProblem, partition: PartitionOption) -> FleetPlan:
    """A plan without a solver: class by class, hardest first, always the worker of least cost per request carried.

    The answer when the solver finds nothing in time. It can miss plans that exist; then it is `infeasible` and says so.
    """
    choices = options(problem, partition)
    need = problem.need_rps(partition)
    free = {(site.name, gpu): count for site in problem.sites for gpu, count in site.gpus.items()}
    workers: dict[Worker, int] = {}
    for name in sorted(need, key=lambda name: -_share_of_fleet(problem, choices, name, need[name])):
        missing = need[name]
        while missing > 1e-9:
            fitting = [
                option
                for option in choices
                if option.worker[1] == name and free[option.worker[0], option.worker[2].gpu] >= option.worker[2].tp
            ]
            if not fitting:
                failed = f"greedy placement found no GPUs left for {missing:.2f} requests/s of {name}"
                return FleetPlan(Status.INFEASIBLE, None, None, None, partition.name, {}, 0.0, failed)
            best = min(fitting, key=lambda o: _per_request(o, missing))
            site, _, mode = best.worker
            count = max(1, min(free[site, mode.gpu] // mode.tp, int(missing / best.max_rps)))
            workers[best.worker] = workers.get(best.worker, 0) + count
            free[site, mode.gpu] -= count * mode.tp
            missing -= count * best.max_rps
    return FleetPlan(Status.HEURISTIC, plan_cost(problem, workers, partition), None, None, partition.name, workers, 0.0)


def _per_request(option: Option, missing_rps: float) -> tuple[float, float]:
    carried = min(option.max_rps, missing_rps)
    return option.cost / carried, option.power_w / carried


def most_rps(problem: FleetProblem, choices: list[Option], name: str) -> float:
    """No plan carries more of a class than this: every GPU on the class, in its best mode, fractions allowed."""
    best: dict[tuple[str, str], float] = {}
    for option in choices:
        site, class_name, mode = option.worker
        if class_name == name:
            best[site, mode.gpu] = max(best.get((site, mode.gpu), 0.0), option.max_rps / mode.tp)
    return math.fsum(
        rps * site.gpus[gpu] for site in problem.sites for (at, gpu), rps in best.items() if at == site.name
    )


def _share_of_fleet(problem: FleetProblem, choices: list[Option], name: str, need_rps: float) -> float:
    most = most_rps(problem, choices, name)
    return need_rps / most if most > 0.0 else math.inf


def why_infeasible(problem: FleetProblem, partition: PartitionOption) -> str:
    """One sentence naming the class that cannot be met, and how far away it is."""
    choices = options(problem, partition)
    need = problem.need_rps(partition)
    shares: list[str] = []
    for name, rps in need.items():
        if rps <= 0.0:
            continue
        most = most_rps(problem, choices, name)
        if most <= 0.0:
            return f"{name} needs {rps:.2f} requests/s and no worker can serve it{_failures(problem, partition, name)}."
        if most < rps:
            return f"{name} needs {rps:.2f} requests/s, the whole fleet carries at most {most:.2f}."
        shares.append(f"{name} {rps / most:.0%}")
    return f"the classes together need more GPUs than there are (of the whole fleet: {', '.join(shares)})."


def _failures(problem: FleetProblem, partition: PartitionOption, name: str) -> str:
    limits = next(item.limits for item in partition.classes if item.name == name)
    reasons = []
    for (class_name, mode), profile in sorted(partition.profiles.items()):
        if class_name == name:
            offered = any(site.gpus.get(mode.gpu, 0) >= mode.tp for site in problem.sites)
            reasons.append(f"{mode.name}: {mode_failure(profile, limits) or ('no site' if offered else 'no GPUs')}")
    return f" ({'; '.join(reasons)})" if reasons else " (no mode has a profile for it)"

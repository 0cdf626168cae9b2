"""The fleet problem of FREESH eq. 1: its input, its answer, and what a plan costs and carries.

The exact solution is in `fleet_milp`, which states the program; one without a solver is in `fleet_greedy`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from core.algorithms.fleet.highs import SolverStatus
from core.types import Limits, Mode, ModeProfile, PartitionOption, SiteView
from core.units import gco2e, j_to_kwh

Worker = tuple[str, str, Mode]  # (site, class, mode)


class Objective(StrEnum):
    """The measure of a plan's cost; PUE counts in all of them."""

    CARBON = "carbon"  # gCO2e over the steps
    ENERGY = "energy"  # J over the steps
    COST = "cost"  # USD over the steps
    WEIGHTED = "weighted"  # a sum of the three


@dataclass(frozen=True, slots=True)
class ObjectiveWeights:
    """The weights of a gram, a joule and a dollar in the weighted objective."""

    per_gco2e: float = 0.0
    per_j: float = 0.0
    per_usd: float = 0.0

    def __post_init__(self) -> None:
        weights = (self.per_gco2e, self.per_j, self.per_usd)
        if min(weights) < 0.0 or not 0.0 < sum(weights) < math.inf:
            raise ValueError(f"weights of an objective are not negative and not all 0: {weights}")


class NegativeIntensity(StrEnum):
    """The treatment of a marginal intensity, or a price, below 0."""

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
    weights: ObjectiveWeights | None = None  # of the weighted objective

    def __post_init__(self) -> None:
        if self.objective == Objective.WEIGHTED and self.weights is None:
            raise ValueError("the weighted objective needs weights")

    def need_rps(self, partition: PartitionOption) -> dict[str, float]:
        """alpha x the largest demand of any step, for each class (1b): workers stay over all steps."""
        return {
            item.name: self.alpha * max(self.floor_rps, max(item.demand_rps, default=0.0)) for item in partition.classes
        }

    def weight(self, site: SiteView) -> float | None:
        """Returns k_l, the cost of a watt at the site over the steps; None: a figure is missing, so it cannot
        be known."""
        weights = self.weights if self.objective == Objective.WEIGHTED else _PLAIN[self.objective]
        assert weights is not None
        total = 0.0
        for weight, part in (
            (weights.per_gco2e, self._gco2e(site)),
            (weights.per_j, self._j(site)),
            (weights.per_usd, self._usd(site)),
        ):
            if weight:
                if part is None:
                    return None
                total += weight * part
        return total

    def _j(self, site: SiteView) -> float:
        return site.pue * self.step_s * (len(site.intensity_g_per_kwh) or 1)

    def _gco2e(self, site: SiteView) -> float | None:
        known = self._counted(site.intensity_g_per_kwh)
        return None if known is None else math.fsum(gco2e(self.step_s, value, site.pue) for value in known)

    def _usd(self, site: SiteView) -> float | None:
        known = self._counted(site.price_usd_per_kwh)
        return None if known is None else math.fsum(j_to_kwh(self.step_s) * site.pue * value for value in known)

    def _counted(self, values: Sequence[float | None]) -> list[float] | None:
        """Returns the values of all steps as they count; None when one is missing."""
        known = [value for value in values if value is not None]
        if not known or len(known) < len(values):
            return None
        clamp = self.negative_intensity == NegativeIntensity.CLAMP
        return [max(0.0, value) for value in known] if clamp else known


_PLAIN = {
    Objective.CARBON: ObjectiveWeights(per_gco2e=1.0),
    Objective.ENERGY: ObjectiveWeights(per_j=1.0),
    Objective.COST: ObjectiveWeights(per_usd=1.0),
}


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """A solution. `objective` and `bound` are in the objective's unit; `gap` is relative. None: there is none.

    `failed` says in words why an infeasible problem is. `by_partition` holds the best plan of each partition.
    """

    status: SolverStatus
    objective: float | None
    bound: float | None
    gap: float | None
    partition: str
    workers: Mapping[Worker, int]
    solve_s: float
    failed: str = ""
    by_partition: Mapping[str, FleetPlan] = field(default_factory=dict)


def mode_failure(profile: ModeProfile, limits: Limits) -> str | None:
    """Returns why a mode cannot serve a class (1e), or None when it can.

    An unknown figure or limit rules nothing out.
    """
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
    """Returns the partition's (class, mode) pairs that keep the class's limits (1e)."""
    limits = {item.name: item.limits for item in partition.classes}
    return {
        (name, mode): profile
        for (name, mode), profile in sorted(partition.profiles.items())
        if name in limits and mode_failure(profile, limits[name]) is None
    }


def plan_power_w(workers: Mapping[Worker, int], partition: PartitionOption) -> float:
    """Returns the power in W at the GPUs with every worker at its largest rate."""
    return math.fsum(
        count * partition.profiles[name, mode].power_w for (_, name, mode), count in workers.items() if count
    )


def plan_cost(problem: FleetProblem, workers: Mapping[Worker, int], partition: PartitionOption) -> float | None:
    """Returns the cost (1a) of a plan; None when a site in it has no known weight."""
    weights = {site.name: problem.weight(site) for site in problem.sites}
    total = 0.0
    for (site, name, mode), count in workers.items():
        weight = weights.get(site)
        if count and weight is None:
            return None
        total += count * (weight or 0.0) * partition.profiles[name, mode].power_w
    return total


def why_not(problem: FleetProblem, workers: Mapping[Worker, int], partition: PartitionOption) -> str | None:
    """Returns the constraint that a plan breaks, in words; None when it keeps them all."""
    profiles = usable(partition)
    sites = {site.name: site for site in problem.sites}
    capacity: dict[str, float] = dict.fromkeys((item.name for item in partition.classes), 0.0)
    used: dict[tuple[str, str], int] = {}
    for (site, name, mode), count in workers.items():
        if not count:
            continue
        if site not in sites or (name, mode) not in profiles or name in sites[site].closed:
            return f"{mode.name} at {site} cannot serve {name} now"
        if problem.weight(sites[site]) is None:
            return f"{site} has no {'price' if problem.objective == Objective.COST else 'intensity'} for every step"
        capacity[name] += count * profiles[name, mode].max_rps
        for gpu, each in mode.gpus.items():
            used[site, gpu] = used.get((site, gpu), 0) + count * each
    for (site, gpu), count in used.items():
        if count > sites[site].gpus.get(gpu, 0):
            return f"{site} offers {sites[site].gpus.get(gpu, 0)} {gpu}, not {count}"
    for name, need in problem.need_rps(partition).items():
        if capacity[name] < need - 1e-6 * max(1.0, need):  # the tolerance of the solver
            return f"{name} needs {need:.2f} requests/s, the plan carries {capacity[name]:.2f}"
    return None


@dataclass(frozen=True, slots=True)
class Option:
    """One kind of worker that may be used: what one of it costs, carries and takes."""

    worker: Worker
    cost: float
    power_w: float
    max_rps: float
    gpus: Mapping[str, int]

    @property
    def request_class(self) -> str:
        return self.worker[1]


def options(problem: FleetProblem, partition: PartitionOption) -> list[Option]:
    """Returns the variables of eq.

    1 for a partition: (1e) applied, sites of unknown weight or too few GPUs left out.
    """
    profiles = [(name, mode, profile, mode.gpus) for (name, mode), profile in usable(partition).items()]
    return [
        Option((site.name, name, mode), weight * profile.power_w, profile.power_w, profile.max_rps, gpus)
        for site in problem.sites
        if (weight := problem.weight(site)) is not None
        for name, mode, profile, gpus in profiles
        if name not in site.closed and all(site.gpus.get(gpu, 0) >= each for gpu, each in gpus.items())
    ]


def most_rps(problem: FleetProblem, choices: list[Option], name: str) -> float:
    """No plan carries more of a class than this: every GPU on the class, in its best mode, fractions allowed.

    What a worker of several GPU types carries is credited to its GPUs in equal shares.
    """
    best: dict[tuple[str, str], float] = {}
    for option in choices:
        site, class_name, _ = option.worker
        if class_name == name:
            each_rps = option.max_rps / sum(option.gpus.values())
            for gpu in option.gpus:
                best[site, gpu] = max(best.get((site, gpu), 0.0), each_rps)
    return math.fsum(
        rps * site.gpus[gpu] for site in problem.sites for (at, gpu), rps in best.items() if at == site.name
    )


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
            gpus = mode.gpus.items()
            offered = any(all(site.gpus.get(gpu, 0) >= each for gpu, each in gpus) for site in problem.sites)
            reasons.append(f"{mode.name}: {mode_failure(profile, limits) or ('no site' if offered else 'no GPUs')}")
    return f" ({'; '.join(reasons)})" if reasons else " (no mode has a profile for it)"

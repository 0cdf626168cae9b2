"""The carbon epoch: how requests are cut into classes, and which sites serve which class with how many workers.

FREESH's eq. 1 (see `core.algorithms.fleet.fleet_milp`) over the coming steps. Its answer is an envelope: the partition
in force, and GPUs of each type for each pool; the faster loops stay within it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from core.algorithms.fleet.fleet_milp import (
    FleetPlan,
    FleetProblem,
    NegativeIntensity,
    Objective,
    ObjectiveWeights,
    SolverStatus,
    solve_fleet,
)
from core.algorithms.fleet.fleet_problem import plan_cost, plan_power_w, why_not
from core.controllers.fleet.best_effort import reduced, with_fewer_classes
from core.controllers.fleet.explain import demand_json, gpus_of, least_trusted, profile_json
from core.types import (
    Alternative,
    CarbonObservation,
    CarbonPlan,
    ChoosePartition,
    Command,
    Effects,
    Mode,
    PartitionOption,
    PoolKey,
    Rationale,
    Reason,
    SetGpuBudget,
    Source,
)

_REASONS = {
    SolverStatus.OPTIMAL: Reason.OPTIMAL,
    SolverStatus.FEASIBLE: Reason.FEASIBLE,
    SolverStatus.HEURISTIC: Reason.HEURISTIC,
}


@dataclass(frozen=True, slots=True)
class CarbonConfig:
    """The epoch's knobs.

    `floor_rps` keeps every class of the chosen partition served somewhere, also without traffic. A new plan that saves
    no more than `min_saving` (share of the present plan's cost) is not taken: moving workers is not free.
    `best_effort`: where no plan carries the demand, one for as much of it as possible is taken.
    """

    alpha: float = 1.1
    objective: Objective = Objective.CARBON
    negative_intensity: NegativeIntensity = NegativeIntensity.CLAMP
    time_limit_s: float = 20.0
    gap: float = 1e-4
    floor_rps: float = 0.05
    min_saving: float = 0.01
    weights: ObjectiveWeights | None = None  # of the weighted objective
    best_effort: bool = False

    def __post_init__(self) -> None:
        if Objective(self.objective) is Objective.WEIGHTED and self.weights is None:
            raise ValueError("the weighted objective needs weights")
        NegativeIntensity(self.negative_intensity)
        if self.alpha < 1.0:
            raise ValueError(f"alpha is head-room over the demand and at least 1, not {self.alpha}")


def step(state: CarbonPlan | None, obs: CarbonObservation, config: CarbonConfig) -> tuple[CarbonPlan | None, Effects]:
    """Decides one epoch. Commands: the partition, and a GPU budget for each pool of the plan; none when the plan stays.

    A site whose feed lacks a value in any step cannot be chosen by it: its grams, or dollars, would be invented. When
    all lack one there is nothing to choose by and the last plan stays (NO_DATA). It also stays when no plan carries
    the demand, unless the configuration asks for the best effort; the reason is INFEASIBLE in either case.
    """
    problem = FleetProblem(
        obs.sites,
        obs.partitions,
        obs.step_s,
        config.alpha,
        config.floor_rps,
        config.objective,
        config.negative_intensity,
        config.weights,
    )
    feed = _feed(problem)
    unknown = [site.name for site in obs.sites if problem.weight(site) is None]
    if obs.sites and len(unknown) == len(obs.sites):
        summary = f"No site has its {feed} for every coming step; {_stays(state)}."
        return state, _hold(obs, Reason.NO_DATA, summary, _inputs(obs, config, problem, state, None))

    plan = solve_fleet(problem, config.time_limit_s, config.gap, state)
    inputs = _inputs(obs, config, problem, state, plan)
    left_out = f" Left out for want of {feed}: {', '.join(unknown)}." if unknown else ""
    if plan.objective is None:
        summary = f"No plan carries the demand: {plan.failed.rstrip('.')}; {_stays(state)}.{left_out}"
        hold = _hold(obs, Reason.INFEASIBLE, summary, inputs, _alternatives(problem, plan, state, False))
        return _best_effort(state, obs, config, problem, hold) if config.best_effort else (state, hold)

    present_cost, _ = _present(problem, state)
    if present_cost is not None and present_cost - plan.objective <= config.min_saving * abs(present_cost):
        saving = _saving_text(present_cost, plan.objective)
        summary = f"The present plan stays: {saving}.{left_out}"
        return state, _hold(obs, Reason.NO_CHANGE, summary, inputs, _alternatives(problem, plan, state, True))

    chosen = CarbonPlan(plan.partition, dict(plan.workers))
    rationale = Rationale(
        _REASONS[plan.status],
        _summary(problem, plan, present_cost) + left_out,
        inputs,
        _alternatives(problem, plan, state, False),
    )
    return chosen, Effects(_commands(chosen), _next_tick_s(obs), rationale)


def _best_effort(
    state: CarbonPlan | None, obs: CarbonObservation, config: CarbonConfig, problem: FleetProblem, hold: Effects
) -> tuple[CarbonPlan | None, Effects]:
    """Takes the plan for the most classes and the largest part of the demand that has one. The rationale is that
    plan's, and says why."""
    exact = replace(config, best_effort=False)
    for fewer in with_fewer_classes(obs):
        shares = list(reduced(fewer, replace(problem, partitions=fewer.partitions)))
        if step(None, shares[-1][1], exact)[0] is None:
            continue  # there is no room for an instance of each, whatever part of the demand is planned for
        for share, less in shares:
            found, effects = step(None, less, exact)
            if found is not None:
                summary = f"{hold.rationale.summary} Planned for {share:.0%} of it{_together(obs, fewer, found)}."
                inputs = {**hold.rationale.inputs, "planned_share": share, "plan": effects.rationale.inputs["plan"]}
                summary = f"{summary} {effects.rationale.summary}"
                rationale = Rationale(Reason.INFEASIBLE, summary, inputs, effects.rationale.alternatives)
                return found, replace(effects, commands=() if found == state else effects.commands, rationale=rationale)
    return state, hold


def _together(obs: CarbonObservation, fewer: CarbonObservation, plan: CarbonPlan) -> str:
    """Says which classes have no instance of their own in a plan, and whose serve them."""
    names, kept = (
        [item.name for own in seen.partitions if own.name == plan.partition for item in own.classes]
        for seen in (obs, fewer)
    )
    gone = [name for name in names if name not in kept]
    return f", with {', '.join(gone)} served by {kept[0]}'s instances" if gone else ""


def _commands(plan: CarbonPlan) -> tuple[Command, ...]:
    pools: dict[PoolKey, dict[Mode, int]] = {}
    for (site, name, mode), count in sorted(plan.workers.items()):
        if count:
            pools.setdefault(PoolKey(site, name), {})[mode] = count
    budgets = [SetGpuBudget(key, gpus_of(workers)) for key, workers in pools.items()]
    return (ChoosePartition(plan.partition), *budgets)


def _hold(
    obs: CarbonObservation,
    reason: Reason,
    summary: str,
    inputs: Mapping[str, Any],
    alternatives: tuple[Alternative, ...] = (),
) -> Effects:
    return Effects((), _next_tick_s(obs), Rationale(reason, summary, inputs, alternatives))


def _next_tick_s(obs: CarbonObservation) -> float:
    return obs.now_s + obs.step_s * _steps(obs)


def _feed(problem: FleetProblem) -> str:
    """Names the feed without which a site cannot be chosen."""
    return {Objective.CARBON: "intensity", Objective.COST: "price"}.get(problem.objective, "intensity and price")


def _steps(obs: CarbonObservation) -> int:
    return max((len(site.intensity_g_per_kwh) for site in obs.sites), default=1) or 1


def _stays(state: CarbonPlan | None) -> str:
    return "the last plan stays" if state is not None else "there is no plan yet"


def _partition(problem: FleetProblem, name: str) -> PartitionOption | None:
    return next((partition for partition in problem.partitions if partition.name == name), None)


def _present(problem: FleetProblem, state: CarbonPlan | None) -> tuple[float | None, str]:
    """Returns the cost of the plan in force under today's problem, or None and why it cannot stay."""
    if state is None:
        return None, "there is none"
    partition = _partition(problem, state.partition)
    if partition is None:
        return None, f"partition {state.partition} is no longer offered"
    failed = why_not(problem, state.workers, partition)
    return (None, failed) if failed else (plan_cost(problem, state.workers, partition), "")


def _saving_text(present: float, best: float) -> str:
    if best >= present:
        return "no plan found costs less"
    return f"the best one found saves only {(present - best) / abs(present):.1%}"


def _amount(problem: FleetProblem, cost: float) -> str:
    if problem.objective == Objective.CARBON:
        return f"{cost:.0f} gCO2e"
    if problem.objective == Objective.COST:
        return f"{cost:.2f} USD"
    return f"{cost / 1e6:.2f} MJ" if problem.objective == Objective.ENERGY else f"{cost:.4g} weighted"


def _summary(problem: FleetProblem, plan: FleetPlan, present_cost: float | None) -> str:
    sites: dict[str, int] = {}
    for (site, _, _), count in sorted(plan.workers.items()):
        sites[site] = sites.get(site, 0) + count
    where = ", ".join(f"{count} at {site}" for site, count in sites.items() if count) or "none"
    cost = plan.objective or 0.0
    minutes = problem.step_s * max((len(s.intensity_g_per_kwh) for s in problem.sites), default=1) / 60.0
    text = f"Partition {plan.partition}, workers: {where}; {_amount(problem, cost)} in {minutes:.0f} min at full load"
    if present_cost:
        text += f", {(present_cost - cost) / abs(present_cost):.0%} less than the present plan"
    return text + "."


def _alternatives(
    problem: FleetProblem, plan: FleetPlan, state: CarbonPlan | None, stays: bool
) -> tuple[Alternative, ...]:
    """Returns the best plan of each partition, and the plan in force.

    Power is at the GPUs with every worker at full load.
    """
    rows = []
    for partition in problem.partitions:
        best = plan.by_partition.get(partition.name)
        if best is None or best.objective is None:
            failed = best.failed if best is not None else "not solved"
            rows.append(Alternative(f"Partition {partition.name}", feasible=False, failed=failed))
        else:
            row = _alternative(problem, f"Partition {partition.name}", best.workers, partition)
            rows.append(replace(row, chosen=not stays and partition.name == plan.partition))
    if state is not None:
        present = _partition(problem, state.partition)
        _, failed = _present(problem, state)
        if present is None or any((name, mode) not in present.profiles for _, name, mode in state.workers):
            rows.append(Alternative("Present plan", chosen=stays, feasible=False, failed=failed or "unknown profiles"))
        else:
            row = _alternative(problem, "Present plan", state.workers, present)
            rows.append(replace(row, chosen=stays, feasible=not failed, failed=failed or None))
    return tuple(rows)


def _alternative(
    problem: FleetProblem, label: str, workers: Mapping[tuple[str, str, Mode], int], partition: PartitionOption
) -> Alternative:
    horizon_s = problem.step_s * max((len(site.intensity_g_per_kwh) for site in problem.sites), default=1)
    power_w = plan_power_w(workers, partition)
    sources: list[Source] = [partition.profiles[name, mode].source for _, name, mode in workers]
    return Alternative(
        label,
        power_w=power_w,
        energy_j=power_w * horizon_s,
        carbon_gco2e=plan_cost(replace(problem, objective=Objective.CARBON), workers, partition),
        source=least_trusted(sources),
    )


def _inputs(
    obs: CarbonObservation,
    config: CarbonConfig,
    problem: FleetProblem,
    state: CarbonPlan | None,
    plan: FleetPlan | None,
) -> dict[str, Any]:
    return {
        "step_s": obs.step_s,
        "steps": _steps(obs),
        "alpha": config.alpha,
        "objective": str(config.objective),
        "negative_intensity": str(config.negative_intensity),
        "intensity_signal": obs.intensity_signal,
        "floor_rps": config.floor_rps,
        "sites": [
            {
                "name": site.name,
                "gpus": dict(site.gpus),
                "pue": site.pue,
                "intensity_g_per_kwh": list(site.intensity_g_per_kwh),
                **({"price_usd_per_kwh": list(site.price_usd_per_kwh)} if site.price_usd_per_kwh else {}),
            }
            for site in obs.sites
        ],
        "partitions": [_partition_json(problem, partition) for partition in obs.partitions],
        "present": None if state is None else {"partition": state.partition, "workers": _workers_json(state.workers)},
        "plan": None
        if plan is None or plan.objective is None
        else {"partition": plan.partition, "workers": _workers_json(plan.workers)},
        "solver": None
        if plan is None
        else {
            "status": plan.status.value,
            "objective": plan.objective,
            "bound": plan.bound,
            "gap": plan.gap,
            "solve_s": plan.solve_s,
        },
    }


def _partition_json(problem: FleetProblem, partition: PartitionOption) -> dict[str, Any]:
    need = problem.need_rps(partition)
    return {
        "name": partition.name,
        "classes": [{"name": c.name, "need_rps": need[c.name], **demand_json(c)} for c in partition.classes],
        "profiles": {
            f"{name} {mode.name}": profile_json(profile) for (name, mode), profile in sorted(partition.profiles.items())
        },
    }


def _workers_json(workers: Mapping[tuple[str, str, Mode], int]) -> list[dict[str, Any]]:
    return [
        {"site": site, "class": name, "mode": mode.name, "count": count}
        for (site, name, mode), count in sorted(workers.items())
        if count
    ]

"""The scale epoch: how many workers of each mode a pool runs within its GPU budget.

FREESH's integer program (see `core.algorithms.fleet.fleet_milp`) restricted to one pool: least power that carries alpha
x demand. The mix of modes belongs to the shard epoch: workers that carry the need on no more GPUs than the best plan
stay.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core.algorithms.fleet.fleet_milp import FleetPlan, FleetProblem, Objective, SolverStatus, solve_fleet
from core.algorithms.fleet.fleet_problem import mode_failure
from core.controllers.fleet.explain import (
    capacity_rps,
    demand_json,
    gpus_of,
    least_trusted,
    profile_json,
    workers_json,
    workers_text,
)
from core.controllers.fleet.pool_loop import PoolLoopConfig, PoolLoopState, pool_name, summarise
from core.types import (
    Alternative,
    Effects,
    Mode,
    ModeProfile,
    PartitionOption,
    PoolDecision,
    PoolView,
    Rationale,
    Reason,
    ScaleObservation,
    ScaleTo,
    SiteView,
)


def step(state: PoolLoopState | None, obs: ScaleObservation, config: PoolLoopConfig) -> tuple[PoolLoopState, Effects]:
    """Decides one epoch: a decision for every pool, and a ScaleTo for each that changes.

    The pools are independent; see `step_pool` for one of them.
    """
    decisions = tuple(step_pool(pool, config) for pool in obs.pools)
    commands = tuple(ScaleTo(d.pool, d.workers) for d in decisions if d.changed)
    horizon_s = obs.step_s * max((len(pool.demand.demand_rps) for pool in obs.pools), default=1)
    rationale = summarise(decisions, "The workers of every pool carry its demand; none changes.")
    effects = Effects(commands, obs.now_s + horizon_s, rationale, decisions)
    return PoolLoopState({d.pool: d.workers for d in decisions}), effects


def step_pool(pool: PoolView, config: PoolLoopConfig) -> PoolDecision:
    """Chooses the workers of one pool.

    When the budget cannot carry the need it is used for the most capacity it can give, and the reason is INFEASIBLE;
    when no mode at all can serve the class, what runs stays.
    """
    name = pool_name(pool.key)
    present = {mode: count for mode, count in pool.workers.items() if count}
    if not any(pool.gpu_budget.values()):
        summary = f"{name}: has no GPU budget{f'; {workers_text(present)} -> nothing' if present else ''}."
        reason = Reason.OPTIMAL if present else Reason.NO_CHANGE
        return PoolDecision(pool.key, {}, bool(present), Rationale(reason, summary, _inputs(pool, config, None)))

    serving = serving_modes(pool)
    need_rps = config.alpha * max(config.floor_rps, max(pool.demand.demand_rps, default=0.0))
    plan = solve_fleet(_problem(pool, config), config.time_limit_s, config.gap)
    best = {mode: count for (_, _, mode), count in plan.workers.items()}
    if plan.objective is None:
        best = most_capacity(pool.gpu_budget, serving)
    keeps = _within(gpus_of(present), pool.gpu_budget) and all(mode in serving for mode in present)
    carried = capacity_rps(present, serving) if keeps else 0.0
    enough = min(need_rps, capacity_rps(best, serving))
    stays = not best or (keeps and carried >= enough - 1e-6 and _within(gpus_of(present), gpus_of(best)))
    workers = present if stays else best
    rationale = Rationale(
        _reason(plan, stays),
        _summary(name, pool, need_rps, present, workers, serving, plan),
        _inputs(pool, config, plan),
        tuple(
            _alternative(f"{name}: {workers_text(mix)}", mix, serving, mix == workers, need_rps)
            for mix in ([present] if present == best else [best, present])
        ),
    )
    return PoolDecision(pool.key, workers, not stays and workers != present, rationale)


def serving_modes(pool: PoolView) -> dict[Mode, ModeProfile]:
    """Returns the modes that can serve the pool's class within its limits."""
    limits = pool.demand.limits
    return {mode: profile for mode, profile in pool.profiles.items() if mode_failure(profile, limits) is None}


def most_capacity(gpus: Mapping[str, int], profiles: Mapping[Mode, ModeProfile]) -> dict[Mode, int]:
    """Returns the workers of most requests/s on `gpus`, of least power among those: an exact knapsack over each GPU
    type."""
    workers: dict[Mode, int] = {}
    for gpu, count in gpus.items():
        modes = [mode for mode in sorted(profiles) if mode.gpu == gpu and mode.tp <= count]
        best: list[tuple[float, float, dict[Mode, int]]] = [(0.0, 0.0, {})]
        for size in range(1, count + 1):
            options = [best[size - 1]]
            for mode in modes:
                if mode.tp <= size:
                    rps, less_w, taken = best[size - mode.tp]
                    profile = profiles[mode]
                    more = {**taken, mode: taken.get(mode, 0) + 1}
                    options.append((rps + profile.max_rps, less_w - profile.power_w, more))
            best.append(max(options, key=lambda option: option[:2]))
        workers.update(best[-1][2])
    return workers


def _problem(pool: PoolView, config: PoolLoopConfig) -> FleetProblem:
    """Returns the pool as a fleet of one site, one partition and one class, planned for least energy."""
    name = pool.demand.name
    site = SiteView(pool.key.site, dict(pool.gpu_budget), 1.0, ())
    partition = PartitionOption(name, (pool.demand,), {(name, mode): p for mode, p in pool.profiles.items()})
    return FleetProblem((site,), (partition,), 1.0, config.alpha, config.floor_rps, Objective.ENERGY)


def _within(gpus: Mapping[str, int], budget: Mapping[str, int]) -> bool:
    return all(count <= budget.get(gpu, 0) for gpu, count in gpus.items())


def _reason(plan: FleetPlan, stays: bool) -> Reason:
    if plan.objective is None:
        return Reason.INFEASIBLE
    if stays:
        return Reason.NO_CHANGE
    return {SolverStatus.OPTIMAL: Reason.OPTIMAL, SolverStatus.FEASIBLE: Reason.FEASIBLE}.get(
        plan.status, Reason.HEURISTIC
    )


def _summary(
    name: str,
    pool: PoolView,
    need_rps: float,
    present: Mapping[Mode, int],
    workers: Mapping[Mode, int],
    serving: Mapping[Mode, ModeProfile],
    plan: FleetPlan,
) -> str:
    move = workers_text(workers) if workers == present else f"{workers_text(present)} -> {workers_text(workers)}"
    carried = capacity_rps(workers, serving)
    text = f"{name}: {move}, for {need_rps:.2f} requests/s (carries {carried:.2f})"
    if plan.objective is None:
        budget = ", ".join(f"{count} {gpu}" for gpu, count in sorted(pool.gpu_budget.items()))
        return f"{text}; its budget of {budget} cannot carry the need, all of it is used."
    return text + "."


def _alternative(
    label: str, workers: Mapping[Mode, int], serving: Mapping[Mode, ModeProfile], chosen: bool, need_rps: float
) -> Alternative:
    carried = capacity_rps(workers, serving)
    unknown = [mode.name for mode in workers if mode not in serving]
    failed = f"{', '.join(unknown)} cannot serve the class" if unknown else None
    if failed is None and carried < need_rps - 1e-6:
        failed = f"carries {carried:.2f} of {need_rps:.2f} requests/s"
    return Alternative(
        label,
        chosen=chosen,
        feasible=failed is None,
        failed=failed,
        power_w=None if unknown else sum(count * serving[mode].power_w for mode, count in workers.items()),
        source=least_trusted(serving[mode].source for mode in workers if mode in serving),
    )


def _inputs(pool: PoolView, config: PoolLoopConfig, plan: FleetPlan | None) -> dict[str, Any]:
    return {
        "alpha": config.alpha,
        "floor_rps": config.floor_rps,
        "gpu_budget": dict(pool.gpu_budget),
        "workers": workers_json(pool.workers),
        "demand": demand_json(pool.demand),
        "profiles": {mode.name: profile_json(profile) for mode, profile in sorted(pool.profiles.items())},
        "solver": None
        if plan is None
        else {"status": plan.status.value, "bound": plan.bound, "gap": plan.gap, "solve_s": plan.solve_s},
    }

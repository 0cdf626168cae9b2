"""A carbon plan for a fleet that is too small for its demand.

The epoch's step then has none and keeps the last plan, which may be one for a calm night. Better is a plan for as much
of the demand as the fleet carries; the decision's reason stays INFEASIBLE.
"""

from __future__ import annotations

from dataclasses import replace

from core.algorithms.fleet.fleet_problem import FleetProblem, most_rps, options
from core.controllers.fleet import carbon
from core.controllers.fleet.carbon import CarbonConfig
from core.types import CarbonObservation, CarbonPlan, Effects, Reason

# A fleet too small for the demand is planned for these parts of the most that it might carry, the first that works out:
# whole workers and several classes leave some GPUs over.
_PARTS = (1.0, 0.95, 0.9, 0.85, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.0)


def best_effort(
    plan: CarbonPlan | None, effects: Effects, obs: CarbonObservation, config: CarbonConfig
) -> tuple[CarbonPlan | None, Effects]:
    """Returns the step's own answer, unless it is that no plan carries the demand."""
    wrong = effects.rationale
    if wrong.reason is not Reason.INFEASIBLE:
        return plan, effects
    most = _most_share(obs, config)
    for share in (most * part for part in _PARTS):
        found, answer = carbon.step(None, _scaled(obs, share), config)
        if found is not None:
            summary = f"{wrong.summary} Planned for {share:.0%} of it. {answer.rationale.summary}"
            return found, replace(answer, rationale=replace(wrong, summary=summary))
    return plan, effects


def _most_share(obs: CarbonObservation, config: CarbonConfig) -> float:
    """No plan carries a larger share of the demand than this: of each class by itself, on all GPUs."""
    shares = []
    for partition in obs.partitions:
        problem = FleetProblem(
            obs.sites,
            (partition,),
            obs.step_s,
            config.alpha,
            config.floor_rps,
            config.objective,
            config.negative_intensity,
        )
        choices = options(problem, partition)
        shares.append(
            min(
                (most_rps(problem, choices, name) / rps for name, rps in problem.need_rps(partition).items()),
                default=0.0,
            )
        )
    return min(1.0, max(shares, default=0.0))


def _scaled(obs: CarbonObservation, share: float) -> CarbonObservation:
    partitions = tuple(
        replace(
            partition,
            classes=tuple(
                replace(item, demand_rps=tuple(rps * share for rps in item.demand_rps)) for item in partition.classes
            ),
        )
        for partition in obs.partitions
    )
    return replace(obs, partitions=partitions)

"""Asks FREESH's eq. 1 for a plan; while no site has had an intensity yet, for the one of least energy."""

from __future__ import annotations

from dataclasses import replace

from core.algorithms.fleet.fleet_problem import Objective
from core.controllers.fleet import carbon
from core.controllers.fleet.carbon import CarbonConfig
from core.observations import asking
from core.types import CarbonObservation, CarbonPlan, Effects, Reason


def planned(
    state: CarbonPlan | None, obs: CarbonObservation, config: CarbonConfig, *, unknown: bool, again: bool = True
) -> tuple[CarbonPlan | None, Effects, bool]:
    """Returns the plan in force, the epoch's effects, and whether no site has had an intensity up to now.

    Args:
        unknown: No site had one before: there is no plan yet, or one of least energy.
        again: A plan of least energy that is in force is made anew; else it stays until a site has an intensity.
    """
    plan, effects = asking.step(carbon.step, state, obs, config)
    unknown &= config.objective == Objective.CARBON and effects.rationale.reason is Reason.NO_DATA
    if unknown and (again or state is None):
        plan, effects = asking.step(carbon.step, state, obs, replace(config, objective=Objective.ENERGY))
    return plan, effects, unknown

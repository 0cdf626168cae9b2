"""A plan of least energy stands in while no site has had an intensity."""

from __future__ import annotations

from dataclasses import replace

from core.algorithms.fleet.fleet_problem import Objective
from core.controllers.fleet.carbon import CarbonConfig
from core.observations.fleet.first_plan import planned
from core.types import Reason
from tests.unit.core.fleets import observation, partition, site

CONFIG = CarbonConfig()
OPTION = partition("p", LS=1.0)
UNKNOWN = observation((site("coal", None, None), site("wind", None, None)), OPTION)
KNOWN = observation((site("coal", 800.0, 800.0), site("wind", 50.0, 50.0)), OPTION)


def test_first_plan_is_of_least_energy_when_no_site_has_an_intensity():
    plan, effects, unknown = planned(None, UNKNOWN, CONFIG, unknown=True)
    assert plan is not None
    assert unknown
    assert effects.rationale.inputs["objective"] == Objective.ENERGY
    stays, effects, unknown = planned(plan, UNKNOWN, CONFIG, unknown=True, again=False)
    assert (stays, unknown, effects.rationale.reason) == (plan, True, Reason.NO_DATA)
    _, effects, _ = planned(plan, UNKNOWN, CONFIG, unknown=True)
    assert effects.rationale.inputs["objective"] == Objective.ENERGY, "it is made anew each epoch"


def test_plan_is_by_carbon_once_a_site_has_an_intensity_and_stays_when_it_is_lost():
    first, _, unknown = planned(None, UNKNOWN, CONFIG, unknown=True)
    plan, effects, unknown = planned(first, KNOWN, CONFIG, unknown=unknown, again=False)
    assert not unknown
    assert plan is not None
    assert {where for where, _, _ in plan.workers} == {"wind"}
    assert effects.rationale.inputs["objective"] == Objective.CARBON
    kept, effects, unknown = planned(plan, UNKNOWN, CONFIG, unknown=unknown)
    assert (kept, effects.rationale.reason, unknown) == (plan, Reason.NO_DATA, False)


def test_other_objectives_need_no_stand_in():
    _, effects, unknown = planned(None, UNKNOWN, replace(CONFIG, objective=Objective.COST), unknown=True)
    assert (effects.rationale.reason, unknown) == (Reason.NO_DATA, False)

"""What a watt is worth at a site: by what is known of the coming steps, for each objective."""

import pytest

from core.algorithms.fleet.fleet_problem import Objective
from core.observations.demand.carbon_ahead import SiteAhead, worths

EAST = SiteAhead("east", 1.5, (100.0, None, 300.0), (0.1, 0.3, None))
WEST = SiteAhead("west", 1.2, (400.0, 400.0, 400.0), (0.05, 0.05, 0.05))


@pytest.mark.parametrize(
    ("objective", "east", "west"),
    [
        (Objective.CARBON, 1.5 * 200.0, 1.2 * 400.0),
        (Objective.COST, 1.5 * 200.0, 1.2 * 50.0),
        (Objective.ENERGY, 1.5, 1.2),
    ],
)
def test_worth_is_the_mean_of_the_known_steps(objective, east, west):
    assert worths([EAST, WEST], objective) == pytest.approx({"east": east, "west": west})


@pytest.mark.parametrize("objective", [Objective.CARBON, Objective.COST])
@pytest.mark.parametrize("unknown", [(), (None, None)])
def test_energy_counts_where_nothing_is_known_of_one_site(objective, unknown):
    assert worths([EAST, SiteAhead("north", 1.1, unknown, unknown)], objective) == {"east": 1.5, "north": 1.1}

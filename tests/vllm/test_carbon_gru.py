"""A network over neighbouring grids is learned, forecasts, is kept and read again, and scored, with real PyTorch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("carbon_gru.py")


@pytest.fixture(scope="module")
def found(with_torch):
    return json.loads(with_torch(SCRIPT))


def test_a_grid_is_forecast_by_what_its_neighbour_did(found) -> None:
    east, same_hours = found["loss"]["east"], found["held"]["east"]
    assert east[0] < 0.75 * same_hours[0]  # west says what comes on the first day
    assert found["moved"] > 6.0  # west was changed by 60 g/kWh
    west, south = found["neighbours"]
    assert west > 0.9
    assert south < 0.2


def test_no_grid_is_forecast_worse_than_by_the_same_hours_of_the_last_days(found) -> None:
    for name, losses in found["loss"].items():
        assert all(loss < 1.05 * same for loss, same in zip(losses, found["held"][name], strict=True)), name


def test_quantiles_ascend_and_cover_what_they_should(found) -> None:
    low, middle, high = found["quantiles"]
    assert all(a < b < c for a, b, c in zip(low, middle, high, strict=True))
    lower, same = found["wider"]
    assert all(a < b for a, b in zip(lower, low, strict=True))
    assert same == middle
    assert all(0.5 < share < 0.95 for share in found["covered"].values()), found["covered"]  # of few levels, by day


def test_learning_twice_gives_the_same_network_and_a_kept_one_says_the_same(found) -> None:
    assert found["same"]
    assert found["read"]


def test_nothing_of_what_comes_after_a_forecast_is_seen(found) -> None:
    assert found["blind"]


def test_weather_is_learned_from_where_one_grid_has_it(found) -> None:
    assert found["with_weather"] == ["west"]


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("cut off", "no carbon network"),
        ("no file", "no carbon network"),
        ("other", "it is of the kind 'else', and 'carbon gru 1' is read"),
        ("other numbers", "no carbon network"),
        ("bare", "no carbon network: 'grids'"),
        ("alone", "a network over neighbouring grids needs two with 60 known days at the least, and 1 of 1 have them"),
        ("short", "and 0 of 3 have them"),
        ("missing", "this network was learned with the grids south, west too: give them"),
        ("dry", "this network was learned with weather: give that of west"),
        ("quantile", "a quantile lies between 0 and 1"),
    ],
)
def test_what_cannot_be_is_refused(found, what: str, said: str) -> None:
    assert said in found["refused"][what]


def test_the_command_scores_it_with_all_grids_of_the_file(found) -> None:
    (grid,) = found["command"]["grids"]
    assert grid["grid"] == "west"
    scores = {one["model"]: one for one in grid["scores"]}
    assert scores["gru"]["mape"][0] < scores["day ago"]["mape"][0]
    assert scores["gru"]["training_s"] > 0.0

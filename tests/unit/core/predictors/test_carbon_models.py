"""Carbon models that learn: they see no future, learn what weather does, cover what they say, are kept as arrays."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pytest

from core.predictors import carbon_scores, carbon_training
from core.predictors.boosted_carbon import LEVELS, CarbonModel
from core.predictors.carbon_features import DAY, LEADS, MEMORY, WEATHER, Grid, features, names
from core.predictors.carbon_training import TooShort, fit
from core.predictors.seasonal import MODELS

FIRST = 20_000 * DAY


def grid(days: int, seed: int = 0) -> Grid:
    """A grid whose intensity falls with the wind, which changes from day to day and is known five days ahead."""
    rng = np.random.default_rng(seed)
    hours = np.arange((days + 5) * DAY)
    wind = np.repeat(rng.uniform(1.0, 9.0, days + 5), DAY)
    sky = np.stack([wind, *(np.full(hours.size, 280.0) for _ in WEATHER[1:])], axis=1)
    course = 300.0 + 40.0 * np.sin(2.0 * np.pi * hours / DAY) - 20.0 * wind
    return Grid(FIRST, (course * np.exp(rng.normal(0.0, 0.02, hours.size)))[: days * DAY], sky)


@pytest.fixture(scope="module", autouse=True)
def few_trees():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(carbon_training, "TREES", 8)
        patch.setattr(carbon_training, "EVERY_HOURS", 23)
        yield


@pytest.fixture(scope="module")
def model(few_trees):
    return fit(grid(70))


def test_features_do_not_see_the_future_when_the_future_changes():
    origins, leads = np.full(LEADS, 60 * DAY), np.arange(LEADS)
    known = grid(70)
    carbon, sky = known.carbon.copy(), known.weather.copy()
    carbon[60 * DAY :] = 1.0
    sky[60 * DAY + LEADS :] = np.nan
    before, reference = features(known, origins, leads)
    after, same = features(Grid(FIRST, carbon, sky), origins, leads)
    np.testing.assert_array_equal(before, after)
    np.testing.assert_array_equal(reference, same)
    assert before.shape == (LEADS, len(names(True)))
    other = known.weather.copy()
    other[60 * DAY + 10, 0] += 1.0
    changed, _ = features(Grid(FIRST, known.carbon, other), origins, leads)
    assert next(int(lead) for lead in leads if (changed[lead] != before[lead]).any()) == 10


def test_a_forecast_is_the_same_when_only_the_last_days_are_given(model):
    known = grid(70)
    whole = model.forecasts(known, np.array([60 * DAY]), (0.1, 0.9))[:, 0]
    np.testing.assert_allclose(model.forecast(known.until(60 * DAY), LEADS, (0.1, 0.9)), whole, rtol=1e-9)
    assert known.until(60 * DAY).carbon.size == MEMORY


def test_forecasts_know_the_wind_when_weather_is_given(model):
    fresh = grid(90, seed=5)
    origins = np.arange(70 * DAY, 86 * DAY, DAY)
    truth = np.stack([fresh.carbon[at : at + LEADS] for at in origins])
    low, middle, high = model.forecasts(fresh, origins, (0.1, 0.5, 0.9))
    blind = fit(grid(70).without_weather()).forecasts(fresh, origins, (0.5,))[0]
    error, without = (np.abs(found - truth).mean() for found in (middle, blind))
    assert error < 0.6 * without
    assert 0.7 < ((truth >= low) & (truth <= high)).mean() < 0.95
    assert ((low < middle) & (middle < high)).all()


def test_forecasts_end_where_the_model_does(model):
    known = grid(70)
    ahead = model.forecast(known.until(60 * DAY), LEADS + 5)
    assert ahead.shape == (1, LEADS + 5)
    assert np.isnan(ahead[0]).sum() == 5
    assert np.isnan(model.forecast(Grid(FIRST, np.full(MEMORY, np.nan), known.weather), LEADS)).all()
    with pytest.raises(ValueError, match="give it the weather"):
        model.forecast(known.without_weather(), 24)
    with pytest.raises(ValueError, match="between 0 and 1"):
        model.forecast(known, 24, (1.0,))


def test_learning_is_refused_when_too_little_is_known():
    known = grid(70)
    carbon = known.carbon.copy()
    carbon[: 11 * DAY] = np.nan
    with pytest.raises(TooShort, match="59 days are known, and 60 are needed"):
        fit(Grid(FIRST, carbon))


def test_a_model_is_the_same_when_it_was_kept(model):
    again = CarbonModel.from_bytes(model.to_bytes())
    known = grid(70).until(65 * DAY)
    np.testing.assert_array_equal(again.forecast(known, LEADS), model.forecast(known, LEADS))
    assert (again.hours, again.until_hour, again.weather) == (70 * DAY, FIRST + 70 * DAY, True)


def test_bytes_are_refused_when_they_are_no_model(model):
    other = io.BytesIO()
    np.savez(other, weather=True)
    pickled = io.BytesIO()
    np.save(pickled, np.array([{}], dtype=object), allow_pickle=True)
    for raw in (b"", b"no zip", other.getvalue(), pickled.getvalue(), model.to_bytes()[:-100]):
        with pytest.raises(ValueError, match="no carbon model"):
            CarbonModel.from_bytes(raw)
    with pytest.raises(ValueError, match="centre is no array"):
        CarbonModel.from_bytes(replace(model, weather=False).to_bytes())
    with pytest.raises(ValueError, match="errors is no array"):
        CarbonModel.from_bytes(replace(model, errors=np.full((12, LEVELS.size), np.nan)).to_bytes())
    loop = model.trees.left.copy()
    loop[0] = 0
    with pytest.raises(ValueError, match="leads nowhere"):
        CarbonModel.from_bytes(replace(model, trees=replace(model.trees, left=loop)).to_bytes())


def test_scores_are_those_of_the_rule_when_the_forecast_is_known():
    truth = np.tile([100.0] * 12 + [200.0] * 12, (3, 4))
    assert carbon_scores._mape(truth, 1.1 * truth) == pytest.approx(0.1)
    assert carbon_scores._plans(truth, truth) == (0.0, 4 * 6 * 100.0, 4 * 6 * 50.0)
    wrong = truth[:, ::-1]
    assert carbon_scores._plans(truth, wrong)[0] == 4 * 6 * 100.0  # all hours are the dirty ones
    gap = truth.copy()
    gap[0, 5] = np.nan
    assert carbon_scores._plans(gap, wrong)[0] == 4 * 6 * 100.0


def test_all_models_are_scored_and_one_is_chosen_before_the_time_when_a_grid_is_scored(monkeypatch):
    monkeypatch.setattr(carbon_scores, "MODELS", {"day ago": MODELS["day ago"]})
    monkeypatch.setattr(carbon_scores, "BACK_TEST_DAYS", 6)
    said = []
    found = carbon_scores.score("north", grid(80), 70 * DAY, 76 * DAY, 92, said.append)
    assert {one.model for one in found.scores} == {"day ago", "trees", "trees with weather"}
    assert found.chosen == found.scores[0].model == "trees with weather"
    assert found.scores[0].forecasts == 3
    assert said == [f"north: {model}" for model in ("day ago", "trees", "trees with weather")]
    assert found.scores[0].training_s > 0.0


def test_a_model_is_silent_when_it_cannot_learn(monkeypatch):
    monkeypatch.setattr(carbon_scores, "MODELS", {"day ago": MODELS["day ago"]})
    found = carbon_scores.score("north", grid(50).without_weather(), 40 * DAY, 46 * DAY, 92, print)
    assert [one.model for one in found.scores] == ["day ago"]
    assert found.silent == {"trees": "40 days are known, and 60 are needed to learn from"}
    with pytest.raises(ValueError, match="28 days of values before --from"):
        carbon_scores.score("north", grid(50), 20 * DAY, 46 * DAY, 92, print)

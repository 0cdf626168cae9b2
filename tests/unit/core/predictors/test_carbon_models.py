"""Carbon models that learn: they see no future, learn what weather does, cover what they say, are kept as arrays."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pytest

from core.predictors import carbon_scores, carbon_training
from core.predictors.boosted_carbon import LARGEST_ERROR, LEVELS, CarbonModel, spread
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


def test_a_model_keeps_its_intervals_when_an_earlier_release_stored_it(model):
    known = grid(90, seed=5).until(80 * DAY)
    again = CarbonModel.from_bytes(stored(model, leave_out=("form", "typical")))
    by_unrest_alone = replace(model, typical=None).forecast(known, LEADS, (0.1, 0.9))
    np.testing.assert_array_equal(again.forecast(known, LEADS, (0.1, 0.9)), by_unrest_alone)
    assert CarbonModel.from_bytes(again.to_bytes()).typical is None
    with pytest.raises(ValueError, match="is of form 3, and 2 is the newest known: learn it anew"):
        CarbonModel.from_bytes(stored(model, form=3))
    with pytest.raises(ValueError, match="typical errors are above 0"):
        CarbonModel.from_bytes(replace(model, typical=np.zeros(12)).to_bytes())


def stored(model, leave_out=(), **changed) -> bytes:
    """What is kept of a model, but for some arrays."""
    with np.load(io.BytesIO(model.to_bytes())) as arrays:
        kept = {name: arrays[name] for name in arrays.files if name not in leave_out}
    out = io.BytesIO()
    np.savez_compressed(out, **(kept | changed))
    return out.getvalue()


def test_intervals_follow_the_errors_of_the_last_days_when_the_model_had_not_learned_them(model):
    known = grid(90, seed=5)
    wild = known.carbon.copy()
    noise = np.random.default_rng(1).choice([0.8, 1.25], known.carbon.size)
    wild[76 * DAY :] *= noise[76 * DAY :]

    def width(of: CarbonModel, carbon) -> float:
        low, high = of.forecast(Grid(FIRST, carbon, known.weather).until(80 * DAY), LEADS, (0.1, 0.9))
        return float(np.log(high / low).mean())

    plain = replace(model, typical=None)
    assert width(model, wild) > 1.3 * width(plain, wild)
    by_heart = replace(model, until_hour=FIRST + 80 * DAY)
    assert width(by_heart, wild) == pytest.approx(width(plain, wild))


def test_spread_is_one_when_errors_are_as_expected():
    assert spread(np.zeros(0)) == spread(np.full(5, np.nan)) == 1.0
    assert spread(np.array([1.0, -1.0] * 100)) == 1.0
    many, few = (spread(np.full(n, 4.0)) for n in (5_000, 5))
    assert 1.0 < few < 1.2 < 1.95 < many < 2.0  # the root of four
    assert 0.0 < spread(np.zeros(5_000)) < 0.2
    assert spread(np.full(100, 1e6)) == spread(np.full(100, LARGEST_ERROR))


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


def test_models_from_elsewhere_are_scored_with_the_others_when_they_are_given(monkeypatch):
    monkeypatch.setattr(carbon_scores, "MODELS", {"day ago": MODELS["day ago"]})
    known = grid(50).without_weather()

    def knows_all(own, origins):
        truth = np.stack([own.carbon[at : at + LEADS] for at in origins])
        return carbon_scores.Made(np.stack([truth] * 3), 0.9, 7.0)

    def absent(own, origins):
        raise carbon_scores.Silent("it is not installed")

    more = {"oracle": knows_all, "absent": absent}
    found = carbon_scores.score("north", known, 40 * DAY, 46 * DAY, 92, print, more)
    assert [one.model for one in found.scores] == ["oracle", "day ago"]
    assert (found.scores[0].pinball, found.scores[0].forecast_s, found.scores[0].training_s) == (0.0, 0.3, 7.0)
    assert found.chosen == "oracle"
    assert found.silent["absent"] == "it is not installed"

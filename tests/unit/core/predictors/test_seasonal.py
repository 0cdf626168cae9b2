"""Seasonal forecasts and their back-test: laws, gaps, and that no forecast sees the future."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.predictors.back_test import back_test, coverage, mape, pinball, plans, rolling_origins
from core.predictors.seasonal import MODELS, NEAR_STEPS, History, _near_quantiles

DAY = 24
FIRST = 20_000 * DAY


def pattern(days, noise=0.0, seed=0, day=DAY):
    """A daily wave, lower on weekends."""
    rng = np.random.default_rng(seed)
    step = np.arange(days * day)
    weekend = np.isin((FIRST // DAY * day + step) // day % 7, (2, 3))
    return 100.0 + 30.0 * np.sin(2 * np.pi * step / day) - 20.0 * weekend + rng.normal(0.0, noise, step.size)


def history(values, day=DAY, floor=0.0):
    return History(np.asarray(values, dtype=float), FIRST // DAY * day, day, floor)


@given(
    values=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40),
    quantile=st.floats(0.01, 0.99),
    other=st.floats(-1e6, 1e6),
)
def test_pinball_loss_is_least_when_the_forecast_is_the_true_quantile(values, quantile, other):
    truth = np.array(values)
    best = float(np.quantile(truth, quantile, method="inverted_cdf"))
    at_best = pinball(truth, np.full(truth.size, best), quantile)
    assert at_best <= pinball(truth, np.full(truth.size, other), quantile) + 1e-6 * (1.0 + np.abs(truth).max())
    assert at_best >= 0.0


def test_pinball_loss_weighs_misses_when_they_lie_on_one_side():
    assert pinball(np.array([10.0]), np.array([8.0]), 0.9) == pytest.approx(1.8)
    assert pinball(np.array([8.0]), np.array([10.0]), 0.9) == pytest.approx(0.2)
    assert pinball(np.array([8.0, 10.0]), np.array([10.0, 8.0]), 0.5) == pytest.approx(1.0)


def test_percentage_error_leaves_zeros_out_when_the_truth_has_some():
    assert mape(np.array([0.0, 10.0, -10.0]), np.array([5.0, 8.0, -12.0])) == pytest.approx(0.2)
    assert mape(np.zeros(3), np.ones(3)) is None


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("quantile", [0.5, 0.9])
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1_000), cut=st.integers(1, 20 * DAY - 1), gaps=st.floats(0.0, 0.9))
def test_forecast_does_not_see_the_future_when_the_future_changes(name, quantile, seed, cut, gaps):
    rng = np.random.default_rng(seed)
    values = pattern(20, 5.0, seed)
    values[rng.random(values.size) < gaps] = np.nan
    changed = values.copy()
    changed[cut:] = rng.normal(1e6, 1e5, values.size - cut)
    said = MODELS[name](history(values).until(cut), 6, quantile)
    assert said.shape == (6,)
    np.testing.assert_array_equal(said, MODELS[name](history(changed).until(cut), 6, quantile))


def test_models_get_only_the_past_when_they_are_back_tested():
    values = pattern(10)
    origins = rolling_origins(values.size, 6, 9, DAY)
    seen = []

    def spy(known, steps, quantile):
        seen.append(known.values.copy())
        known.values[:] = 1e9  # what a model does to its copy is its own affair
        return np.full(steps, 100.0)

    back_test(history(values), {"spy": spy}, origins, 6, 0.5)
    assert [known.size for known in seen] == list(origins)
    for known in seen:
        np.testing.assert_array_equal(known, values[: known.size])


@settings(max_examples=60)
@given(size=st.integers(0, 500), steps=st.integers(1, 100), count=st.integers(1, 50), least=st.integers(1, 200))
def test_origins_have_past_and_future_when_there_are_any(size, steps, count, least):
    origins = rolling_origins(size, steps, count, least)
    assert len(origins) <= count
    assert all(least <= at <= size - steps for at in origins)
    assert list(origins) == sorted(set(origins))


@pytest.mark.parametrize("name", ["day ago", "week ago", "profile", "harmonic", "template"])
def test_pattern_is_found_again_when_there_is_no_noise(name):
    values = pattern(29)
    known, truth = history(values).until(28 * DAY), values[28 * DAY :]
    weekend_too = name not in ("day ago",)
    said = MODELS[name](known, DAY, 0.5)
    assert np.abs(said - truth).max() < (10.0 if weekend_too else 21.0)


@pytest.mark.parametrize("name", MODELS)
def test_nothing_is_said_when_nothing_is_known(name):
    for values in (np.full(10 * DAY, np.nan), np.zeros(0)):
        for quantile in (0.5, 0.9):
            assert np.isnan(MODELS[name](history(values), 4, quantile)).all()


@pytest.mark.parametrize("name", MODELS)
def test_gaps_do_not_spread_when_some_steps_are_unknown(name):
    values = pattern(21, 3.0)
    values[::5] = np.nan
    values[100:130] = np.nan
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        said = MODELS[name](history(values), DAY, 0.9)
    assert np.isfinite(said).all()


@pytest.mark.parametrize("name", MODELS)
def test_forecast_is_not_below_its_floor_when_values_are_near_zero(name):
    values = np.random.default_rng(3).poisson(0.1, 21 * DAY).astype(float)
    assert (MODELS[name](history(values), DAY, 0.05) >= 0.0).all()


@pytest.mark.parametrize("name", MODELS)
def test_share_below_is_near_the_quantile_when_noise_is_all_there_is(name):
    values = 100.0 + np.random.default_rng(5).normal(0.0, 10.0, 35 * DAY)
    known = history(values)
    origins = rolling_origins(values.size, 6, 40, 14 * DAY)
    below = np.mean([values[at : at + 6] <= MODELS[name](known.until(at), 6, 0.9) for at in origins])
    assert 0.75 <= below <= 1.0


def test_last_value_is_not_the_present_when_it_is_old():
    values = pattern(10)
    values[-DAY // 4 :] = np.nan
    assert np.isnan(MODELS["persistence"](history(values), 3, 0.5)).all()


def test_best_model_comes_first_when_scores_are_made():
    values = pattern(28, 4.0, seed=2)
    origins = rolling_origins(values.size, DAY, 20, DAY)
    scores = back_test(history(values), MODELS, origins, DAY, 0.5)
    assert [score.pinball for score in scores] == sorted(score.pinball for score in scores)
    assert scores[0].model in ("profile", "harmonic", "template")
    assert scores[-1].model == "persistence"
    assert {score.samples for score in scores} == {len(origins) * DAY}


def test_all_are_scored_on_the_same_steps_when_a_provider_forecasts_some():
    values = pattern(28, 4.0)
    origins = rolling_origins(values.size, DAY, 20, DAY)
    truth = np.stack([values[at : at + DAY] for at in origins])
    own = truth + 0.1
    own[:10] = np.nan
    scores = back_test(history(values), MODELS, origins, DAY, 0.5, given={"its own": own, "silent": own * np.nan})
    assert scores[0].model == "its own"
    assert scores[0].pinball == pytest.approx(0.05)
    assert "silent" not in {score.model for score in scores}
    assert {score.samples for score in scores} == {10 * DAY}


def test_nothing_is_scored_when_little_is_known():
    assert back_test(history(np.full(50 * DAY, np.nan)), MODELS, (40 * DAY,), DAY, 0.5) == ()
    assert back_test(history(pattern(2)), MODELS, (), DAY, 0.5) == ()


def test_quantiles_of_near_errors_are_numpys_when_they_are_taken_at_once():
    errors = np.random.default_rng(4).normal(0.0, 10.0, (7, 12))
    errors[:, 2:9] = np.nan
    errors[3, 4] = 2.0
    for quantile in (0.1, 0.37, 0.9):
        found = _near_quantiles(errors, quantile)
        for step in range(12):
            near = errors[:, max(0, step - NEAR_STEPS) : step + NEAR_STEPS + 1]
            near = near[~np.isnan(near)]
            expected = np.quantile(near, quantile) if near.size else np.nan
            np.testing.assert_allclose(found[step], expected, rtol=1e-12)
    assert np.isnan(_near_quantiles(np.full((3, 2), np.nan), 0.9)).all()


@given(
    rows=st.lists(st.lists(st.floats(0.0, 1e4), min_size=8, max_size=8), min_size=1, max_size=5),
    seed=st.integers(0, 99),
)
def test_regret_is_not_below_zero_when_plans_go_by_any_forecast(rows, seed):
    truth = np.array(rows)
    found = plans(truth, np.random.default_rng(seed).normal(size=truth.shape), 2)
    assert found.regret >= -1e-9
    assert found.chance >= -1e-9
    assert plans(truth, truth, 2).regret == 0.0


def test_regret_leaves_rows_out_when_a_step_is_unknown():
    truth = np.array([[1.0, 2.0, 3.0, 4.0], [9.0, np.nan, 9.0, 9.0]])
    said = truth[:, ::-1]
    assert plans(truth, np.where(np.isnan(said), 0.0, said), 1).regret == 3.0  # it runs in the dirtiest hour
    assert plans(truth[1:], said[1:], 1) is None


def test_a_models_regret_is_scored_when_a_quarter_of_the_steps_is_one_at_least():
    values = pattern(28)
    origins = rolling_origins(values.size, DAY, 9, DAY)
    models = {"upside down": lambda known, steps, quantile: 200.0 - values[known.values.size :][:steps]}
    (score,) = back_test(history(values), models, origins, DAY, 0.5)
    truth = np.sort(np.stack([values[at : at + DAY] for at in origins]), axis=1)
    assert score.regret == pytest.approx((truth[:, -6:] - truth[:, :6]).mean())
    assert back_test(history(values), models, origins, 3, 0.5)[0].regret is None


def test_coverage_is_the_share_between_the_quantiles_when_they_are_known():
    values = 100.0 + np.random.default_rng(8).normal(0.0, 10.0, 40 * DAY)
    origins = rolling_origins(values.size, DAY, 20, DAY)

    def normal(known, steps, quantile):
        return np.full(steps, 100.0 + {0.1: -12.816, 0.9: 12.816}[quantile])

    assert coverage(history(values), normal, origins, DAY) == pytest.approx(0.8, abs=0.05)
    assert coverage(history(values), lambda *_: np.full(DAY, np.nan), origins, DAY) is None
    assert coverage(history(values), normal, origins[:1], 6) is None  # too few steps
    asked = iter([True, True, False])
    assert coverage(history(values), normal, origins, DAY, lambda: next(asked)) is None


@pytest.mark.parametrize(("values", "day"), [(np.zeros((2, 2)), 24), (np.zeros(4), 0)])
def test_history_is_refused_when_it_has_no_shape(values, day):
    with pytest.raises(ValueError, match="a day has at least one step"):
        History(values, 0, day)

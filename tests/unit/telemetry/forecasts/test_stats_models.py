"""statsforecast's models, where the package is installed (`greenserve[forecasts]`); without it there are none."""

import importlib.util

import numpy as np
import pytest

from core.predictors.seasonal import History
from telemetry.forecasts import stats_models

needed = pytest.mark.skipif(
    importlib.util.find_spec("statsforecast") is None, reason="statsforecast is not installed: pip install .[forecasts]"
)
DAY = 24


def history(values):
    return History(np.asarray(values, dtype=float), 20_000 * DAY, DAY, 0.0)


def wave(days):
    return 100.0 + 30.0 * np.sin(2 * np.pi * np.arange(days * DAY) / DAY)


def test_there_are_no_models_when_the_package_is_missing(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert stats_models.models() == {}


@pytest.mark.parametrize("values", [wave(10), np.append(wave(28), np.nan), np.zeros(0)])
def test_nothing_is_said_when_there_are_not_two_weeks_without_a_gap(values):
    assert np.isnan(stats_models.mstl(history(values), 4)).all()


def test_nothing_is_said_when_steps_are_too_fine():
    values = np.ones(20 * 288)
    assert np.isnan(stats_models.mstl(History(values, 0, 288, 0.0), 4)).all()


@needed
def test_pattern_is_found_again_when_it_is_regular():
    known = wave(29)
    known[:30] = np.nan
    said = stats_models.models()["mstl"](history(known), DAY, 0.5)
    np.testing.assert_allclose(said, wave(1), atol=3.0)

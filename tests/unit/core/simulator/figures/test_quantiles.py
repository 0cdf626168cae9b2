"""Percentiles of a stream."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.simulator.figures.quantiles import NAMED, Quantiles

SHARES = [0.0, 0.01, 0.5, 0.9, 0.99, 1.0]
DURATIONS = st.lists(st.floats(1e-6, 1e7), min_size=1, max_size=200)


def filled(values: np.ndarray, cuts: list[int], exact_values: int) -> Quantiles:
    quantiles = Quantiles(exact_values)
    for block in np.split(values, sorted(cut % values.size for cut in cuts)):
        quantiles.add(block)
    return quantiles


@settings(deadline=None)
@given(DURATIONS, st.lists(st.integers(0, 1000), max_size=5))
def test_quantiles_are_numpys_when_values_are_few(values: list[float], cuts: list[int]) -> None:
    known = np.array(values)
    found = filled(known, cuts, 1000)
    assert found.points(SHARES) == pytest.approx(np.quantile(known, SHARES).tolist(), rel=1e-12)
    assert found.mean == pytest.approx(known.mean(), rel=1e-12)
    assert found.count == known.size


@settings(deadline=None)
@given(DURATIONS, st.lists(st.integers(0, 1000), max_size=5), st.integers(0, 100))
def test_quantiles_are_within_a_bin_when_values_are_many(values: list[float], cuts: list[int], exact: int) -> None:
    known = np.array(values)
    found = filled(known, cuts, exact)
    assert found.points(SHARES) == pytest.approx(np.quantile(known, SHARES).tolist(), rel=5.1e-4)
    assert found.mean == pytest.approx(known.mean(), rel=1e-12)


def test_quantiles_stay_within_the_values_when_these_are_beyond_the_bins() -> None:
    found = Quantiles(0)
    found.add(np.array([0.0, 0.0, 0.0, 1e9]))
    low, high = found.points([0.0, 1.0]) or (None, None)
    assert 0.0 <= (low or 0.0) <= 1.1e-6
    assert high is not None
    assert 9e6 < high <= 1e9


def test_summary_is_unknown_when_there_are_no_values() -> None:
    quantiles = Quantiles()
    quantiles.add(np.array([]))
    assert quantiles.summary() == {**dict.fromkeys(NAMED), "mean": None}


def test_mean_keeps_small_values_when_a_large_one_came_first() -> None:
    quantiles = Quantiles(0)
    for value in (1e7, *[1e-9] * 1000):
        quantiles.add(np.array([value]))
    assert quantiles.mean is not None
    assert quantiles.mean * 1001 - 1e7 == pytest.approx(1e-6, abs=2e-9)


def test_quantiles_refuse_when_a_value_is_not_finite() -> None:
    with pytest.raises(ValueError, match="finite"):
        Quantiles().add(np.array([1.0, np.nan]))

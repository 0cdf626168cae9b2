"""The t-interval of pairs against Student's own example, and the laws of ratios."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from core.accounting.paired_differences import paired_difference, paired_ratio

# Student 1908, "The probable error of a mean", section IX: hours of sleep gained by ten patients on two drugs.
DEXTRO = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
LAEVO = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]
POSITIVE = st.lists(st.tuples(*[st.floats(0.5, 2.0)] * 2), min_size=2, max_size=20)


def test_interval_is_the_published_one_of_students_sleep_data():
    found = paired_difference(DEXTRO, LAEVO)
    assert found.pairs == 10
    assert found.mean == pytest.approx(1.58)
    assert (found.low, found.high) == (pytest.approx(0.7001, abs=1e-4), pytest.approx(2.4599, abs=1e-4))


@given(POSITIVE)
def test_interval_of_ratios_is_scipys_of_their_logarithms(pairs):
    a, b = zip(*pairs, strict=True)
    found = paired_ratio(a, b)
    logs = [math.log(y) - math.log(x) for x, y in pairs]
    assert found.low is not None
    assert found.high is not None
    assert found.low <= found.mean <= found.high
    assume(max(logs) - min(logs) > 1e-3)  # SciPy has no interval where all differences are the same
    low, high = stats.ttest_1samp(logs, 0.0).confidence_interval(0.95)
    assert math.log1p(found.low) == pytest.approx(low, abs=1e-6)
    assert math.log1p(found.high) == pytest.approx(high, abs=1e-6)


def test_saving_and_its_undoing_cancel_each_other_out():
    assert paired_ratio([10.0, 9.0], [9.0, 10.0]).mean == pytest.approx(0.0)


def test_one_pair_has_a_mean_and_no_interval():
    found = paired_ratio([10.0], [8.0])
    assert (found.pairs, found.mean, found.low, found.high) == (1, pytest.approx(-0.2), None, None)


def test_nothing_is_compared_without_pairs_or_with_zeros():
    with pytest.raises(ValueError, match="at least one pair"):
        paired_difference([], [])
    with pytest.raises(ValueError, match="above zero"):
        paired_ratio([1.0, 0.0], [1.0, 1.0])
    with pytest.raises(ValueError, match=r"shorter|longer"):
        paired_difference([1.0], [1.0, 2.0])

"""Bounds of attainment, and lengths whose mean is that which was recorded."""

from __future__ import annotations

import numpy as np
import pytest

from telemetry.observing.histograms import CountedBuckets, length_quantiles

# Ten values: 4 at most 0.1, 3 more at most 0.5, 2 more at most 1.0, one above.
TEN = CountedBuckets((0.1, 0.5, 1.0), (4.0, 7.0, 9.0), 10.0, 6.0)


@pytest.mark.parametrize(
    ("limit", "least", "most"),
    [
        (0.5, 7.0, 7.0),  # the end of a bucket: exact
        (0.3, 4.0, 7.0),
        (0.05, 0.0, 4.0),
        (2.0, 9.0, 10.0),  # beyond the last end nobody knows
    ],
)
def test_attainment_within_a_bucket_has_two_bounds(limit: float, least: float, most: float) -> None:
    assert TEN.at_most(limit) == (least, most)


@pytest.mark.parametrize("mean", [400.0, 450.0, 600.0])
def test_lengths_have_the_recorded_mean_and_stay_in_their_buckets(mean: float) -> None:
    shares, tokens = length_quantiles([(100.0, 200.0, 30.0), (200.0, 500.0, 50.0), (1000.0, 2000.0, 20.0)], mean)
    assert (shares[0], shares[-1]) == (0.0, 1.0)
    assert np.all(np.diff(shares) > 0.0)
    assert (tokens[0], tokens[-1]) == (100.0, 2000.0)
    drawn = np.interp(np.linspace(0.0, 1.0, 20_001), shares, tokens)
    assert drawn.mean() == pytest.approx(mean, rel=0.03)
    assert np.mean(drawn <= 200.0) == pytest.approx(0.3, abs=0.02)
    assert np.mean((drawn > 500.1) & (drawn < 999.9)) == pytest.approx(0.0, abs=1e-3), "there are no such lengths"


def test_lengths_need_a_request() -> None:
    with pytest.raises(ValueError, match="at least one request"):
        length_quantiles([], 100.0)

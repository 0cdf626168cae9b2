"""Thinned series: their ends, peaks and gaps."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frontend.api.rest.sampling import METHODS, reduced

values = st.lists(st.one_of(st.none(), st.floats(-1e6, 1e6)), min_size=1, max_size=300)


@given(values, st.integers(2, 60), st.sampled_from(sorted(METHODS)))
def test_points_are_some_of_the_given_in_order_and_gaps_stay(found, most, method):
    points = [(float(i), value) for i, value in enumerate(found)]
    kept = reduced(points, most, method)
    assert [at_s for at_s, _ in kept] == sorted({at_s for at_s, _ in kept})
    assert set(kept) <= set(points)
    gaps = [i for i, (_, value) in enumerate(points) if value is None]
    for i in gaps:
        after = next((j for j in range(i, len(points)) if points[j][1] is not None), None)
        if after is not None and i:
            assert any(value is None and at_s < after for at_s, value in kept)
    stretches = sum(1 for i, (_, v) in enumerate(points) if v is not None and (i == 0 or points[i - 1][1] is None))
    assert len(kept) <= max(len(points) if len(points) <= most else 0, most + 4 * (stretches + 1))


@pytest.mark.parametrize("method", sorted(METHODS))
def test_single_peak_is_kept_when_a_thousand_points_become_fifty(method):
    points = [(float(i), math.sin(i / 50)) for i in range(1_000)]
    points[437] = (437.0, 9.0)
    assert (437.0, 9.0) in reduced(points, 50, method)


def test_ends_stay_when_chosen_by_triangles():
    points = [(float(i), float(i % 7)) for i in range(500)]
    kept = reduced(points, 20, "lttb")
    assert (kept[0], kept[-1], len(kept)) == (points[0], points[-1], 20)

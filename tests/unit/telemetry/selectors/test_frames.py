from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telemetry.selectors.frames import POINTS, TimeRange
from telemetry.selectors.pool_table import pool_state
from telemetry.selectors.service_level import _rolled


@given(st.floats(min_value=60, max_value=1e6), st.floats(min_value=1e6, max_value=2e9))
def test_window_covers_its_range_in_aligned_buckets(range_s, now_s):
    window = TimeRange.last(range_s, now_s)
    assert window.start_s % window.bucket_s == 0
    assert window.start_s <= now_s - range_s
    assert window.ends_s[-1] >= now_s > window.starts_s[-1] or window.starts_s[-1] == now_s
    assert len(window.starts_s) <= POINTS + 2


@given(st.dictionaries(st.integers(-3, 9), st.integers(0, 50)), st.integers(1, 4))
def test_rolling_sums_equal_plain_sums(counts, roll):
    counts = {i: n for i, n in counts.items() if i > -roll}
    assert _rolled(counts, roll, 10) == [sum(counts.get(j, 0) for j in range(i - roll + 1, i + 1)) for i in range(10)]


@pytest.mark.parametrize(
    ("wanted", "states", "state"),
    [
        (0, {}, "off"),
        (1, {}, "waiting"),
        (1, {"pending": 1}, "starting"),
        (1, {"ready": 1}, "serving"),
        (2, {"ready": 1, "starting": 1}, "partial"),
        (0, {"draining": 1}, "draining"),
        (2, {"ready": 1, "failed": 1}, "failed"),
    ],
)
def test_pool_state(wanted, states, state):
    assert pool_state(wanted, Counter(states)) == state


@pytest.mark.parametrize(
    ("wanted", "states", "state"),
    [(1, {}, "asleep"), (0, {}, "off"), (1, {"draining": 1}, "draining"), (1, {"ready": 1}, "draining")],
)
def test_pool_of_a_service_that_sleeps_waits_for_nothing(wanted, states, state):
    assert pool_state(wanted, Counter(states), asleep=True) == state

"""Deadlines by limits. (The order that misses the fewest is tested with the ladder that uses it.)"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.algorithms.queue.deadlines import due_by_limits
from core.types import Limits


@pytest.mark.parametrize(
    ("limits", "due_s"),
    [
        (Limits(), None),
        (Limits(tpot_s=0.1), None),
        (Limits(ttft_s=0.25), 100.25),
        (Limits(ttft_s=0.25, tpot_s=0.1), 100.25 + 4.9),
        (Limits(e2e_s=60.0), 160.0),
        (Limits(ttft_s=0.25, tpot_s=0.1, e2e_s=60.0), 100.25 + 4.9),
        (Limits(ttft_s=0.25, tpot_s=0.1, e2e_s=3.0), 103.0),
    ],
)
def test_request_is_due_by_the_earlier_of_its_limits(limits: Limits, due_s: float | None) -> None:
    found = due_by_limits(100.0, 50.0, limits)
    assert found == (None if due_s is None else pytest.approx(due_s))


LIMIT = st.none() | st.floats(0.001, 100.0)


@given(rows=st.lists(st.tuples(st.floats(0.0, 1e6), st.integers(1, 5000)), min_size=1), ttft_s=LIMIT, e2e_s=LIMIT)
def test_many_are_due_as_one_by_one(rows: list[tuple[float, int]], ttft_s: float | None, e2e_s: float | None) -> None:
    limits = Limits(ttft_s, 0.1, e2e_s)
    arrival_s, tokens = np.array(rows, dtype=np.float64).T
    found = due_by_limits(arrival_s, tokens, limits)
    single = [due_by_limits(at_s, float(n), limits) for at_s, n in rows]
    assert (found is None) == (single[0] is None)
    assert found is None or found.tolist() == single

"""Lengths of requests, and the contexts of those that run."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.observations.mode_profile import Lengths, mean_context, rounded


def test_running_requests_hold_more_than_the_mean_one_when_answers_differ() -> None:
    """One in ten answers is long: nine of ten tokens of output are its, and whoever looks mostly sees it run."""
    requests, prompt, output = np.array([9.0, 1.0]), np.array([900.0, 100.0]), np.array([90.0, 810.0])
    assert mean_context(requests, prompt, output) == pytest.approx(0.1 * 105.0 + 0.9 * 505.0)
    assert Lengths(100.0, 90.0).running_tokens == 145.0


def test_nobody_runs_when_there_is_no_output() -> None:
    assert mean_context(np.ones(2), np.ones(2), np.zeros(2)) is None


@given(st.floats(16.0, 1e6))
def test_lengths_are_rounded_by_at_most_four_per_cent(tokens: float) -> None:
    assert rounded(tokens) == pytest.approx(tokens, rel=0.04)

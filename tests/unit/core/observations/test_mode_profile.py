"""Lengths of requests, alone and together."""

from __future__ import annotations

import numpy as np
import pytest

from core.observations.mode_profile import Lengths, mean_context, together


def test_running_requests_hold_more_than_the_mean_one_when_answers_differ() -> None:
    """One in ten answers is long: nine of ten tokens of output are its, and whoever looks mostly sees it run."""
    requests, prompt, output = np.array([9.0, 1.0]), np.array([900.0, 100.0]), np.array([90.0, 810.0])
    assert mean_context(requests, prompt, output) == pytest.approx(0.1 * 105.0 + 0.9 * 505.0)
    assert Lengths(100.0, 90.0).running_tokens == 145.0


def test_nobody_runs_when_there_is_no_output() -> None:
    assert mean_context(np.ones(2), np.ones(2), np.zeros(2)) is None


def test_lengths_together_are_those_of_all_requests() -> None:
    parts = [(9.0, Lengths(100.0, 10.0)), (1.0, Lengths(100.0, 810.0))]
    both = together(parts)
    assert (both.prompt_tokens, both.output_tokens) == (100.0, 90.0)
    assert both.running_tokens == pytest.approx(0.1 * 105.0 + 0.9 * 505.0)
    assert together([(2.0, both), (3.0, both)]).running_tokens == pytest.approx(both.running_tokens)

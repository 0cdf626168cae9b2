import numpy as np
import pytest

from core.observations.demand.class_arrivals import STRETCH_S, ClassArrivals, counted


def test_peak_is_that_of_the_fullest_stretch() -> None:
    came = np.array([[4.0, 400.0, 40.0, 1.0], [0.0, 0.0, 0.0, 0.0], [6.0, 900.0, 80.0, 2.0]])
    assert counted(came) == ClassArrivals(10, 6, 1300.0, 120.0, 3.0)
    assert counted(came).peak_rps == 6 / STRETCH_S


def test_nothing_is_known_of_lengths_when_nothing_came() -> None:
    assert counted(np.zeros((0, 4))).lengths() is None
    assert counted(np.zeros((3, 4))).lengths() is None


def test_plans_know_what_running_requests_hold_when_answers_differ() -> None:
    """One answer in ten is long: nine of ten tokens are its, so that whoever runs is mostly one of those."""
    outputs = np.where(np.arange(100) % 10 == 0, 810.0, 10.0)
    came = np.stack([np.ones(100), np.full(100, 100.0), outputs, outputs * (100.0 + outputs / 2.0)], axis=1)
    lengths = counted(came).lengths()
    assert lengths is not None
    assert (lengths.prompt_tokens, lengths.output_tokens) == (100.0, 90.0)
    assert lengths.running_tokens == pytest.approx(465.0)


def test_lengths_are_those_of_an_embedding_when_no_output_came() -> None:
    lengths = counted(np.array([[2.0, 600.0, 0.0, 0.0]])).lengths()
    assert lengths is not None
    assert (lengths.prompt_tokens, lengths.output_tokens, lengths.context_tokens) == (300.0, 1.0, None)

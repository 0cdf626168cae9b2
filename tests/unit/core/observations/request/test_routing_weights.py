"""What instances weigh in routing."""

from __future__ import annotations

import numpy as np
import pytest

from core.engine.load_profile import LoadProfile
from core.observations.request.routing_weights import LEAST, by_batch, by_capacity
from core.types import Mode, ModeProfile, Source

# At 1,000 and 1,400 MHz, with 0, 1 and 2 requests/s.
PROFILE = LoadProfile(
    np.array([1000.0, 1400.0]),
    np.array([[0.0, 1.0, 2.0]] * 2),
    np.array([[0.1, 0.2, 0.4], [0.05, 0.1, 0.2]]),
    np.array([[0.02, 0.03, 0.05], [0.01, 0.02, 0.04]]),
    np.full((2, 3), 500.0),
)


def test_instances_weigh_the_rate_that_they_carry():
    profiles = {Mode("A100-80GB", tp): ModeProfile(rps, 1.0, None, None, None, Source.MODELLED) for tp, rps in RATES}
    assert by_capacity(profiles) == {Mode("A100-80GB", 2): LEAST, Mode("A100-80GB", 4): 2.5}


RATES = ((2, 0.0), (4, 2.5))


@pytest.mark.parametrize(
    ("mhz", "load_rps", "batch"),
    [
        (1000.0, 1.0, 0.2 + 100 * 0.03),
        (1390.0, 2.0, 2.0 * (0.2 + 100 * 0.04)),
        (1400.0, 3.0, 3.0 * (0.2 + 100 * 0.04)),  # the profile ends at 2 requests/s
        (1400.0, 0.0, 1e-3 * (0.05 + 100 * 0.01)),  # there for nobody yet
    ],
)
def test_planned_batch_is_load_by_the_time_of_a_request(mhz, load_rps, batch):
    assert by_batch(PROFILE, mhz, load_rps, output_tokens=100.0) == pytest.approx(batch)


def test_batch_is_load_by_the_time_in_the_largest_one_where_clocks_go_by_deadlines():
    assert by_batch(PROFILE, None, 0.5, output_tokens=100.0) == pytest.approx(0.5 * (0.2 + 100 * 0.04))


def test_planned_batch_of_an_unknown_instance_is_its_load():
    assert by_batch(None, 1400.0, 3.0, output_tokens=100.0) == 3.0

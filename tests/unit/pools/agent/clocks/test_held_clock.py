"""The mean clock between two ticks."""

from __future__ import annotations

import pytest

from pools.agent.clocks.held_clock import HeldClock


def test_mean_is_of_the_time_that_each_clock_was_held() -> None:
    held = HeldClock()
    held.lock(100.0, 1000.0)
    held.lock(100.75, 1400.0)
    assert held.mean_share(101.0) == pytest.approx((0.75 * 1000.0 + 0.25 * 1400.0) / 1400.0)
    held.lock(101.0, 1000.0)
    held.lock(101.5, 1000.0)  # renewed
    assert held.mean_share(102.0) == 1.0


def test_mean_is_that_of_the_reading_when_a_lease_may_have_lapsed() -> None:
    held = HeldClock()
    assert held.mean_share(100.0) == 1.0
    held.lock(100.0, 1000.0)
    held.lock(100.5, None)
    assert held.mean_share(101.0) == 1.0
    held.lock(101.0, 1200.0)
    assert held.mean_share(101.0) == 1.0  # no time has passed
    assert held.mean_share(102.0) == 1.0

"""Windows are whole stretches within their bounds; epochs plan for the steps that they reach into."""

import pytest

from core.observations.demand.loop_windows import loop_steps, whole_stretches


@pytest.mark.parametrize(
    ("now_s", "period_s", "window"),
    [
        (1_000.0, 10.0, (140, 200)),
        (1_004.9, 10.0, (140, 200)),
        (1_005.0 - 1e-10, 601.0, (80, 201)),  # the sum of many steps
        (0.0, 1e6, (-720, 0)),
    ],
)
def test_window_is_whole_stretches(now_s, period_s, window):
    assert whole_stretches(now_s, period_s) == window


@pytest.mark.parametrize(("period_s", "steps"), [(1.0, 1), (300.0, 1), (300.1, 2), (1800.0, 6)])
def test_epoch_plans_for_the_steps_it_reaches_into(period_s, steps):
    assert loop_steps(period_s, 300.0) == steps

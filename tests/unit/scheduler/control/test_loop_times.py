"""When loops run, and what they look back on: a policy's own periods beside those of settings."""

import pytest
from django.conf import settings

from core.policy.knobs import Knobs
from core.policy.presets import PRESETS
from core.types import Loop
from scheduler.control.loop_times import beat_s, times


@pytest.fixture(autouse=True)
def production(monkeypatch: pytest.MonkeyPatch) -> None:
    periods = {"carbon": 1_800.0, "scale": 1_800.0, "shard": 300.0, "clock": 1.0}
    loops = {name: {**loop, "period_s": periods[name]} for name, loop in settings.GREENSERVE_LOOPS.items()}
    monkeypatch.setattr(settings, "GREENSERVE_LOOPS", loops)


def test_periods_are_those_of_settings_when_a_policy_names_none() -> None:
    found = times(Knobs())
    assert [found.of(loop) for loop in Loop] == [1_800.0, 1_800.0, 300.0, 1.0]
    assert (found.step_s, found.scale_steps, found.look_back_s) == (300.0, 6, 1_800.0)


def test_own_periods_count_when_a_policy_names_them() -> None:
    found = times(Knobs(carbon_period_s=600.0), 3)
    assert (found.of(Loop.CARBON), found.step_s, found.scale_steps) == (600.0, 200.0, 9)
    found = times(Knobs(scale_period_s=10.0, shard_period_s=20.0, clock_period_s=5.0))
    assert [found.of(loop) for loop in Loop] == [1_800.0, 10.0, 20.0, 5.0]
    assert (found.step_s, found.scale_steps) == (300.0, 1)  # what a scale epoch of 10 s reaches into


def test_a_policy_looks_back_as_far_as_settings_say_when_its_own_periods_are_shorter() -> None:
    assert times(PRESETS["throttllem"].knobs).look_back_s == 1_800.0
    assert times(Knobs(shard_period_s=3_000.0)).look_back_s == 3_000.0


def test_beat_asks_as_often_as_the_fastest_policy_needs() -> None:
    assert [beat_s(loop) for loop in (Loop.CARBON, Loop.SCALE, Loop.SHARD)] == [1_800.0, 5.0, 5.0]

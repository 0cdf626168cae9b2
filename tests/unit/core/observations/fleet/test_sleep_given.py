"""What waking takes: as measured where that is known, else as published."""

from __future__ import annotations

import pytest

from core.controllers.fleet.sleep import Sleeper
from core.engine.overheads import Overheads
from core.observations.fleet import sleep_given
from core.types import Mode

SMALL, LARGE = Mode("A100-80GB", 1), Mode("A100-80GB", 2)
MODEL = "Llama3-8B"


def sleeper(kind: str, measured_s: dict[Mode, float]) -> Sleeper:
    workers = {("here", SMALL): 1, ("there", LARGE): 1}
    known = {"awake": True, "open_requests": 0, "quiet_s": 0.0, "waited_s": 0.0, "idle_s": None, "at_top": True}
    return sleep_given.sleeper("a", MODEL, kind, workers, Overheads(), **known, measured_s=measured_s)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["stop", "level"])
def test_what_was_measured_goes_before_what_is_published(kind: str) -> None:
    found = sleeper(kind, {SMALL: 40.0, LARGE: 30.0})
    assert (found.wake_s, found.measured) == (40.0, True)
    assert found.wake_j / sleeper(kind, {SMALL: 20.0, LARGE: 15.0}).wake_j == pytest.approx(2.0)


def test_times_are_published_where_one_of_the_modes_was_never_measured() -> None:
    published_s = sleep_given.waking_s("stop", Overheads(), MODEL, 1)
    found = sleeper("stop", {SMALL: 1.0})
    assert (found.wake_s, found.measured) == (published_s, False)

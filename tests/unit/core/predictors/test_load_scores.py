"""Models of load are scored day by day, as they would have forecast it; learners see nothing of what is to come."""

from __future__ import annotations

import numpy as np
import pytest

from core.predictors import load_scores
from core.predictors.load_scores import CHOSEN, EVERY, STEPS
from core.predictors.seasonal import MODELS, Floats, History

DAY = 24
SEVEN = 7 * DAY
COURSE = 100.0 + 50.0 * np.sin(2.0 * np.pi * np.arange(SEVEN) / DAY)
TWO = {name: MODELS[name] for name in ("persistence", "day ago")}


def said(line: str) -> None:
    """Nobody listens."""


def of(values: Floats, learners=None, models=TWO):
    found = load_scores.score(History(values, 0, DAY, 0.0), models, learners or {}, said)
    return {one.model: one for one in found}


def test_a_load_that_repeats_is_known_from_the_day_before() -> None:
    found = of(COURSE)
    assert found["day ago"].median == pytest.approx(0.0)
    assert found["persistence"].median > 5.0
    assert found["day ago"].chosen_days == 3
    assert found[CHOSEN].median == found["day ago"].median


def test_rises_and_falls_are_scored_apart() -> None:
    up = np.where(np.arange(SEVEN) % DAY < DAY // 2, 10.0, 20.0)  # it rises at noon and falls at midnight
    found = of(up + 0.01 * np.arange(SEVEN))["persistence"]  # and a little at each step
    assert found.rises is not None
    assert found.falls is not None
    assert found.rises != found.falls
    alone = of(np.arange(float(SEVEN)))["persistence"]
    assert alone.falls is None
    assert alone.rises == alone.median


def test_learners_learn_each_day_from_what_lies_before_it() -> None:
    seen: list[int] = []

    def learn(history: History):
        seen.append(history.values.size)
        return MODELS["day ago"]

    found = of(COURSE, {"learner": learn})
    days = (4 * DAY, 5 * DAY, 6 * DAY)
    assert seen[1::2] == list(days)  # for the day; and before that for the back-test, which it has seen nothing of
    assert all(size <= end // 2 for size, end in zip(seen[::2], days, strict=True))
    assert found["learner"].forecasts == found["persistence"].forecasts
    assert found["learner"].median == found["day ago"].median


def test_a_learner_that_could_not_learn_on_a_day_has_no_score() -> None:
    def learn(history: History):
        raise ValueError("too little")

    assert set(of(COURSE, {"learner": learn})) == {*TWO, CHOSEN}


def test_gaps_are_not_scored() -> None:
    values = COURSE.copy()
    values[-3] = np.nan
    assert of(values)["persistence"].forecasts == of(COURSE)["persistence"].forecasts - STEPS // EVERY


@pytest.mark.parametrize("days", [1, 2])
def test_a_short_load_is_refused(days: int) -> None:
    with pytest.raises(ValueError, match="three days"):
        of(COURSE[: days * DAY])


def test_a_load_that_is_all_gaps_is_refused() -> None:
    with pytest.raises(ValueError, match="gap"):
        of(np.full(SEVEN, np.nan))

"""Scores forecasts of a load that was recorded, as they would have been made while it ran.

Each day, models that learn do so from all that lies before it, and a back-test on the same chooses one. From every
`EVERY`-th step of the day on each model then forecasts the next `STEPS`. A forecast counts as one of a rise where what
came was more in the mean than the newest value that was known, else as one of a fall.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from .back_test import back_test, mape, pinball, rolling_origins
from .seasonal import Floats, History, Model

STEPS = 6
EVERY = 6
ORIGINS = 24  # of the back-test that chooses
QUANTILE = 0.9
CHOSEN = "chosen by back-test"

Learner = Callable[[History], Model]  # raises ValueError where there is too little to learn from


@dataclass(frozen=True, slots=True)
class LoadScore:
    """One model's score. Losses are mean pinball losses in the unit of the load; `rises` and `falls` are the median's.

    `chosen_days`: on how many days the back-test chose it.
    """

    model: str
    forecasts: int
    median: float
    upper: float
    mape: float | None
    rises: float | None
    falls: float | None
    chosen_days: int


@dataclass
class _Said:
    """Holds what a model said from each origin on: (STEPS,) each."""

    median: list[Floats] = field(default_factory=list)
    upper: list[Floats] = field(default_factory=list)


def score(
    history: History, models: Mapping[str, Model], learners: Mapping[str, Learner], progress: Callable[[str], None]
) -> tuple[LoadScore, ...]:
    """Returns the scores of models over the later half of a load, least loss at the upper quantile first.

    The row `CHOSEN` is of the models that the back-tests chose, day by day. Models that cannot forecast every step, or
    cannot learn on every day, are left out. Raises ValueError when the load is too short: three days are needed.
    """
    first = -(-(history.values.size // 2) // history.day) * history.day
    days = range(first, history.values.size - STEPS, history.day)
    if first < 2 * history.day or not days:
        raise ValueError("a load is scored on its later half, day by day, and needs three days at the least")
    said: dict[str, _Said] = {}
    truth: list[Floats] = []
    last: list[float] = []
    chosen: Counter[str] = Counter()
    for number, start in enumerate(days):
        progress(f"day {number + 1} of {len(days)}")
        before = history.until(start)
        choice = _choose(before, models, learners)
        chosen[choice] += 1
        known = {**models, **_learned(before, learners)}
        for at in range(start, min(start + history.day, history.values.size - STEPS + 1), EVERY):
            coming, now = history.values[at : at + STEPS], history.until(at)
            if np.isnan(coming).any() or np.isnan(now.values[-1]):
                continue
            truth.append(coming)
            last.append(float(now.values[-1]))
            for name, model in known.items():
                own = said.setdefault(name, _Said())
                own.median.append(model(now, STEPS, 0.5))
                own.upper.append(model(now, STEPS, QUANTILE))
            mine = said.setdefault(CHOSEN, _Said())
            mine.median.append(said[choice].median[-1])
            mine.upper.append(said[choice].upper[-1])
    if not truth:
        raise ValueError("every step of the load's later half lies beside a gap")
    came, rises = np.stack(truth), np.stack(truth).mean(axis=1) > np.array(last)
    found = [
        _score(name, np.stack(own.median), np.stack(own.upper), came, rises, chosen[name])
        for name, own in said.items()
        if len(own.median) == len(came) and not np.isnan([own.median, own.upper]).any()
    ]
    return tuple(sorted(found, key=lambda one: one.upper))


def _choose(before: History, models: Mapping[str, Model], learners: Mapping[str, Learner]) -> str:
    """Returns the model of least loss on what was known; one that learns has learned before the first origin."""
    origins = rolling_origins(before.values.size, STEPS, ORIGINS, before.day)
    able = {**models, **(_learned(before.until(origins[0]), learners) if origins else {})}
    scores = back_test(before, able, origins, STEPS, QUANTILE)
    return scores[0].model if scores else next(iter(models))


def _learned(before: History, learners: Mapping[str, Learner]) -> dict[str, Model]:
    found = {}
    for name, learn in learners.items():
        try:
            found[name] = learn(before)
        except ValueError:  # too little yet; a model that is missing on a day has no score
            continue
    return found


def _score(
    name: str, median: Floats, upper: Floats, came: Floats, rises: NDArray[np.bool_], chosen_days: int
) -> LoadScore:
    def loss(rows: NDArray[np.bool_]) -> float | None:
        return pinball(came[rows], median[rows], 0.5) if rows.any() else None

    return LoadScore(
        model=name,
        forecasts=len(came),
        median=pinball(came, median, 0.5),
        upper=pinball(came, upper, QUANTILE),
        mape=mape(came.ravel(), median.ravel()),
        rises=loss(rises),
        falls=loss(~rises),
        chosen_days=chosen_days,
    )

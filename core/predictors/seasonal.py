"""Forecasts of a series with a daily and a weekly pattern: carbon intensity, prices, load. Arrays in, arrays out.

A model is a function of a `History` that gives the coming steps at one quantile (0.5: its point forecast). It sees
nothing but the history, and answers NaN where it has nothing to go by. Gaps are NaN and are never filled in.

- `persistence`: the last value;
- `day ago`, `week ago`: the seasonal naive forecasts (Hyndman and Athanasopoulos, Forecasting, 5.2);
- `profile`: the mean course of a day, recent days and days of the same kind (working days, weekends) counting more, and
  how far the present lies off it, which fades (an AR(1) of the remainder);
- `harmonic`: regression on harmonics of day and week (the same text, 7.4), with the same fading remainder;
- `template`: DynamoLLM's weekly template (section IV-B), a percentile of what the same times of earlier weeks brought.

Other quantiles of the first five are their point forecast and the quantile of the errors that they would have made from
earlier origins of the same history, at about the same distance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from .load_template import LoadHistory, PeakHistory, TemplateConfig
from .load_template import forecast as template_forecast

Floats = NDArray[np.float64]
DAYS_A_WEEK = 7
WEEKEND = (2, 3)  # days since the Unix epoch, a Thursday, modulo 7
HALF_LIFE_DAYS = 4.0
OTHER_KIND = 0.25  # weight of a day of the other kind
RIDGE = 1e-3
DAY_HARMONICS, WEEK_HARMONICS = 6, 3
ERROR_ORIGINS = 12
NEAR_STEPS = 2  # errors at distances so close are taken together
RECENT_SHARE = 1 / 24  # of a day: older than that the last value says nothing of the present


@dataclass(frozen=True, slots=True)
class History:
    """Values of consecutive steps, the newest last, NaN where unknown.

    `first_step` is the number of the first one since the Unix epoch, and `day` how many steps a day has, so that
    weekdays are known (in the sped-up demo days are shorter, weeks seven of them). `floor`: the least that can be.
    """

    values: Floats
    first_step: int
    day: int
    floor: float = -math.inf

    def __post_init__(self) -> None:
        if self.day < 1 or self.values.ndim != 1:
            raise ValueError("a day has at least one step, and values are one row")

    @property
    def week(self) -> int:
        return DAYS_A_WEEK * self.day

    @property
    def next_step(self) -> int:
        return self.first_step + self.values.size

    def until(self, count: int) -> History:
        """Returns only the first `count` steps: what was known then."""
        return History(self.values[:count].copy(), self.first_step, self.day, self.floor)


Model = Callable[[History, int, float], Floats]
PointModel = Callable[[History, int], Floats]


def _persistence(history: History, steps: int) -> Floats:
    return np.full(steps, _latest(history))


def _season_ago(length: Callable[[History], int]) -> PointModel:
    def model(history: History, steps: int) -> Floats:
        """Returns the newest known value of the same time, from up to three seasons ago."""
        season = length(history)
        found = np.full(steps, np.nan)
        for back in (3, 2, 1):
            at = history.values.size + np.arange(steps) % season - back * season
            values = np.where(at >= 0, history.values[np.maximum(at, 0)] if history.values.size else np.nan, np.nan)
            found = np.where(np.isnan(values), found, values)
        return found

    return model


def _profile(history: History, steps: int) -> Floats:
    course = _day_courses(history)
    if course is None:
        return np.full(steps, np.nan)
    return _with_remainder(history, steps, lambda step: course[_is_weekend(history, step), step % history.day])


def _day_courses(history: History) -> Floats | None:
    """Returns the mean course of a working day (row 0) and of a weekend's day (row 1); None without any value."""
    day = history.day
    lead = history.first_step % day
    rows = -(-(lead + history.values.size) // day)
    row = np.full(rows * day, np.nan)
    row[lead : lead + history.values.size] = history.values
    table = row.reshape(rows, day)
    numbers = history.first_step // day + np.arange(rows)
    weekend = np.isin(numbers % DAYS_A_WEEK, WEEKEND)
    age = 0.5 ** ((numbers[-1] - numbers) / HALF_LIFE_DAYS) if rows else np.zeros(0)
    known = ~np.isnan(table)
    if not known.any():
        return None
    courses = np.empty((2, day))
    for kind in (0, 1):
        weight = (age * np.where(weekend == bool(kind), 1.0, OTHER_KIND))[:, None] * known
        total = weight.sum(axis=0)
        mean = np.full(day, np.nan)
        np.divide((weight * np.where(known, table, 0.0)).sum(axis=0), total, where=total > 0.0, out=mean)
        courses[kind] = _bridged(mean)
    return courses


def _bridged(course: Floats) -> Floats:
    """Fills in times of day that were never seen from their neighbours around the clock."""
    known = np.flatnonzero(~np.isnan(course))
    return np.interp(np.arange(course.size), known, course[known], period=course.size)


def _is_weekend(history: History, step: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.isin(step // history.day % DAYS_A_WEEK, WEEKEND).astype(np.int64)


def _harmonic(history: History, steps: int) -> Floats:
    known = np.flatnonzero(~np.isnan(history.values))
    weekly = known.size > 0 and known[-1] - known[0] >= 2 * history.week
    if known.size < 2 * (1 + 2 * (DAY_HARMONICS + WEEK_HARMONICS)) or known[-1] - known[0] < history.day:
        return np.full(steps, np.nan)
    design = _waves(history, history.first_step + known, weekly)
    gram = design.T @ design + RIDGE * known.size * np.diag([0.0] + [1.0] * (design.shape[1] - 1))
    weights = np.linalg.solve(gram, design.T @ history.values[known])
    return _with_remainder(history, steps, lambda step: _waves(history, step, weekly) @ weights)


def _waves(history: History, step: NDArray[np.int64], weekly: bool) -> Floats:
    return _week_of_waves(history.day, weekly)[step % history.week]


@lru_cache(maxsize=4)
def _week_of_waves(day: int, weekly: bool) -> Floats:
    """Returns the harmonics at each step of a week, (week, columns)."""
    step = np.arange(DAYS_A_WEEK * day)
    columns = [np.ones(step.size)]
    for length, count in ((day, DAY_HARMONICS), (DAYS_A_WEEK * day, WEEK_HARMONICS if weekly else 0)):
        for k in range(1, min(count, max(0, length // 2 - 1)) + 1):
            angle = 2.0 * np.pi * k * (step % length) / length
            columns += [np.sin(angle), np.cos(angle)]
    table = np.stack(columns, axis=1)
    table.flags.writeable = False
    return table


def _with_remainder(history: History, steps: int, course: Callable[[NDArray[np.int64]], Floats]) -> Floats:
    """Returns the course ahead, and what the present lies off it, fading as the history's own remainders do."""
    ahead: Floats = course(history.next_step + np.arange(steps))
    off = history.values - course(history.first_step + np.arange(history.values.size))
    both = ~np.isnan(off[1:]) & ~np.isnan(off[:-1])
    before, after = off[:-1][both], off[1:][both]
    power = float(before @ before)
    fading = min(0.999, max(0.0, float(before @ after) / power)) if power > 0.0 else 0.0
    known = np.flatnonzero(~np.isnan(off))
    if known.size == 0:
        return ahead
    age = off.size - 1 - int(known[-1])
    return np.asarray(ahead + off[known[-1]] * fading ** (age + 1.0 + np.arange(steps)), dtype=np.float64)


def _latest(history: History) -> float:
    """Returns the newest value that is not too old to be the present one."""
    recent = history.values[-max(1, round(history.day * RECENT_SHARE)) :]
    known = recent[~np.isnan(recent)]
    return float(known[-1]) if known.size else math.nan


def with_errors(point: PointModel) -> Model:
    """Turns a point forecast into one at any quantile, by the errors that it would have made before."""

    def model(history: History, steps: int, quantile: float) -> Floats:
        best = np.maximum(point(history, steps), history.floor)
        if quantile == 0.5 or np.isnan(best).all():
            return best
        spread = _near_quantiles(_past_errors(point, history, steps), quantile)
        return np.maximum(best + spread, history.floor)

    return model


def _near_quantiles(errors: Floats, quantile: float) -> Floats:
    """Returns (steps,) the quantile of the known errors at each distance and NEAR_STEPS beside it, of (origins, steps);
    NaN where none is known. All at once: `np.quantile` of each distance takes longer than the forecasts do."""
    apart = np.pad(errors, ((0, 0), (NEAR_STEPS, NEAR_STEPS)), constant_values=np.nan)
    near = sliding_window_view(apart, 2 * NEAR_STEPS + 1, axis=1).transpose(1, 0, 2).reshape(errors.shape[1], -1)
    rising = np.sort(near, axis=1)  # NaN last
    count = (~np.isnan(near)).sum(axis=1)
    at = np.maximum(0.0, quantile * (count - 1))
    below = np.floor(at).astype(np.int64)
    row = np.arange(len(rising))
    low, high = rising[row, below], rising[row, np.minimum(below + 1, np.maximum(0, count - 1))]
    found: Floats = low + (high - low) * (at - below)
    return found


def _past_errors(point: PointModel, history: History, steps: int) -> Floats:
    """Returns truth less forecast, one row an origin, the origins spread over the later half of the history."""
    size = history.values.size
    ends = np.unique(np.linspace(size // 2, size - 1, ERROR_ORIGINS).astype(int)) if size > 1 else np.zeros(0, int)
    rows = [np.full(steps, np.nan)]
    for end in ends.tolist():
        if end:
            truth = np.full(steps, np.nan)
            truth[: size - end] = history.values[end : end + steps]
            rows.append(truth - np.maximum(point(history.until(end), steps), history.floor))
    return np.stack(rows)


def template(history: History, steps: int, quantile: float) -> Floats:
    """Forecasts (steps,) by `load_template`'s weekly template, which counts steps of five minutes, whatever these ones
    last."""
    config = TemplateConfig(step_s=86_400.0 / history.day, percentile=quantile) if _divides(history.day) else None
    if config is None:
        return np.full(steps, np.nan)
    known = np.flatnonzero(~np.isnan(history.values))
    slots: dict[int, tuple[tuple[int, float], ...]] = {}
    zero = config.step_of(0.0)
    for at in known[-config.weeks * config.steps_a_week :].tolist():
        step = zero + history.first_step + at
        slot = step % config.steps_a_week
        slots[slot] = (*slots.get(slot, ()), (step, float(history.values[at])))
    if not slots:
        return np.full(steps, np.nan)
    last = zero + history.first_step + int(known[-1])
    said = template_forecast(
        LoadHistory({"": PeakHistory(slots, last)}), "", history.next_step * config.step_s, steps, config
    )
    rates = np.array([math.nan if rate is None else rate for rate in said.rates], dtype=np.float64)
    return np.maximum(rates, history.floor)


def _divides(day: int) -> bool:
    """Says whether a day's steps are whole stretches of five seconds, as templates need."""
    step_s = 86_400.0 / day
    return step_s >= 5.0 and step_s % 5.0 == 0.0


MODELS: Mapping[str, Model] = {
    "persistence": with_errors(_persistence),
    "day ago": with_errors(_season_ago(lambda history: history.day)),
    "week ago": with_errors(_season_ago(lambda history: history.week)),
    "profile": with_errors(_profile),
    "harmonic": with_errors(_harmonic),
    "template": template,
}

"""Rates over time: curves that repeat, and the week of a service that people use."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from core.simulator.workload.columns import Floats

DAY_S = 86_400.0
WEEK_S = 7 * DAY_S
WEEK_STEP_S = 300.0
WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_SATURDAY = 5
_BISECTIONS = 200  # to the last bit


@dataclass(frozen=True, slots=True)
class RateCurve:
    """Relative rates of steps of `step_s`, over and over. Only their ratios count: a generator says their mean."""

    step_s: float
    rates: tuple[float, ...]

    @property
    def period_s(self) -> float:
        return self.step_s * len(self.rates)

    def times_s(self, start_s: float, worked_s: Floats) -> Floats:
        """Returns when, after `start_s` on the curve, its integral (at a mean rate of 1) has grown by each of
        `worked_s`, (n,).

        A process of unit rate with points at `worked_s` has the curve's rate at the times returned (time change).
        """
        ends_s = self.step_s * np.arange(len(self.rates) + 1.0)
        integral = np.concatenate([[0.0], np.cumsum(self.rates)])
        integral *= self.period_s / integral[-1]
        began = self.period_s * (start_s // self.period_s)
        total = worked_s + np.interp(start_s - began, ends_s, integral)
        rounds = np.floor(total / self.period_s)
        found = rounds * self.period_s + np.interp(total - rounds * self.period_s, integral, ends_s)
        result: Floats = np.maximum(0.0, found - (start_s - began))
        return result


@dataclass(frozen=True, slots=True)
class WeekShape:
    """A week's load by its ratios, which `week_curve` meets exactly, and by what our curve makes of the rest.

    `weekend`: height of a weekend day above the valley, relative to a working day's. `peak_hour`: of local time.
    """

    peak_to_mean: float
    peak_to_valley: float
    weekend: float
    peak_hour: float = 14.0


# Ratios: DynamoLLM III-B, of two services over a week. It also says: peaks during working hours, valleys at night and
# weekends; Coding peaks every day and is much lower at weekends; Conversation is less extreme. How much lower, the
# hour of the peak and the form of the curve are our choice.
PRESETS = {
    "conversation": WeekShape(peak_to_mean=1.7, peak_to_valley=3.3, weekend=0.8),
    "coding": WeekShape(peak_to_mean=2.8, peak_to_valley=34.6, weekend=0.3),
}


def week_curve(shape: WeekShape) -> RateCurve:
    """Returns the rates of a week from Monday 0:00 local time, in steps of five minutes.

    rate(t) = v + (1 - v) (w(t) (1 + cos(2 pi (hour - peak_hour) / 24)) / 2)^g with v = 1 / peak_to_valley; w is 1, and
    `weekend` in the days that begin with Saturday's and Sunday's nightly valley; g is solved for the mean.

    Raises:
        ValueError: No such curve exists; the message names the field.
    """
    if not (1.0 < shape.peak_to_mean < shape.peak_to_valley):
        raise ValueError("peak_to_mean must be above 1 and below peak_to_valley")
    if not 0.0 <= shape.weekend <= 1.0:
        raise ValueError("weekend must be from 0 to 1")
    if not 0.0 <= shape.peak_hour < 24.0 or (shape.peak_hour * 3600.0) % WEEK_STEP_S:
        raise ValueError("peak_hour must be from 0 to 24, in steps of five minutes")
    since_peak_s = WEEK_STEP_S * np.arange(int(WEEK_S / WEEK_STEP_S)) - 3600.0 * shape.peak_hour
    day = np.floor((since_peak_s + DAY_S / 2) / DAY_S) % 7  # a day lasts from valley to valley
    height = 0.5 * (1.0 + np.cos(2.0 * np.pi * since_peak_s / DAY_S))
    height = np.where(day >= _SATURDAY, shape.weekend, 1.0) * np.where(height < 1e-12, 0.0, height)
    valley, mean = 1.0 / shape.peak_to_valley, 1.0 / shape.peak_to_mean
    low, high = 1e-6, 1e6
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        above = valley + (1.0 - valley) * float((height**middle).mean()) > mean
        low, high = (middle, high) if above else (low, middle)
    rates = valley + (1.0 - valley) * height**low
    if abs(float(rates.mean()) - mean) > 1e-9:
        raise ValueError("no week has these ratios: peak_to_mean is too near to 1, or to peak_to_valley")
    return RateCurve(WEEK_STEP_S, tuple(rates.tolist()))

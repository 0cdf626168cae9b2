"""Foretells what a month comes to: the mean of its newest days, times the days left. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

DAYS, LEAST_DAYS = 7, 3
# Two-sided 80 % points of Student's t, by degrees of freedom (days less one).
STUDENT_T_80 = {2: 1.886, 3: 1.638, 4: 1.533, 5: 1.476, 6: 1.440}


@dataclass(frozen=True, slots=True)
class MonthForecast:
    """What the whole month comes to, and between which bounds four months of five end. All in the unit of the days."""

    value: float
    low: float
    high: float
    a_day: float
    days: int  # that it is the mean of


def month_forecast(so_far: float, days: Sequence[float | None], left_days: float) -> MonthForecast | None:
    """Returns the forecast; None where fewer than three of the newest seven days are known.

    The range is that of a sum of days to come that vary as those seen: t * s * sqrt(n + n^2 / k) for k days seen and n
    to come. It goes with days that do not depend on each other, so that a week with a rhythm comes out a little wide.

    Args:
        so_far: What is used of the month.
        days: The newest days, each of 24 hours; None: not known, or before anything was.
        left_days: How many days of the month are to come, with their parts.
    """
    known = [day for day in days[-DAYS:] if day is not None]
    if len(known) < LEAST_DAYS:
        return None
    mean = sum(known) / len(known)
    variance = sum((day - mean) ** 2 for day in known) / (len(known) - 1)
    spread = STUDENT_T_80[len(known) - 1] * math.sqrt(variance * (left_days + left_days**2 / len(known)))
    value = so_far + mean * left_days
    return MonthForecast(value, max(so_far, value - spread), value + spread, mean, len(known))


def used_up_in_days(so_far: float, budget: float, a_day: float) -> float | None:
    """Returns in how many days the budget is used up at that pace: 0 where it is already; None: never."""
    if so_far >= budget:
        return 0.0
    return (budget - so_far) / a_day if a_day > 0 else None

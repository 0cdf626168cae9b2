"""Burn rate of a service's error budget over several windows. Pure.

From the Site Reliability Workbook (Google, 2018), chapter 5, "Multiwindow, Multi-Burn-Rate Alerts", table 5-8: an alert
fires when the budget burns at least `factor` times too fast over a long window (enough was lost to matter) and over a
short one of a twelfth of it (it is still being lost). 14.4 over an hour is 2 % of thirty days' budget, 6 over six hours
is 5 %, 1 over three days is 10 %.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

MINUTE_S, HOUR_S, DAY_S = 60.0, 3_600.0, 86_400.0
LEAST_BUDGET = 1e-6  # an objective for all requests has no budget: one miss burns it a million times too fast


@dataclass(frozen=True, slots=True)
class BurnWindow:
    """A pair of windows and the factor that both must reach. `least_judged`: requests in the long one, or nothing is
    said: of three requests one that is late proves nothing."""

    rule: str
    short_s: float
    long_s: float
    factor: float
    least_judged: int


WINDOWS: tuple[BurnWindow, ...] = (
    BurnWindow("slo_burn_fast", 5 * MINUTE_S, HOUR_S, 14.4, 20),
    BurnWindow("slo_burn_slow", 30 * MINUTE_S, 6 * HOUR_S, 6.0, 50),
    BurnWindow("slo_burn_steady", 6 * HOUR_S, 3 * DAY_S, 1.0, 200),
)


@dataclass(frozen=True, slots=True)
class MinuteCount:
    """Requests judged by one objective that ended in [start_s, start_s + 60), and how many of them kept it."""

    start_s: float
    judged: int
    within: int


def counted(minutes: Sequence[MinuteCount], now_s: float, window_s: float) -> tuple[int, int]:
    """Returns (judged, within) of the minutes that began in the last `window_s`, the one that still runs included."""
    recent = [minute for minute in minutes if now_s - window_s <= minute.start_s <= now_s]
    return sum(minute.judged for minute in recent), sum(minute.within for minute in recent)


def burn_rate(judged: int, within: int, target: float) -> float | None:
    """Returns the share of misses over the share that the objective allows; None when nothing was judged.

    Args:
        target: The share that is to be within the objective, 0 to 1.
    """
    if judged <= 0:
        return None
    return (1.0 - within / judged) / max(1.0 - target, LEAST_BUDGET)


def burning(window: BurnWindow, minutes: Sequence[MinuteCount], target: float, now_s: float) -> float | None:
    """Returns the rate that both windows reach, which is the lower of the two; None when too little was judged to say.

    An idle service burns nothing: a short window without a request is 0, so that an alert ends when its cause has.
    """
    judged, within = counted(minutes, now_s, window.long_s)
    if judged < window.least_judged:
        return None if judged else 0.0
    long_rate = burn_rate(judged, within, target) or 0.0
    return min(long_rate, burn_rate(*counted(minutes, now_s, window.short_s), target) or 0.0)


def rates(minutes: Sequence[MinuteCount], target: float, now_s: float) -> Mapping[float, float | None]:
    """Returns the burn rate over each of the windows, by its length in seconds."""
    lengths = sorted({length for window in WINDOWS for length in (window.short_s, window.long_s)})
    return {length: burn_rate(*counted(minutes, now_s, length), target) for length in lengths}

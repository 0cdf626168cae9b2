"""Describes a grid to models that learn: its hourly values of the last 28 days, and the weather of the hour.

All is said as a logarithm and against the same hour of the last known days, so that a grid of coal and one of hydro
look alike, and a forecast that learns nothing still says "as in the last days".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]

LEADS = 96  # hours ahead
DAY, WEEK, MEMORY = 24, 168, 672  # hours; nothing older than MEMORY enters a forecast
DAYS_BACK, WEEKS_BACK = 7, 4
LEAST_G_PER_KWH = 1.0  # below it a grid counts as being there: logarithms have to end somewhere
WEATHER = ("wind_m_s", "temperature_k", "dewpoint_k", "irradiance_w_m2", "precipitation")
YEAR_DAYS = 365.2425
_LEAST_UNREST = 1e-3

CALENDAR = ("lead", "hour", "weekday", "year_sin", "year_cos", "issued_hour")
RECENT = (
    "reference",
    *(f"{k} days before" for k in range(1, DAYS_BACK + 1)),
    *(f"{k} weeks before" for k in range(1, WEEKS_BACK + 1)),
    *("day against week", "week against month", "now against day"),
    *(f"off {k} hours ago" for k in (1, 2, 3, 6, 12)),
)
_OF_WEATHER = (
    "",
    " against last days",
    " of the day",
    " against yesterday",
    " in 3 hours",
    " of the day, risen",
    " off now",
)
SKY = tuple(f"{name}{what}" for name in WEATHER for what in _OF_WEATHER)


@dataclass(frozen=True, slots=True)
class Grid:
    """Hours of one grid from `first_hour` (since the Unix epoch) on, NaN where unknown.

    `carbon` (n,) in g/kWh; `weather` (m, 5) in the order of WEATHER, forecast or measured, or None; m may be more than
    n, since weather is known ahead.
    """

    first_hour: int
    carbon: Floats
    weather: Floats | None = None

    def __post_init__(self) -> None:
        if self.carbon.ndim != 1:
            raise ValueError("carbon is one row of hours")
        if self.weather is not None and (self.weather.ndim != 2 or self.weather.shape[1] != len(WEATHER)):
            raise ValueError(f"weather has the columns {', '.join(WEATHER)}")

    def until(self, hours: int) -> Grid:
        """Returns what a forecast sees that is made after `hours` hours: MEMORY of carbon, weather to the horizon."""
        begin = max(0, hours - MEMORY)
        weather = None if self.weather is None else self.weather[begin : hours + LEADS]
        return Grid(self.first_hour + begin, self.carbon[begin:hours], weather)

    def before(self, hours: int) -> Grid:
        """Returns what was, of the first `hours` hours."""
        hours = max(0, hours)
        return Grid(self.first_hour, self.carbon[:hours], None if self.weather is None else self.weather[:hours])

    def without_weather(self) -> Grid:
        return Grid(self.first_hour, self.carbon)


def names(weather: bool) -> tuple[str, ...]:
    """Names the columns of `features`, in their order."""
    return (*CALENDAR, *RECENT, *(SKY if weather else ()))


def features(grid: Grid, origins: Whole, leads: Whole) -> tuple[Floats, Floats]:
    """Describes forecasts: of the hour `origins + leads`, made when `origins` hours were known; (n,) each.

    Returns:
        (n, columns) in the order of `names`, NaN where unknown, and (n,) the reference: the mean logarithm of the same
        hour of the last known days, to which a model adds what it learned. It is NaN where none of them is known.
    """
    x = logs(grid.carbon)
    target = origins + leads
    back = (leads // DAY + 1) * DAY  # the newest same hour that is known
    same = np.stack([_at(x, target - back - DAY * k) for k in range(DAYS_BACK)])
    reference = known_mean(same)
    clock = grid.first_hour + target
    turn = 2.0 * np.pi * (clock / DAY) / YEAR_DAYS
    columns = [leads, clock % DAY, clock // DAY % 7, np.sin(turn), np.cos(turn), (grid.first_hour + origins) % DAY]
    columns += [reference, *(same - reference)]
    columns += [_at(x, target - WEEK * k) - reference for k in range(1, WEEKS_BACK + 1)]
    day, week, month = (_trailing(x, hours)[origins - 1] for hours in (DAY, WEEK, MEMORY))
    columns += [day - week, week - month, _at(x, origins - 1) - day]
    off = off_days(x)
    columns += [_at(off, origins - k) for k in (1, 2, 3, 6, 12)]
    if grid.weather is not None:
        columns += [one for row in grid.weather.T for one in _sky(row, origins, target, back)]
    return np.stack(columns, axis=1).astype(np.float64), reference


def unrest(grid: Grid, origins: Whole) -> Floats:
    """Returns (n,) how far hours of the last two weeks lay off the same hours of their days before, in logarithms.

    Errors of forecasts grow and shrink with it: it is what intervals are measured in.
    """
    return np.maximum(_at(_trailing(np.abs(off_days(logs(grid.carbon))), 2 * WEEK), origins - 1), _LEAST_UNREST)


def logs(carbon: Floats) -> Floats:
    """Returns (n,) logarithms of (n,) g/kWh, of LEAST_G_PER_KWH where there is less."""
    return np.log(np.maximum(carbon, LEAST_G_PER_KWH))


def _sky(row: Floats, origins: Whole, target: Whole, back: Whole) -> list[Floats]:
    """Returns one weather variable's columns; none of them looks beyond the hour that is forecast."""
    now, daily = _at(row, target), _trailing(row, DAY)
    before = known_mean(np.stack([_at(row, target - back - DAY * k) for k in range(DAYS_BACK)]))
    of_day = _at(daily, target)
    return [
        *(now, now - before, of_day, now - _at(row, target - back), now - _at(row, target - 3)),
        *(of_day - _at(daily, origins - 1), _at(off_days(row), origins - 1)),
    ]


def _at(row: Floats, at: Whole) -> Floats:
    inside = (at >= 0) & (at < row.size)
    return (
        np.where(inside, row[np.clip(at, 0, max(0, row.size - 1))], np.nan) if row.size else np.full(at.shape, np.nan)
    )


def off_days(row: Floats) -> Floats:
    """Returns (n,) how far each of (n,) hours lies off the mean of the same hour of the DAYS_BACK days before."""
    hours = np.arange(row.size)
    return row - known_mean(np.stack([_at(row, hours - DAY * k) for k in range(1, DAYS_BACK + 1)]))


def known_mean(values: Floats, axis: int = 0, keepdims: bool = False) -> Floats:
    """Returns the mean over an axis of what is known, (n, ...) to (...) over the first one; NaN where nothing is."""
    known = ~np.isnan(values)
    count = known.sum(axis=axis, keepdims=keepdims)
    total = np.where(known, values, 0.0).sum(axis=axis, keepdims=keepdims)
    means: Floats = np.divide(total, count, out=np.full(total.shape, np.nan), where=count > 0)
    return means


def _trailing(row: Floats, hours: int) -> Floats:
    """Returns for each hour the mean of what is known of the last `hours` hours, itself included."""
    known = ~np.isnan(row)
    total = np.concatenate([[0.0], np.cumsum(np.where(known, row, 0.0))])
    count = np.concatenate([[0], np.cumsum(known)])
    end = np.arange(1, row.size + 1)
    begin = np.maximum(0, end - hours)
    counted = count[end] - count[begin]
    means = np.divide(total[end] - total[begin], counted, out=np.full(row.size, np.nan), where=counted > 0)
    rounded: Floats = np.round(
        means, 9
    )  # sums of other lengths differ in the last digits, and trees would split on that
    return rounded

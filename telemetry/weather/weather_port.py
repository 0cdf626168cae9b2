"""The port to providers of weather."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from core.predictors.carbon_features import WEATHER

HOUR_S = 3_600
Values = tuple[float | None, ...]  # in the order and the units of WEATHER; None: the provider has none
Hours = Mapping[int, Values]  # by hour since the Unix epoch
NOTHING: Values = (None,) * len(WEATHER)


def hour_of(at: datetime) -> int:
    """Returns the hour since the Unix epoch that a moment lies in."""
    return math.floor(at.timestamp() / HOUR_S)


def moment_of(hour: int) -> datetime:
    """Returns when an hour since the Unix epoch begins."""
    return datetime.fromtimestamp(hour * HOUR_S, UTC)


@dataclass(frozen=True, slots=True)
class Place:
    """Degrees, north and east positive."""

    latitude: float
    longitude: float


class WeatherProvider(Protocol):
    """One source of the weather of one place, by whole hours. Blocks for at most its time-out; raises AdapterError.

    Hours of which nothing is known are left out.
    """

    def past(self, first_hour: int, end_hour: int) -> Hours:
        """Returns what was, of [first_hour, end_hour)."""
        ...

    def outlook(self, now_hour: int, days_back: int) -> Hours:
        """Returns the newest days, and as many hours ahead as the provider forecasts, a week at least."""
        ...

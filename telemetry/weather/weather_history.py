"""Reads what is known of a site's weather at a moment, for models: what was, and what is forecast of late."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np
from numpy.typing import NDArray

from core.predictors.carbon_features import WEATHER, Floats
from pools.models import Site
from telemetry.models import WeatherPoint

from .weather_port import HOUR_S, hour_of, moment_of

FRESH = timedelta(hours=24)  # a forecast that was fetched before is as good as none


@dataclass(frozen=True, slots=True)
class Sky:
    """Weather from `first_hour` (since the Unix epoch) on: (hours, 5) in the order of WEATHER, NaN where unknown."""

    first_hour: int
    rows: Floats

    def between(self, begin: int, end: int) -> Floats:
        """Returns the rows of [begin, end), of which those that lie outside are unknown."""
        found = np.full((max(0, end - begin), len(WEATHER)), np.nan)
        low, high = max(begin, self.first_hour), min(end, self.first_hour + len(self.rows))
        if low < high:
            found[low - begin : high - begin] = self.rows[low - self.first_hour : high - self.first_hour]
        return found


def sky(site: Site, begin: int, end: int, now: datetime) -> Sky:
    """Returns a site's weather of the hours [begin, end) as it is known at `now`. Makes one query.

    Hours that are not over are forecasts, which count for FRESH after they were fetched.
    """
    points = WeatherPoint.objects.filter(feed__site=site, start_at__gte=moment_of(begin), start_at__lt=moment_of(end))
    rows = np.full((max(0, end - begin), len(WEATHER)), np.nan)
    over = now - timedelta(seconds=HOUR_S)
    for at, fetched_at, *values in points.values_list("start_at", "fetched_at", *WEATHER):
        if at <= over or fetched_at > now - FRESH:
            rows[hour_of(at) - begin] = [math.nan if value is None else value for value in values]
    return Sky(begin, rows)


def whole(rows: Floats) -> NDArray[np.bool_]:
    """Says of each hour whether all of its weather is known, (hours, 5) to (hours,)."""
    known: NDArray[np.bool_] = np.all(~np.isnan(rows), axis=1)
    return known

"""Hourly carbon intensity and weather of grids from CSV files, for `greenserve forecast score`."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from core.predictors.carbon_features import WEATHER, Floats, Grid
from telemetry.weather import hourly_csv
from telemetry.weather.hourly_csv import BadFile as BadFile
from telemetry.weather.hourly_csv import Table


def grids(carbon: Path, weather: Path | None) -> dict[str, Grid]:
    """Reads the grids of a file with the columns region, utc, g_per_kwh, and their weather (region, utc, and WEATHER).

    Either may be compressed by gzip. Hours that are missing or empty are unknown; weather that cannot be, such as a
    temperature of 0 K, is too. A grid without weather has none. Raises BadFile.
    """
    values = _read(carbon, ("g_per_kwh",), strict=True)
    skies = {} if weather is None else _read(weather, WEATHER, strict=False)
    found = {}
    for name, hours in sorted(values.items()):
        first, last = min(hours), max(hours)
        own = skies.get(name)
        rows = None if own is None else _rows(own, first, max(last, max(own)), len(WEATHER))
        found[name] = Grid(first, _rows(hours, first, last, 1)[:, 0], rows)
    return found


def _rows(hours: dict[int, list[float]], first: int, last: int, columns: int) -> Floats:
    rows = np.full((last + 1 - first, columns), np.nan)
    for hour, values in hours.items():
        if hour >= first:
            rows[hour - first] = values
    return rows


def _read(path: Path, columns: Sequence[str], strict: bool) -> Table:
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8-sig", newline="") as text:
            return hourly_csv.read(text, path, columns, strict)
    except OSError as error:
        raise BadFile(f"{path}: {error}") from None

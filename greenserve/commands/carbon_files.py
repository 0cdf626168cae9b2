"""Hourly carbon intensity and weather of grids from CSV files, for `greenserve forecast score`."""

from __future__ import annotations

import csv
import gzip
import math
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from core.predictors.carbon_features import WEATHER, Floats, Grid

HOUR_S = 3_600
LONGEST_HOURS = 24 * 366 * 30
LARGEST = {"g_per_kwh": (0.0, 20_000.0), "temperature_k": (150.0, 350.0), "dewpoint_k": (150.0, 350.0)}
OTHERS = (0.0, 100_000.0)

Table = dict[str, dict[int, list[float]]]  # by grid and hour since the Unix epoch


class BadFile(ValueError):
    """A file is not of the form that it should have. The text names the line and what to do."""


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
    found: Table = {}
    for line, row in _lines(path, ("region", "utc", *columns)):
        where = f"{path}, line {line}"
        name = row["region"]
        if not name:
            raise BadFile(f"{where}: region is empty: name the grid")
        hours = found.setdefault(name, {})
        hour = _hour(row["utc"], where)
        if hour in hours:
            raise BadFile(f"{where}: {name} has {row['utc']} twice: keep one of them")
        if abs(hour - next(iter(hours), hour)) > LONGEST_HOURS:
            raise BadFile(f"{where}: {name} reaches over more than 30 years: look at utc")
        hours[hour] = [_number(row[column], column, where, strict) for column in columns]
    if not found:
        raise BadFile(f"{path}: there is no row in it")
    return found


def _lines(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8-sig", newline="") as text:
            table = csv.DictReader(text, restval="")
            missing = [column for column in columns if column not in (table.fieldnames or ())]
            if missing:
                raise BadFile(f"{path}: the header lacks {', '.join(missing)}; it needs {','.join(columns)}")
            for row in table:
                yield table.line_num, row
    except (OSError, EOFError, UnicodeDecodeError, csv.Error) as error:
        raise BadFile(f"{path}: {error}") from None


def _hour(text: str, where: str) -> int:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise BadFile(f"{where}: utc is {text!r}: write it as 2021-07-01T00:00Z") from None
    if at.tzinfo is None or at.utcoffset() != UTC.utcoffset(at):
        raise BadFile(f"{where}: utc is {text!r}, which is not UTC: end it with Z")
    seconds = at.timestamp()
    if seconds % HOUR_S:
        raise BadFile(f"{where}: utc is {text!r}, which is no whole hour: give the mean of each hour")
    return int(seconds) // HOUR_S


def _number(text: str, column: str, where: str, strict: bool) -> float:
    if not text.strip():
        return math.nan
    least, most = LARGEST.get(column, OTHERS)
    try:
        value = float(text)
    except ValueError:
        raise BadFile(f"{where}: {column} is {text!r}, which is no number: leave unknown values empty") from None
    if least <= value <= most:
        return value
    if strict or math.isinf(value):
        raise BadFile(f"{where}: {column} is {text}, which is not from {least:g} to {most:g}")
    return math.nan

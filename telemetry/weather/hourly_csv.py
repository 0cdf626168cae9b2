"""Reads CSV files of what grids had in each hour: the columns region, utc, and numbers."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime

from .weather_port import HOUR_S

LONGEST_HOURS = 24 * 366 * 30
LARGEST = {"g_per_kwh": (0.0, 20_000.0), "temperature_k": (150.0, 350.0), "dewpoint_k": (150.0, 350.0)}
OTHERS = (0.0, 100_000.0)

Table = dict[str, dict[int, list[float]]]  # by grid and hour since the Unix epoch


class BadFile(ValueError):
    """A file is not of the form that it should have. The text names the line and what to do."""


def read(text: Iterable[str], name: object, columns: Sequence[str], strict: bool, only: str | None = None) -> Table:
    """Reads rows of whole hours; empty numbers are NaN.

    Args:
        text: The lines.
        name: What errors call the file.
        strict: A number that cannot be is an error; else it is unknown.
        only: The one region that is read; None: all.

    Raises:
        BadFile: It names the line, the column and what to write.
    """
    found: Table = {}
    for line, row in _lines(text, name, ("region", "utc", *columns)):
        where = f"{name}, line {line}"
        region = row["region"]
        if not region:
            raise BadFile(f"{where}: region is empty: name the grid")
        if only is not None and region != only:
            continue
        hours = found.setdefault(region, {})
        hour = _hour(row["utc"], where)
        if hour in hours:
            raise BadFile(f"{where}: {region} has {row['utc']} twice: keep one of them")
        if abs(hour - next(iter(hours), hour)) > LONGEST_HOURS:
            raise BadFile(f"{where}: {region} reaches over more than 30 years: look at utc")
        hours[hour] = [_number(row[column], column, where, strict) for column in columns]
    if not found:
        raise BadFile(f"{name}: there is no row in it" + ("" if only is None else f" of region {only!r}"))
    return found


def _lines(text: Iterable[str], name: object, columns: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
    try:
        table = csv.DictReader(text, restval="")
        missing = [column for column in columns if column not in (table.fieldnames or ())]
        if missing:
            raise BadFile(f"{name}: the header lacks {', '.join(missing)}; it needs {','.join(columns)}")
        for row in table:
            yield table.line_num, row
    except (OSError, EOFError, UnicodeDecodeError, csv.Error) as error:
        raise BadFile(f"{name}: {error}") from None


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

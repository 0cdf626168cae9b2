"""Carbon intensity or price from a CSV file: the embedded default, and all that a machine with no network needs.

Columns: `zone,start_utc,end_utc,signal,value,unit,factor,source`. An empty value is null: the feed has none. Prices
have units such as EUR/MWh or USD/kWh, and no factor.
"""

from __future__ import annotations

import csv
import importlib.resources
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

from core.ports import FeedCapabilities, IntensityPoint, PermanentError

from .parsing import DAY_S, FACTORS, PRICE_UNIT, SIGNALS, FeedPoints
from .provider_http import Outside

NAME = "static_csv"
COLUMNS = ("zone", "start_utc", "end_utc", "signal", "value", "unit", "factor", "source")
UNITS = ("gCO2e/kWh", "kgCO2e/MWh", "lb/MWh")


@dataclass(frozen=True, slots=True)
class _Row:
    """A line of the file, times in Unix seconds as written there."""

    start_s: float
    end_s: float
    raw_value: float | None
    raw_unit: str
    factor: str


@dataclass(frozen=True, slots=True)
class _Spell:
    """A row as it applies to real time."""

    start_s: float
    end_s: float
    row: _Row


class StaticCsvProvider:
    """Plays a CSV file. What lies ahead in the file is its forecast.

    Args:
        config: `file` (a path, or `package:name` for a file shipped inside a Python package), `zone`,
            `signal` (average), `repeat` (None, or `day`: the file's first day over and over) and, with `repeat`,
            `speedup` (a file's second lasts 1/speedup real seconds).

    Raises:
        PermanentError: a bad configuration or file; the text names file, line and field.
    """

    def __init__(self, config: Mapping[str, Any], outside: Outside | None = None) -> None:
        self._name = _text(config, "file")
        self._zone = _text(config, "zone")
        self._signal = str(config.get("signal", "average"))
        self._repeat = config.get("repeat")
        if self._repeat not in (None, "day"):
            raise PermanentError(f"carbon feed: repeat must be 'day' or absent, not {self._repeat!r}")
        try:
            self._speedup = float(config.get("speedup", 1.0))
        except (TypeError, ValueError):
            self._speedup = math.nan
        if not 0 < self._speedup < math.inf:
            raise PermanentError(f"carbon feed: speedup must be a positive number, not {config.get('speedup')!r}")
        if self._speedup != 1.0 and self._repeat is None:
            raise PermanentError("carbon feed: speedup needs repeat: day, else the file's times would be wrong")
        self._rows = self._read()

    @property
    def capabilities(self) -> FeedCapabilities:
        """A file that does not repeat reaches as far as its last row; how far that is depends on when it is asked."""
        steps = [(row.end_s - row.start_s) / self._speedup for row in self._rows]
        return FeedCapabilities(SIGNALS, FACTORS, True, math.inf, max(steps))

    def actuals(self, zone: str, start_s: float, end_s: float) -> tuple[IntensityPoint, ...]:
        """Points of [start_s, end_s), the one under way at `end_s` included. Does not block: the file is in memory."""
        return tuple(self._point(zone, s, s.start_s, False) for s in self._spells(start_s, end_s))

    def forecast(self, zone: str, now_s: float, horizon_s: float) -> tuple[IntensityPoint, ...]:
        """Returns points that start after `now_s`, issued at the start of the step that is under way."""
        issued_at_s = max((s.start_s for s in self._spells(now_s, now_s + 1e-3)), default=now_s)
        ahead = (s for s in self._spells(now_s, now_s + horizon_s) if s.start_s > now_s)
        return tuple(self._point(zone, s, issued_at_s, True) for s in ahead)

    def _point(self, zone: str, spell: _Spell, issued_at_s: float, forecast: bool) -> IntensityPoint:
        row = spell.row
        return FeedPoints(NAME, zone, self._signal, row.factor, row.raw_unit).point(
            spell.start_s, spell.end_s, row.raw_value, issued_at_s=issued_at_s, forecast=forecast
        )

    def _spells(self, start_s: float, end_s: float) -> Iterator[_Spell]:
        """What overlaps [start_s, end_s), in order."""
        if self._repeat is None:
            for row in self._rows:
                if row.end_s > start_s and row.start_s < end_s:
                    yield _Spell(row.start_s, row.end_s, row)
            return
        midnight_s = math.floor(self._rows[0].start_s / DAY_S) * DAY_S
        day_s = DAY_S / self._speedup
        for day in range(math.floor(start_s / day_s), math.floor(end_s / day_s) + 1):
            for row in self._rows:
                # Rounded to the microsecond, which is what the database keeps: equal steps must stay equal.
                spell = _Spell(
                    round((day * DAY_S + row.start_s - midnight_s) / self._speedup, 6),
                    round((day * DAY_S + row.end_s - midnight_s) / self._speedup, 6),
                    row,
                )
                if spell.end_s > start_s and spell.start_s < end_s:
                    yield spell

    def _read(self) -> tuple[_Row, ...]:
        rows = []
        for line, fields in self._lines():
            if fields["zone"] == self._zone and fields["signal"] == self._signal:
                rows.append((line, self._row(line, fields)))
        if not rows:
            raise PermanentError(f"{self._name}: no {self._signal} row of zone {self._zone!r}")
        rows.sort(key=lambda item: item[1].start_s)
        for (_, before), (line, after) in pairwise(rows):
            if after.start_s < before.end_s:
                self._refuse(line, "start_utc", "overlaps another interval of the zone")
        found = tuple(row for _, row in rows)
        if self._repeat == "day" and found[-1].end_s > math.floor(found[0].start_s / DAY_S) * DAY_S + DAY_S:
            raise PermanentError(f"{self._name}: repeat: day needs rows of one UTC day; {self._zone!r} has more")
        return found

    def _lines(self) -> Iterator[tuple[int, dict[str, str]]]:
        try:
            with _locate(self._name).open(newline="", encoding="utf-8") as file:
                reader = csv.DictReader(file)
                missing = [column for column in COLUMNS if column not in (reader.fieldnames or ())]
                if missing:
                    self._refuse(1, ", ".join(missing), f"column is missing; the header is {','.join(COLUMNS)}")
                for fields in reader:
                    for column in COLUMNS:
                        if fields[column] is None:
                            self._refuse(reader.line_num, column, "is missing")
                    yield reader.line_num, {column: fields[column].strip() for column in COLUMNS}
        except (OSError, UnicodeDecodeError, csv.Error, ModuleNotFoundError) as error:
            raise PermanentError(f"{self._name}: cannot be read: {error}") from error

    def _row(self, line: int, fields: Mapping[str, str]) -> _Row:
        start_s, end_s = (self._moment(line, column, fields[column]) for column in ("start_utc", "end_utc"))
        if end_s <= start_s:
            self._refuse(line, "end_utc", "must be after start_utc")
        self._one_of(line, "signal", fields["signal"], SIGNALS)
        if fields["signal"] == "price":
            if not PRICE_UNIT.fullmatch(fields["unit"]):
                self._refuse(line, "unit", f"{fields['unit']!r} is no unit of price; write EUR/MWh or USD/kWh")
        else:
            self._one_of(line, "unit", fields["unit"], UNITS)
            self._one_of(line, "factor", fields["factor"], FACTORS)
        value: float | None = None
        if fields["value"]:
            try:
                value = float(fields["value"])
            except ValueError:
                value = math.nan
            if not math.isfinite(value):
                self._refuse(line, "value", f"{fields['value']!r} is not a number")
            if value < 0 and fields["signal"] == "average":
                self._refuse(line, "value", "an average intensity cannot be negative")
        return _Row(start_s, end_s, value, fields["unit"], fields["factor"])

    def _moment(self, line: int, column: str, text: str) -> float:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            self._refuse(line, column, f"{text!r} is not a time like 2026-01-01T00:00Z")
        if moment.tzinfo is None:
            self._refuse(line, column, f"{text!r} has no zone: end it with Z")
        return moment.astimezone(UTC).timestamp()

    def _one_of(self, line: int, column: str, value: str, allowed: Iterable[str]) -> None:
        if value not in allowed:
            self._refuse(line, column, f"{value!r} is unknown; write {', '.join(allowed)}")

    def _refuse(self, line: int, field: str, why: str) -> NoReturn:
        raise PermanentError(f"{self._name} line {line}, {field}: {why}")


def _locate(name: str) -> Path:
    package, separator, file = name.partition(":")
    if separator and package.replace(".", "").isidentifier():
        return Path(str(importlib.resources.files(package) / file))
    return Path(name)


def _text(config: Mapping[str, Any], key: str) -> str:
    value = config.get(key)
    if not isinstance(value, str) or not value:
        raise PermanentError(f"carbon feed: {key} is missing")
    return value

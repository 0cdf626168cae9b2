"""Carbon intensity or price from a CSV file: the embedded default, and all that a machine with no network needs.

Columns: `zone,start_utc,end_utc,signal,value,unit,factor,source`. An empty value is null: the feed has none. Prices
have units such as EUR/MWh or USD/kWh, and no factor.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import islice, pairwise
from typing import Any, NoReturn

from core import bounds
from core.ports import FeedCapabilities, IntensityPoint, PermanentError

from . import feed_files, parsing
from .parsing import DAY_S, FACTORS, PRICE_UNIT, SIGNALS, FeedPoints, check_moment
from .provider_http import Outside

NAME = "static_csv"
COLUMNS = ("zone", "start_utc", "end_utc", "signal", "value", "unit", "factor", "source")
UNITS = ("gCO2e/kWh", "kgCO2e/MWh", "lb/MWh")
MOST_ROWS = 200_000  # of the file; a year of five minutes has 105,000
MOST_SPEEDUP = 1_000.0  # as the demo's own
MOST_POINTS = 200_000  # of one answer


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
        config: `file` (a name, see `feed_files`), `zone`, `signal` (average), `repeat` (None, or `day`: the file's
            first day over and over) and, with `repeat`, `speedup` (a file's second lasts 1/speedup real seconds).
        text: What the file says, for who has read it by himself; None: it is read from the folder of feeds' files.

    Raises:
        PermanentError: a bad configuration or file; the text names file, line and field.
    """

    def __init__(self, config: Mapping[str, Any], outside: Outside, text: str | None = None) -> None:
        self._name, self._repeat, self._speedup = check(config, any_file=text is not None)
        self._zone = _text(config, "zone")
        self._signal = str(config.get("signal", "average"))
        self._rows = self._read(feed_files.read(outside.feed_files, self._name) if text is None else text)

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

    def _spells(self, start_s: float, end_s: float) -> tuple[_Spell, ...]:
        """What overlaps [start_s, end_s), in order."""
        found = tuple(islice(self._overlapping(start_s, end_s), MOST_POINTS + 1))
        if len(found) > MOST_POINTS:
            raise PermanentError(f"{self._name}: more than {MOST_POINTS:,} points at once: give it longer intervals")
        return found

    def _overlapping(self, start_s: float, end_s: float) -> Iterator[_Spell]:
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

    def _read(self, text: str) -> tuple[_Row, ...]:
        rows = []
        for line, fields in self._lines(text):
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

    def _lines(self, text: str) -> Iterator[tuple[int, dict[str, str]]]:
        try:
            reader = csv.DictReader(io.StringIO(text, newline=""))
            missing = [column for column in COLUMNS if column not in (reader.fieldnames or ())]
            if missing:
                self._refuse(1, ", ".join(missing), f"column is missing; the header is {','.join(COLUMNS)}")
            for number, fields in enumerate(reader, start=1):
                if number > MOST_ROWS:
                    self._refuse(reader.line_num, "file", f"has more than {MOST_ROWS:,} rows: leave out old ones")
                for column in COLUMNS:
                    if fields[column] is None:
                        self._refuse(reader.line_num, column, "is missing")
                yield reader.line_num, {column: fields[column].strip() for column in COLUMNS}
        except csv.Error as error:
            raise PermanentError(f"{self._name}: is no CSV: {error}") from error

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
            grams = fields["unit"] in UNITS and parsing.UNITS[fields["unit"]](value)
            if abs(grams) > bounds.G_PER_KWH.most:
                self._refuse(
                    line, "value", f"{fields['value']!r} is more than can be: at most {bounds.G_PER_KWH.most:g} g/kWh"
                )
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
        try:
            return check_moment(moment)
        except ValueError as error:
            self._refuse(line, column, f"{text!r} {error}")

    def _one_of(self, line: int, column: str, value: str, allowed: Iterable[str]) -> None:
        if value not in allowed:
            self._refuse(line, column, f"{value!r} is unknown; write {', '.join(allowed)}")

    def _refuse(self, line: int, field: str, why: str) -> NoReturn:
        raise PermanentError(f"{self._name} line {line}, {field}: {why}")


def check(config: Mapping[str, Any], any_file: bool = False) -> tuple[str, Any, float]:
    """Returns file, repeat and speedup of a feed's configuration. Looks at no file; raises PermanentError."""
    if not config.get("file"):
        raise PermanentError('carbon feed: file is missing: write {"file": "intensity.csv"}')
    name, repeat = _text(config, "file"), config.get("repeat")
    if not any_file and (words := feed_files.fault(name)):
        raise PermanentError(words)
    if repeat not in (None, "day"):
        raise PermanentError(f"carbon feed: repeat must be 'day' or absent, not {repeat!r}")
    try:
        speedup = float(config.get("speedup", 1.0))
    except (TypeError, ValueError):
        speedup = math.nan
    if not 0 < speedup <= MOST_SPEEDUP:
        raise PermanentError(
            f"carbon feed: speedup must be above 0 and at most {MOST_SPEEDUP:g}, not {config.get('speedup')!r}"
        )
    if speedup != 1.0 and repeat is None:
        raise PermanentError("carbon feed: speedup needs repeat: day, else the file's times would be wrong")
    return name, repeat, speedup


def _text(config: Mapping[str, Any], key: str) -> str:
    value = config.get(key)
    if not isinstance(value, str) or not value:
        raise PermanentError(f"carbon feed: {key} is missing")
    return value

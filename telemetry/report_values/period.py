"""The span that a report is about: a day, a week, a month or two dates, by the clock of one zone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from .errors import BadReport

EXAMPLES = (
    "2026-10 (a month), 2026-W45 (a week), 2026-10-05 (a day) or 2026-10-05/2026-10-12 (two dates, the second excluded)"
)
LONGEST = timedelta(days=400)


@dataclass(frozen=True, slots=True)
class Period:
    """[start_s, end_s) in Unix seconds: local midnights of `zone`. `text` is how it was asked for."""

    text: str
    zone: str
    start_s: int
    end_s: int

    @property
    def start(self) -> datetime:
        return datetime.fromtimestamp(self.start_s, UTC)

    @property
    def end(self) -> datetime:
        return datetime.fromtimestamp(self.end_s, UTC)

    @property
    def words(self) -> str:
        """Returns the period as a title has it: `October 2026`, `week 45 of 2026`, `5 October 2026`, or two dates."""
        zone = ZoneInfo(self.zone)
        first = datetime.fromtimestamp(self.start_s, zone)
        if re.fullmatch(r"\d{4}-\d{2}", self.text):
            return f"{first:%B %Y}"
        if "W" in self.text:
            return f"week {int(self.text[6:])} of {self.text[:4]}"
        last = datetime.fromtimestamp(self.end_s, zone) - timedelta(hours=12)
        one = f"{first.day} {first:%B %Y}"
        return one if first.date() == last.date() else f"{one} to {last.day} {last:%B %Y}"

    def days(self) -> Iterator[tuple[str, int, int]]:
        """(local date, start, end) of each day; those of a clock change have 23 or 25 hours."""
        zone = ZoneInfo(self.zone)
        day = datetime.fromtimestamp(self.start_s, zone).date()
        while (start_s := _midnight_s(day, zone)) < self.end_s:
            yield day.isoformat(), start_s, min(self.end_s, _midnight_s(day + timedelta(days=1), zone))
            day += timedelta(days=1)


def parse_period(text: str, zone: str = "UTC") -> Period:
    """Reads a period. Raises BadReport: it is none, is empty, or the zone is unknown."""
    try:
        local = ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise BadReport("zone", f"'{zone}' is no time zone; write UTC, a name like Europe/Berlin, or site") from None
    first, last = _dates(text.strip())
    if last <= first:
        raise BadReport("period", f"'{text}' is empty: its end must come after its start; write {EXAMPLES}")
    if last - first > LONGEST:
        raise BadReport("period", f"'{text}' is longer than {LONGEST.days} days; ask for several reports")
    return Period(text.strip(), zone, _midnight_s(first, local), _midnight_s(last, local))


def last_period(cadence: str, zone: str, now: datetime) -> str:
    """Returns the newest whole week (from Monday) or month of that zone, as `parse_period` reads it."""
    today = now.astimezone(ZoneInfo(zone)).date()
    if cadence == "weekly":
        year, week, _ = (today - timedelta(days=7)).isocalendar()
        return f"{year}-W{week:02d}"
    return f"{today.replace(day=1) - timedelta(days=1):%Y-%m}"


def _dates(text: str) -> tuple[date, date]:
    try:
        if re.fullmatch(r"\d{4}-\d{2}", text):
            first = date.fromisoformat(f"{text}-01")
            return first, (first + timedelta(days=32)).replace(day=1)
        if re.fullmatch(r"\d{4}-W\d{2}", text):
            first = date.fromisocalendar(int(text[:4]), int(text[6:]), 1)
            return first, first + timedelta(days=7)
        if re.fullmatch(r"\d{4}-\d{2}-\d{2}", text):
            first = date.fromisoformat(text)
            return first, first + timedelta(days=1)
        if match := re.fullmatch(r"(\d{4}-\d{2}-\d{2})/(\d{4}-\d{2}-\d{2})", text):
            return date.fromisoformat(match[1]), date.fromisoformat(match[2])
    except (ValueError, OverflowError) as error:
        raise BadReport("period", f"'{text}' is not in the calendar ({error}); write {EXAMPLES}") from None
    raise BadReport("period", f"'{text}' is not understood; write {EXAMPLES}")


def _midnight_s(day: date, zone: ZoneInfo) -> int:
    return round(datetime.combine(day, time(), zone).timestamp())

"""Prices electricity: time of use in the site's own time zone, and a charge for the month's peak.

Windows are local wall-clock times, as contracts write them: on the night on which clocks go back the repeated hour is
charged twice at its local price, and the hour that is skipped in spring is not charged at all. Pure: the zone's rules
come from the time-zone database.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from core import bounds

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
STEP_MIN = 5  # windows begin and end on whole steps, so that a price holds for a whole settlement window
DEMAND_S = 900  # power for a demand charge is metered as the mean over a quarter of an hour
_FIELDS = {"from", "to", "price_per_kwh", "days", "months"}
_CLOCK = re.compile(r"^([01]?\d|2[0-4]):([0-5]\d)$")


@dataclass(frozen=True, slots=True)
class PriceWindow:
    """A price per kWh that holds from `from_min` to `to_min` local time, on these days of these months."""

    from_min: int
    to_min: int
    price_per_kwh: float
    days: frozenset[int] = frozenset(range(7))
    months: frozenset[int] = frozenset(range(1, 13))

    def holds(self, local: datetime) -> bool:
        minute = local.hour * 60 + local.minute
        return local.month in self.months and local.weekday() in self.days and self.from_min <= minute < self.to_min


@dataclass(frozen=True, slots=True)
class TariffTerms:
    """A contract's prices in `currency`. The first window that holds counts, else `price_per_kwh`.

    `demand_per_kw`: for each kW of the month's highest quarter of an hour, a month; 0: none is charged.
    """

    zone: str
    currency: str
    price_per_kwh: float
    windows: tuple[PriceWindow, ...] = ()
    demand_per_kw: float = 0.0

    def price_at(self, at_s: float) -> float:
        local = datetime.fromtimestamp(at_s, UTC).astimezone(ZoneInfo(self.zone))
        return next((w.price_per_kwh for w in self.windows if w.holds(local)), self.price_per_kwh)


def month_s(zone: str, month: date) -> tuple[float, float]:
    """When a local calendar month begins and ends, Unix seconds: 31 days may be an hour more or less than 744 h."""
    start = datetime(month.year, month.month, 1, tzinfo=ZoneInfo(zone))
    end = datetime(month.year + month.month // 12, month.month % 12 + 1, 1, tzinfo=ZoneInfo(zone))
    return start.timestamp(), end.timestamp()


def demand_charge(terms: TariffTerms, peak_w: float) -> float:
    """Returns the month's charge in the tariff's currency for a peak of this many watts at the site's meter."""
    return terms.demand_per_kw * peak_w / 1_000.0


def price_windows(rows: Any) -> tuple[PriceWindow, ...]:
    """Reads `[{"from": "07:00", "to": "21:00", "price_per_kwh": 0.31, "days": ["mon"], "months": [6]}, ...]`.

    Raises:
        ValueError: Says which window, which field, and what it may be.
    """
    if not isinstance(rows, Sequence) or isinstance(rows, str):
        raise ValueError("windows: a list of objects with from, to and price_per_kwh")
    return tuple(_window(f"windows[{i}]", row) for i, row in enumerate(rows))


def check_zone(zone: str) -> None:
    """Raises ValueError when the time-zone database does not know it."""
    try:
        ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"time zone {zone!r} is not an IANA name such as Europe/Berlin") from None


def _window(name: str, row: Any) -> PriceWindow:
    if not isinstance(row, Mapping):
        raise ValueError(f"{name}: an object with from, to and price_per_kwh")
    if unknown := sorted(set(row) - _FIELDS):
        raise ValueError(f"{name}.{unknown[0]}: no such field; there are {', '.join(sorted(_FIELDS))}")
    from_min, to_min = _minute(f"{name}.from", row.get("from")), _minute(f"{name}.to", row.get("to"))
    if from_min >= to_min:
        raise ValueError(f"{name}.to: later than from; a window over midnight is two, to 24:00 and from 00:00")
    price = row.get("price_per_kwh")
    if isinstance(price, bool) or not isinstance(price, int | float) or price != price or abs(price) == float("inf"):
        raise ValueError(f"{name}.price_per_kwh: a number in the tariff's currency, not {price!r}")
    if words := bounds.PRICE_PER_KWH.fault(price):
        raise ValueError(f"{name}.price_per_kwh: {words}, not {price:g}")
    days, months = row.get("days", DAYS), row.get("months", range(1, 13))
    if not isinstance(days, list | tuple) or not days or set(days) - set(DAYS):
        raise ValueError(f"{name}.days: a list of {', '.join(DAYS)}, not {days!r}")
    if not isinstance(months, list | tuple | range) or not months or set(months) - set(range(1, 13)):
        raise ValueError(f"{name}.months: a list of numbers from 1 to 12, not {months!r}")
    return PriceWindow(from_min, to_min, float(price), frozenset(map(DAYS.index, days)), frozenset(months))


def _minute(name: str, text: Any) -> int:
    found = _CLOCK.match(text) if isinstance(text, str) else None
    minute = int(found[1]) * 60 + int(found[2]) if found else -1
    if not 0 <= minute <= 1440 or minute % STEP_MIN:
        raise ValueError(f"{name}: a local time on a whole {STEP_MIN} minutes such as 07:00, not {text!r}")
    return minute

"""What all providers' answers need: JSON, numbers, times and units, read strictly.

An answer that is not as documented is an error that says where; nothing is guessed. None is "the feed has no value".
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NoReturn

from core import bounds
from core.ports import IntensityPoint, PermanentError, RetryableError
from core.units import lb_per_mwh_to_g_per_kwh

DAY_S = 86_400.0
HOUR_S = 3_600.0
# kg/MWh and g/kWh are the same number.
UNITS: Mapping[str, Callable[[float], float]] = {
    "gCO2e/kWh": float,
    "gCO2eq/kWh": float,
    "gCO2/kWh": float,
    "kgCO2e/MWh": float,
    "lb/MWh": lb_per_mwh_to_g_per_kwh,
    "lbs_co2_per_mwh": lb_per_mwh_to_g_per_kwh,
}
PRICE_UNIT = re.compile(r"([A-Z]{3})/([kM])Wh")
SIGNALS = ("average", "marginal", "price")
FACTORS = ("direct", "lifecycle")
MOST_NUMBER = 1e15
EARLIEST_S = datetime(2000, 1, 1, tzinfo=UTC).timestamp()
LATEST_S = datetime(2100, 1, 1, tzinfo=UTC).timestamp()
LONGEST_POINT_S = 400 * 86_400.0


def price(raw_value: float, raw_unit: str) -> tuple[float, str]:
    """Returns (price per kWh, currency) of a price in a unit such as EUR/MWh. Raises ValueError for another unit."""
    found = PRICE_UNIT.fullmatch(raw_unit)
    if found is None:
        raise ValueError(f"{raw_unit!r} is no unit of price such as EUR/MWh")
    return raw_value / (1_000.0 if found[2] == "M" else 1.0), found[1]


@dataclass(frozen=True, slots=True)
class FeedPoints:
    """The fields that the points of one answer share. Points are made of raw values here alone."""

    provider: str
    zone: str
    signal: str
    factor: str
    raw_unit: str
    estimated: bool = False

    def point(
        self,
        start_s: float,
        end_s: float,
        raw_value: float | None,
        *,
        issued_at_s: float,
        forecast: bool = False,
        estimated: bool | None = None,
        updated_at_s: float | None = None,
    ) -> IntensityPoint:
        """Raises PermanentError when the unit is unknown, or for a value or a time that cannot be."""
        grams, per_kwh, currency = None, None, ""
        if self.signal == "price":
            try:
                amount, currency = price(raw_value or 0.0, self.raw_unit)
            except ValueError as error:
                raise PermanentError(f"{self.provider}: {error}") from None
            per_kwh = None if raw_value is None else amount
        elif self.raw_unit not in UNITS:
            raise PermanentError(f"{self.provider}: unit {self.raw_unit[:40]!r} is unknown: nothing is stored")
        elif raw_value is not None:
            grams = UNITS[self.raw_unit](raw_value)
            if grams < 0.0 and self.signal == "average":
                raise PermanentError(f"{self.provider}: an average intensity of {raw_value:g} {self.raw_unit}")
        for value, most in ((grams, bounds.G_PER_KWH.most), (per_kwh, bounds.PRICE_PER_KWH.most)):
            if value is not None and not abs(value) <= most:
                raise PermanentError(
                    f"{self.provider}: {raw_value:g} {self.raw_unit} of {self.signal} cannot be: check the unit"
                )
        if not EARLIEST_S <= start_s < end_s <= min(LATEST_S, start_s + LONGEST_POINT_S):
            raise PermanentError(f"{self.provider}: a point from {start_s:.0f} until {end_s:.0f} (Unix seconds)")
        return IntensityPoint(
            zone=self.zone,
            start_s=start_s,
            end_s=end_s,
            value_g_per_kwh=grams,
            raw_value=raw_value,
            raw_unit=self.raw_unit,
            signal=self.signal,
            factor="" if self.signal == "price" else self.factor,
            estimated=self.estimated if estimated is None else estimated,
            issued_at_s=issued_at_s,
            forecast=forecast,
            provider=self.provider,
            updated_at_s=updated_at_s,
            price_per_kwh=per_kwh,
            currency=currency,
        )


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads one provider's JSON."""

    provider: str

    def document(self, body: bytes) -> Any:
        """Raises RetryableError for what is no JSON: a body cut short comes whole the next time."""
        try:
            return json.loads(body, parse_constant=_refuse_constant)
        except (ValueError, RecursionError):
            raise RetryableError(
                f"{self.provider}: the answer is no JSON ({len(body)} bytes), or was cut short"
            ) from None

    def items(self, document: object, *path: str) -> Sequence[Any]:
        """Returns the list at `path`."""
        found = self.at(document, *path)
        if not isinstance(found, list):
            self.fail(".".join(path), "is no list")
        return found

    def at(self, document: object, *path: str) -> Any:
        found = document
        for name in path:
            if not isinstance(found, dict) or name not in found:
                self.fail(".".join(path), "is missing")
            found = found[name]
        return found

    def number(self, value: object, field: str, text: bool = False) -> float | None:
        """`text`: a number may stand in quotes."""
        if value is None:
            return None
        if text and isinstance(value, str):
            try:
                value = float(value)
            except ValueError:
                self.fail(field, "is no number")
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < MOST_NUMBER:
            self.fail(field, "is no number")
        return float(value)

    def moment(self, value: Any, field: str, utc: bool = False) -> float:
        """Reads a moment as Unix seconds. `utc`: the field is documented to be UTC and has no mark of it."""
        try:
            found = datetime.fromisoformat(value)
        except (TypeError, ValueError):
            self.fail(field, "is no time")
        if found.tzinfo is None:
            if not utc:
                self.fail(field, "is a time without a zone")
            found = found.replace(tzinfo=UTC)
        try:
            return check_moment(found)
        except ValueError as error:
            self.fail(field, str(error))

    def fail(self, field: str, why: str) -> NoReturn:
        raise PermanentError(f"{self.provider}: the answer is not as documented: {field} {why}")


def check_moment(moment: datetime) -> float:
    """Returns the Unix seconds of a moment with a zone. Raises ValueError for one that nobody measured or forecast."""
    try:
        at_s = moment.timestamp()
    except OverflowError:
        at_s = math.inf
    if not EARLIEST_S <= at_s <= LATEST_S:
        raise ValueError("is a time before 2000 or after 2100")
    return at_s


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)


def text_of(config: Mapping[str, Any], key: str, provider: str, default: str | None = None) -> str:
    """Returns a word of a feed's configuration."""
    value = config.get(key, default)
    if not isinstance(value, str) or not value.strip():
        raise PermanentError(f"{provider}: {key} is missing in the feed's configuration")
    return value.strip()


def one_of(
    config: Mapping[str, Any], key: str, allowed: Sequence[str], provider: str, default: str | None = None
) -> str:
    value = text_of(config, key, provider, default or allowed[0])
    if value not in allowed:
        raise PermanentError(f"{provider}: {key} {value!r} is not to be had; it tells {', '.join(allowed)}")
    return value


def spans(start_s: float, end_s: float, most_s: float) -> Iterator[tuple[float, float]]:
    """[start_s, end_s) in pieces that a provider answers in one go."""
    while start_s < end_s:
        yield start_s, min(end_s, start_s + most_s)
        start_s += most_s


def within(points: Sequence[IntensityPoint], start_s: float, end_s: float) -> tuple[IntensityPoint, ...]:
    """Those that overlap [start_s, end_s), in order of time; providers answer with more than was asked."""
    found = (point for point in points if point.end_s > start_s and point.start_s < end_s)
    return tuple(sorted(found, key=lambda point: point.start_s))


def iso(at_s: float, form: str = "%Y-%m-%dT%H:%M:%SZ") -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime(form)

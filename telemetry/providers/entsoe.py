"""ENTSO-E's transparency platform: day-ahead prices (A44), and the mix (A75) from which intensity is derived.

Documents are XML. With `curveType` A03 a position that is not there repeats the one before it; with A01 it is missing.
"No data" comes as an acknowledgement with code 999, with status 200 or 400. The zone is an EIC code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

from core.ports import FeedCapabilities, IntensityPoint, PermanentError, RetryableError

from . import mix
from .parsing import DAY_S, FACTORS, HOUR_S, FeedPoints, Reader, iso, one_of, spans, within
from .provider_http import HttpClient, Outside

NAME = "entsoe"
HOST = "web-api.tp.entsoe.eu"
NO_DATA = "999"
SLOT_S = 900.0
LONGEST_RANGE_S = 30 * DAY_S
MOST_SLOTS = 100_000  # of one period: a month has 43,200 minutes
GAP_S = 0.2  # 400 calls a minute
HORIZON_S = 36 * HOUR_S  # tomorrow's prices are there in the early afternoon
RESOLUTION = re.compile(r"PT(\d+)M|PT(\d+)H")
# The platform's types of production: B01 biomass .. B25 storage; those without a factor are not named.
FUELS: Mapping[str, str] = {
    "B01": "biomass",
    "B02": "coal",
    "B04": "gas",
    "B05": "coal",
    "B06": "oil",
    "B09": "geothermal",
    "B10": mix.STORAGE,
    "B11": "hydro",
    "B12": "hydro",
    "B13": "marine",
    "B14": "nuclear",
    "B16": "solar",
    "B18": "wind offshore",
    "B19": "wind",
    "B25": mix.STORAGE,
}


@dataclass(frozen=True, slots=True)
class Curve:
    """A TimeSeries: values by start, each for `step_s`."""

    element: ElementTree.Element
    step_s: float
    values: Mapping[float, float]


class EntsoeProvider:
    """Config: `signal` (average, price), `factor` (lifecycle, direct)."""

    def __init__(self, config: Mapping[str, Any], outside: Outside) -> None:
        self._signal = one_of(config, "signal", ("average", "price"), NAME)
        self._factor = one_of(config, "factor", FACTORS, NAME, "lifecycle")
        self._http = HttpClient(NAME, HOST, outside, config.get("base_url"), GAP_S)
        self._token = outside.secret(NAME, "token")
        self._read = Reader(NAME)

    @property
    def capabilities(self) -> FeedCapabilities:
        priced = self._signal == "price"
        step_s, lag_s = (SLOT_S, 0.0) if priced else (HOUR_S, 3 * HOUR_S)
        return FeedCapabilities(("average", "price"), FACTORS, True, HORIZON_S if priced else 0.0, step_s, lag_s)

    def actuals(self, zone: str, start_s: float, end_s: float) -> tuple[IntensityPoint, ...]:
        found: list[IntensityPoint] = []
        for first_s, last_s in spans(start_s, end_s, LONGEST_RANGE_S):
            body = self._ask(zone, first_s, last_s)
            found += self.prices(body, zone, None) if self._signal == "price" else self.intensities(body, zone)
        return within(found, start_s, end_s)

    def forecast(self, zone: str, now_s: float, horizon_s: float) -> tuple[IntensityPoint, ...]:
        """Asks for prices that the auction has settled and that are not valid yet; of generation there is none."""
        if self._signal != "price":
            return ()
        points = self.prices(self._ask(zone, now_s, now_s + min(horizon_s, HORIZON_S)), zone, now_s)
        return tuple(point for point in within(points, now_s, now_s + horizon_s) if point.start_s > now_s)

    def _ask(self, zone: str, start_s: float, end_s: float) -> bytes:
        """Asks for whole hours around what is wanted, which is how the platform takes it."""
        kind = [("documentType", "A75"), ("processType", "A16"), ("in_Domain", zone)]
        if self._signal == "price":
            kind = [("documentType", "A44"), ("in_Domain", zone), ("out_Domain", zone)]
        params = [
            ("securityToken", self._token.reveal()),
            *kind,
            ("periodStart", iso(start_s // HOUR_S * HOUR_S, "%Y%m%d%H%M")),
            ("periodEnd", iso(-(-end_s // HOUR_S) * HOUR_S, "%Y%m%d%H%M")),
        ]
        return self._http.get("/api", params, accept=(400,))

    def prices(self, body: bytes, zone: str, issued_at_s: float | None) -> list[IntensityPoint]:
        """Parses prices. Of overlapping curves the finest counts; other auctions' (sequence 2 and on) are left out."""
        curves = [curve for curve in self._curves(body, "price.amount") if _sequence(curve.element) == 1]
        taken: set[float] = set()
        found = []
        for curve in sorted(curves, key=lambda curve: curve.step_s):
            currency, per = (_text(curve.element, f"{what}.name") for what in ("currency_Unit", "price_Measure_Unit"))
            if per != "MWH":
                self._read.fail("price_Measure_Unit.name", f"is {per[:20]!r} rather than 'MWH'")
            series = FeedPoints(NAME, zone, "price", "", f"{currency}/MWh")
            for start_s, value in curve.values.items():
                slots = [start_s + i * SLOT_S for i in range(max(1, round(curve.step_s / SLOT_S)))]
                if taken.isdisjoint(slots):
                    taken.update(slots)
                    known_at_s = start_s if issued_at_s is None else issued_at_s
                    forecast = issued_at_s is not None
                    found.append(
                        series.point(start_s, start_s + curve.step_s, value, issued_at_s=known_at_s, forecast=forecast)
                    )
        return found

    def intensities(self, body: bytes, zone: str) -> list[IntensityPoint]:
        """Computes intensities from each fuel's power on the document's finest grid; what pumps draw is left out."""
        curves = [
            curve
            for curve in self._curves(body, "quantity")
            if _text(curve.element, "outBiddingZone_Domain.mRID") == ""
        ]
        step_s = min((curve.step_s for curve in curves), default=HOUR_S)
        mixes: dict[float, dict[str, float]] = {}
        for curve in curves:
            if (unit := _text(curve.element, "quantity_Measure_Unit.name")) != "MAW":
                self._read.fail("quantity_Measure_Unit.name", f"is {unit[:20]!r} rather than 'MAW'")
            fuel = FUELS.get(_text(curve.element, "MktPSRType/psrType"), mix.UNKNOWN)
            for start_s, value in curve.values.items():
                for part in range(round(curve.step_s / step_s)):
                    amounts = mixes.setdefault(start_s + part * step_s, {})
                    amounts[fuel] = amounts.get(fuel, 0.0) + value
        series = FeedPoints(NAME, zone, "average", self._factor, "gCO2e/kWh", estimated=True)
        return [
            series.point(start_s, start_s + step_s, value, issued_at_s=start_s + step_s)
            for start_s, value in mix.intensities(mixes, self._factor).items()
        ]

    def _curves(self, body: bytes, field: str) -> Iterator[Curve]:
        root = _document(body)
        if root.tag == "Acknowledgement_MarketDocument":
            if _text(root, "Reason/code") == NO_DATA:
                return
            raise PermanentError(f"{NAME}: {_text(root, 'Reason/text')[:200] or 'refused without a reason'}")
        for series in root.findall("TimeSeries"):
            repeats = _text(series, "curveType") == "A03"
            for period in series.findall("Period"):
                step_s, values = self._period(period, field, repeats)
                yield Curve(series, step_s, values)

    def _period(self, period: ElementTree.Element, field: str, repeats: bool) -> tuple[float, dict[float, float]]:
        start_s, end_s = (
            self._read.moment(_text(period, f"timeInterval/{e}"), "timeInterval") for e in ("start", "end")
        )
        step_s = self._step_s(_text(period, "resolution"))
        count = round((end_s - start_s) / step_s)
        if not 0 <= count <= MOST_SLOTS:
            self._read.fail("timeInterval", f"has {count} steps")
        by_position: dict[int, float] = {}
        for point in period.findall("Point"):
            position = self._read.number(_text(point, "position"), "position", text=True)
            value = self._read.number(_text(point, field), field, text=True)
            if position is None or value is None or not 1 <= position <= count:
                self._read.fail("position", "lies outside its period")
            by_position[int(position)] = value
        values: dict[float, float] = {}
        last: float | None = None
        for position in range(1, count + 1):
            last = by_position.get(position, last if repeats else None)
            if last is not None:
                values[start_s + (position - 1) * step_s] = last
        return step_s, values

    def _step_s(self, text: str) -> float:
        found = RESOLUTION.fullmatch(text)
        step_s = 0.0 if found is None else float(found[1] or 0) * 60.0 + float(found[2] or 0) * HOUR_S
        if step_s <= 0.0 or step_s > DAY_S:
            self._read.fail("resolution", f"{text[:20]!r} is unknown")
        return step_s


def _document(body: bytes) -> ElementTree.Element:
    """Returns the XML without its name spaces. One that declares anything is refused: entities can be made to swell."""
    if b"<!" in body.replace(b"<!--", b"") or b"\0" in body:  # in UTF-16 it would not be seen
        raise PermanentError(f"{NAME}: the answer declares entities, which no document of the platform does")
    try:
        root = ElementTree.fromstring(body)
    except ElementTree.ParseError:
        raise RetryableError(f"{NAME}: the answer is no XML ({len(body)} bytes), or was cut short") from None
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
    return root


def _text(element: ElementTree.Element, path: str) -> str:
    return (element.findtext(path) or "").strip()


def _sequence(series: ElementTree.Element) -> int:
    text = _text(series, "classificationSequence_AttributeInstanceComponent.position")
    return int(text) if text.isdecimal() else 1

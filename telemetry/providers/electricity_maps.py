"""Electricity Maps, API v3: average intensity (flow-traced, lifecycle or direct) and day-ahead prices.

Free keys read the last 24 hours only, without a forecast; `plan: paid` in the feed's configuration asks for more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core.ports import FeedCapabilities, IntensityPoint

from .parsing import DAY_S, FACTORS, HOUR_S, FeedPoints, Reader, iso, one_of, spans, within
from .provider_http import HttpClient, Outside, Params

NAME = "electricity_maps"
HOST = "api.electricitymaps.com"
STEPS_S = {"hourly": HOUR_S, "15_minutes": 900.0, "5_minutes": 300.0}
HORIZONS_H = (6, 24, 48, 72)
LONGEST_RANGE_S = 10 * DAY_S
GAP_S = 0.25
PATHS = {"average": "/v3/carbon-intensity", "price": "/v3/price-day-ahead"}
FIELDS = {"average": "carbonIntensity", "price": "value"}


class ElectricityMapsProvider:
    """Config: `signal` (average, price), `factor` (lifecycle, direct), `plan` (free, paid), `granularity` (hourly)."""

    def __init__(self, config: Mapping[str, Any], outside: Outside) -> None:
        self._signal = one_of(config, "signal", tuple(PATHS), NAME)
        self._factor = one_of(config, "factor", FACTORS, NAME, "lifecycle")
        self._paid = one_of(config, "plan", ("free", "paid"), NAME) == "paid"
        self._granularity = one_of(config, "granularity", tuple(STEPS_S), NAME)
        self._http = HttpClient(NAME, HOST, outside, config.get("base_url"), GAP_S)
        self._headers = {"auth-token": outside.secret(NAME, "token").reveal()}
        self._read = Reader(NAME)

    @property
    def capabilities(self) -> FeedCapabilities:
        horizon_s = HORIZONS_H[-1] * HOUR_S if self._paid else 0.0
        step_s = STEPS_S[self._granularity]
        return FeedCapabilities(tuple(PATHS), FACTORS, True, horizon_s, step_s, lag_s=2 * HOUR_S)

    def actuals(self, zone: str, start_s: float, end_s: float) -> tuple[IntensityPoint, ...]:
        if not self._paid:
            return within(self._ask(zone, "history", "history", ()), start_s, end_s)
        found: list[IntensityPoint] = []
        for first_s, last_s in spans(start_s, end_s, LONGEST_RANGE_S):
            found += self._ask(zone, "past-range", "data", (("start", iso(first_s)), ("end", iso(last_s))))
        return within(found, start_s, end_s)

    def forecast(self, zone: str, now_s: float, horizon_s: float) -> tuple[IntensityPoint, ...]:
        """Asks for prices over a span, for intensities over the shortest of four horizons that covers `horizon_s`."""
        if not self._paid:
            return ()
        hours = next((h for h in HORIZONS_H if h * HOUR_S >= horizon_s), HORIZONS_H[-1])
        window: Params = (("horizonHours", str(hours)),)
        if self._signal == "price":
            window = (("start", iso(now_s)), ("end", iso(now_s + horizon_s)))
        points = self._ask(zone, "forecast", "forecast", window)
        return tuple(point for point in within(points, now_s, now_s + horizon_s) if point.start_s > now_s)

    def _ask(self, zone: str, verb: str, key: str, window: Params) -> list[IntensityPoint]:
        params = [("zone", zone), ("temporalGranularity", self._granularity), *window]
        if self._signal == "average":
            params.append(("emissionFactorType", self._factor))
        body = self._http.get(f"{PATHS[self._signal]}/{verb}", params, self._headers)
        return self.parse(body, zone, key)

    def parse(self, body: bytes, zone: str, key: str) -> list[IntensityPoint]:
        read = self._read
        document = read.document(body)
        if read.at(document, "zone") != zone:
            read.fail("zone", f"is not {zone!r}")
        forecast = key == "forecast"
        issued = read.moment(read.at(document, "updatedAt"), "updatedAt") if forecast else None
        return [self._point(item, zone, issued) for item in read.items(document, key)]

    def _point(self, item: Any, zone: str, issued_at_s: float | None) -> IntensityPoint:
        """Reads a point. `issued_at_s`: of a forecast, None for what was measured."""
        read = self._read
        start_s = read.moment(read.at(item, "datetime"), "datetime")
        factor = item.get("emissionFactorType", self._factor)
        if self._signal == "average" and factor != self._factor:
            read.fail("emissionFactorType", f"is not {self._factor!r}")
        unit = "gCO2eq/kWh" if self._signal == "average" else str(read.at(item, "unit"))
        raw = read.number(read.at(item, FIELDS[self._signal]), FIELDS[self._signal])
        updated = read.moment(item["updatedAt"], "updatedAt") if item.get("updatedAt") else None
        end_s = start_s + STEPS_S[self._granularity]
        known_at_s = end_s if self._signal == "average" else start_s
        return FeedPoints(NAME, zone, self._signal, self._factor, unit).point(
            start_s,
            end_s,
            raw,
            issued_at_s=(updated or known_at_s) if issued_at_s is None else issued_at_s,
            forecast=issued_at_s is not None,
            estimated=item.get("isEstimated") is True,
            updated_at_s=updated,
        )

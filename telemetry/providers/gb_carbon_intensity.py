"""Great Britain's Carbon Intensity API: average, generation only, in half hours; no key; CC BY 4.0.

Zone `GB` is the whole; `GB-<region id>`, 1 to 17, a region, of which there are forecasts only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core.ports import FeedCapabilities, IntensityPoint, PermanentError

from .parsing import DAY_S, HOUR_S, FeedPoints, Reader, iso, one_of, spans, within
from .provider_http import HttpClient, Outside

NAME = "gb_carbon_intensity"
HOST = "api.carbonintensity.org.uk"
STEP_S = 1_800.0
HORIZON_S = 48 * HOUR_S
LONGEST_RANGE_S = 13 * DAY_S
SETTLED_S = HOUR_S  # an actual that is null sooner than this after its half hour is not missing, only not there yet
GAP_S = 0.5
REGIONS = {f"GB-{number}": number for number in range(1, 18)}
MINUTES = "%Y-%m-%dT%H:%MZ"


class GbCarbonIntensityProvider:
    """Config: `signal` (average)."""

    def __init__(self, config: Mapping[str, Any], outside: Outside) -> None:
        one_of(config, "signal", ("average",), NAME)
        one_of(config, "factor", ("direct",), NAME)
        self._http = HttpClient(NAME, HOST, outside, config.get("base_url"), GAP_S)
        self._regional = config.get("zone", "GB") != "GB"
        self._read = Reader(NAME)

    @property
    def capabilities(self) -> FeedCapabilities:
        return FeedCapabilities(("average",), ("direct",), not self._regional, HORIZON_S, STEP_S, lag_s=SETTLED_S)

    def actuals(self, zone: str, start_s: float, end_s: float) -> tuple[IntensityPoint, ...]:
        if _region(zone) is not None:
            return ()
        found: list[IntensityPoint] = []
        for first_s, last_s in spans(start_s, end_s, LONGEST_RANGE_S):
            body = self._http.get(f"/intensity/{iso(first_s, MINUTES)}/{iso(last_s, MINUTES)}")
            found += self.parse(body, zone, None)
        settled_s = end_s - SETTLED_S
        return within([p for p in found if p.raw_value is not None or p.end_s <= settled_s], start_s, end_s)

    def forecast(self, zone: str, now_s: float, horizon_s: float) -> tuple[IntensityPoint, ...]:
        """From the half hour under way: it has no actual yet. The API does not say when it was issued: now, then."""
        region = _region(zone)
        if region is None:
            end_s = now_s + min(horizon_s, HORIZON_S)
            path = f"/intensity/{iso(now_s, MINUTES)}/{iso(end_s, MINUTES)}"
        else:
            path = f"/regional/intensity/{iso(now_s, MINUTES)}/fw48h/regionid/{region}"
        points = self.parse(self._http.get(path), zone, now_s)
        return tuple(p for p in within(points, now_s, now_s + horizon_s) if p.raw_value is not None)

    def parse(self, body: bytes, zone: str, issued_at_s: float | None) -> list[IntensityPoint]:
        """Returns the forecasts of an answer, issued at the time given, or with None its actuals."""
        read = self._read
        document = read.document(body)
        region = _region(zone)
        if region is not None and read.at(document, "data", "regionid") != region:
            read.fail("data.regionid", f"is not {region}")
        series = FeedPoints(NAME, zone, "average", "direct", "gCO2/kWh")
        kind = "actual" if issued_at_s is None else "forecast"
        found = []
        for item in read.items(document, *(("data",) if region is None else ("data", "data"))):
            start_s, end_s = (read.moment(read.at(item, edge), f"data.{edge}") for edge in ("from", "to"))
            if end_s <= start_s:
                read.fail("data.to", "is not after data.from")
            value = read.number(read.at(item, "intensity", kind), f"data.intensity.{kind}")
            known_at_s = end_s if issued_at_s is None else issued_at_s
            found.append(series.point(start_s, end_s, value, issued_at_s=known_at_s, forecast=issued_at_s is not None))
        return found


def _region(zone: str) -> int | None:
    if zone == "GB":
        return None
    if zone not in REGIONS:
        raise PermanentError(f"{NAME}: zone {zone!r} is unknown: GB, or GB-1 to GB-17")
    return REGIONS[zone]

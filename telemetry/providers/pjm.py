"""PJM Data Miner 2: marginal rates of emission of a node or zone, each five minutes; no forecast.

Its time filter is US Eastern and includes its end; the hour that a clock change repeats cannot be named in it. So an
hour more is asked for on both sides, and the UTC times of the answer decide.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

from core.ports import FeedCapabilities, IntensityPoint, PermanentError

from .parsing import DAY_S, HOUR_S, FeedPoints, Reader, one_of, spans, within
from .provider_http import HttpClient, Outside

NAME = "pjm"
HOST = "api.pjm.com"
PATH = "/api/v1/fivemin_marginal_emissions"
STEP_S = 300.0
ROWS = 50_000
MOST_PAGES = 50
LONGEST_RANGE_S = 30 * DAY_S
GAP_S = 10.0  # 6 calls a minute for those who are no members
EASTERN = ZoneInfo("America/New_York")


class PjmProvider:
    """Config: `signal` (marginal). The zone is a pricing node's number (pnode_id)."""

    def __init__(self, config: Mapping[str, Any], outside: Outside) -> None:
        one_of(config, "signal", ("marginal",), NAME)
        one_of(config, "factor", ("direct",), NAME)
        self._http = HttpClient(NAME, HOST, outside, config.get("base_url"), GAP_S)
        self._headers = {"Ocp-Apim-Subscription-Key": outside.secret(NAME, "key").reveal()}
        self._rows = ROWS
        self._read = Reader(NAME)

    @property
    def capabilities(self) -> FeedCapabilities:
        return FeedCapabilities(("marginal",), ("direct",), True, 0.0, STEP_S, lag_s=900.0)

    def actuals(self, zone: str, start_s: float, end_s: float) -> tuple[IntensityPoint, ...]:
        if not zone.isdecimal():
            raise PermanentError(f"{NAME}: the zone is the number of a pricing node, not {zone!r}")
        found: list[IntensityPoint] = []
        for first_s, last_s in spans(start_s, end_s, LONGEST_RANGE_S):
            found += self._pages(zone, f"{_eastern(first_s - HOUR_S)} to {_eastern(last_s + HOUR_S)}")
        return within(found, start_s, end_s)

    def forecast(self, zone: str, now_s: float, horizon_s: float) -> tuple[IntensityPoint, ...]:
        return ()

    def _pages(self, zone: str, window: str) -> list[IntensityPoint]:
        found: list[IntensityPoint] = []
        for page in range(MOST_PAGES):
            params = [
                ("startRow", str(page * self._rows + 1)),
                ("rowCount", str(self._rows)),
                ("datetime_beginning_ept", window),
                ("pnode_id", zone),
                ("sort", "datetime_beginning_utc"),
                ("order", "Asc"),
            ]
            points, total = self.parse(self._http.get(PATH, params, self._headers), zone)
            found += points
            if len(found) >= total or not points:
                return found
        raise PermanentError(f"{NAME}: more than {MOST_PAGES} pages: ask for less at a time")

    def parse(self, body: bytes, zone: str) -> tuple[list[IntensityPoint], int]:
        """Returns the points of a page, and how many rows all pages have."""
        read = self._read
        document = read.document(body)
        total = read.number(read.at(document, "totalRows"), "totalRows") or 0.0
        series = FeedPoints(NAME, zone, "marginal", "direct", "lb/MWh")
        found = []
        for item in read.items(document, "items"):
            if str(read.at(item, "pnode_id")) != zone:
                read.fail("items.pnode_id", f"is not {zone}")
            start_s = read.moment(read.at(item, "datetime_beginning_utc"), "items.datetime_beginning_utc", utc=True)
            value = read.number(read.at(item, "marginal_co2_rate"), "items.marginal_co2_rate")
            found.append(series.point(start_s, start_s + STEP_S, value, issued_at_s=start_s + STEP_S))
        return found, int(total)


def _eastern(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).astimezone(EASTERN).strftime("%Y-%m-%d %H:%M")

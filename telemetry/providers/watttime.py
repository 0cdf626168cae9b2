"""WattTime, API v3: marginal (`co2_moer`) and average (`co2_aoer`) rates of emission, in five minutes' steps."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from typing import Any

from core.ports import FeedCapabilities, IntensityPoint

from .parsing import DAY_S, HOUR_S, FeedPoints, Reader, iso, one_of, spans, within
from .provider_http import HttpClient, Outside, Params
from .secrets import Secret

NAME = "watttime"
HOST = "api.watttime.org"
SIGNAL_TYPES = {"marginal": "co2_moer", "average": "co2_aoer"}
UNIT = "lbs_co2_per_mwh"
STEP_S = 300.0
LONGEST_RANGE_S = 30 * DAY_S
HORIZON_H = 72
GAP_S = 0.1  # 3,000 calls in 5 minutes


class WattTimeProvider:
    """Config: `signal` (marginal, average). Signs in with user and password once, and uses the token it gets."""

    def __init__(self, config: Mapping[str, Any], outside: Outside) -> None:
        self._signal = one_of(config, "signal", tuple(SIGNAL_TYPES), NAME)
        self._http = HttpClient(NAME, HOST, outside, config.get("base_url"), GAP_S)
        self._outside = outside
        self._token: Secret | None = None
        self._read = Reader(NAME)
        for what in ("user", "password"):
            outside.secret(NAME, what)

    @property
    def capabilities(self) -> FeedCapabilities:
        return FeedCapabilities(tuple(SIGNAL_TYPES), ("direct",), True, HORIZON_H * HOUR_S, STEP_S, lag_s=900.0)

    def actuals(self, zone: str, start_s: float, end_s: float) -> tuple[IntensityPoint, ...]:
        found: list[IntensityPoint] = []
        for first_s, last_s in spans(start_s, end_s, LONGEST_RANGE_S):
            window = (("start", iso(first_s)), ("end", iso(last_s)))
            found += self.parse(self._ask("/v3/historical", zone, window), zone, False)
        return within(found, start_s, end_s)

    def forecast(self, zone: str, now_s: float, horizon_s: float) -> tuple[IntensityPoint, ...]:
        hours = min(HORIZON_H, max(1, math.ceil(horizon_s / HOUR_S)))
        points = self.parse(self._ask("/v3/forecast", zone, (("horizon_hours", str(hours)),)), zone, True)
        return tuple(point for point in within(points, now_s, now_s + horizon_s) if point.start_s > now_s)

    def _ask(self, path: str, zone: str, window: Params) -> bytes:
        params = [("region", zone), ("signal_type", SIGNAL_TYPES[self._signal]), *window]
        if self._token is None:
            self._token = self._sign_in()
        return self._http.get(path, params, {"Authorization": f"Bearer {self._token.reveal()}"})

    def _sign_in(self) -> Secret:
        user, password = (self._outside.secret(NAME, what).reveal() for what in ("user", "password"))
        pair = Secret(base64.b64encode(f"{user}:{password}".encode()).decode())
        self._http.hide(pair)
        body = self._http.get("/login", headers={"Authorization": f"Basic {pair.reveal()}"})
        token = self._read.at(self._read.document(body), "token")
        if not isinstance(token, str) or not token.isascii() or not token.isprintable():
            self._read.fail("token", "is no text")
        secret = Secret(token)
        self._http.hide(secret)
        return secret

    def parse(self, body: bytes, zone: str, forecast: bool) -> list[IntensityPoint]:
        read = self._read
        document = read.document(body)
        for field, wanted in (("region", zone), ("signal_type", SIGNAL_TYPES[self._signal]), ("units", UNIT)):
            if (answered := read.at(document, "meta", field)) != wanted:
                read.fail(f"meta.{field}", f"is {str(answered)[:40]!r} rather than {wanted!r}")
        step_s = read.number(read.at(document, "meta", "data_point_period_seconds"), "meta.data_point_period_seconds")
        if step_s is None or step_s <= 0.0:
            read.fail("meta.data_point_period_seconds", "is no length of time")
        issued = read.moment(read.at(document, "meta", "generated_at"), "meta.generated_at") if forecast else None
        series = FeedPoints(NAME, zone, self._signal, "direct", UNIT)
        found = []
        for item in read.items(document, "data"):
            start_s = read.moment(read.at(item, "point_time"), "data.point_time")
            end_s = start_s + step_s
            value = read.number(read.at(item, "value"), "data.value")
            known_at_s = end_s if issued is None else issued
            found.append(series.point(start_s, end_s, value, issued_at_s=known_at_s, forecast=forecast))
        return found

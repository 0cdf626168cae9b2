"""Open-Meteo: forecasts of many weather services by one form, and ERA5's archive. CC BY 4.0.

Without a key it is for non-commercial use only; `plan: paid` in the feed's configuration uses a customer's key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from core.ports import PermanentError
from core.predictors.carbon_features import WEATHER
from core.units import celsius_to_k
from telemetry.providers.parsing import Reader, one_of
from telemetry.providers.provider_http import HttpClient, Outside

from .weather_port import HOUR_S, NOTHING, Hours, Place, moment_of

NAME = "open_meteo"
HOSTS = {  # of forecasts, and of the archive
    "free": ("api.open-meteo.com", "archive-api.open-meteo.com"),
    "paid": ("customer-api.open-meteo.com", "customer-archive-api.open-meteo.com"),
}
FIELDS = {  # its name and unit of each of WEATHER
    "wind_m_s": ("wind_speed_10m", "m/s"),
    "temperature_k": ("temperature_2m", "°C"),
    "dewpoint_k": ("dew_point_2m", "°C"),
    "irradiance_w_m2": ("shortwave_radiation", "W/m²"),
    "precipitation": ("precipitation", "mm"),
}
BEFORE = ("irradiance_w_m2", "precipitation")  # means and sums of the hour that ends at the time they stand at
FORECAST_DAYS = 7
MOST_DAYS_BACK = 92
GAP_S = 0.5


class OpenMeteoProvider:
    """Config: `plan` (free, paid).

    Args:
        place: Where; None: the site's place is unknown.

    Raises:
        PermanentError: The site has no place, the plan is unknown, or there is no key for a paid one.
    """

    def __init__(self, config: Mapping[str, Any], place: Place | None, outside: Outside) -> None:
        if place is None:
            raise PermanentError(f"{NAME}: the site has no latitude and longitude: set both")
        plan = one_of(config, "plan", tuple(HOSTS), NAME)
        forecasts, archive = HOSTS[plan]
        base_url = config.get("base_url")
        self._forecasts = HttpClient(NAME, forecasts, outside, base_url, GAP_S)
        self._archive = HttpClient(NAME, archive, outside, base_url, GAP_S)
        self._asked = [
            ("latitude", f"{place.latitude:.4f}"),
            ("longitude", f"{place.longitude:.4f}"),
            ("hourly", ",".join(name for name, _ in FIELDS.values())),
            ("wind_speed_unit", "ms"),
            ("timezone", "UTC"),
        ]
        if plan == "paid":
            self._asked.append(("apikey", outside.secret(NAME, "key").reveal()))
        self._read = Reader(NAME)

    def past(self, first_hour: int, end_hour: int) -> Hours:
        """Asks the archive by whole days, of which the last has the means that end with the last hour."""
        first, last = (f"{moment_of(hour):%Y-%m-%d}" for hour in (first_hour, end_hour))
        days = [("start_date", first), ("end_date", last)]
        found = self.parse(self._archive.get("/v1/archive", [*self._asked, *days]))
        return {hour: values for hour, values in found.items() if first_hour <= hour < end_hour}

    def outlook(self, now_hour: int, days_back: int) -> Hours:
        days = [("past_days", str(min(MOST_DAYS_BACK, days_back))), ("forecast_days", str(FORECAST_DAYS))]
        return self.parse(self._forecasts.get("/v1/forecast", [*self._asked, *days]))

    def parse(self, body: bytes) -> Hours:
        """Reads an answer, in the order of its times."""
        read = self._read
        document = read.document(body)
        if read.at(document, "utc_offset_seconds") != 0:
            read.fail("utc_offset_seconds", "is not 0")
        hours = [self._hour(text) for text in read.items(document, "hourly", "time")]
        columns = [self._column(document, name, hours) for name in WEATHER]
        found = {hour: tuple(column.get(hour) for column in columns) for hour in hours}
        return {hour: values for hour, values in found.items() if values != NOTHING}

    def _hour(self, text: object) -> int:
        at_s = self._read.moment(text, "hourly.time", utc=True)
        if at_s % HOUR_S:
            self._read.fail("hourly.time", "is no whole hour")
        return int(at_s) // HOUR_S

    def _column(self, document: object, name: str, hours: Sequence[int]) -> dict[int, float | None]:
        field, unit = FIELDS[name]
        where, read = f"hourly.{field}", self._read
        if read.at(document, "hourly_units", field) != unit:
            read.fail(f"hourly_units.{field}", f"is not {unit!r}")
        items = read.items(document, "hourly", field)
        if len(items) != len(hours):
            read.fail(where, "has not as many values as there are times")
        values = [read.number(item, where) for item in items]
        if unit == "°C":
            values = [None if value is None else celsius_to_k(value) for value in values]
        back = 1 if name in BEFORE else 0
        return {hour - back: value for hour, value in zip(hours, values, strict=True)}

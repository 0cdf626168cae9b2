"""The weather of a file in the folder of feeds' files: what lies ahead in it is its forecast."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from typing import Any

from core.ports import PermanentError
from core.predictors.carbon_features import WEATHER
from telemetry.providers import feed_files
from telemetry.providers.parsing import text_of
from telemetry.providers.provider_http import Outside

from . import hourly_csv
from .weather_port import NOTHING, Hours, Place

NAME = "weather_csv"
DAY = 24
AHEAD_DAYS = 16  # nobody forecasts further; what a file has beyond is no forecast


class WeatherCsvProvider:
    """Config: `file` (a name, see `feed_files`; columns as `greenserve forecast score --weather` reads them) and
    `region`, whose rows are the site's.

    Raises:
        PermanentError: A bad configuration or file; the text names the file, the line and what to write.
    """

    def __init__(self, config: Mapping[str, Any], place: Place | None, outside: Outside) -> None:
        name, region = check(config)
        try:
            text = io.StringIO(feed_files.read(outside.feed_files, name), newline="")
            rows = hourly_csv.read(text, name, WEATHER, strict=False, only=region)[region]
        except hourly_csv.BadFile as error:
            raise PermanentError(f"{NAME}: {error}") from None
        values = {hour: tuple(None if math.isnan(one) else one for one in row) for hour, row in rows.items()}
        self._hours = {hour: row for hour, row in sorted(values.items()) if row != NOTHING}

    def past(self, first_hour: int, end_hour: int) -> Hours:
        return {hour: row for hour, row in self._hours.items() if first_hour <= hour < end_hour}

    def outlook(self, now_hour: int, days_back: int) -> Hours:
        return self.past(now_hour - days_back * DAY, now_hour + AHEAD_DAYS * DAY)


def check(config: Mapping[str, Any]) -> tuple[str, str]:
    """Returns file and region of a feed's configuration. Looks at no file; raises PermanentError."""
    name = text_of(config, "file", NAME)
    if words := feed_files.fault(name):
        raise PermanentError(f"{NAME}: {words}")
    return name, text_of(config, "region", NAME)

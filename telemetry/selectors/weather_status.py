"""Says whether a feed's forecasts read the weather at its site, where that comes from, and how old it is."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.db.models import Max, Min

from telemetry.forecasts.learned_carbon import WITH_WEATHER
from telemetry.models import CarbonFeed, WeatherFeed, WeatherPoint


@dataclass(frozen=True, slots=True)
class WeatherStatus:
    """The weather of a feed's site. `used`: the forecast that counts reads it. `last_ok_at` None: it never came."""

    provider: str
    source: str
    used: bool
    last_ok_at: datetime | None
    last_error: str


def status(feed: CarbonFeed) -> WeatherStatus | None:
    """Returns the state of the weather; None where the site has no weather feed."""
    found: WeatherFeed | None = getattr(feed.site, "weather_feed", None)
    if found is None:
        return None
    used = feed.forecast_model == WITH_WEATHER
    return WeatherStatus(found.provider, found.source, used, found.last_ok_at, found.last_error)


def known_span(feed: CarbonFeed) -> tuple[datetime | None, datetime | None]:
    """Returns when the first and the last hour begin whose weather is known at the feed's site. Makes one query."""
    points = WeatherPoint.objects.filter(feed__site=feed.site)
    found = points.aggregate(first=Min("start_at"), last=Max("start_at"))
    return found["first"], found["last"]

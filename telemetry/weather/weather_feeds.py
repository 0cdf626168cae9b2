"""Keeps the weather of sites up to date: the newest days and the coming ones each hour, and the past year by year.

Nothing is fetched for a site without a `WeatherFeed`. As with feeds of carbon, one run goes at a time, a feed that
fails is left alone for longer and longer, and what goes wrong with it stands on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from django.conf import settings
from django.utils.module_loading import import_string

from core import bounds
from core.ports import PermanentError
from core.predictors.carbon_features import MEMORY, WEATHER
from core.predictors.carbon_training import MOST_DAYS
from pools import database_locks
from pools.database_locks import Lock
from telemetry.carbon import turns
from telemetry.models import WeatherFeed, WeatherPoint
from telemetry.providers.provider_http import Outside

from . import weather_csv
from .weather_port import Hours, Place, WeatherProvider, hour_of, moment_of

RUN_S = 45.0  # of one run; feeds that are left over are the first of the next
DAY = 24
DAYS_BACK = 7  # so far back each call reaches: what was forecast becomes what was
MOST_DAYS_BACK = 90  # after an outage
YEAR = 365 * DAY  # of the past, asked for at once
BACK_TEST_DAYS = 14
KEPT = MOST_DAYS * DAY + BACK_TEST_DAYS * DAY + MEMORY  # hours: what a model learns from, and what it looks back upon
MOST_ROWS = 2_000  # of one statement


def provider(feed: WeatherFeed, world: Outside | None = None) -> WeatherProvider:
    """Returns the adapter that settings name for this feed. Raises AdapterError for a bad configuration or file."""
    if not isinstance(feed.config, Mapping):
        raise PermanentError("the weather feed's config is no object: write {} for nothing")
    try:
        adapter = import_string(settings.GREENSERVE_WEATHER_PROVIDERS[feed.provider])
    except KeyError:
        known = ", ".join(sorted(settings.GREENSERVE_WEATHER_PROVIDERS))
        raise PermanentError(f"unknown weather provider {feed.provider!r}; known are {known}") from None
    found: WeatherProvider = adapter(feed.config, place(feed), world or turns.outside(RUN_S))
    return found


def place(feed: WeatherFeed) -> Place | None:
    site = feed.site
    return None if site.latitude is None or site.longitude is None else Place(site.latitude, site.longitude)


def check(feed: WeatherFeed) -> None:
    """Raises AdapterError for a configuration that cannot do. It asks nobody and looks at no file; keys may be missing
    yet."""
    if feed.provider == weather_csv.NAME and isinstance(feed.config, Mapping):
        weather_csv.check(feed.config)
        return
    provider(feed, turns.for_checks())


def refresh_s(feed: WeatherFeed) -> float:
    return min(float(feed.refresh_s or settings.GREENSERVE_WEATHER_REFRESH_S), bounds.DURATION.most)


def poll(now: datetime, world: Outside | None = None) -> tuple[WeatherFeed, ...]:
    """Refreshes the feeds whose time has come, those that waited longest first; returns those that it asked.

    It does nothing while another run is under way.
    """
    world, asked = world or turns.outside(RUN_S), []
    with database_locks.held(Lock.WEATHER) as locked:
        if locked:
            # What was asked ahead of the clock, which was set back since, is due at once.
            WeatherFeed.objects.filter(last_tried_at__gt=now).update(last_tried_at=None, cool_down_until=None)
        feeds = WeatherFeed.objects.select_related("site") if locked else ()
        due = [feed for feed in feeds if turns.is_due(feed, now, refresh_s(feed))]
        for feed, turn in turns.taken(due, world):
            refresh(feed, now, turn)
            asked.append(feed)
    return tuple(asked)


def refresh(feed: WeatherFeed, now: datetime, world: Outside | None = None) -> int:
    """Stores what came of a feed's turn; returns the hours stored. An error stands on the feed and goes no further."""
    stored, world = 0, world or turns.outside(RUN_S)
    with turns.noted(feed, now):
        adapter = provider(feed, world)
        stored += store(feed, adapter.outlook(hour_of(now), _days_back(feed, now)), now)
        stored += _fill(feed, adapter, now, world)
    return stored


def _days_back(feed: WeatherFeed, now: datetime) -> int:
    away = 0 if feed.last_ok_at is None else max(0, (now - feed.last_ok_at).days)
    return min(MOST_DAYS_BACK, DAYS_BACK + away)


def _fill(feed: WeatherFeed, adapter: WeatherProvider, now: datetime, world: Outside) -> int:
    """Goes back from the oldest hour, a year at once, while the feed's turn lasts and the provider has more."""
    stored, first = 0, hour_of(now) - KEPT
    while (oldest := _oldest(feed)) is not None and oldest > first and turns.left_s(world) > turns.LEAST_S:
        begin = max(first, oldest - YEAR)
        if not (new := store(feed, adapter.past(begin, oldest), now)):
            break
        stored += new
    return stored


def _oldest(feed: WeatherFeed) -> int | None:
    at = feed.points.order_by("start_at").values_list("start_at", flat=True).first()
    return None if at is None else hour_of(at)


def store(feed: WeatherFeed, hours: Hours, now: datetime) -> int:
    """Stores hours in the place of what was known of them; returns how many."""
    rows = [
        WeatherPoint(
            feed=feed,
            start_at=moment_of(hour),
            fetched_at=now,
            **dict(zip(WEATHER, values, strict=True)),
        )
        for hour, values in hours.items()
    ]
    WeatherPoint.objects.bulk_create(
        rows,
        batch_size=MOST_ROWS,
        update_conflicts=True,
        unique_fields=["feed", "start_at"],
        update_fields=[*WEATHER, "fetched_at"],
    )
    return len(rows)


def forget(now: datetime) -> int:
    """Drops the hours that no model learns from any more; returns how many."""
    return WeatherPoint.objects.filter(start_at__lt=now - timedelta(hours=KEPT + DAY)).delete()[0]

"""Decides when a feed of carbon, prices or weather is asked and for how long, and notes on it how that went."""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import datetime, timedelta

from django.conf import settings
from django.db.models import F

from core.ports import AdapterError, CoolDownError
from telemetry.models import CarbonFeed, WeatherFeed
from telemetry.providers.provider_http import Outside, Pace

log = logging.getLogger(__name__)

FEED_S = 15.0  # of one feed's turn: one that hangs leaves the others half of the run, and comes after them in the next
LEAST_S = 2.0  # with less left a feed is not begun: running out of time is not its fault
FIRST_COOL_DOWN_S = 60.0
LONGEST_COOL_DOWN_S = 3_600.0
Feed = CarbonFeed | WeatherFeed


def outside(run_s: float) -> Outside:
    """Returns the world as settings allow it, for a run that is to be over in `run_s`."""
    pace = Pace()
    return Outside(
        secrets=settings.GREENSERVE_CARBON_SECRETS,
        hosts=settings.GREENSERVE_CARBON_HOSTS,
        feed_files=settings.GREENSERVE_FEEDS_DIR,
        pace=pace,
        deadline=pace.now() + run_s,
    )


def turn(world: Outside) -> Outside:
    """Returns the same world until the end of one feed's turn, or of the run."""
    if world.deadline is None:
        return world
    return replace(world, deadline=min(world.deadline, world.pace.now() + FEED_S))


def is_due(feed: Feed, now: datetime, period_s: float) -> bool:
    """Decides whether a feed is due; a little early counts, so that one with beat's own period is always asked."""
    if feed.cool_down_until is not None and feed.cool_down_until > now:
        return False
    slack_s = min(1.0, 0.1 * period_s)
    return feed.last_tried_at is None or feed.last_tried_at <= now - timedelta(seconds=period_s - slack_s)


def succeeded(feed: Feed, now: datetime) -> None:
    type(feed)._default_manager.filter(pk=feed.pk).update(
        last_tried_at=now, last_ok_at=now, last_error="", last_error_at=None, failures=0, cool_down_until=None
    )


def failed(feed: Feed, error: AdapterError, now: datetime) -> None:
    """Leaves the feed alone for longer each time, and all of a provider where that asks for it."""
    log.warning("%s: %s", feed, error)
    rows = type(feed)._default_manager
    wait_s = min(LONGEST_COOL_DOWN_S, FIRST_COOL_DOWN_S * 2.0 ** min(feed.failures, 10))
    if isinstance(error, CoolDownError):
        wait_s = max(wait_s, error.wait_s or 0.0)
        rows.filter(provider=feed.provider).update(cool_down_until=now + timedelta(seconds=wait_s))
    rows.filter(pk=feed.pk).update(
        last_tried_at=now,
        last_error="".join(letter if letter.isprintable() else " " for letter in str(error))[:300],
        last_error_at=now,
        failures=F("failures") + 1,
        cool_down_until=now + timedelta(seconds=wait_s),
    )

"""Decides when a feed of carbon, prices or weather is asked and for how long, and notes on it how that went."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from django.conf import settings
from django.db.models import F

from core.ports import AdapterError, CoolDownError, PermanentError
from telemetry.models import CarbonFeed, WeatherFeed
from telemetry.providers.provider_http import Outside, Pace
from telemetry.providers.secrets import VARIABLES, Secret

log = logging.getLogger(__name__)

FEED_S = 15.0  # of one feed's turn: one that hangs leaves the others half of the run, and comes after them in the next
LEAST_S = 2.0  # with less left a feed is not begun: running out of time is not its fault
FIRST_COOL_DOWN_S = 60.0
LONGEST_COOL_DOWN_S = 3_600.0
Feed = CarbonFeed | WeatherFeed
Own = TypeVar("Own", CarbonFeed, WeatherFeed)


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


def for_checks() -> Outside:
    """Returns a world in which every key is there, to check configurations by: keys may be missing yet."""
    keys = {name: Secret("not known yet") for name in VARIABLES}
    return Outside(secrets=keys, hosts=settings.GREENSERVE_CARBON_HOSTS)


def left_s(world: Outside) -> float:
    return math.inf if world.deadline is None else world.deadline - world.pace.now()


def taken(feeds: Iterable[Own], world: Outside) -> Iterator[tuple[Own, Outside]]:
    """Yields feeds, those that waited longest first, each with the world until the end of its turn, or of the run.

    Those for which too little of the run is left are left out.
    """
    for feed in sorted(feeds, key=lambda feed: feed.last_tried_at or datetime.min.replace(tzinfo=UTC)):
        turn = world
        if world.deadline is not None:
            turn = replace(world, deadline=min(world.deadline, world.pace.now() + FEED_S))
        if world.pace.wait_s(feed.provider) + LEAST_S < left_s(turn):
            yield feed, turn


def is_due(feed: Feed, now: datetime, period_s: float) -> bool:
    """Decides whether a feed is due; a little early counts, so that one with beat's own period is always asked."""
    if feed.cool_down_until is not None and feed.cool_down_until > now:
        return False
    slack_s = min(1.0, 0.1 * period_s)
    return feed.last_tried_at is None or feed.last_tried_at <= now - timedelta(seconds=period_s - slack_s)


@contextmanager
def noted(feed: Feed, now: datetime) -> Iterator[None]:
    """Notes on a feed how its turn went. An error, a provider's or our own, stands on it and goes no further."""
    try:
        yield
    except AdapterError as error:
        _failed(feed, error, now)
    except Exception as error:  # an answer, a file or a row that nobody thought of
        log.exception("%s", feed)
        _failed(feed, PermanentError(f"{feed.provider}: {type(error).__name__}; the server's log has more"), now)
    else:
        _succeeded(feed, now)


def _succeeded(feed: Feed, now: datetime) -> None:
    type(feed)._default_manager.filter(pk=feed.pk).update(
        last_tried_at=now, last_ok_at=now, last_error="", last_error_at=None, failures=0, cool_down_until=None
    )


def _failed(feed: Feed, error: AdapterError, now: datetime) -> None:
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

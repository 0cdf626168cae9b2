"""Carbon feeds: storing what providers say, append-only, and answering what the intensity is."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

from django.conf import settings
from django.utils.module_loading import import_string

from pools.models import Site
from scheduler.core.ports import AdapterError, CarbonProvider, IntensityPoint
from telemetry.models import CarbonFeed, CarbonPoint

log = logging.getLogger(__name__)

BACKFILL_S = 3_600.0  # how far back a new feed is filled; after an outage, too, at most this
MIN_KNOWN_SHARE = 0.5
LONGEST_INTERVAL = timedelta(days=1)  # bounds how far back a point may begin that still holds: keeps look-ups short


def provider(feed: CarbonFeed) -> CarbonProvider:
    """The adapter that settings name for this feed. Raises AdapterError when the feed's configuration is bad."""
    try:
        adapter = import_string(settings.GREENSERVE_CARBON_PROVIDERS[feed.provider])
    except KeyError:
        known = ", ".join(sorted(settings.GREENSERVE_CARBON_PROVIDERS))
        raise AdapterError(f"unknown carbon provider {feed.provider!r}; known are {known}") from None
    found: CarbonProvider = adapter({**feed.config, "signal": feed.signal})
    return found


def forecast_horizon_s() -> float:
    """As far as the carbon epoch looks, and one step more, since a step of it begins before the next refresh; and as
    far as batches look."""
    loop: Any = settings.GREENSERVE_LOOPS["carbon"]
    return max(float((loop["steps"] + 1) * loop["period_s"]), float(settings.GREENSERVE_BATCHES["horizon_s"]))


def refresh_feed(feed: CarbonFeed, now: datetime) -> int:
    """Stores new actuals and what changed in the forecast; returns the points stored.

    A provider's error is recorded on the feed and goes no further: the other feeds and loops run on.
    """
    try:
        adapter = provider(feed)
        zone = str(feed.config.get("zone") or feed.site.grid_zone)
        since = _since(feed, now)
        points = (
            *adapter.actuals(zone, since.timestamp(), now.timestamp()),
            *adapter.forecast(zone, now.timestamp(), forecast_horizon_s()),
        )
    except AdapterError as error:
        log.warning("carbon feed of %s: %s", feed.site, error)
        CarbonFeed.objects.filter(pk=feed.pk).update(last_error=str(error)[:300], last_error_at=now)
        return 0
    stored = _append(feed, points, now)
    CarbonFeed.objects.filter(pk=feed.pk).update(last_ok_at=now, last_error="", last_error_at=None)
    return stored


def _since(feed: CarbonFeed, now: datetime) -> datetime:
    """From the last actual's start, so that a correction of the newest one is seen."""
    newest = feed.points.filter(forecast=False).order_by("-start_at").values_list("start_at", flat=True).first()
    floor = now - timedelta(seconds=BACKFILL_S)
    return max(newest, floor) if newest else floor


def _append(feed: CarbonFeed, points: Iterable[IntensityPoint], now: datetime) -> int:
    """Inserts the points that say something new: an interval not stored before, or another value for it.

    A revision that a provider gives under the old time of issue is dated now: it must come after what it revises.
    """
    points = list(points)
    if not points:
        return 0
    starts = [_moment(point.start_s) for point in points]
    known: dict[tuple[datetime, bool], tuple[float | None, datetime]] = {
        (start, forecast): (value, issued_at)
        for start, forecast, value, issued_at in feed.points.filter(
            start_at__gte=min(starts), start_at__lte=max(starts)
        )
        .order_by("start_at", "issued_at")
        .values_list("start_at", "forecast", "value_g_per_kwh", "issued_at")
    }
    new = []
    for start, point in zip(starts, points, strict=True):
        issued_at = _moment(point.issued_at_s)
        if (start, point.forecast) in known:
            value, before = known[start, point.forecast]
            if value == point.value_g_per_kwh:
                continue
            if issued_at <= before:
                issued_at = now
        new.append(_row(feed, start, issued_at, point))
    CarbonPoint.objects.bulk_create(new, ignore_conflicts=True, batch_size=1000)
    return len(new)


def _row(feed: CarbonFeed, start: datetime, issued_at: datetime, point: IntensityPoint) -> CarbonPoint:
    return CarbonPoint(
        feed=feed,
        start_at=start,
        end_at=_moment(point.end_s),
        value_g_per_kwh=point.value_g_per_kwh,
        raw_value=point.raw_value,
        raw_unit=point.raw_unit,
        factor=point.factor,
        forecast=point.forecast,
        estimated=point.estimated,
        issued_at=issued_at,
    )


def _moment(at_s: float) -> datetime:
    return datetime.fromtimestamp(at_s, UTC)


class IntensityCurve:
    """The average intensity of one site over a stretch of time, read once.

    Where an interval has both, what was measured goes before what was forecast, a null measurement included: the
    feed then said that it has no value, and a forecast may not paper over that. Of equals the newest issue counts.
    """

    def __init__(self, site: Site | int, start: datetime, end: datetime) -> None:
        points = (
            CarbonPoint.objects.filter(
                feed__site=site,
                feed__signal=CarbonFeed.Signal.AVERAGE,
                start_at__gt=start - LONGEST_INTERVAL,
                start_at__lt=end,
                end_at__gt=start,
            )
            .order_by("start_at", "-forecast", "issued_at", "id")
            .values_list("start_at", "end_at", "value_g_per_kwh")
        )
        chosen: Mapping[datetime, tuple[datetime, float | None]] = {s: (e, value) for s, e, value in points}
        self._spells = [(s.timestamp(), e.timestamp(), value) for s, (e, value) in sorted(chosen.items())]

    def mean(self, start_s: float, end_s: float, min_known_share: float = 1.0) -> float | None:
        """Mean over [start_s, end_s) in g/kWh, weighted by time; None when less than the given share is known."""
        known_s = total = 0.0
        for spell_start_s, spell_end_s, value in self._spells:
            overlap_s = min(end_s, spell_end_s) - max(start_s, spell_start_s)
            if overlap_s > 0 and value is not None:
                known_s += overlap_s
                total += overlap_s * value
        if known_s <= 0 or known_s < min_known_share * (end_s - start_s) - 1e-6:
            return None
        return total / known_s

    def at(self, at_s: float) -> float | None:
        return next((value for start_s, end_s, value in self._spells if start_s <= at_s < end_s), None)


def intensity_steps(site: Site | int, start: datetime, step_s: float, n: int) -> tuple[float | None, ...]:
    """Mean intensity of each of `n` steps in g/kWh, for the epochs.

    A step counts as known when at least half of it is: one missing five-minute value does not shut a site out for
    half an hour. The ledger is stricter.
    """
    curve = IntensityCurve(site, start, start + timedelta(seconds=step_s * n))
    edges = [start.timestamp() + step_s * i for i in range(n + 1)]
    return tuple(curve.mean(a, b, MIN_KNOWN_SHARE) for a, b in pairwise(edges))


def intensity_at(site: Site | int, at: datetime) -> float | None:
    """Intensity in g/kWh of the interval around `at`, None when the feed has none."""
    return IntensityCurve(site, at, at + timedelta(microseconds=1)).at(at.timestamp())

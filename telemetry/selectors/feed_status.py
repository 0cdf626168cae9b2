"""The state of carbon and price feeds: fresh, stale or failing, until when they have values, and their gaps."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from django.db.models import Max

from telemetry.carbon import feeds
from telemetry.carbon.site_signals import LONGEST_INTERVAL
from telemetry.forecasts.histories import value_field
from telemetry.models import CarbonFeed

LATE_PERIODS = 3.0
LOOK_BACK_S = 86_400.0
Gap = tuple[float, float]


@dataclass(frozen=True, slots=True)
class FeedStatus:
    """state: fresh | late | stale | cooling down | failing | never. None: never, or not known.

    Late: it answers, but has no value as new as it should. `gaps`: stretches of the last day without a value, in
    Unix seconds; what may still come by the provider's usual delay is no gap.
    """

    site: str
    signal: str
    provider: str
    zone: str
    factor: str
    source: str
    refresh_s: float
    state: str
    last_ok_s: float | None
    last_error: str
    last_error_s: float | None
    cool_down_until_s: float | None
    known_until_s: float | None
    forecast_until_s: float | None
    forecast_model: str
    gaps: tuple[Gap, ...]

    @property
    def gap_s(self) -> float:
        return sum(end_s - start_s for start_s, end_s in self.gaps)


def statuses(now: datetime) -> tuple[FeedStatus, ...]:
    """Returns the status of every feed, in the order of the sites."""
    rows = CarbonFeed.objects.select_related("site").order_by("site__rank", "site__name", "signal")
    return tuple(status(feed, now) for feed in rows)


def status(feed: CarbonFeed, now: datetime) -> FeedStatus:
    try:
        can = feeds.provider(feed).capabilities
        lag_s, step_s, measures = can.lag_s, can.step_s, can.actuals
    except Exception:  # the next refresh will say it on the feed; the others' states are shown meanwhile
        lag_s, step_s, measures = 0.0, 0.0, True
    has_value = {f"{value_field(feed)}__isnull": False}
    known_until = _until(feed, now, forecast=False, **has_value)
    forecast_until = _until(feed, now, forecast=True, **has_value)
    settled = now - timedelta(seconds=lag_s + step_s)
    return FeedStatus(
        site=feed.site.name,
        signal=feed.signal,
        provider=feed.provider,
        zone=feeds.zone(feed),
        factor=feed.factor,
        source=feed.source,
        refresh_s=feeds.refresh_s(feed),
        state=_state(feed, now, known_until if measures else forecast_until, settled),
        last_ok_s=_seconds(feed.last_ok_at),
        last_error=feed.last_error,
        last_error_s=_seconds(feed.last_error_at),
        cool_down_until_s=_seconds(feed.cool_down_until),
        known_until_s=_seconds(known_until),
        forecast_until_s=_seconds(forecast_until),
        forecast_model=feed.forecast_model,
        gaps=gaps(feed, max(_since(feed, now), now - timedelta(seconds=LOOK_BACK_S)), settled) if measures else (),
    )


def _state(feed: CarbonFeed, now: datetime, known_until: datetime | None, settled: datetime) -> str:
    if feed.last_ok_at is None and not feed.last_error:
        return "never"
    if feed.last_error:
        cooling = feed.cool_down_until is not None and feed.cool_down_until > now
        return "cooling down" if cooling else "failing"
    if feed.last_ok_at is not None and now - feed.last_ok_at > timedelta(
        seconds=LATE_PERIODS * feeds.refresh_s(feed) + 5.0
    ):
        return "stale"
    slack = timedelta(seconds=max(60.0, 2.0 * feeds.refresh_s(feed)))
    return "late" if known_until is None or known_until < settled - slack else "fresh"


def _since(feed: CarbonFeed, now: datetime) -> datetime:
    """Returns the start of what may be a gap: what lies before the first point of a new feed is none."""
    first = feed.points.filter(forecast=False).order_by("start_at").values_list("start_at", flat=True).first()
    return first or now


def _until(feed: CarbonFeed, now: datetime, **wanted: object) -> datetime | None:
    points = feed.points.filter(start_at__gt=now - timedelta(days=7), **wanted)
    found: datetime | None = points.aggregate(until=Max("end_at"))["until"]
    return found


def gaps(feed: CarbonFeed, start: datetime, end: datetime) -> tuple[Gap, ...]:
    """Where in [start, end) nothing is measured: no point, or the newest revision of it is null."""
    rows = (
        feed.points.filter(forecast=False, start_at__gt=start - LONGEST_INTERVAL, start_at__lt=end, end_at__gt=start)
        .order_by("start_at", "issued_at", "id")
        .values_list("start_at", "end_at", value_field(feed))
    )
    newest = {first: (last, value) for first, last, value in rows}
    known_until, found = start, []
    for first, (last, value) in sorted(newest.items()):
        if value is None:
            continue
        if first > known_until:
            found.append((known_until, first))
        known_until = max(known_until, last)
    if known_until < end:
        found.append((known_until, end))
    return tuple((first.timestamp(), last.timestamp()) for first, last in found)


def _seconds(at: datetime | None) -> float | None:
    return None if at is None else at.astimezone(UTC).timestamp()

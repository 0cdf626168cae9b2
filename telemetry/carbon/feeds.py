"""Keeps carbon and price feeds up to date: asks providers when it is time, and stores what they say, append-only.

One run at a time, whoever starts it (beat, a first start, the command line): providers count calls by key, and the pace
between them is kept within a run. A feed that fails is left alone for longer and longer; where a provider says for how
long (429), all of its feeds are. Whatever goes wrong with a feed stands on that feed, and costs it its own turn alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta

from django.conf import settings
from django.db import transaction
from django.db.models import Max
from django.utils.module_loading import import_string

from core import bounds
from core.ports import CarbonProvider, IntensityPoint, PermanentError
from core.types import Loop
from pools import clock_repairs, database_locks
from pools.database_locks import Lock
from pools.models import Service
from telemetry.models import CarbonFeed, CarbonPoint
from telemetry.providers import static_csv
from telemetry.providers.provider_http import Outside

from . import turns

RUN_S = 30.0  # of one run; feeds that are left over are the first of the next
BACKFILL_S = 3_600.0  # how far back a new feed is filled, at least
CATCH_UP_STEPS = 2_000  # after an outage, at most so far back
CATCH_UP_S = 7 * 86_400.0
REVISED_STEPS = 24  # so far back a provider may revise what it said
Key = tuple[datetime, bool, str]  # start, whether it is a forecast, by which model


def outside(run_s: float = RUN_S) -> Outside:
    """Returns the world as settings allow it, for a run that is to be over in `run_s`."""
    return turns.outside(run_s)


def provider(feed: CarbonFeed, world: Outside | None = None) -> CarbonProvider:
    """Returns the adapter that settings name for this feed. Raises AdapterError for a bad configuration."""
    if not isinstance(feed.config, Mapping):
        raise PermanentError("the feed's config is no object: write {} for nothing")
    try:
        adapter = import_string(settings.GREENSERVE_CARBON_PROVIDERS[feed.provider])
    except KeyError:
        known = ", ".join(sorted(settings.GREENSERVE_CARBON_PROVIDERS))
        raise PermanentError(f"unknown carbon provider {feed.provider!r}; known are {known}") from None
    own = {"zone": zone(feed), **feed.config, "signal": feed.signal}
    if feed.factor:
        own["factor"] = feed.factor
    found: CarbonProvider = adapter(own, world or outside())
    return found


def check(feed: CarbonFeed) -> None:
    """Raises AdapterError for what no server could do: a bad configuration, or a host or file that no feed reaches.

    It asks nobody and looks at no file, so that what it says tells nothing of the server; keys may be missing yet.
    """
    if feed.provider == static_csv.NAME and isinstance(feed.config, Mapping):
        static_csv.check(feed.config)
        return
    provider(feed, turns.for_checks())


def zone(feed: CarbonFeed) -> str:
    own = feed.config.get("zone") if isinstance(feed.config, Mapping) else None
    return str(feed.zone or own or feed.site.grid_zone)


def refresh_s(feed: CarbonFeed) -> float:
    return min(float(feed.refresh_s or settings.GREENSERVE_CARBON_REFRESH_S), bounds.DURATION.most)


def forecast_horizon_s() -> float:
    """Returns how far the carbon epochs of all services look, and one step more, as a step of theirs begins before the
    next refresh; and as far as batches look."""
    loop = settings.GREENSERVE_LOOPS["carbon"]
    horizons_s = [(loop["steps"] + 1) * loop["period_s"], settings.GREENSERVE_BATCHES["horizon_s"]]
    for service in Service.objects.only("policy", "knobs"):
        policy = service.own_policy()
        period_s = policy.knobs.period_s(Loop.CARBON, loop["period_s"])
        horizons_s.append(period_s + max(period_s / policy.tuning.eq1.steps, settings.GREENSERVE_CARBON_REFRESH_S))
    return float(max(horizons_s))


def poll(now: datetime, patience_s: float = 0.0, world: Outside | None = None) -> tuple[CarbonFeed, ...]:
    """Refreshes the feeds whose time has come, those that waited longest first; returns those that it asked.

    While another run is under way it waits for at most `patience_s` and then does nothing.
    """
    world = world or outside()
    asked = []
    with database_locks.held(Lock.FEEDS, patience_s) as locked:
        if locked:
            _set_back(now)
        due = [feed for feed in CarbonFeed.objects.select_related("site") if is_due(feed, now)] if locked else []
        for feed, turn in turns.taken(due, world):
            refresh_feed(feed, now, turn)
            asked.append(feed)
    return tuple(asked)


@transaction.atomic
def _set_back(now: datetime) -> None:
    """Sets back the feeds that were asked ahead of the clock: they are due at once."""
    ahead = CarbonFeed.objects.filter(last_tried_at__gt=now + clock_repairs.AHEAD)
    furthest = ahead.aggregate(furthest=Max("last_tried_at"))["furthest"]
    if furthest is None:
        return
    CarbonFeed.objects.filter(last_ok_at__gt=now).update(last_ok_at=now)
    rows = ahead.update(last_tried_at=None, cool_down_until=None)
    clock_repairs.note("carbon feeds", rows, furthest, now)


def is_due(feed: CarbonFeed, now: datetime) -> bool:
    return turns.is_due(feed, now, refresh_s(feed))


def refresh_feed(feed: CarbonFeed, now: datetime, world: Outside | None = None) -> int:
    """Stores new actuals and what changed in the forecast; returns the points stored.

    An error is recorded on the feed and goes no further: the other feeds and loops run on. What came before it is kept.
    """
    stored = 0
    with turns.noted(feed, now):
        adapter = provider(feed, world)
        where, can = zone(feed), adapter.capabilities
        since = _since(feed, now, can.step_s, can.lag_s)
        stored += append(feed, adapter.actuals(where, since.timestamp(), now.timestamp()), now)
        if can.horizon_s > 0.0:
            horizon_s = min(can.horizon_s, max(forecast_horizon_s(), can.step_s))
            stored += append(feed, adapter.forecast(where, now.timestamp(), horizon_s), now)
    return stored


def fetch(feed: CarbonFeed, start: datetime, end: datetime, now: datetime, world: Outside | None = None) -> int:
    """Stores the actuals of a stretch of the past; returns the points that were new. Raises AdapterError."""
    return append(feed, provider(feed, world).actuals(zone(feed), start.timestamp(), end.timestamp()), now)


def _since(feed: CarbonFeed, now: datetime, step_s: float, lag_s: float) -> datetime:
    """From the newest value's start, or as far back as values may still change; after an outage from where it began."""
    back_s = max(BACKFILL_S, lag_s + REVISED_STEPS * step_s)
    newest = (
        feed.points.filter(forecast=False, start_at__gt=now - timedelta(seconds=CATCH_UP_S), start_at__lte=now)
        .order_by("-start_at")
        .values_list("start_at", flat=True)
        .first()
    )
    if newest is None:
        return now - timedelta(seconds=back_s)
    furthest = now - timedelta(seconds=max(back_s, min(CATCH_UP_S, CATCH_UP_STEPS * step_s)))
    changing = now - timedelta(seconds=lag_s + REVISED_STEPS * step_s) if lag_s else newest
    return max(furthest, min(newest, changing))


def forget(before: datetime) -> int:
    """Drops forecasts for times before `before`; what was measured stays. Returns how many."""
    return CarbonPoint.objects.filter(forecast=True, end_at__lt=before).delete()[0]


def append(feed: CarbonFeed, points: Iterable[IntensityPoint], now: datetime, model: str = "") -> int:
    """Inserts the points that say something new: an interval not stored before, or another value for it.

    A revision that a provider gives under the old time of issue is dated now: it must come after what it revises.
    Raises PermanentError for points of another signal or factor than the feed's: they would mix.
    """
    by_key: dict[Key, IntensityPoint] = {}
    for point in points:
        if point.signal != feed.signal or (feed.factor and point.factor not in ("", feed.factor)):
            raise PermanentError(
                f"{point.provider} answered with {point.signal} {point.factor}, the feed is {feed.signal} {feed.factor}"
            )
        by_key[_moment(point.start_s), point.forecast, model] = point
    if not by_key:
        return 0
    known = _known(feed, by_key)
    new = []
    for key, point in by_key.items():
        issued_at = _moment(point.issued_at_s)
        if key in known:
            value, before = known[key]
            if value == _value(point):
                continue
            if issued_at <= before:
                issued_at = max(now, before + timedelta(microseconds=1))
        new.append(_row(feed, key, issued_at, point))
    with transaction.atomic():
        CarbonPoint.objects.bulk_create(new, ignore_conflicts=True, batch_size=1000)
    return len(new)


def _known(feed: CarbonFeed, keys: Iterable[Key]) -> dict[Key, tuple[tuple[float | None, str], datetime]]:
    """Returns the newest revision of each, and when it was issued."""
    starts = [start for start, _, _ in keys]
    rows = feed.points.filter(start_at__gte=min(starts), start_at__lte=max(starts)).order_by("start_at", "issued_at")
    fields = ("start_at", "forecast", "model", "value_g_per_kwh", "price_per_kwh", "currency", "issued_at")
    return {
        (start, forecast, model): ((price if grams is None else grams, currency), issued_at)
        for start, forecast, model, grams, price, currency, issued_at in rows.values_list(*fields)
    }


def _value(point: IntensityPoint) -> tuple[float | None, str]:
    return point.price_per_kwh if point.value_g_per_kwh is None else point.value_g_per_kwh, point.currency


def _row(feed: CarbonFeed, key: Key, issued_at: datetime, point: IntensityPoint) -> CarbonPoint:
    start, forecast, model = key
    return CarbonPoint(
        feed=feed,
        start_at=start,
        end_at=_moment(point.end_s),
        value_g_per_kwh=point.value_g_per_kwh,
        price_per_kwh=point.price_per_kwh,
        currency=point.currency,
        raw_value=point.raw_value,
        raw_unit=point.raw_unit,
        factor=point.factor,
        forecast=forecast,
        model=model,
        estimated=point.estimated,
        provider=point.provider,
        zone=point.zone,
        issued_at=issued_at,
        updated_at=None if point.updated_at_s is None else _moment(point.updated_at_s),
    )


def _moment(at_s: float) -> datetime:
    return datetime.fromtimestamp(at_s, UTC)

"""The reader's choices of range, theme and time zone, parsed in one place; a bad value gives the default."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import urlsplit, urlunsplit
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from django.http import HttpRequest, HttpResponse, QueryDict
from django.utils import timezone

from telemetry.selectors.frames import POINTS, TimeRange

from .charts.plot_style import THEMES, Look

RANGES = {
    "5m": (300.0, "5 min"),
    "15m": (900.0, "15 min"),
    "1h": (3_600.0, "1 h"),
    "6h": (21_600.0, "6 h"),
    "24h": (86_400.0, "24 h"),
    "7d": (604_800.0, "7 days"),
}
LEAST_S, MOST_S = 30.0, 90 * 86_400.0  # of a span that is asked for by its ends
NARROWEST, WIDEST = 60, 360  # points of a line, whatever the width drawn
PIXELS_A_POINT = 4
DEFAULT_RANGE = "15m"
SESSION_KEY = "time_zone"
FASTEST_S, SLOWEST_S = 2.5, 60.0


@dataclass(frozen=True, slots=True)
class Chosen:
    """A range, live or fixed: `fixed` is its two ends as the URL has them, None for one that ends now."""

    key: str
    label: str
    window: TimeRange
    fixed: tuple[str, str] | None = None


def refresh_s(window: TimeRange) -> float:
    """Returns how often a chart is read again: four times a bucket, since more often shows nothing new."""
    return min(SLOWEST_S, max(FASTEST_S, window.bucket_s / 4))


def chosen(query: QueryDict, now_s: float | None = None) -> Chosen:
    """Reads the range: `range` to now, or `from` and `to` in the reader's zone, in buckets fit for `width` px."""
    now_s = time.time() if now_s is None else now_s
    points = _points(query.get("width", ""))
    key = query.get("range", DEFAULT_RANGE)
    if key not in RANGES:
        key = DEFAULT_RANGE
    from_s, to_s = _moment(query.get("from", "")), _moment(query.get("to", ""))
    if from_s is not None and to_s is not None and LEAST_S <= to_s - from_s <= MOST_S:
        label = f"{clock(from_s)} to {clock(to_s)}"
        window = TimeRange.last(to_s - from_s, to_s, points)
        return Chosen(key, label, window, (_wall(from_s), _wall(to_s)))
    range_s, label = RANGES[key]
    return Chosen(key, label, TimeRange.last(range_s, now_s, points))


def _points(width: str) -> int:
    return min(WIDEST, max(NARROWEST, int(width) // PIXELS_A_POINT)) if width.isdecimal() and len(width) < 6 else POINTS


def _moment(text: str) -> float | None:
    """Parses an ISO time to Unix seconds; without an offset it is in the reader's zone."""
    try:
        found = datetime.fromisoformat(text)
        zoned = found if found.tzinfo else found.replace(tzinfo=timezone.get_current_timezone())
        return zoned.timestamp()
    except (ValueError, OverflowError):
        return None


def _wall(at_s: float) -> str:
    """Writes a moment as a form's field has it, in the reader's zone."""
    return datetime.fromtimestamp(at_s, timezone.get_current_timezone()).strftime("%Y-%m-%dT%H:%M:%S")


def look(query: QueryDict) -> Look:
    """Reads the theme of the URL, and the time zone that the middleware has activated."""
    zone = timezone.get_current_timezone()
    fixed = chosen(query).fixed is not None
    theme = THEMES.get(query.get("theme", ""), THEMES["light"])
    return Look(theme, zone, timezone.get_current_timezone_name(), fixed, timezone.localdate())


def in_zone(url: str, zone: str) -> str:
    """Returns a page's address for another zone, with the same moments, if the address has zone and range."""
    parts = urlsplit(url)
    query = QueryDict(parts.query, mutable=True)
    try:
        before = ZoneInfo(str(query["zone"]))
    except (KeyError, ZoneInfoNotFoundError, ValueError, OSError):
        return url  # it has none, or one that was never heeded
    for name in ("from", "to"):
        with timezone.override(before):
            at_s = _moment(query.get(name, ""))
        if at_s is not None:
            query[name] = datetime.fromtimestamp(at_s, ZoneInfo(zone)).strftime("%Y-%m-%dT%H:%M:%S")
    query["zone"] = zone
    return urlunsplit(parts._replace(query=query.urlencode()))


def clock(at_s: float) -> str:
    """Writes a moment in the reader's zone."""
    return datetime.fromtimestamp(at_s, timezone.get_current_timezone()).strftime("%Y-%m-%d %H:%M:%S %Z")


def midnight_s(now_s: float) -> float:
    """Returns when today began in the reader's zone."""
    local = datetime.fromtimestamp(now_s, timezone.get_current_timezone())
    return local.replace(hour=0, minute=0, second=0, microsecond=0).timestamp()


class TimeZoneMiddleware:
    """Shows all times of a page in the zone of its URL (`zone`), else in that its reader chose; UTC until then."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        try:
            zone = ZoneInfo(request.GET.get("zone") or request.session.get(SESSION_KEY, "UTC"))
        except (ZoneInfoNotFoundError, ValueError, OSError):
            zone = ZoneInfo("UTC")
        with timezone.override(zone):
            return self.get_response(request)

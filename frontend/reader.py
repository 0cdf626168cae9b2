"""What a reader has chosen: range, theme, time zone. Parsed in one place; a bad value is the default."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from django.http import HttpRequest, HttpResponse, QueryDict
from django.utils import timezone

from telemetry.frames import Window

from .plot_style import THEMES, Look

RANGES = {
    "5m": (300.0, "5 min"),
    "15m": (900.0, "15 min"),
    "1h": (3_600.0, "1 h"),
    "6h": (21_600.0, "6 h"),
    "24h": (86_400.0, "24 h"),
}
DEFAULT_RANGE = "15m"
SESSION_KEY = "time_zone"
FASTEST_S, SLOWEST_S = 2.5, 60.0


@dataclass(frozen=True, slots=True)
class Chosen:
    key: str
    label: str
    window: Window

    @property
    def refresh_s(self) -> float:
        """A chart changes with each bucket; looking more often than four times a bucket shows nothing new."""
        return min(SLOWEST_S, max(FASTEST_S, self.window.bucket_s / 4))


def chosen(query: QueryDict, now_s: float | None = None) -> Chosen:
    """The range in the URL."""
    key = query.get("range", DEFAULT_RANGE)
    if key not in RANGES:
        key = DEFAULT_RANGE
    range_s, label = RANGES[key]
    return Chosen(key, label, Window.last(range_s, time.time() if now_s is None else now_s))


def look(query: QueryDict) -> Look:
    """Theme of the URL, and the time zone that the middleware has activated."""
    zone = timezone.get_current_timezone()
    return Look(THEMES.get(query.get("theme", ""), THEMES["light"]), zone, timezone.get_current_timezone_name())


def clock(at_s: float) -> str:
    """A moment in the reader's zone."""
    return datetime.fromtimestamp(at_s, timezone.get_current_timezone()).strftime("%Y-%m-%d %H:%M:%S %Z")


def midnight_s(now_s: float) -> float:
    """When today began in the reader's zone."""
    local = datetime.fromtimestamp(now_s, timezone.get_current_timezone())
    return local.replace(hour=0, minute=0, second=0, microsecond=0).timestamp()


class TimeZoneMiddleware:
    """Shows all times of a page in the zone that its reader chose; UTC until then."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        try:
            zone = ZoneInfo(request.session.get(SESSION_KEY, "UTC"))
        except (ZoneInfoNotFoundError, ValueError):
            zone = ZoneInfo("UTC")
        with timezone.override(zone):
            return self.get_response(request)

"""Histories for forecasts, from the points of a feed or from the recorded load: regular steps, gaps left as NaN."""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import UTC, datetime

import numpy as np
from django.conf import settings

from core.predictors.seasonal import Floats, History
from telemetry.models import CarbonFeed, CarbonPoint, LoadPoint

DAY_S = 86_400.0
DAYS = 28
LOOK_BACK = 400  # points from which the length of a feed's steps is read
Spell = tuple[float, float, float | None]  # start, end, value


def value_field(feed: CarbonFeed) -> str:
    return "price_per_kwh" if feed.signal == CarbonFeed.Signal.PRICE else "value_g_per_kwh"


def day_s(feed: CarbonFeed) -> float:
    """A day's length: a file that is played faster has shorter ones."""
    try:
        return DAY_S / float(feed.config.get("speedup", 1.0))
    except (TypeError, ValueError, ZeroDivisionError):
        return DAY_S


def step_s(feed: CarbonFeed) -> float | None:
    """Returns the usual length of the newest points; None when there is none."""
    edges = feed.points.filter(forecast=False).order_by("-start_at").values_list("start_at", "end_at")[:LOOK_BACK]
    lengths = [(end - start).total_seconds() for start, end in edges]
    return float(np.median(lengths)) if lengths else None


def carbon(feed: CarbonFeed, now: datetime, step_s: float, days: int = DAYS) -> History:
    """Returns what was measured in the last days by the factor that is used now, up to the step under way.

    Nothing of it was known later than it happened: revisions count as if they had been there at once, as do values that
    came with a delay. So scores are a little kinder than the truth where a provider is late.
    """
    day = max(1, round(day_s(feed) / step_s))
    last = math.floor(now.timestamp() / step_s + 1e-9)
    first = last - days * day
    start = _moment(first * step_s)
    factor = feed.points.filter(forecast=False).order_by("-start_at").values_list("factor", flat=True).first()
    rows = (
        CarbonPoint.objects.filter(feed=feed, forecast=False, factor=factor, end_at__gt=start, start_at__lt=now)
        .order_by("start_at", "issued_at", "id")
        .values_list("start_at", "end_at", value_field(feed))
    )
    newest = {a: (b, value) for a, b, value in rows}
    spells = ((a.timestamp(), b.timestamp(), value) for a, (b, value) in newest.items())
    values = on_grid(spells, first * step_s, step_s, last + 1 - first)
    known = np.flatnonzero(~np.isnan(values))
    used = values[: known[-1] + 1] if known.size else values[:0]
    floor = 0.0 if feed.signal == CarbonFeed.Signal.AVERAGE else -math.inf
    return History(_trimmed(used), first + used.size - _trimmed(used).size, day, floor)


def on_grid(spells: Iterable[Spell], start_s: float, step_s: float, count: int) -> Floats:
    """Returns the mean over each step, weighted by time; NaN where less than half of a step is known."""
    known_s, total = np.zeros(count), np.zeros(count)
    for first_s, last_s, value in spells:
        if value is None:
            continue
        low = max(0, math.floor((first_s - start_s) / step_s + 1e-9))
        high = min(count, math.ceil((last_s - start_s) / step_s - 1e-9))
        for step in range(low, high):
            overlap_s = min(last_s, start_s + (step + 1) * step_s) - max(first_s, start_s + step * step_s)
            known_s[step] += overlap_s
            total[step] += overlap_s * value
    values = np.full(count, np.nan)
    np.divide(total, known_s, where=known_s >= 0.5 * step_s - 1e-6, out=values)
    return values


def load_step_s() -> float:
    """Returns five minutes, as FREESH's steps; in the demo as much shorter as its epochs are."""
    loop = settings.GREENSERVE_LOOPS["carbon"]
    return float(loop["period_s"]) / float(loop["steps"])


def load(service: str, request_class: str, now: datetime) -> History:
    """Returns the recorded peaks of the last weeks, up to the last step that is over."""
    length_s = load_step_s()
    day = max(1, round(DAY_S / settings.DEMO_SPEEDUP / length_s))
    last = math.floor(now.timestamp() / length_s + 1e-9)
    first = last - DAYS * day
    values = np.full(last - first, np.nan)
    rows = LoadPoint.objects.filter(
        service=service, request_class=request_class, step_s=length_s, start_at__gte=_moment(first * length_s)
    ).values_list("start_at", "peak_rps")
    for at, peak in rows:
        step = round(at.timestamp() / length_s) - first
        if 0 <= step < values.size:
            values[step] = peak
    trimmed = _trimmed(values)
    return History(trimmed, first + values.size - trimmed.size, day, 0.0)


def _trimmed(values: Floats) -> Floats:
    """Cuts off the unknown stretch before the first value."""
    known = np.flatnonzero(~np.isnan(values))
    return values[known[0] :] if known.size else values[:0]


def _moment(at_s: float) -> datetime:
    return datetime.fromtimestamp(at_s, UTC)

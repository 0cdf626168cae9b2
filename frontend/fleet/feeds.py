"""Carbon and price feeds: how far each reaches, what it said beforehand, where it has gaps, how forecasts did."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from django.conf import settings
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from frontend import health, reader_choices
from frontend.charts.line_figures import LineChart, PlotLine
from pools.access import rights
from telemetry import selectors
from telemetry.forecasts import carbon_networks, forecast_record, learned_carbon
from telemetry.models import CarbonFeed
from telemetry.selectors import feed_status, single_entities, weather_status
from telemetry.selectors.frames import FeedState, IntensityStep, TimeRange, Values

from . import chart_pages
from .listing import Column, listing

COLUMNS = (
    Column("site_label", "Site"),
    Column("signal", "Signal"),
    Column("state", "State"),
    Column("provider", "Provider"),
    Column("ok_age_s", "Last answer", number=True),
    Column("value_age_s", "Known until", number=True, hint="How long ago its newest value ends"),
    Column("source", "Source"),
    Column("last_error", "Error"),
)
AHEAD_SHARE = 1 / 3  # of the range, kept for the forecast
UNITS = {"average": "gCO₂e/kWh", "marginal": "gCO₂e/kWh"}


@dataclass(frozen=True, slots=True)
class FeedRow:
    pk: int
    site_label: str
    site: str
    signal: str
    state: str
    provider: str
    source: str
    ok_age_s: float | None
    value_age_s: float | None
    last_error: str


def rows(request: HttpRequest, now_s: float) -> list[FeedRow]:
    """Returns the feeds of the sites that this person may see. Makes three queries."""
    states: dict[tuple[str, str], FeedState] = {(f.site_label, f.signal): f for f in selectors.feeds(now_s)}
    found = []
    for feed in CarbonFeed.objects.select_related("site").filter(site__in=rights.sites_of(request.user)):
        state = states[str(feed.site), feed.signal]
        found.append(
            FeedRow(
                pk=feed.pk,
                site_label=str(feed.site),
                site=feed.site.name,
                signal=feed.signal,
                state=health.judge_feed(state, feed.refresh_s or settings.GREENSERVE_CARBON_REFRESH_S, now_s),
                provider=feed.provider,
                source=feed.source,
                ok_age_s=None if state.last_ok_s is None else max(0.0, now_s - state.last_ok_s),
                value_age_s=None if state.known_until_s is None else max(0.0, now_s - state.known_until_s),
                last_error=feed.last_error if feed.failures else "",
            )
        )
    return found


@never_cache
@require_safe
def feeds(request: HttpRequest) -> HttpResponse:
    context = {
        "title": "Carbon feeds",
        "lead": "Where intensities and prices come from, and how far they reach.",
        "listing": listing(
            request,
            rows(request, time.time()),
            COLUMNS,
            search=lambda f: f"{f.site_label} {f.provider} {f.source} {f.last_error}",
            filters={"site_label": "Site", "signal": "Signal", "state": "State", "provider": "Provider"},
        ),
        "rows_template": "frontend/fleet/parts/feed_rows.html",
        "nothing": "No feed yet: carbon stays unknown, and loops plan by energy.",
    }
    return render(request, "frontend/fleet/list.html", context)


def _find(request: HttpRequest, feed_id: int) -> CarbonFeed:
    rows = CarbonFeed.objects.select_related("site__weather_feed")
    found = rows.filter(pk=feed_id, site__in=rights.sites_of(request.user)).first()
    if found is None:
        raise Http404("no such feed")
    return found


@never_cache
@require_safe
def feed(request: HttpRequest, feed_id: int) -> HttpResponse:
    found, now = _find(request, feed_id), datetime.now(UTC)
    status = feed_status.status(found, now)
    weather = weather_status.status(found)
    context = chart_pages.context(request, reverse("feed-figures", args=[feed_id]), ("values", "error")) | {
        "weather": weather,
        "weather_span": weather_status.known_span(found) if weather else (None, None),
        "feed": found,
        "status": status,
        "gaps": [(at, end, end - at) for at, end in reversed(status.gaps)],
        "scores": forecast_record.newest(found),
        "learned": learned_carbon.status(found),
        "network": carbon_networks.status(found),
        "unit": UNITS.get(found.signal, f"{found.site.currency}/kWh"),
        "config": sorted((key, value) for key, value in found.config.items()),
    }
    return render(request, "frontend/fleet/feed.html", context)


@never_cache
@require_safe
def feed_figures(request: HttpRequest, feed_id: int) -> HttpResponse:
    found, chosen = _find(request, feed_id), reader_choices.chosen(request.GET)
    name = f"feed-{found.site.name}-{found.signal}"
    return chart_pages.answer(request, name, charts(found, chosen.window, fixed=chosen.fixed is not None))


def charts(feed: CarbonFeed, window: TimeRange, *, fixed: bool = False) -> dict[str, LineChart]:
    """Draws actual values with the forecasts made of them beforehand, and the difference. Makes one query."""
    ahead_s = 0.0 if fixed else (window.end_s - window.start_s) * AHEAD_SHARE
    span = TimeRange(window.start_s, window.end_s + ahead_s, window.bucket_s)
    actual_steps, said_steps = single_entities.feed_steps(feed.pk, feed.forecast_model, window, span.end_s)
    actual, said = on_buckets(actual_steps, span), on_buckets(said_steps, span)
    unit = UNITS.get(feed.signal, f"{feed.site.currency}/kWh")
    who = f"forecast by {feed.forecast_model}" if feed.forecast_model else "the provider's forecast"
    missed = tuple(s - a if a is not None and s is not None else None for a, s in zip(actual, said, strict=True))
    source = feed.source or feed.provider
    now_s = min(window.end_s, time.time())
    return {
        "values": LineChart(
            "What was it, and what had been expected?",
            unit,
            f"{source}; dashed: {who}, the newest issued before each step",
            span,
            (
                PlotLine("actual", actual, colour=feed.site.colour),
                PlotLine("forecast", said, forecast=True, colour=feed.site.colour),
            ),
            steps=True,
            now_s=now_s,
        ),
        "error": LineChart(
            "How far off was the forecast?",
            unit,
            f"forecast less actual; {source}",
            span,
            (PlotLine("forecast less actual", missed, colour=feed.site.colour),),
            zero=False,
            steps=True,
            now_s=now_s,
        ),
    }


def on_buckets(steps: Sequence[IntensityStep], window: TimeRange) -> Values:
    """Returns means over the part of each bucket that is known; None where nothing of it is."""
    total, known = [0.0] * window.count, [0.0] * window.count
    for step in steps:
        if step.g_per_kwh is None:
            continue
        first = max(0, int((step.start_s - window.start_s) // window.bucket_s))
        last = min(window.count - 1, int((step.end_s - window.start_s) // window.bucket_s))
        for i in range(first, last + 1):
            low = window.start_s + i * window.bucket_s
            overlap = min(step.end_s, low + window.bucket_s) - max(step.start_s, low)
            if overlap > 0:
                total[i] += overlap * step.g_per_kwh
                known[i] += overlap
    return tuple(t / k if k else None for t, k in zip(total, known, strict=True))

"""Sites: tiles with the grid's intensity now and soon, and a page for each."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass

from django.db.models import Count
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from frontend import formats, reader_choices
from frontend.charts.line_figures import LineChart, PlotLine
from frontend.charts.spark_figure import spark
from pools.access import rights
from pools.models import Node, Site
from scheduler import sleepers
from scheduler.operations.configure import registry
from telemetry import selectors
from telemetry.models import CarbonFeed
from telemetry.selectors import single_entities
from telemetry.selectors.frames import TimeRange, Values

from . import chart_pages
from .listing import Column, listing

BACK_S, AHEAD_S, STEP_S = 6 * 3_600.0, 6 * 3_600.0, 600.0
COLUMNS = (
    Column("label", "Name"),
    Column("intensity_g_per_kwh", "Intensity", number=True),
    Column("power_w", "Power", number=True),
    Column("gpus", "GPUs", number=True),
)
CHARTS = ("power", "intensity", "carbon")
NODES_SHOWN = 50


@dataclass(frozen=True, slots=True)
class SiteRow:
    name: str
    label: str
    grid_zone: str
    pue: float
    power_cap_w: float | None
    power_w: float | None
    gpus: int
    reporting: int
    nodes: int
    intensity_g_per_kwh: float | None
    forecast_age_s: float | None
    spark: str
    spark_words: str

    @property
    def cap_share(self) -> float | None:
        return self.power_w / self.power_cap_w if self.power_w is not None and self.power_cap_w else None


def window(now_s: float) -> TimeRange:
    start_s = (now_s - BACK_S) // STEP_S * STEP_S
    return TimeRange(start_s, now_s + AHEAD_S, STEP_S)


def figure_of(curve: single_entities.Curve, span: TimeRange, now_s: float, colour: int | None) -> tuple[str, str]:
    """Returns a curve as a small figure, in JSON, and in words; both are empty where nothing is known of it."""
    known = [v for v in (*curve.actual, *curve.forecast) if v is not None]
    if not known:
        return "", ""
    minute_s = now_s // 60 * 60  # a page asks every few seconds, and draws what has changed
    drawn = json.dumps(spark(curve.actual, curve.forecast, span, minute_s, colour), separators=(",", ":"))
    return drawn, f"{formats.plain(min(known))} to {formats.plain(max(known))} gCO₂e/kWh, 6 h back and 6 h ahead"


def rows(request: HttpRequest, now_s: float) -> list[SiteRow]:
    """Returns the sites that this person may see. Makes four queries."""
    live = single_entities.sites_live(now_s)
    span = window(now_s)
    curves = single_entities.intensity_curves(span, now_s)
    found = []
    for site in rights.sites_of(request.user).annotate(node_count=Count("clusters__nodes")).order_by("rank", "name"):
        state, curve = live.get(site.pk, single_entities.Live()), curves.get(site.pk)
        drawn, words = figure_of(curve, span, now_s, site.colour) if curve else ("", "")
        found.append(
            SiteRow(
                name=site.name,
                label=str(site),
                grid_zone=site.grid_zone,
                pue=site.pue,
                power_cap_w=site.power_cap_w,
                power_w=state.power_w,
                gpus=state.gpus,
                reporting=state.reporting,
                nodes=site.node_count,
                intensity_g_per_kwh=state.intensity_g_per_kwh,
                forecast_age_s=max(0.0, now_s - curve.issued_s) if curve and curve.issued_s is not None else None,
                spark=drawn,
                spark_words=words,
            )
        )
    return found


@never_cache
@require_safe
def sites(request: HttpRequest) -> HttpResponse:
    found = listing(
        request, rows(request, time.time()), COLUMNS, search=lambda s: f"{s.label} {s.name} {s.grid_zone}", size=48
    )
    context = {
        "title": "Sites",
        "makes": registry.OWNED["sites"],
        "lead": "How clean each grid is, what each site draws, and how much of it is heard.",
        "listing": found,
        "nothing": "No site yet. A site is a data centre: one grid zone, one PUE, one currency.",
        "note": "Line: intensity from six hours ago to now, from zero; dashed: the forecast. Power: newest samples, "
        "metered at the GPUs.",
    }
    return render(request, "frontend/fleet/sites.html", context)


def _find(request: HttpRequest, name: str) -> Site:
    found: Site | None = rights.sites_of(request.user).filter(name=name).first()
    if found is None:
        raise Http404("no such site")
    return found


@never_cache
@require_safe
def site(request: HttpRequest, name: str) -> HttpResponse:
    found = _find(request, name)
    now_s = time.time()
    power = selectors.power_now(now_s)
    nodes = list(
        Node.objects.filter(cluster__site=found)
        .select_related("cluster")
        .annotate(gpu_count=Count("gpus"))
        .order_by("name")[: NODES_SHOWN + 1]
    )
    own = found.pools.values_list("pk", flat=True)
    context = chart_pages.context(request, reverse("site-figures", args=[name]), CHARTS) | {
        "site": found,
        "pue": found.pue,
        "live": single_entities.sites_live(now_s, power).get(found.pk, single_entities.Live()),
        "nodes": nodes[:NODES_SHOWN],
        "more_nodes": len(nodes) > NODES_SHOWN,
        "feeds": CarbonFeed.objects.filter(site=found),
        "pools": selectors.pool_table(now_s, power=power, pool_ids=own, asleep=sleepers.asleep_since()),
    }
    return render(request, "frontend/fleet/site.html", context)


@never_cache
@require_safe
def site_figures(request: HttpRequest, name: str) -> HttpResponse:
    window = selectors.readable(reader_choices.chosen(request.GET).window)
    return chart_pages.answer(request, name, charts(_find(request, name), window), window=window)


def charts(site: Site, window: TimeRange) -> dict[str, LineChart]:
    """Draws power in use and idle, intensity with its forecast, and the carbon rate. Makes six queries."""
    power, carbon = selectors.energy(window, site_id=site.pk)
    (watts,), (grams,) = power.sites, carbon.sites
    ahead = TimeRange(window.start_s, window.end_s + (window.end_s - window.start_s) / 8, window.bucket_s)
    curve = single_entities.intensity_curves(ahead, window.end_s, site.pk).get(site.pk)
    nothing: Values = (None,) * ahead.count
    until_s = power.metered_until_s
    return {
        "power": LineChart(
            "How much power does the site draw?",
            "W",
            "energy ledger, metered at the GPUs, without PUE",
            window,
            (PlotLine("in use", watts.in_use_w, colour=site.colour), PlotLine("idle", watts.idle_w, faint=True)),
            prefixed=True,
            silent=watts.silent,
            level=(site.power_cap_w, f"cap {formats.si(site.power_cap_w, 'W')}") if site.power_cap_w else None,
            until_s=until_s,
        ),
        "intensity": LineChart(
            "How clean is its grid?",
            "gCO₂e/kWh",
            f"{grams.source or 'the site has no average feed'}; dashed: forecast",
            ahead,
            (
                PlotLine("grid average", curve.actual if curve else nothing, colour=site.colour),
                PlotLine("forecast", curve.forecast if curve else nothing, forecast=True, colour=site.colour),
            ),
            steps=True,
            until_s=grams.known_until_s,
            now_s=window.end_s,
        ),
        "carbon": LineChart(
            "How much carbon does it emit?",
            "gCO₂e/h",
            "energy ledger x PUE x grid average, location-based",
            window,
            (PlotLine("carbon rate", grams.rate_g_per_h, colour=site.colour),),
            prefixed=True,
            until_s=until_s,
        ),
    }

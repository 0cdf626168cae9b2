"""Pools: the table of all, and a page for each: what it runs, what it draws, what it delivers, what was decided."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from core.types import Mode
from frontend import formats, reader_choices, visible_health
from frontend.charts.line_figures import LineChart, PlotLine
from pools.access import rights
from pools.models import Instance, Pool, Slo
from scheduler import selectors as scheduler_selectors
from scheduler import sleepers
from scheduler.operations.configure import registry
from telemetry import selectors
from telemetry.selectors import single_entities
from telemetry.selectors.frames import DecisionTick, PoolRow, TimeRange

from . import chart_pages, engine_basis
from .listing import Column, listing

COLUMNS = (
    Column("state", "State"),
    Column("class_rank", "Class"),
    Column("service", "Service"),
    Column("site_label", "Site"),
    Column("instances_words", "Instances"),
    Column("gpus", "GPUs", number=True),
    Column("clock_mhz", "Clock", number=True),
    Column("power_w", "Power", number=True),
    Column("running", "Running", number=True),
    Column("waiting", "Waiting", number=True),
    Column("kv_usage", "KV", number=True, hint="Highest of its instances"),
    Column("ttft_p99_s", "TTFT p99", number=True, hint="Of the last 5 minutes, against the objective"),
    Column("tpot_p99_s", "TPOT p99", number=True, hint="Of the last 5 minutes, against the objective"),
    Column("energy_per_token_j", "J/token", number=True),
    Column("carbon_per_1k_tokens_g", "g/1k tokens", number=True),
)
METERED = {"ttft_p99_s", "tpot_p99_s", "energy_per_token_j", "carbon_per_1k_tokens_g"}  # columns
CHARTS = ("power", "energy", "ttft", "tpot", "clock", "queue")
DECISIONS_SHOWN = 15
KINDS = {"serving": "serving", "idle": "idle", "transition": "starting or draining", "unattributed": "unattributed"}


@never_cache
@require_safe
def pools(request: HttpRequest) -> HttpResponse:
    every, now_s = request.GET.get("pools") == "all", time.time()
    visible, asleep = visible_health.pool_ids(request.user), sleepers.asleep_since()
    rows = selectors.pool_rows(now_s, every=every, pool_ids=visible, asleep=asleep)
    sort = request.GET.get("sort", "").lstrip("-")
    power = selectors.power_now(now_s) if sort == "power_w" else None
    if power is not None:
        rows = selectors.powered(rows, power)
    elif sort in METERED:
        rows = selectors.measured(rows, now_s)
    found = listing(
        request,
        rows,
        COLUMNS,
        search=_words,
        filters={"service": "Service", "site_label": "Site", "request_class": "Class", "state": "State"},
    )
    if sort not in METERED:  # only the page's are read
        found.page.object_list = selectors.measured(list(found.page.object_list), now_s, power)
    context = {
        "title": "Pools",
        "makes": registry.OWNED["pools"],
        "lead": "The instances at one site that serve one class of a service's requests.",
        "listing": found,
        "every": every,
        "pools": found.page.object_list,
        "rows_template": "frontend/parts/pools.html",
        "nothing": "No pool wants or runs anything yet. The carbon epoch decides that; see its decisions.",
        "note": "Latencies: 99th percentile of the last 5 min against the objective. J/token: energy of the pool's "
        "GPUs, idle included, by output tokens.",
    }
    return render(request, "frontend/fleet/pools.html", context)


def _words(row: PoolRow) -> str:
    return f"{row.service} {row.site_label} {row.request_class} {row.partition} {row.state} {row.instances_words}"


def _find(request: HttpRequest, pool_id: int) -> Pool:
    found = (
        Pool.objects.select_related("service__model_card", "site", "request_class__partition")
        .filter(pk=pool_id, site__in=rights.sites_of(request.user))
        .first()
    )
    if found is None:
        raise Http404("no such pool")
    return found


@never_cache
@require_safe
def pool(request: HttpRequest, pool_id: int) -> HttpResponse:
    found = _find(request, pool_id)
    (row,) = selectors.pool_table(time.time(), every=True, pool_ids=[pool_id], asleep=sleepers.asleep_since())
    context = chart_pages.context(request, reverse("pool-figures", args=[pool_id]), CHARTS) | {
        "pool": found,
        "row": row,
        "bounds": _bounds(found),
        "instances": Instance.objects.filter(pool=found).exclude(state=Instance.State.STOPPED).select_related("node"),
        "basis": engine_basis.of_modes(found.service.model_card, _modes(found)),
        "decisions": scheduler_selectors.decisions().filter(pool=found)[:DECISIONS_SHOWN],
    }
    return render(request, "frontend/fleet/pool.html", context)


def _modes(pool: Pool) -> set[Mode]:
    """Returns the modes that the pool is to have instances of."""
    return {Mode.parse(name) for name, count in pool.workers.items() if count}


def _bounds(pool: Pool) -> str:
    """Says in words which requests belong to the pool's class."""
    kind = pool.request_class

    def span(least: int, most: int | None, what: str) -> str:
        if most is None:
            return f"{what} of {least} tokens or more" if least else ""
        return f"{what} of {least} to {most - 1} tokens"

    parts = [span(kind.input_min, kind.input_max, "prompts"), span(kind.output_min, kind.output_max, "answers")]
    return " and ".join(part for part in parts if part) or "all requests"


@never_cache
@require_safe
def pool_figures(request: HttpRequest, pool_id: int) -> HttpResponse:
    found = _find(request, pool_id)
    window = selectors.readable(reader_choices.chosen(request.GET).window)
    start, end = (datetime.fromtimestamp(at_s, UTC) for at_s in (window.start_s, window.end_s))
    marks = scheduler_selectors.ticks(start, end, scheduler_selectors.decisions(pool_id=pool_id))
    ticks = tuple(
        DecisionTick(d.at.timestamp(), d.kind, d.reason, d.summary, reverse("decision", args=[d.pk])) for d in marks
    )
    return chart_pages.answer(request, f"pool-{pool_id}", charts(found, window), ticks, window=window)


def charts(pool: Pool, window: TimeRange) -> dict[str, LineChart]:
    """Draws six charts from five queries."""
    ids = list(pool.instances.values_list("pk", flat=True).order_by("-pk")[:200])
    frame = single_entities.pool_series(pool.pk, ids, window)
    objectives = {slo.kind: slo.objective_s for slo in Slo.objects.filter(service=pool.service_id)}
    requests, engines = "request records, by the time they ended", "engines' own metrics, each second"

    def level(kind: str) -> tuple[float, str] | None:
        objective_s = objectives.get(kind)
        return None if objective_s is None else (objective_s, f"objective {formats.seconds(objective_s)}")

    return {
        "power": LineChart(
            "What power does it draw, and for what?",
            "W",
            "energy ledger, metered at the GPUs, without PUE",
            window,
            tuple(PlotLine(KINDS.get(kind, kind), values) for kind, values in frame.power_w.items()),
            prefixed=True,
        ),
        "energy": LineChart(
            "What does a token cost in energy?",
            "J/token",
            "energy of the pool's GPUs, idle included, by output tokens of requests that ended in the bucket",
            window,
            (PlotLine("energy per token", frame.energy_per_token_j),),
        ),
        "ttft": LineChart(
            "How long until the first token?",
            "s",
            requests,
            window,
            (PlotLine("TTFT p99", frame.ttft_p99_s),),
            prefixed=True,
            level=level("ttft"),
        ),
        "tpot": LineChart(
            "How long for each further token?",
            "s",
            requests,
            window,
            (PlotLine("TPOT p99", frame.tpot_p99_s),),
            prefixed=True,
            level=level("tpot"),
        ),
        "clock": LineChart(
            "Which clock do its GPUs run at?",
            "MHz",
            engines,
            window,
            (PlotLine("SM clock, mean", frame.sm_clock_mhz),),
        ),
        "queue": LineChart(
            "How many requests run, and how many wait?",
            "requests",
            engines,
            window,
            (PlotLine("running", frame.running), PlotLine("waiting", frame.waiting)),
        ),
    }

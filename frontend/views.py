"""Pages and fragments: each reads a choice, asks a selector, renders."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

from django.contrib.auth.decorators import login_not_required
from django.core.paginator import Paginator
from django.db import DatabaseError, connection
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBadRequest, JsonResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe
from redis import RedisError

from pools.leader import leader
from pools.models import Pool, Service, Site
from scheduler import selectors as scheduler_selectors
from scheduler import sleepers
from scheduler.models import Decision, DecisionKind
from scheduler.operations import visibility
from telemetry import selectors
from telemetry.selectors.frames import PoolRow
from telemetry.selectors.length_errors import length_errors

from . import health as health_checks
from . import overview as overview_page
from . import reader_choices, visible_health
from .decisions import decision_facts, realised
from .fleet import chart_pages

RECENT = 3  # of each loop
POOLS_SHOWN = 25  # on the Overview: all of them are a list of their own
PAGE = 50
NOTE = (
    "Ticks at the foot of each chart are decisions of the carbon, scale and shard loops that changed or refused "
    "something: hover for what and why, click to open. Drag to zoom, double-click for the whole range."
)


@never_cache
@require_safe
def overview(request: HttpRequest) -> HttpResponse:
    chosen = reader_choices.chosen(request.GET)
    every = request.GET.get("pools") == "all"
    power = selectors.power_now(chosen.window.end_s)
    pools, count = _first_pools(request, chosen.window.end_s, power)
    context = {
        "chosen": chosen,
        "ranges": [(key, label) for key, (_, label) in reader_choices.RANGES.items()],
        "charts": overview_page.CHARTS,
        "charts_url": reverse("figures"),
        "charts_split": True,
        "charts_note": NOTE,
        "summary": overview_page.summary(request.user, selectors.readable(chosen.window), power),
        "every": every,
        "service": _only_service(),
        "pools": pools,
        "pool_count": count,
        "decisions": _recent_decisions(request),
    }
    return render(request, "frontend/overview.html", context)


@never_cache
@require_safe
def summary(request: HttpRequest) -> HttpResponse:
    chosen = reader_choices.chosen(request.GET)
    window = selectors.readable(chosen.window)
    context = {"chosen": chosen, "summary": overview_page.summary(request.user, window), "fragment": True}
    return render(request, "frontend/parts/summary.html", context)


@never_cache
@require_safe
def pools(request: HttpRequest) -> HttpResponse:
    context = {"pools": _first_pools(request, time.time())[0], "service": request.GET.get("service")}
    return render(request, "frontend/parts/pools.html", context)


def _only_service() -> Service | None:
    """Returns the only service, whose name tables then leave out; None: there are others."""
    found = list(Service.objects.all()[:2])
    return found[0] if len(found) == 1 else None


def _first_pools(
    request: HttpRequest, now_s: float, power: selectors.PowerNow | None = None
) -> tuple[tuple[PoolRow, ...], int]:
    every = request.GET.get("pools") == "all"
    own = visible_health.pool_ids(request.user)
    asleep = sleepers.asleep_since()
    return selectors.first_pools(now_s, POOLS_SHOWN, every=every, power=power, pool_ids=own, asleep=asleep)


@never_cache
@require_safe
def recent_decisions(request: HttpRequest) -> HttpResponse:
    context = {"decisions": _recent_decisions(request), "service": request.GET.get("service")}
    return render(request, "frontend/parts/decisions.html", context)


def _recent_decisions(request: HttpRequest) -> list[Decision]:
    own = visibility.decisions(request.user, scheduler_selectors.decisions())
    return scheduler_selectors.recent_decisions(RECENT, own)


@never_cache
@require_safe
def figures(request: HttpRequest) -> HttpResponse:
    if "csv" in request.GET:
        return chart_csv(request, request.GET["csv"])
    wanted = set(request.GET.get("charts", ",".join(overview_page.CHARTS)).split(","))
    window = selectors.readable(reader_choices.chosen(request.GET).window)
    drawn = overview_page.charts(request.user, window, reader_choices.look(request.GET), wanted)
    return chart_pages.drawn_json(request, drawn, overview_page.ticks(request.user, window), window)


@never_cache
@require_safe
def chart_csv(request: HttpRequest, chart: str) -> HttpResponse:
    if chart not in overview_page.CHARTS:
        raise Http404("no such chart")
    chosen = reader_choices.chosen(request.GET)
    name = f"greenserve-{chart}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.csv"
    return HttpResponse(
        overview_page.table(request.user, chart, selectors.readable(chosen.window)),
        content_type="text/csv; charset=utf-8",
        headers={"Content-Disposition": f'attachment; filename="{name}"'},
    )


@require_safe
def decision_list(request: HttpRequest) -> HttpResponse:
    kind = request.GET.get("kind", "")
    kind = kind if kind in DecisionKind.values else ""
    text = request.GET.get("q", "").strip()[:100]
    epoch = request.GET.get("epoch", "")
    epoch_id = int(epoch) if epoch.isdecimal() and len(epoch) < 19 else None
    pool = request.GET.get("pool", "")
    pool_id = int(pool) if pool.isdecimal() and len(pool) < 19 else None
    found = visibility.decisions(request.user, scheduler_selectors.decisions(kind or None, text, epoch_id, pool_id))
    page = Paginator(found, PAGE).get_page(request.GET.get("page"))
    of_pool = Pool.objects.select_related("site", "request_class").filter(pk=pool_id).first() if pool_id else None
    context: dict[str, Any] = {"pool": of_pool, "zone_name": timezone.get_current_timezone_name()}
    context |= {"page": page, "decisions": page.object_list, "kind": kind, "kinds": DecisionKind.values, "q": text}
    context["keep"] = urlencode(
        {k: v for k, v in (("kind", kind), ("q", text), ("epoch", epoch_id), ("pool", pool_id)) if v}
    )
    return render(request, "frontend/decision_list.html", context)


def _decision(request: HttpRequest, decision_id: int) -> Decision:
    """Raises Http404: there is none that this person may see."""
    found = scheduler_selectors.decision(decision_id)
    if found is None or not visibility.decisions(request.user, Decision.objects.filter(pk=decision_id)).exists():
        raise Http404("no such decision")
    return found


@require_safe
def decision(request: HttpRequest, decision_id: int) -> HttpResponse:
    found = _decision(request, decision_id)
    context = {
        "decision": found,
        "cheaper": decision_facts.why_not_cheaper(found.alternatives, str(found.inputs.get("objective", ""))),
        "charts": ("power",),
        "charts_url": reverse("decision-figures", args=[decision_id]),
        "why": decision_facts.why(found.kind, found.reason),
        "inputs": decision_facts.readable(found.inputs, reader_choices.clock),
        "alternatives": decision_facts.alternatives(found.alternatives),
        "comparisons": decision_facts.comparisons(found.predicted, found.realised, reader_choices.clock),
        "span": decision_facts.span(found.predicted, found.realised, reader_choices.clock, found.inputs),
        "commands": [decision_facts.command(command) for command in found.commands],
        "raw": json.dumps(
            {"inputs": found.inputs, "alternatives": found.alternatives, "commands": found.commands}, indent=2
        ),
    }
    return render(request, "frontend/decision.html", context)


@never_cache
@require_safe
def decision_figures(request: HttpRequest, decision_id: int) -> HttpResponse:
    found = _decision(request, decision_id)
    chosen = reader_choices.chosen(request.GET)
    charts = realised.charts(found, chosen.window if chosen.fixed else None)
    return chart_pages.answer(request, f"decision-{decision_id}", charts)


@never_cache
@require_safe
def health(request: HttpRequest) -> HttpResponse:
    template = "frontend/parts/health.html" if request.GET.get("part") else "frontend/health.html"
    return render(request, template, {"health": _health(request)})


@never_cache
@require_safe
def health_json(request: HttpRequest) -> JsonResponse:
    return JsonResponse(_health(request).as_json())


def _health(request: HttpRequest) -> health_checks.Health:
    now = datetime.now(UTC)
    lengths = length_errors(now.timestamp(), visible_health.pool_ids(request.user))
    found = replace(health_checks.gather(now), leader=leader(), lengths=lengths)
    return visible_health.health(request.user, found)


@login_not_required
@never_cache
@require_safe
def healthz(request: HttpRequest) -> HttpResponse:
    """For probes: can this process serve a page? No word of why not; that is for those who are signed in."""
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
        health_checks.ping()
    except (DatabaseError, RedisError):
        return HttpResponse("unavailable\n", status=503, content_type="text/plain")
    return HttpResponse("ok\n", content_type="text/plain")


@require_POST
def time_zone(request: HttpRequest) -> HttpResponse:
    """Keeps the zone in which this reader sees times: UTC, or a site's."""
    zone = request.POST.get("zone", "")
    if zone != "UTC" and not Site.objects.filter(time_zone=zone).exists():
        return HttpResponseBadRequest("choose UTC or the time zone of a site")
    request.session[reader_choices.SESSION_KEY] = zone
    target = request.POST.get("next", "")
    safe = url_has_allowed_host_and_scheme(
        target, allowed_hosts={request.get_host()}, require_https=request.is_secure()
    )
    return redirect(reader_choices.in_zone(target, zone) if safe else "overview")

"""Pages and fragments: each reads a choice, asks a selector, renders."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from urllib.parse import urlencode

from django.contrib.auth.decorators import login_not_required
from django.core.paginator import Paginator
from django.db import DatabaseError, connection
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBadRequest, JsonResponse
from django.shortcuts import redirect, render
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe
from redis import RedisError

from pools.models import Site
from scheduler import selectors as scheduler_selectors
from scheduler.models import Decision
from telemetry import selectors

from . import health as health_checks
from . import overview as overview_page
from . import present, reader

RECENT = 3  # of each loop
PAGE = 50


@never_cache
@require_safe
def overview(request: HttpRequest) -> HttpResponse:
    chosen = reader.chosen(request.GET)
    every = request.GET.get("pools") == "all"
    context = {
        "chosen": chosen,
        "ranges": [(key, label) for key, (_, label) in reader.RANGES.items()],
        "charts": overview_page.CHARTS,
        "summary": overview_page.summary(chosen.window),
        "every": every,
        "pools": selectors.pool_table(chosen.window.end_s, every=every),
        "decisions": scheduler_selectors.recent_decisions(RECENT),
    }
    return render(request, "frontend/overview.html", context)


@never_cache
@require_safe
def summary(request: HttpRequest) -> HttpResponse:
    chosen = reader.chosen(request.GET)
    context = {"chosen": chosen, "summary": overview_page.summary(chosen.window), "fragment": True}
    return render(request, "frontend/parts/summary.html", context)


@never_cache
@require_safe
def pools(request: HttpRequest) -> HttpResponse:
    every = request.GET.get("pools") == "all"
    return render(request, "frontend/parts/pools.html", {"pools": selectors.pool_table(time.time(), every=every)})


@never_cache
@require_safe
def recent_decisions(request: HttpRequest) -> HttpResponse:
    return render(request, "frontend/parts/decisions.html", {"decisions": scheduler_selectors.recent_decisions(RECENT)})


@never_cache
@require_safe
def figures(request: HttpRequest) -> JsonResponse:
    chosen = reader.chosen(request.GET)
    answer = {
        "range": chosen.key,
        "refresh_s": chosen.refresh_s,
        "figures": overview_page.charts(chosen.window, reader.look(request.GET)),
    }
    return JsonResponse(answer, json_dumps_params={"allow_nan": False, "separators": (",", ":")})


@never_cache
@require_safe
def chart_csv(request: HttpRequest, chart: str) -> HttpResponse:
    if chart not in overview_page.CHARTS:
        raise Http404("no such chart")
    chosen = reader.chosen(request.GET)
    name = f"greenserve-{chart}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.csv"
    return HttpResponse(
        overview_page.table(chart, chosen.window),
        content_type="text/csv; charset=utf-8",
        headers={"Content-Disposition": f'attachment; filename="{name}"'},
    )


@require_safe
def decision_list(request: HttpRequest) -> HttpResponse:
    kind = request.GET.get("kind", "")
    kind = kind if kind in Decision.Kind.values else ""
    text = request.GET.get("q", "").strip()[:100]
    epoch = request.GET.get("epoch", "")
    epoch_id = int(epoch) if epoch.isdecimal() and len(epoch) < 19 else None
    found = scheduler_selectors.decisions(kind or None, text, epoch_id)
    page = Paginator(found, PAGE).get_page(request.GET.get("page"))
    context = {"page": page, "decisions": page.object_list, "kind": kind, "kinds": Decision.Kind.values, "q": text}
    context["keep"] = urlencode({k: v for k, v in (("kind", kind), ("q", text), ("epoch", epoch_id)) if v})
    return render(request, "frontend/decision_list.html", context)


@require_safe
def decision(request: HttpRequest, decision_id: int) -> HttpResponse:
    found = scheduler_selectors.decision(decision_id)
    if found is None:
        raise Http404("no such decision")
    context = {
        "decision": found,
        "why": present.REASONS.get(found.reason, ""),
        "inputs": present.readable(found.inputs, reader.clock),
        "alternatives": present.alternatives(found.alternatives),
        "comparisons": present.comparisons(found.predicted, found.realised, reader.clock),
        "span": present.span(found.predicted, found.realised, reader.clock),
        "commands": [present.command(command) for command in found.commands],
        "raw": json.dumps(
            {"inputs": found.inputs, "alternatives": found.alternatives, "commands": found.commands}, indent=2
        ),
    }
    return render(request, "frontend/decision.html", context)


@never_cache
@require_safe
def health(request: HttpRequest) -> HttpResponse:
    template = "frontend/parts/health.html" if request.GET.get("part") else "frontend/health.html"
    return render(request, template, {"health": health_checks.gather(datetime.now(UTC))})


@never_cache
@require_safe
def health_json(request: HttpRequest) -> JsonResponse:
    return JsonResponse(health_checks.gather(datetime.now(UTC)).as_json())


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
    request.session[reader.SESSION_KEY] = zone
    target = request.POST.get("next", "")
    safe = url_has_allowed_host_and_scheme(
        target, allowed_hosts={request.get_host()}, require_https=request.is_secure()
    )
    return redirect(target if safe else "overview")

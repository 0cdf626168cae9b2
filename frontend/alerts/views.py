"""The page of alerts, and what people do there."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

from django.contrib import messages
from django.contrib.auth.models import User
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from pools.access import rights
from pools.access.rights import Right
from scheduler.operations import visibility
from telemetry.alerts import evaluation
from telemetry.models import Alert, AlertSilence

from . import alert_list as page_of_alerts


@never_cache
@require_safe
def alerts(request: HttpRequest) -> HttpResponse:
    """Shows open alerts and silences, or with `?state=resolved` the alerts that have ended."""
    now = datetime.now(UTC)
    rule = request.GET.get("rule", "")
    choices = page_of_alerts.choices()
    rule = rule if rule in dict(choices) else ""
    context: dict[str, Any] = {"rules": choices, "rule": rule, "lengths": page_of_alerts.SILENCE_LENGTHS}
    if request.GET.get("state") == "resolved":
        page, rows = page_of_alerts.ended(request.user, request.GET.get("page"), rule)
        kept = urlencode({"state": "resolved", **({"rule": rule} if rule else {})})
        return render(request, "frontend/alerts.html", {**context, "page": page, "rows": rows, "keep": kept})
    context |= {
        "rows": page_of_alerts.current(request.user, now),
        "silences": page_of_alerts.silences(request.user, now),
        "channels": page_of_alerts.channel_words(),
        "subject": request.GET.get("subject", "")[:200],
    }
    template = "frontend/parts/open_alerts.html" if request.GET.get("part") else "frontend/alerts.html"
    return render(request, template, context)


@require_POST
@rights.needs(Right.OPERATE)
def acknowledge(request: HttpRequest, alert_id: int) -> HttpResponse:
    alert = get_object_or_404(visibility.alerts(request.user, Alert.objects.all()), pk=alert_id)
    visibility.require_subject(request.user, alert.subject)
    if not evaluation.acknowledge(alert_id, _user(request), datetime.now(UTC)):
        messages.warning(request, f"Alert {alert_id} is not open: somebody was first, or it is over.")
    return redirect("alerts")


@require_POST
@rights.needs(Right.OPERATE)
def silence(request: HttpRequest) -> HttpResponse:
    """A mistake comes back as a sentence that names the field."""
    given = {name: request.POST.get(name, "").strip() for name in ("rule", "subject", "for_s", "reason")}
    try:
        length_s = float(given["for_s"])
    except ValueError:
        length_s = float("nan")
    visibility.require_subject(request.user, given["subject"], given["rule"])
    try:
        evaluation.silence(
            given["rule"], given["subject"], length_s, given["reason"], _user(request), datetime.now(UTC)
        )
    except ValueError as error:
        messages.error(request, f"Not silenced. {error}")
    return redirect("alerts")


@require_POST
@rights.needs(Right.OPERATE)
def end_silence(request: HttpRequest, silence_id: int) -> HttpResponse:
    silence = get_object_or_404(visibility.alerts(request.user, AlertSilence.objects.all()), pk=silence_id)
    visibility.require_subject(request.user, silence.subject)
    if not evaluation.end_silence(silence_id, datetime.now(UTC)):
        raise Http404("no such silence, or it is over")
    return redirect("alerts")


def _user(request: HttpRequest) -> User | None:
    return request.user if isinstance(request.user, User) else None

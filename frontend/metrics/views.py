"""Views of the metrics, for whoever has the token; if none is set, for this machine alone."""

from __future__ import annotations

import hmac
import ipaddress

from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from .metrics_page import PAGE
from .targets import targets as find_targets

REMEDY = "metrics are for this machine alone: set GREENSERVE_METRICS_TOKEN, and send it as a bearer token\n"


@login_not_required
@never_cache
@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    return _refusal(request) or HttpResponse(PAGE.text(), content_type=CONTENT_TYPE_PLAIN_0_0_4)


@login_not_required
@never_cache
@require_safe
def targets(request: HttpRequest) -> HttpResponse:
    return _refusal(request) or JsonResponse(find_targets(), safe=False)


def _refusal(request: HttpRequest) -> HttpResponse | None:
    token = settings.GREENSERVE_METRICS_TOKEN
    if token is None:
        if _is_here(request):
            return None
        return HttpResponse(REMEDY, status=403, content_type="text/plain")
    sent = request.headers.get("Authorization", "").encode()
    if hmac.compare_digest(sent, f"Bearer {token.reveal()}".encode()):
        return None
    headers = {"WWW-Authenticate": "Bearer"}
    return HttpResponse("give the bearer token\n", status=401, content_type="text/plain", headers=headers)


def _is_here(request: HttpRequest) -> bool:
    """From this machine, and not on behalf of another: a proxy that stands here says for whom it asks."""
    if "X-Forwarded-For" in request.headers or "Forwarded" in request.headers:
        return False
    try:
        return ipaddress.ip_address(request.META.get("REMOTE_ADDR", "")).is_loopback
    except ValueError:
        return False

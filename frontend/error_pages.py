"""Answers requests that come to no view, or whose view raised: problem documents under /api/, else pages."""

from __future__ import annotations

import sys

from django.http import Http404, HttpRequest, HttpResponse
from django.views import defaults

from frontend import unavailable
from frontend.api.rest import problems

API = "/api"


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Answers what Django suspects: a host that it does not know, a body that is too large."""
    return (
        problems.handle(exception, {"request": request}) if _api(request) else defaults.bad_request(request, exception)
    )


def forbidden(request: HttpRequest, exception: Exception) -> HttpResponse:
    if _api(request):
        return problems.handle(exception, {"request": request})
    return defaults.permission_denied(request, exception)


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    if _api(request):
        return problems.handle(Http404(), {"request": request})  # Django's own words list addresses
    return defaults.page_not_found(request, exception)


def server_error(request: HttpRequest) -> HttpResponse:
    error = sys.exc_info()[1]
    if _api(request) and isinstance(error, Exception):
        return problems.handle(error, {"request": request})
    return unavailable.page(request)


def _api(request: HttpRequest) -> bool:
    return request.path == API or request.path.startswith(f"{API}/")

"""Ends sessions: after so many hours, and after so many minutes in which their person does nothing.

What a page asks for by itself, each few seconds, does not count as doing something: else an open page would keep its
session for ever. People who may only look have the first limit alone, for a screen on the wall asks for nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from django.conf import settings
from django.contrib.auth import logout
from django.http import HttpRequest, HttpResponse

from pools.access import audit, rights

from . import sign_in_limits

BEGAN, ACTIVE = "began_s", "active_s"  # in the session, Unix seconds
ENDED = "ended"  # in the session that follows: why, for the sign-in page
STEP_S = 60.0  # so exactly the last activity is kept


class SessionMiddleware:
    """Ends a session that is over before anything is answered with it; the sign-in page says why."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if request.user.is_authenticated:
            now_s = time.time()
            if words := over(request, now_s):
                who = request.user.get_username()
                audit.note(audit.actor_of(request), "sign-out", sign_in_limits.KIND, label=who, after={"why": words})
                logout(request)
                request.session[ENDED] = words
            elif is_activity(request) and now_s - request.session[ACTIVE] >= STEP_S:
                request.session[ACTIVE] = now_s
        return self.get_response(request)


def begin(sender: object, request: HttpRequest, **_: object) -> None:
    """Starts both limits anew. Django's signal `user_logged_in` calls it, whichever way somebody has signed in."""
    request.session[BEGAN] = request.session[ACTIVE] = time.time()
    request.session.pop(ENDED, None)


def over(request: HttpRequest, now_s: float) -> str:
    """Returns why the session is over; empty: it is not. One that no limit knows yet begins now."""
    if BEGAN not in request.session:
        request.session[BEGAN] = request.session[ACTIVE] = now_s
    if now_s - request.session[BEGAN] >= settings.GREENSERVE_SESSION_S:
        return f"A session lasts {settings.GREENSERVE_SESSION_S / 3600:g} h at most: sign in again."
    idle = now_s - request.session[ACTIVE] >= settings.GREENSERVE_SESSION_IDLE_S
    if idle and rights.grant_of(request.user).rights - {rights.Right.VIEW}:
        return f"You did nothing for {settings.GREENSERVE_SESSION_IDLE_S / 60:g} min: sign in again."
    return ""


def is_activity(request: HttpRequest) -> bool:
    """Says whether a person did something: they opened a page or sent a form; what refreshes one takes anything."""
    return request.method not in ("GET", "HEAD") or "text/html" in request.headers.get("Accept", "")

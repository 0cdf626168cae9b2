"""The page that people see while PostgreSQL or Redis refuses. It needs neither."""

from __future__ import annotations

import logging
import sys

from django.db import DatabaseError, InterfaceError, OperationalError
from django.http import HttpRequest, HttpResponse
from django.template.loader import render_to_string
from django.views.defaults import server_error
from redis.exceptions import RedisError

from pools import database_faults

log = logging.getLogger(__name__)

RETRY_AFTER_S = 5


def page(request: HttpRequest) -> HttpResponse:
    """Answers a request whose view raised: 503 with what is wrong where a service refuses, else Django's own page."""
    error = sys.exc_info()[1]
    words = None if error is None else _words_of(error)
    if words is None:
        return server_error(request)
    log.warning("%s cannot be shown: %s (%s)", request.path, words, str(error).strip())
    page = render_to_string("unavailable.html", {"words": words, "retry_after_s": RETRY_AFTER_S})
    return HttpResponse(page, status=503, headers={"Retry-After": str(RETRY_AFTER_S)})


def _words_of(error: BaseException) -> str | None:
    """A statement that is wrong is a fault of the product's, and has no words here."""
    match error:
        case RedisError():
            return "Redis does not answer: see `greenserve status`"
        case OperationalError() | InterfaceError():
            return database_faults.words_of(error) or "PostgreSQL does not answer: see `greenserve status`"
        case DatabaseError():
            return database_faults.words_of(error)
    return None

"""The product's middleware for static files, asked by a test's client only for what may be one.

It is asynchronous, as the web process is. Django's test client is not: for each request it would start a loop in a
thread of its own, which takes longer than most pages do. Each client makes its middleware anew, and this one looks for
all static files when it is made.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from inspect import iscoroutinefunction
from typing import Any

from asgiref.sync import async_to_sync, sync_to_async
from django.conf import settings
from django.http import HttpRequest, HttpResponseBase
from django.utils.decorators import sync_and_async_middleware
from servestatic.middleware import ServeStaticMiddleware

NAME = "servestatic.middleware.ServeStaticMiddleware"
OURS = f"{__name__}.where_asked_for"


@sync_and_async_middleware
def where_asked_for(get_response: Callable[[HttpRequest], Any]) -> Any:
    if iscoroutinefunction(get_response):
        return ServeStaticMiddleware(get_response)
    static = cache(lambda: async_to_sync(ServeStaticMiddleware(sync_to_async(get_response))))

    def middleware(request: HttpRequest) -> HttpResponseBase:
        answer: HttpResponseBase = (static() if request.path.startswith(settings.STATIC_URL) else get_response)(request)
        return answer

    return middleware

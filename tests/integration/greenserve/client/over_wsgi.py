"""Carries a client's requests to the product in this process, without a server."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import httpx2
from django.core.handlers.wsgi import WSGIHandler
from django.core.signals import request_finished, request_started
from django.db import close_old_connections

T = TypeVar("T")


class AsyncWsgi(httpx2.AsyncBaseTransport):
    """For AsyncClient. The request is served in the test's own thread, where the test's rows are seen."""

    def __init__(self) -> None:
        self._inner = httpx2.WSGITransport(WSGIHandler())

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        await request.aread()
        answer = self._inner.handle_request(request)
        content = answer.read()
        answer.close()
        return httpx2.Response(answer.status_code, headers=answer.headers, content=content)


def driven(coroutine: Coroutine[Any, Any, T]) -> T:
    """Returns what the coroutine returns. It never waits for anything, so it needs no loop.

    In a thread with a loop Django refuses to use its connection, and another thread would not see the test's rows.
    """
    try:
        coroutine.send(None)
    except StopIteration as end:
        value: T = end.value
        return value
    raise AssertionError("it waits for something")


def wsgi() -> httpx2.WSGITransport:
    return httpx2.WSGITransport(WSGIHandler())


@contextmanager
def connection_kept() -> Iterator[None]:
    """As Django's own test client does: a request's end does not close the connection that the test's rows are in."""
    for signal in (request_started, request_finished):
        signal.disconnect(close_old_connections)
    yield
    for signal in (request_started, request_finished):
        signal.connect(close_old_connections)

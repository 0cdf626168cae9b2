"""The product's REST API without a socket: the client's requests go into the Django application of the test itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import httpx2
from django.core.signals import request_finished, request_started
from django.core.wsgi import get_wsgi_application
from django.db import close_old_connections

from greenserve.client import Client, Retries
from pools.access import people
from pools.access.audit import Actor
from pools.access.rights import Right
from pools.models import Site

URL = "http://127.0.0.1:8000"


@contextmanager
def as_person(role: str = "administrator", sites: tuple[Site, ...] = ()) -> Iterator[Client]:
    """Yields a client with a token of a new person."""
    user, _ = people.create(Actor(), f"{role}-of-files", role, sites, password="a long pass phrase")
    held = {"administrator": list(Right), "operator": [Right.VIEW, Right.OPERATE]}[role]
    _, secret = people.new_token(Actor(), user, "files", [right.value for right in held])
    inner = httpx2.WSGITransport(app=get_wsgi_application())
    with _one_connection(), Client(URL, secret, inner=inner, retries=Retries(attempts=1)) as client:
        yield client


@contextmanager
def _one_connection() -> Iterator[None]:
    """Requests leave the database's connection open: it is the test's, with its transaction."""
    for signal in (request_started, request_finished):
        signal.disconnect(close_old_connections)
    try:
        yield
    finally:
        for signal in (request_started, request_finished):
            signal.connect(close_old_connections)

"""Fixtures of the tests that use PostgreSQL and Redis."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis
from django.conf import settings

from greenserve.celery import app


@pytest.fixture(autouse=True)
def own_celery() -> None:
    """As in the workers: tasks that are sent go to the tests' Redis. Any other application that is made takes over."""
    app.set_current()


@pytest.fixture
def redis_client() -> Iterator[redis.Redis]:
    """The tests' Redis, without our keys before and after."""
    client = redis.Redis.from_url(settings.REDIS_URL, socket_timeout=5, socket_connect_timeout=5)

    def clear() -> None:
        for pattern in ("greenserve:*", "node.*", "_kombu*", "epochs"):
            keys = list(client.scan_iter(pattern))
            if keys:
                client.delete(*keys)

    clear()
    yield client
    clear()
    client.close()

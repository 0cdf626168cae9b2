"""Fixtures of the tests that use PostgreSQL and Redis."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis
from django.db import transaction
from django.test import override_settings
from pytest_django import DjangoDbBlocker

from core.engine import gpu_types, measured
from greenserve.celery import app
from pools import demo, engine_knowledge, engine_measurements
from tests.fakes.house import clean_redis


@pytest.fixture(scope="package", autouse=True)
def _quick_passwords() -> Iterator[None]:
    """A hash that is slow on purpose is not what is tested, and dozens of tests have a person with a password."""
    with override_settings(PASSWORD_HASHERS=["django.contrib.auth.hashers.MD5PasswordHasher"]):
        yield


@pytest.fixture(scope="module")
def shared_rows(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """For a module's own fixtures: what they store is there for each of its tests, and gone afterwards.

    Each test's changes are undone as ever, in a savepoint on top. No test of such a module may be transactional.
    """
    with django_db_blocker.unblock(), transaction.atomic():
        yield
        transaction.set_rollback(True)


@pytest.fixture(scope="module")
def demo_rows(shared_rows: None) -> None:
    """The demo's fleet, likewise: a test takes from it what it needs."""
    demo.load()


@pytest.fixture(autouse=True)
def own_celery() -> None:
    """As in the workers: tasks that are sent go to the tests' Redis. Any other application that is made takes over."""
    app.set_current()


@pytest.fixture(autouse=True)
def _own_engine_knowledge(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Read where something plans, and not each second besides: tests count queries."""
    monkeypatch.setattr(engine_knowledge, "EVERY_S", float("inf"))
    monkeypatch.setattr(engine_knowledge, "_read_mono_s", 0.0)
    engine_measurements.forget()
    yield
    gpu_types.declare(())
    engine_measurements.forget()
    measured.publish(())
    measured.calibrate({})


@pytest.fixture
def redis_client() -> Iterator[redis.Redis]:
    with clean_redis() as client:
        yield client

"""The demo's service, as the loops find it, and a person who operates it."""

from datetime import datetime

import pytest
import redis
from django.contrib.auth.models import User
from django.utils import timezone

from pools.access.audit import Actor
from pools.models import Membership, Service
from tests.fakes.house import refresh_feeds, report_all


@pytest.fixture
def now() -> datetime:
    return timezone.now()


@pytest.fixture(scope="module")
def fed_rows(demo_rows: None) -> None:
    """The demo's feeds, filled: what a test's own moment adds is a few seconds."""
    refresh_feeds(timezone.now())


@pytest.fixture
def service(fed_rows: None, redis_client: redis.Redis, now: datetime) -> Service:
    """With agents that report and feeds that are fresh."""
    service = Service.objects.get()
    report_all(redis_client)
    refresh_feeds(now)
    return service


@pytest.fixture
def operator(django_user_model: type[User]) -> Actor:
    user = django_user_model.objects.create_user("olga", password="not-a-secret")
    Membership.objects.update_or_create(user=user, defaults={"role": Membership.Role.OPERATOR})
    return Actor(user, None, "page")

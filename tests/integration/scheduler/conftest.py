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
def new_service(fed_rows: None, redis_client: redis.Redis, now: datetime) -> Service:
    """As the demo makes it, with agents that report and feeds that are fresh."""
    service = Service.objects.get()
    report_all(redis_client)
    refresh_feeds(now)
    return service


@pytest.fixture
def service(new_service: Service) -> Service:
    """Likewise, with FREESH's epochs: all four loops decide."""
    new_service.policy = "greenserve_epochs"
    new_service.save(update_fields=["policy"])
    return new_service


@pytest.fixture
def operator(django_user_model: type[User]) -> Actor:
    user = django_user_model.objects.create_user("olga", password="not-a-secret")
    Membership.objects.update_or_create(user=user, defaults={"role": Membership.Role.OPERATOR})
    return Actor(user, None, "page")

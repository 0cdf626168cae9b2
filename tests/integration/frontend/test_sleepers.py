"""Pages and REST say which services sleep, since when and why, and what it takes to wake them."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from html import unescape

import pytest
from django.contrib.auth import get_user_model
from django.core.cache import cache
from django.test import Client
from django.utils import timezone

from core.types import Loop, PutToSleep, WakeUp
from pools.models import Membership, Service
from scheduler.control import service_policy
from scheduler.control.sleep_states import KIND, SleepState
from scheduler.json_values import to_json
from scheduler.models import ControllerState, Decision

pytestmark = pytest.mark.django_db
NAME = "llama3-70b"


@pytest.fixture
def since(demo_rows: None, redis_client: object) -> datetime:
    """The demo's service has slept for a minute; it woke twice before, once more than a day ago."""
    cache.clear()
    service, now = Service.objects.get(), timezone.now()
    service_policy.change(service, "greenserve", {"sleep": "stop"})
    pool = service.pools.filter(request_class__partition=service.partition).first()
    service.pools.filter(pk=pool.pk).update(workers={"A100-80GB/TP4": 1})
    since = now - timedelta(minutes=1)
    for before, command in (
        (timedelta(hours=30), WakeUp(NAME)),
        (timedelta(hours=2), WakeUp(NAME)),
        (timedelta(minutes=1), PutToSleep(NAME)),
    ):
        Decision.objects.create(
            service=service,
            kind=Loop.SCALE,
            at=now - before,
            reason="slack",
            summary=f"because of {type(command).__name__}",
            commands=[to_json(command)],
        )
    state = SleepState(asleep=True, since_s=since.timestamp())
    ControllerState.objects.create(kind=KIND, service=service, value=state.as_json())
    return since


@pytest.fixture
def client() -> Client:
    user = get_user_model().objects.create_user("viewer")
    Membership.objects.update_or_create(user=user, defaults={"role": "operator"})
    client = Client()
    client.force_login(user)
    return client


def text(client: Client, path: str) -> str:
    answer = client.get(path)
    assert answer.status_code == 200
    return unescape(answer.content.decode()).replace("\xa0", " ")


def test_page_of_a_service_says_why_it_sleeps_and_what_waking_takes(client: Client, since: datetime) -> None:
    page = text(client, f"/services/{NAME}/")
    assert "Asleep since" in page
    assert "because of PutToSleep" in page
    assert "Waking takes 1.1 s and 360 J, as published" in page  # 18 s and 15 s for the weights, at 30 times the speed
    assert "It woke 1 time in the last 24 h" in page
    assert ">asleep</span>" in text(client, "/services/")
    for path in ("/", "/pools/", "/sites/location-1/"):
        assert '<span class="dot asleep"></span>asleep' in text(client, path), path


def test_page_says_where_the_time_to_wake_is_of_own_starts(client: Client, since: datetime) -> None:
    state = SleepState(asleep=True, since_s=since.timestamp(), wakings_s={"A100-80GB/TP4": 2.5}, kind="stop")
    ControllerState.objects.filter(kind=KIND).update(value=state.as_json())
    assert "Waking takes 2.5 s and 810 J, as its starts of the last week took" in text(client, f"/services/{NAME}/")
    service_policy.change(Service.objects.get(), "greenserve", {"sleep": "level"})
    assert "as published" in text(client, f"/services/{NAME}/"), "what starts took says nothing of level 1"
    ControllerState.objects.filter(kind=KIND).update(value=replace(state, kind="level").as_json())
    assert "Waking takes 2.5 s and 810 J, as its wakings of the last week took" in text(client, f"/services/{NAME}/")


def test_pages_say_nothing_of_sleep_where_the_policy_has_nobody_sleep(client: Client, since: datetime) -> None:
    service_policy.change(Service.objects.get(), "greenserve", {})
    page = text(client, f"/services/{NAME}/")
    assert "Asleep" not in page
    assert "Awake" not in page
    assert '<span class="dot asleep">' not in text(client, "/")
    assert client.get(f"/api/v1/services/{NAME}/").json()["asleep_since"] is None


def test_rest_says_since_when_a_service_sleeps(client: Client, since: datetime) -> None:
    found = client.get(f"/api/v1/services/{NAME}/").json()
    assert datetime.fromisoformat(found["asleep_since"]) == since
    (listed,) = client.get("/api/v1/services/").json()["results"]
    assert listed["asleep_since"] == found["asleep_since"]
    ControllerState.objects.filter(kind=KIND).update(value=SleepState(since_s=since.timestamp()).as_json())
    assert client.get(f"/api/v1/services/{NAME}/").json()["asleep_since"] is None


def test_change_is_taken_when_the_service_fell_asleep_since_it_was_read(client: Client, since: datetime) -> None:
    url, states = f"/api/v1/services/{NAME}/", ControllerState.objects.filter(kind=KIND)
    states.update(value=SleepState(since_s=since.timestamp()).as_json())
    awake = client.get(url)
    states.update(value=SleepState(asleep=True, since_s=since.timestamp()).as_json())

    assert client.get(url, headers={"If-None-Match": awake.headers["ETag"]}).status_code == 200, "it shows more now"
    change = {"data": {"weight": 2.0}, "content_type": "application/json"}
    changed = client.patch(url, **change, headers={"If-Match": awake.headers["ETag"]})
    assert (changed.status_code, changed.json()["weight"]) == (200, 2.0), changed.content
    assert changed.json()["asleep_since"] is not None
    assert client.patch(url, **change, headers={"If-Match": awake.headers["ETag"]}).status_code == 412
    many = [{"id": changed.json()["id"], "etag": awake.json()["etag"], "weight": 3.0}]
    assert client.patch("/api/v1/services/", many, content_type="application/json").status_code == 400
    many[0]["etag"] = changed.json()["etag"]
    states.update(value=SleepState(since_s=since.timestamp()).as_json())
    assert client.patch("/api/v1/services/", many, content_type="application/json").status_code == 200

"""Pauses, overrides and control modes over REST: as on the page, with errors by field."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.test import Client

from pools.models import AuditEntry
from scheduler.models import LoopPause, Override
from tests.fakes import seed

pytestmark = pytest.mark.django_db


@pytest.fixture
def post(redis_client) -> Any:
    client = Client()
    client.force_login(get_user_model().objects.create_superuser("admin", password="secret"))

    def send(path: str, **body: Any) -> Any:
        return client.post(f"/api/v1/{path}", json.dumps(body), content_type="application/json")

    send.get = lambda path: client.get(f"/api/v1/{path}").json()
    return send


def soon() -> str:
    return (datetime.now(UTC) + timedelta(hours=1)).isoformat()


def test_loop_is_paused_and_resumed(post):
    seed.fleet()
    made = post("pauses/", service="llama3-70b", loop="carbon", reason="works at the site")
    assert made.status_code == 201, made.content
    assert LoopPause.objects.get().ended_at is None
    done = post(f"pauses/{made.json()['id']}/resume/")
    assert done.json()["ended_by"] == "admin"
    assert set(AuditEntry.objects.values_list("channel", flat=True)) == {"api"}
    (error,) = post("pauses/", service="llama3-70b", loop="lunar", reason="x").json()["errors"]
    assert error["field"] == "loop"


def test_override_needs_what_its_kind_needs_and_ends(post):
    seeded = seed.fleet()
    body = {"kind": "drain", "reason": "works", "expires_at": soon()}
    (error,) = post("overrides/", **body).json()["errors"]
    assert error["field"] == "site"
    made = post("overrides/", **body, site="location-1")
    assert made.status_code == 201, made.content
    assert post(f"overrides/{made.json()['id']}/end/").json()["ended_at"]
    pool = next(pool for pool in seeded.pools if pool.workers)
    clock = {"kind": "clock", "pool": pool.pk, "reason": "test", "expires_at": soon()}
    assert post("overrides/", **clock, mhz=9_000).json()["errors"][0]["field"] == "mhz"
    assert post("overrides/", **clock, mhz=900).json()["value"] == {"mhz": 900.0}
    assert Override.objects.filter(ended_at=None).count() == 1


def test_clocks_are_let_down_to_a_floor(post):
    pool = seed.fleet().pools[0]
    body = {"kind": "clock", "pool": pool.pk, "expires_at": soon(), "reason": "quiet"}
    assert post("overrides/", **body, mhz=900, floor_mhz=900).json()["errors"][0]["field"] == "mhz"
    assert post("overrides/", **body, floor_mhz=1).json()["errors"][0]["field"] == "floor_mhz"
    made = post("overrides/", **body, floor_mhz=900)
    assert (made.status_code, made.json()["value"]) == (201, {"floor_mhz": 900.0})


def test_mode_of_a_service_is_read_and_set(post):
    seed.fleet()
    assert post.get("modes/llama3-70b/")["mode"] == "act"
    assert post("modes/llama3-70b/", mode="advise").json()["mode"] == "advise"
    assert post.get("modes/llama3-70b/")["mode"] == "advise"
    assert post("modes/nobody/", mode="advise").status_code == 404

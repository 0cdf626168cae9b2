"""Pauses, overrides and control modes over REST: as on the page, with errors by field."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.test import Client

from pools.models import AuditEntry, Service
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


def test_pool_is_named_and_given_by_its_name(post):
    pool = seed.fleet().pools[0]
    name = f"llama3-70b/{pool.site.name}/freesh-a/{pool.request_class.name}"
    body = {"kind": "clock", "mhz": 900, "expires_at": soon(), "reason": "quiet"}
    made = post("overrides/", **body, pool=name).json()
    assert (made["pool"], made["pool_name"]) == (pool.pk, name)
    (error,) = post("overrides/", **body, pool="llama3-70b/nowhere/freesh-a/SS").json()["errors"]
    assert error["field"] == "pool"
    assert "nowhere" in error["detail"]
    (row,) = post.get(f"decisions/?pool={pool.pk}")["results"][:1]
    assert (row["service"], row["site"], row["pool_name"]) == ("llama3-70b", pool.site.name, name)


def test_body_is_refused_when_a_field_is_unknown_or_of_another_type(post):
    seed.fleet()
    body = {"service": "llama3-70b", "loop": "carbon", "reason": "works"}
    for wrong, field in (({"expires": soon()}, "expires"), ({"reason": 5}, "reason"), ({"loop": True}, "loop")):
        (error,) = post("pauses/", **{**body, **wrong}).json()["errors"]
        assert error["field"] == field
    (error,) = post("nodes/", cluster="location-1/main", name="n9", simulated="yes").json()["errors"]
    assert error["field"] == "simulated"
    assert not LoopPause.objects.exists()


def test_mode_of_a_service_is_read_and_set(post):
    seed.fleet()
    assert post.get("modes/llama3-70b/")["mode"] == "act"
    assert post("modes/llama3-70b/", mode="advise").json()["mode"] == "advise"
    assert post.get("modes/llama3-70b/")["mode"] == "advise"
    assert post("modes/nobody/", mode="advise").status_code == 404


def test_mode_says_which_policy_is_in_force(post):
    seed.fleet()
    post("modes/llama3-70b/", mode="advise")
    Service.objects.update(policy="single_pool")
    found = post.get("modes/llama3-70b/")
    assert (found["policy"], found["in_force"], found["gateways_only"]) == ("single_pool", "greenserve_epochs", False)


def test_advice_puts_both_policies_side_by_side(post):
    seed.fleet()
    assert post.get("modes/llama3-70b/advice/") == {
        **{"service": "llama3-70b", "in_force": None, "advised": None},
        "turns": [],
    }
    post("modes/llama3-70b/", mode="advise")
    Service.objects.update(policy="single_pool")
    found = post.get("modes/llama3-70b/advice/")
    assert (found["in_force"]["policy"], found["advised"]["policy"]) == ("greenserve_epochs", "single_pool")
    assert found["in_force"]["gpus"] > 0


def test_preview_changes_nothing_and_names_what_is_missing(post):
    seed.fleet()
    (error,) = post("previews/", service="llama3-70b").json()["errors"]
    assert error["field"] == "mode"
    (error,) = post("previews/", service="llama3-70b", knobs={"clock": "fixed"}).json()["errors"]
    assert error["field"] == "policy"
    (error,) = post("previews/", service="llama3-70b", resume="clock").json()["errors"]
    assert error["field"] == "resume"
    (error,) = post("previews/", service="llama3-70b", policy="freesh", knobs={"clock": "warp"}).json()["errors"]
    assert error["field"] == "knobs"
    found = post("previews/", service="llama3-70b", pause="clock").json()
    assert found["now"]["power_w"] < found["then"]["power_w"]
    assert found["change_w"] == found["then"]["power_w"] - found["now"]["power_w"]
    assert not LoopPause.objects.exists()
    found = post("previews/", service="llama3-70b", mode="advise", policy="freesh").json()
    assert (found["then"]["policy"], found["change_w"]) == ("greenserve_epochs", 0.0)
    assert post.get("modes/llama3-70b/")["mode"] == "act"

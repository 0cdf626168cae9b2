"""Alerts where people meet them: the Overview's list, the page, the REST API."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.core.cache import cache
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from telemetry.alerts import evaluation
from telemetry.models import Alert, AlertNotice, AlertSilence
from tests.fakes import seed
from tests.fakes.people import person

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _clean_slate(redis_client) -> None:
    cache.clear()


@pytest.fixture
def user():
    return person("operator")


@pytest.fixture
def operator(user) -> Client:
    client = Client()
    client.force_login(user)
    return client


def alert(rule: str = "feed_stale", subject: str = "location-1/average", **changed) -> Alert:
    now = datetime.now(UTC)
    values = {
        "level": "warn", "summary": "The feed has not answered for 12 min", "step": "`greenserve logs epochs`",
        "value": 720.0, "threshold": 65.0, "unit": "s", "since": now - timedelta(minutes=12),
        "opened_at": now - timedelta(minutes=11), "last_seen_at": now,
    }  # fmt: skip
    return Alert.objects.create(rule=rule, subject=subject, **{**values, **changed})


def ended(**changed) -> Alert:
    return alert(state="resolved", resolved_at=datetime.now(UTC), **changed)


@pytest.mark.parametrize("query", ["", "?state=resolved", "?part=1", "?state=resolved&rule=feed_stale&page=9"])
def test_page_answers_when_empty_and_when_there_are_alerts(operator, query):
    assert operator.get("/alerts/" + query).status_code == 200
    for n in range(3):
        row = alert(subject=f"s{n}/average")
        AlertNotice.objects.create(alert=row, event="raised", channel="webhook", due_at=row.since, error="no answer")
        ended(subject=f"s{n}/average")
    evaluation.silence("feed_stale", "s1/average", 600.0, "planned", None, datetime.now(UTC))
    page = operator.get("/alerts/" + query).content.decode()
    assert "Carbon feed is stale" in page


def test_queries_of_the_page_do_not_grow_with_alerts(operator):
    counts = []
    for n in (1, 12):
        Alert.objects.all().delete()
        for m in range(n):
            alert(subject=f"s{m}/average")
        with CaptureQueriesContext(connection) as queries:
            operator.get("/alerts/?part=1")
        counts.append(len(queries))
    assert counts[0] == counts[1] <= 7  # session, person and role among them


@pytest.mark.parametrize(
    "path", ["/alerts/1/acknowledge/", "/alerts/silences/", "/alerts/silences/1/end/", "/api/v1/alerts/1/acknowledge/"]
)
def test_nothing_can_be_done_without_a_session(client, path):
    assert client.post(path).status_code in (302, 401, 403)
    assert client.get(path).status_code in (302, 401, 403, 405)


def test_open_alert_is_the_first_that_needs_attention_and_is_not_said_twice(operator):
    seeded = seed.everything(minutes=4, rps=0.5)
    seed.well()
    row = alert(summary="The feed of Location 1 is stale")
    seeded.sites[0].carbon_feeds.update(last_ok_at=seeded.now - timedelta(minutes=12))
    page = operator.get("/overview/summary/").content.decode()
    assert "The feed of Location 1 is stale" in page
    assert f"/alerts/#alert-{row.pk}" in page
    assert "has not answered" not in page


def test_acknowledging_says_who(operator, user):
    row = alert()
    assert operator.post(f"/alerts/{row.pk}/acknowledge/").status_code == 302
    assert "acknowledged by operator" in operator.get("/alerts/").content.decode()
    again = operator.post(f"/alerts/{row.pk}/acknowledge/", follow=True)
    assert "is not open" in again.content.decode()


def test_silencing_and_ending_it_on_the_page(operator):
    alert()
    operator.post("/alerts/silences/", {"rule": "feed_stale", "subject": "", "for_s": "3600", "reason": "works"})
    made = AlertSilence.objects.get()
    assert "nobody until" in operator.get("/alerts/").content.decode()
    operator.post(f"/alerts/silences/{made.pk}/end/")
    assert "nobody until" not in operator.get("/alerts/").content.decode()
    assert operator.post(f"/alerts/silences/{made.pk}/end/").status_code == 404


@pytest.mark.parametrize(
    ("changed", "words"),
    [({"rule": "no_such"}, "rule: there is none"), ({"for_s": "soon"}, "for_s"), ({"subject": "a\0b"}, "subject")],
)
def test_bad_silence_is_said_beside_the_form(operator, changed, words):
    form = {"rule": "feed_stale", "subject": "", "for_s": "3600", **changed}
    page = operator.post("/alerts/silences/", form, follow=True).content.decode()
    assert "Not silenced" in page
    assert words in page
    assert not AlertSilence.objects.exists()


def test_rest_lists_filters_and_acknowledges(operator, user):
    row, over = alert(), ended(level="bad")
    listed = operator.get("/api/v1/alerts/").json()["results"]
    assert {one["id"] for one in listed} == {row.pk, over.pk}
    (found,) = operator.get("/api/v1/alerts/?state=open&rule=feed_stale").json()["results"]
    assert (found["value"], found["threshold"], found["unit"]) == (720.0, 65.0, "s")
    assert operator.get("/api/v1/alerts/?state=odd").status_code == 400
    done = operator.post(f"/api/v1/alerts/{row.pk}/acknowledge/", content_type="application/json")
    assert (done.status_code, done.json()["state"], done.json()["acknowledged_by"]) == (200, "acknowledged", "operator")
    again = operator.post(f"/api/v1/alerts/{over.pk}/acknowledge/", content_type="application/json")
    assert again.status_code == 409
    assert operator.put(f"/api/v1/alerts/{row.pk}/", {}, content_type="application/json").status_code == 405


def test_rest_makes_lists_and_ends_silences(operator):
    made = operator.post(
        "/api/v1/alert-silences/", {"rule": "node_silent", "for_s": 600}, content_type="application/json"
    )
    assert made.status_code == 201
    assert made.json()["created_by"] == "operator"
    (one,) = operator.get("/api/v1/alert-silences/").json()["results"]
    assert operator.delete(f"/api/v1/alert-silences/{one['id']}/").status_code == 204
    assert operator.get("/api/v1/alert-silences/").json()["results"] == []
    assert operator.delete(f"/api/v1/alert-silences/{one['id']}/").status_code == 404


@pytest.mark.parametrize(
    ("changed", "field"),
    [({"rule": "no_such"}, "rule"), ({"for_s": 1}, "for_s"), ({"for_s": "x"}, "for_s"), ({"rule": None}, "rule")],
)
def test_rest_names_the_field_that_is_wrong(operator, changed, field):
    asked = {"rule": "node_silent", "for_s": 600, **changed}
    answer = operator.post("/api/v1/alert-silences/", asked, content_type="application/json")
    assert answer.status_code == 400
    assert field in [error["field"] for error in answer.json()["errors"]]

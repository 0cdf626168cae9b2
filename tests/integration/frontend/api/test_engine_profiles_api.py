"""Measured profiles over REST: brought in as rows or CSV, published, withdrawn, downloaded."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.test import Client

from pools.models import AuditEntry, EngineProfile
from scheduler.operations import engine_profiles
from tests.fakes.engine_profiles import GPU, rows

pytestmark = pytest.mark.django_db
PATH = "/api/v1/engine-profiles/"


@pytest.fixture
def admin(redis_client) -> Client:
    client = Client()
    client.force_login(get_user_model().objects.create_superuser("admin", password="secret"))
    return client


def post(client: Client, path: str = "", **body: Any) -> Any:
    return client.post(f"{PATH}{path}", json.dumps(body), content_type="application/json")


def test_profiles_come_in_as_rows_and_are_published(admin):
    made = post(admin, rows=rows())
    assert made.status_code == 201, made.content
    (profile,) = made.json()["profiles"]
    assert (profile["gpu_type"], profile["points"], profile["published_at"]) == (GPU, 21, None)
    again = post(admin, rows=rows())
    assert (again.status_code, again.json()["created"]) == (200, 0)
    done = post(admin, f"{profile['id']}/publish/").json()
    assert done["published_at"]
    assert (done["time_ratio"], done["power_ratio"]) == pytest.approx((1.25, 0.9))
    assert set(AuditEntry.objects.values_list("channel", flat=True)) == {"api"}
    assert post(admin, f"{profile['id']}/withdraw/").json()["published_at"] is None


def test_csv_comes_in_published_and_goes_out_again(admin):
    engine_profiles.bring_in(engine_profiles.Actor(), rows())
    text = admin.get(f"{PATH}{EngineProfile.objects.get().pk}/csv/")
    assert text["Content-Disposition"].endswith('.csv"')
    made = post(admin, csv=text.content.decode(), publish=True)
    assert (made.status_code, made.json()["created"]) == (200, 0)
    assert EngineProfile.objects.get().published_at is not None
    (row,) = admin.get(PATH, {"gpu_type": GPU, "published_after": "2020-01-01T00:00:00Z"}).json()["results"]
    assert "time_ratio" not in row


def test_a_wrong_row_is_named_by_number_and_field(admin):
    given = rows()
    given[3] = {**given[3], "t_s": "fast"}
    answer = post(admin, rows=given)
    assert answer.status_code == 400
    (error,) = answer.json()["errors"]
    assert error["field"] == "t_s"
    assert "row 4" in error["detail"]
    assert not EngineProfile.objects.exists()
    assert post(admin).json()["errors"][0]["field"] == "rows"
    assert post(admin, csv='"a', rows=rows()).status_code == 400
    assert post(admin, csv="a,b\n1,2").json()["errors"][0]["field"] == "model"


def test_a_viewer_only_reads(admin, client):
    client.force_login(get_user_model().objects.create_user("guest"))
    assert post(client, rows=rows()).status_code == 403

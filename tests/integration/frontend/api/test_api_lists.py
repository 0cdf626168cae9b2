"""The REST API's lists: one declarative case for each."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from django.contrib.auth import get_user_model
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from scheduler.models import Decision
from telemetry.models import RequestRecord
from tests.fakes import seed

pytestmark = pytest.mark.django_db
SESSION_QUERIES = 3  # the session, its user, and the user's role


@pytest.fixture(autouse=True)
def _nothing_counted(redis_client) -> None:
    """Rate limits begin anew with each test."""


@pytest.fixture(scope="module")
def seeded(shared_rows) -> seed.Seeded:
    return seed.everything(minutes=4, rps=0.5)


@pytest.fixture
def api() -> Client:
    client = Client()
    client.force_login(get_user_model().objects.create_superuser("admin", password="secret"))
    return client


class ListCase:
    """What every list must do: need a session, page, stay within its budget, be read-only, give one by its key."""

    path: ClassVar[str]
    key: ClassVar[str] = "id"
    budget: ClassVar[int]  # queries of a page, however many rows are on it
    fields: ClassVar[set[str]]  # some that must be there
    filters: ClassVar[dict[str, str]] = {}  # a filter that leaves something
    refused: ClassVar[dict[str, str]] = {}
    read_only: ClassVar[bool] = True

    def get(self, api: Client, **query: Any) -> list[dict[str, Any]]:
        answer = api.get(f"/api/v1/{self.path}/", query)
        assert answer.status_code == 200, answer.content
        results: list[dict[str, Any]] = answer.json()["results"]
        return results

    def test_list_is_refused_when_nobody_is_signed_in(self, client):
        answer = client.get(f"/api/v1/{self.path}/")
        assert answer.status_code == 401
        assert answer.headers["Content-Type"] == "application/problem+json"

    def test_list_is_paged_with_its_fields(self, api, seeded):
        (row,) = self.get(api, limit=1)
        assert self.fields <= set(row)
        assert len(self.get(api, limit=3)) == 3
        assert api.get(f"/api/v1/{self.path}/?limit=1").json()["next"]

    def test_queries_do_not_grow_with_rows(self, api, seeded):
        for limit in (1, 50):
            with CaptureQueriesContext(connection) as queries:
                self.get(api, limit=limit)
            assert len(queries) <= self.budget + SESSION_QUERIES, [q["sql"][:90] for q in queries]

    def test_one_is_found_by_its_key(self, api, seeded):
        (row,) = self.get(api, limit=1)
        path = f"/api/v1/{self.path}/{row[self.key]}/" if self.read_only else row["url"]
        found = api.get(path)
        assert found.status_code == 200
        assert row.items() <= found.json().items()
        assert api.get(path, headers={"If-None-Match": found.headers["ETag"]}).status_code == 304
        (field,) = api.get(path, {"fields": self.key}).json().items()
        assert field == (self.key, row[self.key])

    def test_writing_is_refused_when_one_may_only_look(self, client, api):
        if self.read_only:
            assert api.post(f"/api/v1/{self.path}/", "{}", content_type="application/json").status_code in (400, 405)
        client.force_login(get_user_model().objects.create_user("viewer", password="secret"))
        answer = client.post(f"/api/v1/{self.path}/", "{}", content_type="application/json")
        assert answer.status_code == 403
        assert "viewer" in answer.json()["detail"]

    def test_parameter_that_nobody_knows_is_an_error(self, api):
        answer = api.get(f"/api/v1/{self.path}/", {"colour": "green"})
        assert answer.status_code == 400
        assert answer.json()["errors"][0]["field"] == "colour"

    def test_filters_keep_what_fits_and_refuse_what_cannot_be(self, api, seeded):
        for name, value in self.filters.items():
            rows = self.get(api, **{name: value})
            assert rows
            assert {row[name] for row in rows} == {value}
        for name, value in self.refused.items():
            assert api.get(f"/api/v1/{self.path}/", {name: value}).status_code == 400


class TestSites(ListCase):
    path, key, budget, read_only = "sites", "name", 1, False
    fields = {"name", "grid_zone", "pue", "power_cap_w"}

    def test_list_is_paged_with_its_fields(self, api, seeded):
        assert [row["name"] for row in self.get(api)] == ["location-1", "location-2", "location-3"]


class TestNodes(ListCase):
    path, key, budget, read_only = "nodes", "name", 2, False
    fields = {"name", "site", "gpus", "schedulable"}
    filters = {"site": "location-2"}
    refused = {"site": "a\0b"}


class TestPools(ListCase):
    path, budget, read_only = "pools", 1, False
    fields = {"service", "site", "partition", "request_class", "gpu_budget", "workers"}
    filters = {"service": "llama3-70b"}


class TestInstances(ListCase):
    path, key, budget = "instances", "uid", 2
    fields = {"uid", "pool", "node", "gpu_type", "tp", "state"}
    filters = {"state": "ready"}
    refused = {"state": "flying"}


class TestEpochs(ListCase):
    path, budget = "epochs", 1
    fields = {"kind", "service", "index", "period_s", "status"}
    filters = {"kind": "scale", "status": "applied"}
    refused = {"kind": "lunar"}


class TestDecisions(ListCase):
    path, budget = "decisions", 1
    fields = {"kind", "at", "reason", "summary", "epoch"}
    filters = {"kind": "clock"}
    refused = {"kind": "lunar"}

    def test_detail_has_what_the_list_leaves_out(self, api, seeded):
        (row,) = self.get(api, limit=1, kind="carbon")
        assert "alternatives" not in row
        assert api.get(f"/api/v1/decisions/{row['id']}/").json()["alternatives"]

    def test_cursor_walks_over_all_without_a_gap(self, api, seeded):
        seen: list[int] = []
        url: str | None = "/api/v1/decisions/?limit=7"
        while url:
            body = api.get(url).json()
            seen += [row["id"] for row in body["results"]]
            url = body["next"]
        assert len(seen) == len(set(seen)) == Decision.objects.count()


class TestRequests(ListCase):
    path, budget = "requests", 1
    fields = {"request_id", "started_at", "tenant", "status", "ttft_s", "slo_met"}
    filters = {"tenant": "acme", "status": "ok"}
    refused = {"status": "great"}

    def test_records_are_found_by_the_adapter_that_was_asked_for(self, api, seeded):
        record = RequestRecord.objects.first()
        RequestRecord.objects.filter(request_id=record.request_id).update(adapter="legal")
        assert [row["request_id"] for row in self.get(api, adapter="legal")] == [record.request_id]
        assert self.get(api, adapter="medical") == []

    def test_records_say_what_predicted_them_and_how_probable_their_class_was(self, api, seeded):
        record = RequestRecord.objects.first()
        known = RequestRecord.objects.filter(request_id=record.request_id)
        known.update(prediction_source="memory", class_probability=0.75)
        (row,) = self.get(api, prediction_source="memory")
        assert (row["request_id"], row["class_probability"]) == (record.request_id, 0.75)

    def test_one_is_found_by_its_key(self, api, seeded):
        """Not here: a record is found by when it began, not by its id alone."""
        (row,) = self.get(api, limit=1)
        assert api.get(f"/api/v1/requests/{row['request_id']}/").status_code == 404

    def test_use_is_the_prediction_until_it_is_settled(self, api, seeded):
        row = self.get(api, limit=1, status="ok")[0]
        path, then = f"/api/v1/requests/{row['request_id']}/use/", {"started_at": row["started_at"]}
        assert api.get(path, then).status_code == 404
        RequestRecord.objects.filter(request_id=row["request_id"]).update(predicted_energy_j=123.0)
        use = api.get(path, then).json()
        assert (use["measured"], use["energy_j"], use["carbon_gco2e"]) == (False, 123.0, None)

    def test_use_names_the_field_when_the_moment_is_missing_or_wrong(self, api, seeded):
        row = self.get(api, limit=1)[0]
        for query in ({}, {"started_at": "soon"}):
            answer = api.get(f"/api/v1/requests/{row['request_id']}/use/", query)
            assert answer.status_code == 400
            assert answer.json()["errors"][0]["field"] == "started_at"

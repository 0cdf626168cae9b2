"""Typed methods: what they send, what they return, how lists are read; and that the files are as the API is."""

from __future__ import annotations

import asyncio
import copy
import inspect
import json
import subprocess
import sys
from datetime import UTC, datetime
from decimal import Decimal
from uuid import UUID

import httpx2
import msgspec
import pytest

import scripts.client.__main__ as generator
from frontend.api.resources import documents
from greenserve.client import AsyncClient, Client, JobError, UnexpectedAnswerError, models, resources

from .fake_api import TOKEN, URL, FakeApi, answer, by_query

SITE = {
    "id": 3, "url": "/api/v1/sites/dublin/", "name": "dublin", "label": "Dublin", "rank": 0, "grid_zone": "IE",
    "market": "", "time_zone": "Europe/Dublin", "currency": "EUR", "pue": 1.2, "power_cap_w": None,
    "latitude": None, "longitude": None, "etag": '"a"',
}  # fmt: skip
BUDGET = {
    "id": 1, "url": "/api/v1/budgets/~1/", "tenant": "acme", "amount": "120.10", "currency": "EUR", "carbon_kg": None,
    "energy_kwh": None, "tokens": None, "refuses": False,
    "etag": '"b"',
}  # fmt: skip
JOB = {
    "uid": "0b6c1a8e-5f0e-4c0e-9d0b-0a3f2d4c5b6a", "kind": "report", "state": "running", "progress": 0.5, "error": "",
    "cancel_requested": False, "created_by": None, "created_at": "2026-11-02T08:30:00Z", "started_at": None,
    "finished_at": None, "parameters": {}, "result": None, "log": "",
}  # fmt: skip
LIGHT = """
import sys
import greenserve.client
heavy = {"django", "celery", "redis", "numpy", "rest_framework", "aiohttp", "polars", "rich", "click", "yaml"}
floors = {"frontend", "scheduler", "telemetry", "pools", "core"}
found = {name.partition(".")[0] for name in sys.modules} & (heavy | floors)
inner = {name for name in sys.modules if name.startswith("greenserve.") and not name.startswith("greenserve.client")}
sys.exit(f"{found} {inner}" if found or inner else 0)
"""


def client_of(fake: FakeApi) -> Client:
    client = Client(URL, TOKEN, inner=httpx2.MockTransport(fake.handle))
    client.transport.sleep = fake.waits_s.append
    return client


def page(rows, following=None):
    return {"next": following, "previous": None, "results": rows}


def test_files_are_as_the_api_is():
    assert generator.behind(documents.document()) == [], "run `make client`"


def test_a_change_of_the_api_is_noticed_when_the_files_are_not_made_again():
    changed = copy.deepcopy(documents.document())
    changed["components"]["schemas"]["Site"]["properties"]["altitude_m"] = {"type": "number"}
    assert generator.behind(changed) == ["models.py"]
    site = changed["paths"]["/api/v1/sites/"]["get"]
    site["parameters"].append({"name": "altitude_m", "in": "query", "schema": {"type": "number"}})
    assert generator.behind(changed) == ["models.py", "resources.py", "async_resources.py"]


def test_nothing_heavy_is_imported_with_the_client():
    done = subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_both_clients_have_the_same_methods():
    def methods(module):
        return {
            (group.removeprefix("Async"), name): list(inspect.signature(method).parameters)
            for group, kind in inspect.getmembers(module, inspect.isclass)
            if kind.__module__ == module.__name__
            for name, method in inspect.getmembers(kind, inspect.isfunction)
        }

    from greenserve.client import async_resources

    assert methods(resources) == methods(async_resources)
    assert len(methods(resources)) > 250


def test_row_is_typed_and_frozen():
    fake = FakeApi(answer(200, SITE), answer(200, BUDGET), answer(200, JOB))
    client = client_of(fake)
    site = client.sites.get("dublin")
    assert (site.name, site.power_cap_w) == ("dublin", None)
    with pytest.raises(AttributeError):
        site.name = "cork"
    assert client.budgets.get(1).amount == Decimal("120.10")
    job = client.jobs.get(JOB["uid"])
    assert job.created_at == datetime(2026, 11, 2, 8, 30, tzinfo=UTC)
    assert job.uid == UUID(JOB["uid"])
    assert [request.url.path for request in fake.requests] == [
        "/api/v1/sites/dublin/",
        "/api/v1/budgets/~1/",
        f"/api/v1/jobs/{JOB['uid']}/",
    ]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [({"pue": "1.2"}, "pue"), ({"name": None}, "name"), ({"label": ...}, "label")],
)
def test_error_names_the_field_when_an_answer_is_not_as_the_types_say(wrong, words):
    body = {name: value for name, value in (SITE | wrong).items() if value is not ...}
    with pytest.raises(UnexpectedAnswerError, match=words):
        client_of(FakeApi(answer(200, body))).sites.get("dublin")


def test_time_without_a_zone_is_not_taken_for_one():
    with pytest.raises(UnexpectedAnswerError, match="timezone"):
        client_of(FakeApi(answer(200, JOB | {"created_at": "2026-11-02T08:30:00"}))).jobs.get(JOB["uid"])


def test_fields_that_a_later_version_adds_are_passed_over():
    assert client_of(FakeApi(answer(200, SITE | {"altitude_m": 3}))).sites.get("dublin").id == 3


def test_change_sends_the_etag_and_only_what_is_given():
    fake = FakeApi(answer(200, SITE))
    client_of(fake).sites.change("dublin", etag='"a"', power_cap_w=None, pue=1.3)
    (request,) = fake.requests
    assert (request.method, request.headers["If-Match"]) == ("PATCH", '"a"')
    assert json.loads(request.content) == {"power_cap_w": None, "pue": 1.3}


def test_decimals_keep_their_digits_when_they_are_sent():
    fake = FakeApi(answer(201, BUDGET))
    client_of(fake).budgets.create(tenant="acme", amount=Decimal("1234567890.10"), currency="EUR")
    assert json.loads(fake.requests[0].content)["amount"] == "1234567890.10"


def test_filters_are_sent_as_the_api_reads_them_and_nothing_else():
    fake = FakeApi(answer(200, page([])))
    client = client_of(fake)
    assert list(client.nodes.list(site="dublin", schedulable=True, ordering="-name", page_size=7)) == []
    at = datetime(2026, 11, 2, tzinfo=UTC)
    assert list(client.decisions.list(at_after=at, pool=3)) == []
    sent = [dict(request.url.params) for request in fake.requests]
    assert sent[0] == {"site": "dublin", "schedulable": "true", "ordering": "-name", "limit": "7"}
    assert sent[1] == {"at_after": "2026-11-02T00:00:00+00:00", "pool": "3", "limit": "500"}


def test_list_follows_cursors_and_keeps_to_its_own_address_when_links_name_another_host():
    pages = {
        None: page([SITE], "https://inside.example.org/api/v1/sites/?cursor=two&limit=500&currency=EUR"),
        "two": page([SITE | {"id": 4}, SITE | {"id": 5}], "http://x/api/v1/sites/?cursor=three%3D"),
        "three=": page([SITE | {"id": 6}]),
    }
    fake = FakeApi(httpx2.Response(500))
    fake.handle = lambda request: fake.requests.append(request) or by_query("cursor", pages)(request)
    client = client_of(fake)
    rows = client.sites.list(currency="EUR")
    assert [row.id for row in rows] == [3, 4, 5, 6]
    assert [row.id for row in rows] == [3, 4, 5, 6]  # it may be read again
    assert {request.url.host for request in fake.requests} == {"greenserve.test"}
    assert {request.url.params["currency"] for request in fake.requests} == {"EUR"}


def test_rows_come_page_by_page_when_they_are_asked_for():
    fake = FakeApi(answer(200, page([SITE], "http://x/?cursor=two")))
    rows = iter(client_of(fake).sites.list())
    assert fake.requests == []
    next(rows)
    assert len(fake.requests) == 1


def test_first_row_is_asked_for_alone():
    fake = FakeApi(answer(200, page([SITE])), answer(200, page([])))
    client = client_of(fake)
    first = client.sites.list(name="dublin").first()
    assert first is not None
    assert first.id == 3
    assert client.sites.list(name="cork").first() is None
    assert [request.url.params["limit"] for request in fake.requests] == ["1", "1"]


def test_list_ends_with_an_error_when_a_link_leads_nowhere():
    same = answer(200, page([SITE], "http://x/?cursor=one"))
    with pytest.raises(UnexpectedAnswerError, match="leads nowhere"):
        list(client_of(FakeApi(same)).sites.list())
    with pytest.raises(UnexpectedAnswerError, match="leads nowhere"):
        list(client_of(FakeApi(answer(200, page([SITE], "http://x/")))).sites.list())


@pytest.mark.parametrize(
    ("key", "path"),
    [("dublin", "dublin"), (3, "~3"), ("~3", "~3"), ("a b", "a%20b"), ("a/b", "a%2Fb"), ("Ä?#", "%C3%84%3F%23")],
)
def test_key_is_one_part_of_the_path(key, path):
    fake = FakeApi(answer(204))
    client_of(fake).sites.delete(key, etag='"a"')
    assert fake.requests[0].url.raw_path == f"/api/v1/sites/{path}/".encode()


@pytest.mark.parametrize("key", ["", ".", ".."])
def test_key_is_refused_when_it_would_name_another_address(key):
    fake = FakeApi(answer(204))
    with pytest.raises(ValueError, match="names no row"):
        client_of(fake).sites.delete(key, etag='"a"')
    assert fake.requests == []


def test_trace_is_sent_as_a_form_with_the_same_bytes_in_each_attempt():
    study = next(iter(documents.document()["paths"]["/api/v1/studies/"]["post"]["responses"].values()))
    example = study["content"]["application/json"]["example"]
    fake = FakeApi(httpx2.ReadError("lost"), answer(202, example))
    client_of(fake).studies.create_with_trace(b"TIMESTAMP,a,b\n", base="fleet", runs=["freesh"])
    first, second = fake.requests
    for request in (first, second):
        assert request.headers["Content-Type"].startswith("multipart/form-data; boundary=")
        assert b'name="study"\r\n\r\n{"base":"fleet","runs":["freesh"]}' in request.content
        assert b"TIMESTAMP,a,b\n" in request.content
    assert first.headers["Idempotency-Key"] == second.headers["Idempotency-Key"]


def test_wait_returns_the_job_when_it_is_done_and_raises_when_it_failed_or_takes_too_long():
    fake = FakeApi(answer(200, JOB), answer(200, JOB | {"state": "done", "result": {"id": 1}}))
    assert client_of(fake).jobs.wait(JOB["uid"], every_s=0.001).result == {"id": 1}
    assert len(fake.requests) == 2
    with pytest.raises(JobError, match="failed: no disk") as error:
        client_of(FakeApi(answer(200, JOB | {"state": "failed", "error": "no disk"}))).jobs.wait(JOB["uid"])
    assert error.value.state == "failed"
    with pytest.raises(JobError, match=r"running after 0.01 s, at 50%"):
        client_of(FakeApi(answer(200, JOB))).jobs.wait(JOB["uid"], timeout_s=0.01, every_s=0.005)


def test_async_client_reads_pages_waits_for_jobs_and_first_rows():
    pages = {None: page([SITE], "http://x/?cursor=two"), "two": page([SITE | {"id": 4}])}

    async def handle(request: httpx2.Request) -> httpx2.Response:
        if "jobs" in request.url.path:
            return answer(200, JOB | {"state": "done"})
        return by_query("cursor", pages)(request)

    async def run():
        async with AsyncClient(URL, TOKEN, inner=httpx2.MockTransport(handle)) as client:
            rows = [row.id async for row in client.sites.list()]
            plain = [row["id"] async for row in client.rows("sites/", currency="EUR")]
            first = await client.sites.list().first()
            job = await client.jobs.wait(JOB["uid"])
            return rows, plain, first, job, await client.call("GET", "sites/dublin/")

    rows, plain, first, job, called = asyncio.run(run())
    assert rows == plain == [3, 4]
    assert first is not None
    assert (first.id, job.state) == (3, "done")
    assert called["next"] == "http://x/?cursor=two"


def test_each_example_of_an_answer_is_of_the_type_that_the_client_has_for_it():
    seen = 0
    for path, operations in documents.document()["paths"].items():
        for verb, operation in operations.items():
            for answer_of in operation["responses"].values():
                content = answer_of.get("content", {}).get("application/json", {})
                kind = getattr(models, content.get("schema", {}).get("$ref", "").rpartition("/")[2], None)
                if kind is not None:
                    assert msgspec.convert(content["example"], kind), (verb, path)
                    seen += 1
    assert seen > 90


def test_each_component_of_answers_is_a_struct_that_can_be_decoded():
    """Names of other types in annotations are looked up when something is decoded first: here for all of them."""
    kinds = [kind for _, kind in inspect.getmembers(models, inspect.isclass) if issubclass(kind, msgspec.Struct)]
    assert len(kinds) > 60
    for kind in kinds:
        msgspec.json.Decoder(kind)

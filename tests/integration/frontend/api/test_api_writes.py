"""What one can change over REST: with rights, ETags, idempotency keys, lists, and errors that say which field."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from pools import wire
from pools.access import people
from pools.access.audit import Actor
from pools.models import ApiKey, AuditEntry, Job, Pool, Service, Site
from scheduler.batches import batch_keys
from scheduler.models import IdempotentAnswer
from telemetry.models import CarbonFeed, ForecastScore
from tests.fakes import seed

pytestmark = pytest.mark.django_db
SITE = {"name": "oslo", "label": "Oslo", "grid_zone": "NO1", "time_zone": "Europe/Oslo", "pue": 1.1, "currency": "EUR"}


def nested(levels):
    """A list in a list in a list."""
    found = "x"
    for _ in range(levels):
        found = [found]
    return found


VERSION = {"site": "location-1", "valid_from": "2026-01-01T00:00:00Z", "source": "a test", "version": "1"}
PROFILE = {
    **{"model_card": "Llama3-70B", "gpu_type": "A100-80GB", "tp": 4, "max_rps": 2.0, "power_w": 1200.0},
    **{"kind": "measured", "source": "a test", "request_class": "freesh-a/SS"},
}


@pytest.fixture(autouse=True)
def _nothing_counted(redis_client) -> None:
    """Rate limits begin anew with each test."""


class Api:
    """A client that speaks JSON."""

    def __init__(self, user: Any) -> None:
        self.client = Client()
        self.client.force_login(user)

    def __call__(self, method: str, path: str, body: Any = None, **headers: str):
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        data = {} if body is None else {"data": json.dumps(body), "content_type": "application/json"}
        return self.client.generic(method, f"/api/v1/{path}", headers=named, **data)


def person(role: str, sites: tuple[Site, ...] = ()) -> Any:
    user, _ = people.create(Actor(), f"{role}-{len(sites)}", role, sites, password="a long pass phrase")
    return user


@pytest.fixture
def api() -> Api:
    return Api(person("administrator"))


def problem(answer: Any) -> dict[str, Any]:
    assert answer.headers["Content-Type"] == "application/problem+json", answer.content
    body: dict[str, Any] = answer.json()
    assert body["status"] == answer.status_code
    assert body["request_id"] == answer.headers["X-Request-ID"]
    return body


def test_site_is_made_changed_and_deleted_with_a_trail(api):
    made = api("POST", "sites/", SITE, X_Request_ID="made-here")
    assert made.status_code == 201, made.content
    assert (made.headers["Location"], made.headers["X-Request-ID"]) == ("/api/v1/sites/oslo/", "made-here")
    path = "sites/oslo/"
    assert problem(api("PATCH", path, {"pue": 1.2}))["status"] == 428
    assert problem(api("PATCH", path, {"pue": 1.2}, If_Match='"old"'))["status"] == 412
    changed = api("PATCH", path, {"pue": 1.2}, If_Match=made.headers["ETag"])
    assert (changed.status_code, changed.json()["pue"]) == (200, 1.2)
    assert changed.headers["ETag"] != made.headers["ETag"]
    assert api("GET", path, If_None_Match=changed.headers["ETag"]).status_code == 304
    assert api("DELETE", path, If_Match=changed.headers["ETag"]).status_code == 204
    assert api("GET", path).status_code == 404
    trail = list(AuditEntry.objects.filter(kind="site").order_by("id"))
    assert [entry.action for entry in trail] == ["created", "changed", "deleted"]
    assert {entry.channel for entry in trail} == {"api"}
    assert trail[0].request_id == "made-here"
    listed = api("GET", "audit/?kind=site&action=changed").json()["results"]
    assert [(row["before"]["pue"], row["after"]["pue"]) for row in listed] == [(1.1, 1.2)]


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"pue": 0.5}, "pue"),
        ({"pue": "nan"}, "pue"),
        ({"currency": "euro"}, "currency"),
        ({"time_zone": "Europe/Atlantis"}, "time_zone"),
        ({"colour": "green"}, "colour"),
        ({"label": None}, "label"),
        ({"label": "a\0b"}, "label"),
    ],
)
def test_error_names_the_field_when_a_site_is_wrong(api, changed, field):
    body = problem(api("POST", "sites/", {**SITE, **changed}))
    assert body["status"] == 400
    assert field in {error["field"] for error in body["errors"]}
    assert not Site.objects.exists()


def test_same_answer_comes_again_when_a_key_is_sent_again(api):
    first = api("POST", "sites/", SITE, Idempotency_Key="k1")
    again = api("POST", "sites/", SITE, Idempotency_Key="k1")
    assert (first.status_code, again.status_code) == (201, 201)
    assert again.json() == first.json()
    assert again.headers["Idempotent-Replayed"] == "true"
    assert Site.objects.count() == 1
    assert problem(api("POST", "sites/", {**SITE, "name": "bergen"}, Idempotency_Key="k1"))["status"] == 422
    assert problem(api("POST", "sites/", {**SITE, "pue": 0}, Idempotency_Key="k2"))["status"] == 400
    assert api("POST", "sites/", {**SITE, "name": "bergen"}, Idempotency_Key="k2").status_code == 201
    assert IdempotentAnswer.objects.count() == 2


def test_list_is_made_and_changed_whole_or_not_at_all(api):
    names = ("oslo", "bergen", "bodo")
    wrong = [{**SITE, "name": name} for name in names]
    wrong[1]["pue"] = 0.2
    body = problem(api("POST", "sites/", wrong))
    assert [error["field"] for error in body["errors"]] == ["1.pue"]
    assert not Site.objects.exists()
    rows = api("POST", "sites/", [{**SITE, "name": name} for name in names]).json()
    items = [{"id": row["id"], "etag": row["etag"], "label": row["name"].title()} for row in rows]
    body = problem(api("PATCH", "sites/", [items[0], {**items[1], "etag": "stale"}, {**items[2], "id": 0}]))
    assert [error["field"] for error in body["errors"]] == ["1.etag", "2.id"]
    assert set(Site.objects.values_list("label", flat=True)) == {"Oslo"}
    assert [row["label"] for row in api("PATCH", "sites/", items).json()] == ["Oslo", "Bergen", "Bodo"]


def test_consequences_are_returned_and_nothing_is_stored_when_it_is_only_asked(api):
    seeded = seed.fleet()
    asked = {"service": "llama3-70b", "kind": "tpot", "objective_s": 0.0001}
    result = api("POST", f"slos/~{seeded.service.slos.get(kind='tpot').pk}/validate/", asked).json()
    assert result["valid"] is True
    assert "cannot be met" in result["consequences"][0]["text"]
    assert seeded.service.slos.get(kind="tpot").objective_s == 0.15
    result = api("POST", "sites/validate/", {**SITE, "name": "location-1"}).json()
    assert result["valid"] is False
    assert result["consequences"][0]["field"] == "name"


def test_consequences_of_several_are_returned_in_turn_and_none_is_stored(api):
    seeded = seed.fleet()
    site = seeded.sites[0]
    asked = [{"id": site.pk, "power_cap_w": 5}, SITE, SITE, {"id": 999_999, "pue": 1.1}, {"name": "x", "pue": 0.1}]
    results = api("POST", "sites/validate/", asked).json()
    assert [result["valid"] for result in results] == [True, True, False, False, False]
    assert "when idle" in results[0]["consequences"][0]["text"]
    assert [result["consequences"][0]["field"] for result in results[2:4]] == ["name", "id"]
    assert list(Site.objects.filter(power_cap_w=5)) == []
    assert not Site.objects.filter(name="oslo").exists()
    assert not AuditEntry.objects.filter(kind="site").exists()
    assert problem(api("POST", "sites/validate/", []))["status"] == 400


def test_each_error_names_its_field_and_what_would_do(api):
    seed.fleet()
    for method, path, body, field, words in (
        ("POST", "sites/", {**SITE, "power_cap_w": -5}, "power_cap_w", "must be above 0"),
        ("POST", "sites/", {**SITE, "pue": 1e30}, "pue", "less than or equal to 10"),
        ("POST", "sites/", {**SITE, "power_cap_w": 1e12}, "power_cap_w", "must be at most 1e+10"),
        ("POST", "sites/", {**SITE, "latitude": 59.9}, "longitude", "is needed with latitude"),
        ("POST", "sites/", {**SITE, "latitude": 95, "longitude": 10}, "latitude", "must be at most 90"),
        *(
            ("POST", "slos/", {"service": "llama3-70b", "kind": "e2e", "objective_s": value}, "objective_s", words)
            for value, words in ((1e9, "must be at most 86,400"), (-1, "must be above 0"))
        ),
        ("POST", "pues/", {**VERSION, "value": 1000}, "value", "at most 10"),
        ("POST", "tariffs/", {**VERSION, "currency": "USD", "price_per_kwh": 1e12}, "price_per_kwh", "at most 1e+06"),
        ("POST", "profiles/", {**PROFILE, "max_rps": 1e12}, "max_rps", "must be at most 100,000"),
        ("POST", "profiles/", {**PROFILE, "power_w": 1e9}, "power_w", "must be at most 1e+06"),
        ("POST", "feeds/", {"site": "location-1", "provider": "static_csv"}, "config", "file is missing"),
        *(
            (
                "POST",
                "feeds/",
                {"site": "location-1", "provider": "static_csv", "config": {"file": file}},
                "config",
                words,
            )
            for file, words in (("/etc/shadow", "GREENSERVE_FEEDS_DIR"), ("os:environ", "no name of a feed's file"))
        ),
        *(
            ("POST", "feeds/", {"site": "location-1", "provider": "eia", "config": {"base_url": url}}, "config", words)
            for url, words in (
                ("https://127.0.0.1/", "GREENSERVE_CARBON_HOSTS"),
                ("https://api.eia.gov@evil.example/", "more than a host and a path"),
                ("https://metadata.google.internal/", "not allowed"),
                ("http://api.eia.gov/", "https on port 443 only"),
            )
        ),
        ("POST", "feeds/", {"site": "location-1", "provider": "eia", "config": [1]}, "config", "Write an object"),
        *(
            ("POST", "feeds/", {"site": "location-1", "provider": "eia", "config": {"zone": value}}, "config", words)
            for value, words in ((nested(60), "more than 50 levels"), ("PJM\0", "has a NUL character"))
        ),
        ("GET", "nodes/?schedulable=maybe", None, "schedulable", "give one of: true, false"),
        ("GET", "jobs/?state=lost", None, "state", "queued, running, done"),
        ("GET", "decisions/?at_after=yesterday", None, "at_after", "such as 2026-11-02T08:30:00Z"),
        ("GET", "series/power/?format=xml", None, "format", "give one of: json, csv, arrow"),
        ("GET", "series/gpu/", None, "gpu", "give the uuid of one"),
        ("GET", "series/gpu/?gpu=none", None, "gpu", "no GPU of this uuid"),
        ("POST", "webhooks/", {"name": "w", "url": "https://127.0.0.1/", "events": ["job.ended"]}, "url", "PRIVATE=1"),
    ):
        answer = problem(api(method, path, body) if body else api(method, path))
        assert answer["status"] == 400, path
        assert answer["errors"][0]["field"] == field
        assert words in answer["errors"][0]["detail"]
    assert problem(api("GET", "decisions/999999/"))["detail"] == "There is no decision 999999 that you may see."


def test_a_feed_shows_its_newest_back_test_when_there_were_more(api):
    feed = CarbonFeed.objects.create(site=Site.objects.create(name="bergen"), provider="gb_carbon_intensity", zone="GB")
    run = {"step_s": 3_600.0, "steps": 24, "origins": 24, "samples": 576, "quantile": 0.5, "chosen": False}
    for hours, model, pinball in ((9, "harmonic", 1.0), (3, "profile", 2.5), (3, "template", 2.0)):
        at = timezone.now() - timedelta(hours=hours)
        at = at.replace(minute=0, second=0, microsecond=0)
        ForecastScore.objects.create(feed=feed, model=model, pinball=pinball, scored_at=at, regret=0.5, **run)
    row = api("GET", f"feeds/~{feed.pk}/").json()
    assert [(one["model"], one["regret"], one["coverage"]) for one in row["forecast_scores"]] == [
        ("template", 0.5, None),
        ("profile", 0.5, None),
    ]
    changed = api("PATCH", f"feeds/~{feed.pk}/", {"source": "another"}, If_Match=row["etag"])
    assert changed.status_code == 200, changed.content
    assert changed.json()["forecast_scores"] == row["forecast_scores"]
    assert api("GET", "feeds/").json()["results"][0]["forecast_scores"] == row["forecast_scores"]


def test_a_feed_is_asked_again_soon_when_what_was_wrong_is_changed(api):
    seed.fleet()
    later = timezone.now() + timedelta(hours=1)
    feed = {"site": "location-1", "provider": "static_csv", "config": {"file": "intensity.csv"}}
    assert api("POST", "feeds/", feed).status_code == 201
    feed = CarbonFeed.objects.get()
    CarbonFeed.objects.filter(pk=feed.pk).update(last_tried_at=timezone.now(), failures=5, cool_down_until=later)
    row = api("GET", f"feeds/~{feed.pk}/").json()
    assert api("PATCH", f"feeds/~{feed.pk}/", {"source": row["source"]}, If_Match=row["etag"]).status_code == 200
    feed.refresh_from_db()
    assert feed.cool_down_until == later  # nothing was changed
    row = api("GET", f"feeds/~{feed.pk}/").json()
    assert api("PATCH", f"feeds/~{feed.pk}/", {"source": "another"}, If_Match=row["etag"]).status_code == 200
    feed.refresh_from_db()
    assert (feed.last_tried_at, feed.failures, feed.cool_down_until) == (None, 0, None)


def test_deletion_names_what_holds_it_when_something_does(api):
    seed.fleet()
    site = api("GET", "sites/location-1/")
    body = problem(api("DELETE", "sites/location-1/", If_Match=site.headers["ETag"]))
    assert body["status"] == 409
    assert "main" in body["detail"]


def test_version_is_entered_and_none_changed_when_a_tariff_is_patched(api):
    api("POST", "sites/", SITE)
    tariff = {"site": "oslo", "currency": "EUR", "price_per_kwh": 0.1, "source": "bill", "version": "1"}
    made = api("POST", "tariffs/", {**tariff, "valid_from": "2026-01-01T00:00:00Z"})
    assert made.status_code == 201, made.content
    changed = api("PATCH", made.json()["url"][8:], {"price_per_kwh": 0.2, "version": "2"}, If_Match=made.json()["etag"])
    assert changed.status_code == 201
    assert changed.json()["id"] != made.json()["id"]
    assert api("GET", made.json()["url"][8:]).json()["price_per_kwh"] == 0.1


def test_right_and_site_bound_what_a_person_sees_and_changes():
    seeded = seed.everything(minutes=2, rps=0.2)
    own_pools = {pool.pk for pool in seeded.pools if pool.site == seeded.sites[0]}
    here = Api(person("operator", (seeded.sites[0],)))
    assert [row["name"] for row in here("GET", "sites/").json()["results"]] == ["location-1"]
    assert {row["site"] for row in here("GET", "pools/").json()["results"]} == {"location-1"}
    assert here("GET", "sites/location-2/").status_code == 404
    assert {row["pool"] for row in here("GET", "decisions/?limit=500").json()["results"]} <= {None, *own_pools}
    own = here("GET", "sites/location-1/")
    assert here("PATCH", "sites/location-1/", {"rank": 7}, If_Match=own.headers["ETag"]).status_code == 200
    (error,) = problem(here("POST", "clusters/", {"site": "location-2", "name": "x"}))["errors"]
    assert (error["field"], error["detail"]) == ("site", "There is no site 'location-2'.")
    assert here("POST", "models/", {"name": "m", "max_model_len": 10}).status_code == 403
    finance = Api(person("finance"))
    assert finance("POST", "sites/", SITE).status_code == 403
    assert finance("GET", "audit/").status_code == 403
    assert Api(person("operator"))("POST", "tenants/", {"name": "t"}).status_code == 403


def test_token_has_its_rights_and_is_counted_by_itself(settings):
    user = person("administrator")
    _, secret = people.new_token(Actor(), user, "reader", ["view"])
    client, bearer = Client(), {"Authorization": f"Bearer {secret}"}
    assert client.get("/api/v1/sites/", headers=bearer).status_code == 200
    refused = client.post("/api/v1/sites/", json.dumps(SITE), content_type="application/json", headers=bearer)
    assert refused.status_code == 403
    assert client.get("/api/v1/sites/", headers={"Authorization": "Bearer gs_wrong"}).status_code == 401
    settings.GREENSERVE_API_LIMITS = {"reads": 3, "writes": 3}
    answers = [client.get("/api/v1/sites/", headers=bearer) for _ in range(8)]  # two minutes' worth and more
    refused = next(answer for answer in answers if answer.status_code == 429)
    assert 1 <= int(refused.headers["Retry-After"]) <= 60
    assert problem(refused)["title"] == "Too Many Requests"
    assert answers[0].headers["RateLimit-Policy"] == '"reads";q=3;w=60'


def test_key_of_a_tenant_is_shown_once(api):
    api("POST", "tenants/", {"name": "acme"})
    made = api("POST", "keys/", {"tenant": "acme", "label": "ci"}, Idempotency_Key="one")
    assert made.status_code == 201, made.content
    assert made.json()["secret"].startswith("gs-")
    assert api("POST", "keys/", {"tenant": "acme", "label": "ci"}, Idempotency_Key="one").json()["secret"] is None
    assert "secret" not in api("GET", "keys/").json()["results"][0]
    assert made.json()["secret"] not in json.dumps(list(IdempotentAnswer.objects.values("body")))
    assert api("DELETE", f"keys/{made.json()['id']}/").status_code == 204
    assert ApiKey.objects.get().revoked_at is not None


def test_tenants_share_no_prefixes_unless_it_is_said_of_both(api):
    for name in ("acme", "other"):
        api("POST", "tenants/", {"name": name})
        api("POST", "keys/", {"tenant": name, "label": "ci"})
    salts = [key.cache_salt for key in batch_keys.messages(ApiKey.objects.order_by("pk"))]
    assert len(set(salts)) == 2
    assert [len(bytes.fromhex(salt)) for salt in salts] == [32, 32]
    etag = api("GET", "tenants/acme/").headers["ETag"]
    assert api("PATCH", "tenants/acme/", {"shares_prefixes": True}, If_Match=etag).status_code == 200
    assert [key.cache_salt for key in batch_keys.messages(ApiKey.objects.order_by("pk"))] == ["", salts[1]]


def test_a_key_is_limited_to_services_addresses_and_rates(api):
    api("POST", "tenants/", {"name": "acme", "requests_per_minute": 600})
    assert api("GET", "tenants/acme/").json()["requests_per_minute"] == 600
    narrowed = {"addresses": ["::ffff:192.0.2.0/120", "2001:db8::/48"], "tokens_per_minute": 1000}
    made = api("POST", "keys/", {"tenant": "acme", "label": "ci"} | narrowed).json()
    assert made["addresses"] == ["192.0.2.0/24", "2001:db8::/48"]
    (sent,) = batch_keys.messages(ApiKey.objects.all())
    assert sent.addresses == ["192.0.2.0/24", "2001:db8::/48"]
    assert (sent.limits, sent.tenant_limits) == (wire.RequestLimits(None, 1000), wire.RequestLimits(600))
    path = f"keys/{made['id']}/"
    changed = api("PATCH", path, {"addresses": None, "tokens_per_minute": None, "concurrent_requests": 3}).json()
    assert (changed["addresses"], changed["tokens_per_minute"], changed["concurrent_requests"]) == (None, None, 3)
    assert AuditEntry.objects.get(action="update").after["concurrent_requests"] == 3
    for wrong in (
        {"addresses": ["192.0.2.1/24"]},
        {"addresses": []},
        {"services": ["none"]},
        {"services": []},
        {"requests_per_minute": 0},
        {"concurrent_requests": 10**9},
        {"expires_at": "2020-01-01T00:00:00Z"},
        {"tenant": "birch"},
    ):
        refused = api("PATCH", path, wrong)
        assert refused.status_code == 400, wrong
        assert next(iter(wrong)) in json.dumps(problem(refused)["errors"])
    assert api("DELETE", path).status_code == 204
    assert api("PATCH", path, {"label": "late"}).status_code == 409


def test_job_is_read_and_stopped(api):
    job = Job.objects.create(kind="report")
    assert api("GET", f"jobs/{job.uid}/").json()["log"] == ""
    assert api("POST", f"jobs/{job.uid}/cancel/").json()["state"] == "cancelled"
    assert problem(api("POST", f"jobs/{job.uid}/cancel/"))["status"] == 409


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "nowhere/", None, 404),
        ("GET", "sites", None, 404),
        ("PUT", "sites/", {}, 405),
        ("GET", "sites/?limit=0", None, 400),
        ("GET", "sites/?cursor=x", None, 400),
        ("GET", "sites/?ordering=knobs", None, 400),
        ("GET", "sites/?fields=name,colour", None, 400),
        ("GET", "requests/?started_after=soon", None, 400),
        ("POST", "pools/", {"service": "none", "site": "none", "request_class": "none"}, 400),
    ],
)
def test_every_error_is_a_problem_document(api, method, path, body, status):
    assert problem(api(method, path, body))["status"] == status


def test_fault_of_ours_is_a_problem_without_its_cause(api, monkeypatch):
    def broken(*_: Any) -> Any:
        raise RuntimeError("a secret path")

    monkeypatch.setattr("frontend.api.resources.configure.everywhere", broken)
    body = problem(api("GET", "sites/"))
    assert body["status"] == 500
    assert "secret" not in json.dumps(body)


def test_body_that_is_no_json_is_a_problem(api):
    answer = api.client.post("/api/v1/sites/", "{", content_type="application/json")
    assert problem(answer)["status"] == 400
    assert problem(api.client.post("/api/v1/sites/", "a=1", content_type="text/plain"))["status"] == 415


def test_names_stand_for_rows_when_a_service_and_its_pool_are_made(api):
    seeded = seed.fleet()
    card = api("POST", "models/", {"name": "org/model", "max_model_len": 4096}).json()
    assert card["url"] == f"/api/v1/models/~{card['id']}/"
    made = api(
        "POST",
        "services/",
        {"name": "chat", "model_card": "org/model", "partition": "freesh-a", "partitions": ["freesh-a"]},
    )
    assert made.status_code == 201, made.content
    assert made.json()["partitions"] == ["freesh-a"]
    pool = api("POST", "pools/", {"service": "chat", "site": "location-1", "request_class": "freesh-a/SS"})
    assert pool.status_code == 201, pool.content
    there = Pool.objects.filter(service=Service.objects.get(name="chat"), site=seeded.sites[0])
    of_the_policy = {"ALL"}  # of greenserve's partition
    assert set(there.values_list("request_class__name", flat=True)) == {"SS", "SL", "LS", "LL"} | of_the_policy

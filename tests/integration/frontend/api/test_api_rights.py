"""Who may do what through REST: each resource by nine callers, from one table; then ids, fields, CSRF and hosts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from django.urls import NoReverseMatch, reverse

from frontend.api.urls import RESOURCES, urlpatterns
from pools.access import audit, people
from pools.models import AccessToken, ApiKey, AuditEntry, Cluster, Membership, Node, Pool, Site, Tenant
from scheduler.models import WebhookSubscription
from tests import representatives
from tests.fakes import seed
from tests.fakes.people import person

pytestmark = pytest.mark.django_db
SYSTEM = audit.Actor()
# What reading and changing needs; a resource that is not here fails the test.
LOOKED_AT = "sites clusters nodes gpu-types gpus models partitions classes profiles services slos adapters"
LOOKED_AT += (
    " pools feeds weather-feeds instances epochs decisions requests synthetic-history engine-profiles engine-residuals"
)
LOOKED_AT += " alerts alert-silences pauses overrides approvals studies trials"
PRICES = "tariffs gpu-rates pues embodied-factors instruments instrument-hours budgets report-schedules reports"
RIGHTS = {
    ("view", "operate"): LOOKED_AT,
    ("view", "finance"): PRICES,
    ("view", "administer"): "tenants",
    ("administer", "operate"): "audit",  # which has nothing to change
    ("administer", "administer"): "keys webhooks webhook-deliveries",
    ("view", "view"): "jobs",  # each kind says itself who may stop it
}
NEEDED = {kind: rights for rights, kinds in RIGHTS.items() for kind in kinds.split()}
VIEWS = {  # addresses that are no resource, with what reading needs; a POST there needs the right to operate
    "advice": ["llama3-70b"],
    "previews": [],
    "mode": ["llama3-70b"],
    "experiments": [],
    "experiment": ["common-sites"],
    "tenant-use": ["acme"],
    "tenant-bill": ["acme"],
    "offers": [],
    "overheads": [],
    "state-of-node": ["n1"],
    "shipped-gpu-types": [],
    "period-figures": [],
    "scenario": [],
    "series": ["power"],
    "schema": [],
    "docs": [],
}
# By caller: the rights that it has, and the status of a refusal.
CALLERS: dict[str, tuple[set[str], int]] = {
    "nobody": (set(), 401),
    "somebody without a role": (set(), 403),
    "viewer": ({"view"}, 403),
    "operator": ({"view", "operate"}, 403),
    "operator of another site": ({"view", "operate"}, 403),
    "finance": ({"view", "finance"}, 403),
    "administrator": ({"view", "operate", "finance", "administer"}, 403),
    "administrator's token to look": ({"view"}, 403),
    "tenant's key": (set(), 401),
}
QUICK = ("tenant's key", "viewer")  # who comes without a right, and with one
EACH = representatives.first(2, [*QUICK, *(c for c in CALLERS if c not in QUICK)], "240 requests for each caller")


@pytest.fixture(autouse=True)
def _unlimited(redis_client: Any, settings: Any) -> None:
    settings.GREENSERVE_API_LIMITS = {"reads": 1_000_000, "writes": 1_000_000}


def signed_in(role: str, *sites: Site, **options: Any) -> Client:
    client = Client(**options)
    client.force_login(person(role, sites=sites))
    return client


def another_site() -> Site:
    return Site.objects.create(name="elsewhere", label="Elsewhere", grid_zone="DE")


def bearer(secret: str) -> Client:
    return Client(headers={"authorization": f"Bearer {secret}"})


MAKE: dict[str, Callable[[], Client]] = {
    "nobody": Client,
    "somebody without a role": lambda: signed_in("none"),
    "viewer": lambda: signed_in("viewer"),
    "operator": lambda: signed_in("operator"),
    "operator of another site": lambda: signed_in("operator", another_site()),
    "finance": lambda: signed_in("finance"),
    "administrator": lambda: signed_in("administrator"),
    "administrator's token to look": lambda: bearer(
        people.new_token(SYSTEM, person("administrator"), "look", ["view"])[1]
    ),
    "tenant's key": lambda: bearer(people.new_key(SYSTEM, Tenant.objects.create(name="acme"), "shop")[1]),
}


def nobodys(kind: str) -> str:
    """Returns a key as that resource has them, of nothing: another would be of no resource's address."""
    keys = ("999999", "~999999", "00000000-0000-0000-0000-000000000000")
    return next(key for key in keys if re.fullmatch(RESOURCES[kind].lookup_value_regex, key))


def ask(client: Client, method: str, path: str, body: Any = None, **more: Any) -> Any:
    text = "" if body is None else json.dumps(body)
    return client.generic(method, f"/api/v1/{path}", text, content_type="application/json", **more)


def test_table_names_each_resource_and_address() -> None:
    assert set(NEEDED) == set(RESOURCES)
    names = {pattern.name for pattern in urlpatterns if not any(pattern.name.startswith(kind) for kind in RESOURCES)}
    nodes = {"nodes-join", "nodes-authority", "nodes-revoke"}  # test_joining.py, test_node_revocation.py
    assert names - {"nothing", *nodes} == set(VIEWS)
    assert set(MAKE) == set(CALLERS)
    assert len(CALLERS) == 9


@pytest.mark.parametrize("caller", EACH)
def test_each_resource_admits_who_has_the_right_and_refuses_the_others(caller: str) -> None:
    client, (held, refusal) = MAKE[caller](), CALLERS[caller]
    wrong = {}
    for kind, (reads, writes) in NEEDED.items():
        nothing = f"{kind}/{nobodys(kind)}/"
        for method, path, needed in (
            ("GET", f"{kind}/", reads),
            ("GET", nothing, reads),
            ("POST", f"{kind}/", writes),
            ("PATCH", nothing, writes),
            ("DELETE", nothing, writes),
        ):
            body = {"no_such_field": 1} if method == "POST" else None
            status = ask(client, method, path, body).status_code
            if needed not in held:
                right = status == refusal
            elif method == "POST":
                right = status in (400, 405)  # it may, but not so
            else:
                right = status == (200 if path == f"{kind}/" else status if status in (404, 405) else None)
            if not right:
                wrong[method, path] = status
    assert wrong == {}


@pytest.mark.parametrize("caller", EACH)
def test_each_other_address_admits_who_has_the_right_and_refuses_the_others(caller: str) -> None:
    client, (held, refusal) = MAKE[caller](), CALLERS[caller]
    for name, names in VIEWS.items():
        path = reverse(f"api:{name}", args=names).removeprefix("/api/v1/")
        for method, needed in (("GET", "view"), ("POST", "operate")):
            status = ask(client, method, path, {} if method == "POST" else None).status_code
            refused = status in (401, 403)
            assert refused == (needed not in held), (name, method, status)
            assert not refused or status == refusal, (name, method, status)


def test_revoked_expired_and_blocked_tokens_open_nothing() -> None:
    user = person("operator")
    secrets = [people.new_token(SYSTEM, user, name, ["view"])[1] for name in ("a", "b")]
    assert [ask(bearer(secret), "GET", "sites/").status_code for secret in secrets] == [200, 200]
    people.revoke_token(SYSTEM, AccessToken.objects.get(label="a"))
    assert [ask(bearer(secret), "GET", "sites/").status_code for secret in secrets] == [401, 200]
    people.set_active(SYSTEM, user, False)
    assert [ask(bearer(secret), "GET", "sites/").status_code for secret in secrets] == [401, 401]


def test_ids_of_others_answer_as_ids_that_nobody_has() -> None:
    seed.fleet()
    client = signed_in("operator", another_site())
    for kind, rows in (("nodes", Node.objects), ("pools", Pool.objects), ("clusters", Cluster.objects)):
        theirs = str(rows.values_list("pk", flat=True)[0])
        for method in ("GET", "PATCH", "DELETE"):
            found, unknown = (ask(client, method, f"{kind}/~{pk}/", {}) for pk in (theirs, "999999"))
            assert found.status_code == unknown.status_code == 404, (kind, method)
            assert found.json()["detail"].replace(theirs, "999999") == unknown.json()["detail"], (kind, method)
        assert rows.filter(pk=theirs).exists()


def test_fields_that_are_not_for_clients_change_nothing() -> None:
    client = signed_in("administrator")
    wrong = {}
    for kind, viewset in RESOURCES.items():
        if "post" in [method.lower() for method in viewset.http_method_names] and hasattr(viewset, "create"):
            answer = ask(client, "POST", f"{kind}/", {"role": "administrator"})
            named = [one["field"] for one in answer.json().get("errors", [])]
            if answer.status_code != 400 or "role" not in named:
                wrong[kind] = answer.status_code, named
    assert wrong == {}
    site = Site.objects.create(name="ashburn", label="Ashburn", grid_zone="US-PJM")
    tag = ask(client, "GET", "sites/ashburn/").headers["ETag"]
    change = {"id": 999, "url": "/elsewhere/", "etag": "mine", "label": "Renamed"}
    assert ask(client, "PATCH", "sites/ashburn/", change, headers={"if-match": tag}).status_code == 200
    assert Site.objects.get().pk == site.pk
    Tenant.objects.create(name="acme")
    mine = {"tenant": "acme", "key_hash": "0" * 64}
    assert ask(client, "POST", "keys/", mine).status_code == 400
    assert not ApiKey.objects.exists()
    assert not WebhookSubscription.objects.exists()
    assert set(Membership.objects.values_list("role", flat=True)) == {"administrator"}


def test_changes_by_session_need_the_token_of_the_page() -> None:
    client = signed_in("administrator", enforce_csrf_checks=True)
    for kind in RESOURCES:
        for method, path in (("POST", f"{kind}/"), ("DELETE", f"{kind}/{nobodys(kind)}/")):
            answer = ask(client, method, path, {})
            assert (answer.status_code, "CSRF" in answer.json()["detail"]) == (403, True), (method, path)
    assert client.post("/account/tokens/", {"label": "x"}).status_code == 403
    client.get("/account/")
    token = client.cookies["csrftoken"].value
    assert ask(client, "POST", "sites/", {"no_such_field": 1}, headers={"x-csrftoken": token}).status_code == 400
    secret = people.new_token(SYSTEM, person("operator"), "ci", ["operate"])[1]
    by_token = Client(enforce_csrf_checks=True, headers={"authorization": f"Bearer {secret}"})
    assert ask(by_token, "POST", "sites/", {"no_such_field": 1}).status_code == 400  # no browser sends it by itself


def test_requests_to_hosts_that_are_not_ours_are_refused_and_what_is_forwarded_is_not_believed(settings: Any) -> None:
    client = signed_in("viewer")
    for path in ("/sign-in/", "/decisions/", "/api/v1/sites/", "/healthz"):
        assert client.get(path, headers={"host": "evil.example"}).status_code == 400, path
    forwarded = {"x-forwarded-host": "evil.example", "x-forwarded-proto": "https", "x-forwarded-for": "203.0.113.9"}
    answer = client.get("/api/v1/sites/?limit=1", headers=forwarded)
    assert answer.status_code == 200
    assert "evil.example" not in answer.content.decode()
    assert not answer.wsgi_request.is_secure()
    Client().post("/sign-in/", {"username": "viewer", "password": "wrong"}, headers=forwarded)
    assert AuditEntry.objects.latest("pk").address == "127.0.0.1"
    away = Client().get("/decisions/?next=//evil.example", headers=forwarded)
    assert away.headers["Location"].startswith("/sign-in/?next=/decisions/")
    with pytest.raises(NoReverseMatch):
        reverse("api:no-such-address")

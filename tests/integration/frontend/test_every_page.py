"""Every address of the URLconf as an administrator opens it: nothing inline or foreign in it, and a budget of queries.

What is added to the URLconf is opened too; one whose address has parts fails here until SAMPLES says what to open.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from typing import Any

import plotly.graph_objects as go
import pytest
from django.contrib.auth import get_user_model
from django.core.cache import cache
from django.db import connection, transaction
from django.db.models import Model
from django.http import HttpResponse
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import URLResolver, get_resolver

from pools.access.audit import Actor
from pools.models import AccessToken, ApiKey, Cluster, EngineProfile, Job, ModelCard, Node, Pool, Service, Site, Tenant
from scheduler.models import Decision, Study, Trial
from telemetry.models import Alert, AlertSilence, CarbonFeed, Report
from tests.fakes import several

MOST_QUERIES = 14  # session, user, rights and zones are four of them
BUDGETS = {  # of pages that put together what several lists show
    "overview": 43,
    "summary": 29,
    "figures": 16,
    "chart-csv": 15,
    "health": 16,
    "health-json": 15,
    "site": 20,
    "pool": 20,
    "service": 26,
    "tenant": 22,
    "overrides": 20,
    "trial": 20,
    "trial-file": 20,
    "advice": 20,
    "setup": 25,
    "configure": 27,
    "configure-delete": 30,
    "configure-edit": 25,
    "configure-new": 25,
    "configure-policy": 25,
    "whatif-new": 30,
    "whatif-experiment": 30,
}
PROGRAMS = (
    "api/v1/",
    "v1/",
    "metrics",
)  # no pages: api/test_api_budgets.py and test_metrics_page.py
ABSENT = {  # files, codes, results and a way to sign in that nobody made here
    *("account-codes", "report-file", "report-pivot", "report-figures", "whatif-file", "whatif-apply"),
    *("openid_connect_login", "openid_connect_callback"),
}
FETCHED = ("src", "href", "action", "formaction", "data", "poster", "hx-get", "hx-post")
PART = re.compile(r"<(?:\w+:)?(\w+)>")


def first(model: type[Model], field: str = "pk") -> Callable[[], Any]:
    return lambda: model._default_manager.order_by("pk").values_list(field, flat=True)[0]


SAMPLES: dict[str, Callable[[], Any]] = {  # by the part's name, or by the pattern's and the part's
    "decision_id": first(Decision),
    "report_id": first(Report),
    "alert_id": first(Alert),
    "silence_id": first(AlertSilence),
    "user_id": first(get_user_model()),
    "key_id": first(ApiKey),
    "token_id": first(AccessToken),
    "pool_id": first(Pool),
    "model_id": first(ModelCard),
    "feed_id": first(CarbonFeed),
    "uid": first(Job, "uid"),
    "study_id": first(Study),
    "trial_id": first(Trial),
    "index": lambda: 0,
    "provider_id": lambda: "sso",
    "chart": lambda: "power",
    "format": lambda: "csv",
    "answer": lambda: "approve",
    "pk": first(Site),
    "configure-policy pk": first(Service),
    "kind": lambda: "sites",
    "whatif-comparison kind": lambda: "csv",
    "trial-file kind": lambda: "csv",
    "site name": first(Site, "name"),
    "profile_id": first(EngineProfile),
    "gpu-type name": lambda: "A100-80GB",
    "site-figures name": first(Site, "name"),
    "node name": first(Node, "name"),
    "node-gpus name": first(Node, "name"),
    "node-figures name": first(Node, "name"),
    "node-join-token name": first(Node, "name"),
    "node-revoke name": first(Node, "name"),
    "service name": first(Service, "name"),
    "advice name": first(Service, "name"),
    "service-figures name": first(Service, "name"),
    "tenant name": first(Tenant, "name"),
    "tenant-figures name": first(Tenant, "name"),
    "tenant-bill name": first(Tenant, "name"),
    "tenant-bill-make name": first(Tenant, "name"),
    "whatif-experiment name": lambda: "common-sites",
    "whatif-file name": lambda: "x.csv",
}


def patterns(resolver: URLResolver, before: str = "") -> Iterator[tuple[str, str]]:
    """Names and routes of all pages."""
    for entry in resolver.url_patterns:
        route = before + str(entry.pattern)
        if isinstance(entry, URLResolver):
            yield from patterns(entry, route)
        else:
            yield str(entry.name), route


PAGES = [(name, route) for name, route in patterns(get_resolver()) if not route.startswith(PROGRAMS)]


def address(name: str, route: str) -> str:
    def sample(part: re.Match[str]) -> str:
        return str(SAMPLES.get(f"{name} {part[1]}", SAMPLES.get(part[1], lambda: pytest.fail(f"{name}: {part[1]}?")))())

    return "/" + PART.sub(sample, route)


class Looked(HTMLParser):
    """What a policy would refuse, and what would leave this host."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "script" and "src" not in given:
            self.found.append("a script in the page")
        if tag == "style":
            self.found.append("styles in the page")
        for name, value in given.items():
            if name.startswith(("on", "hx-on")) or name == "style":
                self.found.append(f"<{tag} {name}>")
            elsewhere = name in FETCHED and re.match(r"\s*(?:\w+:)?//|\s*javascript:", value or "")
            if elsewhere and tag != "a":  # a link is for the reader to follow
                self.found.append(f"<{tag} {name}={value}>")


@pytest.fixture(scope="module")
def client(shared_rows):
    """Signed in as an administrator, where every list has several rows."""
    admin = get_user_model().objects.create_superuser("admin", password="secret")
    several.of_everything(Actor(admin, None, "page"))
    AccessToken.objects.create(user=admin, label="t", prefix="p", token_hash="t", rights=["view"])
    signed_in = Client()
    signed_in.force_login(admin)
    return signed_in


@pytest.fixture(autouse=True)
def _clean_slate(redis_client) -> None:
    cache.clear()


def keeps_the_policy(answer: HttpResponse) -> None:
    policy = answer.headers["Content-Security-Policy"]
    directives = dict(part.strip().split(" ", 1) for part in policy.split(";") if part.strip())
    assert (directives["default-src"], directives["script-src"]) == ("'none'", "'self'")
    assert (directives["connect-src"], directives["frame-ancestors"]) == ("'self'", "'none'")
    if answer["Content-Type"].startswith("text/html"):
        assert Looked(answer.content.decode()).found == []


@pytest.mark.django_db
@pytest.mark.parametrize(("name", "route"), PAGES, ids=[route or "/" for _, route in PAGES])
def test_page_keeps_the_policy_and_its_budget(client, name, route):
    with transaction.atomic(), CaptureQueriesContext(connection) as queries:
        answer = client.get(address(name, route))
    assert answer.status_code in (200, 301, 302, 405) or (answer.status_code == 404 and name in ABSENT), (
        answer.status_code
    )
    keeps_the_policy(answer)
    if answer["Content-Type"] == "application/json":
        for figure in answer.json().get("figures", {}).values():
            go.Figure(data=figure["data"], layout=figure["layout"])  # raises what Plotly cannot draw
    assert len(queries) <= BUDGETS.get(name, MOST_QUERIES), [query["sql"][:90] for query in queries]


@pytest.mark.django_db
def test_sign_in_keeps_the_policy_when_nobody_is_signed_in():
    keeps_the_policy(Client().get("/sign-in/"))


@pytest.mark.django_db
def test_pages_are_there_of_what_was_just_made_and_never_measured(client):
    site = Site.objects.create(name="new", label="New", grid_zone="DE", rank=9)
    node = Node.objects.create(cluster=Cluster.objects.create(site=site, name="main"), name="new")
    service = Service.objects.first()
    pool = Pool.objects.create(service=service, site=site, request_class=service.partition.classes.first())
    feed = CarbonFeed.objects.create(site=site, provider="static_csv", config={"file": "x.csv"})
    Tenant.objects.create(name="new", label="New")
    own = [f"sites/{site.name}", f"nodes/{node.name}", f"pools/{pool.pk}", f"feeds/{feed.pk}", "tenants/new"]
    paths = [f"/{part}/{page}" for part in own for page in ("", "figures.json")]
    assert {path: client.get(path).status_code for path in paths} == dict.fromkeys(paths, 200)


@pytest.mark.django_db
def test_lists_make_as_many_queries_when_there_are_more_rows(client):
    lists = [address(name, route) for name, route in PAGES if not PART.search(route) and name != "logout"]

    def counted() -> dict[str, int]:
        found = {}
        for path in lists:
            cache.clear()
            with CaptureQueriesContext(connection) as queries:
                client.get(path)
            found[path] = len(queries)
        return found

    before = counted()
    service, job = Service.objects.first(), Job.objects.first()
    for n in range(5):
        site = Site.objects.create(name=f"more-{n}", label=f"More {n}", grid_zone="DE", rank=10 + n)
        cluster = Cluster.objects.create(site=site, name="main")
        Node.objects.create(cluster=cluster, name=f"more-{n}")
        CarbonFeed.objects.create(site=site, provider="static_csv", config={"file": "x.csv"})
        Pool.objects.create(service=service, site=site, request_class=service.partition.classes.first())
        get_user_model().objects.create_user(f"more-{n}")
        for model, own in ((Job, {"kind": "report"}), (Alert, {"rule": "r", "subject": f"more {n}"})):
            model._default_manager.create(**_like(model), **own)
    assert job is not None
    more = counted()
    assert {path: count for path, count in more.items() if count > before[path]} == {}


def _like(model: type[Model]) -> dict[str, Any]:
    """The values of a row that is there, but for what makes it that one."""
    row = model._default_manager.order_by("pk").values()[0]
    return {name: value for name, value in row.items() if name not in ("id", "uid", "kind", "rule", "subject")}

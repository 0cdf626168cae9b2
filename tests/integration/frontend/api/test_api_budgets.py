"""Queries of every list of the REST API: as many for a hundred rows as for one."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib.auth import get_user_model
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import resolve

from frontend.api import urls
from frontend.api.resources.series_sources import SERIES
from pools.access.audit import Actor
from telemetry.models import SyntheticHistory
from tests.fakes import several

MOST = 6  # session, user, role; rows, and what they name several of
LISTS = sorted(prefix for prefix, _, _ in urls.router.registry)
MOST_OF_OTHERS = 10  # session, user, role, its sites; what is asked for
OTHERS = {  # by the pattern's name: what is no list of the router's
    "mode": ["modes/llama3-70b/"],
    "advice": ["modes/llama3-70b/advice/"],
    "previews": [],  # only POST
    "experiments": ["experiments/"],
    "experiment": ["experiments/common-sites/"],
    "offers": [],  # only POST
    "overheads": ["overheads/"],
    "period-figures": ["period-figures/?from=2026-01-01T00:00Z&to=2026-01-01T01:00Z"],
    "scenario": ["scenario/?base=azure-conv-12xh100"],
    "shipped-gpu-types": ["shipped-gpu-types/"],
    "series": [f"series/{name}/" for name in SERIES if name != "gpu"] + ["series/gpu/?gpu=SIM-n1-0"],
    "tenant-use": ["tenants/acme/use/?by=site,service,day"],
    "tenant-bill": ["tenants/acme/bill/"],
    "schema": ["schema/"],
    "docs": ["docs/"],
    "state-of-node": ["nodes/n1/state/"],
    "nodes-join": [],  # only POST
    "nodes-authority": ["nodes/authority/"],
    "nodes-revoke": [],  # only POST
    "nothing": [],
}


@pytest.fixture(scope="module")
def client(shared_rows):
    """Signed in, where every list has several rows."""
    admin = get_user_model().objects.create_superuser("admin", password="secret")
    now = several.of_everything(Actor(admin, None, "api")).now
    for days in (1, 2):
        span = {"start_at": now - timedelta(days=days + 1), "end_at": now - timedelta(days=days)}
        SyntheticHistory.objects.create(source="a test", **span)
    signed_in = Client()
    signed_in.force_login(admin)
    return signed_in


@pytest.mark.django_db
@pytest.mark.parametrize("name", LISTS)
def test_queries_do_not_grow_with_rows(client, redis_client, name):
    counts, rows = [], []
    for limit in (1, 100):
        with CaptureQueriesContext(connection) as queries:
            answer = client.get(f"/api/v1/{name}/", {"limit": limit})
        assert answer.status_code == 200, answer.content
        counts.append(len(queries))
        rows.append(len(answer.json()["results"]))
    assert counts[1] <= counts[0] <= MOST, (counts, rows)
    if name != "approvals":
        assert rows[1] > rows[0] == 1


@pytest.mark.django_db
@pytest.mark.parametrize("name", LISTS)
def test_every_order_that_is_offered_walks_over_all_rows(client, redis_client, name):
    every = len(client.get(f"/api/v1/{name}/", {"limit": 500}).json()["results"])
    for order in resolve(f"/api/v1/{name}/").func.cls.ordering_fields:
        url, seen = f"/api/v1/{name}/?limit={max(2, every // 3)}&ordering=-{order}", 0
        while url:
            page = client.get(url).json()
            seen += len(page["results"])
            url = page["next"]
        assert seen == every, order


def test_every_other_address_has_a_budget_when_one_is_added(client):
    """One that is added to the URLconf is named in OTHERS, with what it answers to."""
    lists = {pattern.name for pattern in urls.router.urls}
    assert {pattern.name for pattern in urls.urlpatterns} - lists == set(OTHERS)


@pytest.mark.django_db
@pytest.mark.parametrize("path", [path for paths in OTHERS.values() for path in paths])
def test_queries_of_what_is_no_list_stay_within_their_budget(client, redis_client, path):
    with CaptureQueriesContext(connection) as queries:
        answer = client.get(f"/api/v1/{path}")
    assert answer.status_code == 200, answer.content
    assert len(queries) <= MOST_OF_OTHERS, [query["sql"][:90] for query in queries]

"""The fleet's pages over HTTP: whom they show what, what they answer to bad input."""

from __future__ import annotations

import pytest
from django.contrib.auth import get_user_model
from django.core.cache import cache
from django.test import Client

from pools.models import Membership
from telemetry.models import CarbonFeed
from tests.fakes import seed

pytestmark = pytest.mark.django_db
LISTS = [
    "/sites/",
    "/pools/",
    "/nodes/",
    "/gpu-types/",
    "/engine-profiles/",
    "/models/",
    "/services/",
    "/feeds/",
    "/jobs/",
    "/decisions/",
]


@pytest.fixture(autouse=True)
def _clean_slate(redis_client) -> None:
    cache.clear()


@pytest.fixture
def client() -> Client:
    client = Client()
    client.force_login(get_user_model().objects.create_user("viewer"))
    return client


@pytest.fixture(scope="module")
def seeded(shared_rows) -> seed.Seeded:
    seeded = seed.everything(minutes=6, rps=1.0)
    seed.more(seeded)
    return seeded


def test_pages_show_no_other_site_when_a_person_is_of_one_site(seeded):
    user = get_user_model().objects.create_user("local")
    Membership.objects.create(user=user, role="operator").sites.add(seeded.sites[0])
    client = Client()
    client.force_login(user)
    for path in ("/sites/", "/pools/?pools=all", "/nodes/", "/feeds/"):
        rows = client.get(path).content.decode().partition("<main")[2]
        assert "Location 1" in rows, path
        assert "Location 2" not in rows, path
    other = next(p for p in seeded.pools if p.site_id == seeded.sites[1].pk)
    feed = CarbonFeed.objects.get(site=seeded.sites[1])
    for path in (
        "/sites/location-2/",
        "/sites/location-2/figures.json",
        f"/pools/{other.pk}/",
        "/nodes/n3/",
        f"/feeds/{feed.pk}/figures.json",
    ):
        assert client.get(path).status_code == 404, path


@pytest.mark.parametrize(
    "path",
    [
        "/sites/none/",
        "/pools/987654/",
        "/nodes/none/",
        "/models/987654/",
        "/services/none/",
        "/feeds/987654/",
        "/jobs/00000000-0000-0000-0000-000000000000/",
        "/sites/location-1/figures.json?csv=none",
    ],
)
def test_page_is_not_found_when_there_is_no_such_thing(client, seeded, path):
    assert client.get(path).status_code == 404


@pytest.mark.parametrize("query", ["?sort=nonsense", "?page=zero", "?site=nowhere", "?q=%00%27", "?from=x&to=y"])
def test_lists_answer_when_the_url_is_nonsense(client, seeded, query):
    for path in LISTS:
        if "%00" in query and path == "/decisions/":
            continue
        assert client.get(path + query).status_code == 200, path


def test_range_is_fixed_when_the_url_names_its_ends(client, seeded):
    path = "/sites/location-1/figures.json?from=2026-03-01T10:00:00&to=2026-03-01T11:00:00&zone=Europe/Berlin"
    axis = client.get(path).json()["figures"]["power"]["layout"]["xaxis"]
    assert axis["range"] == ["2026-03-01 10:00:00", "2026-03-01 11:00:00"]
    assert axis["title"]["text"] == "time (Europe/Berlin)"

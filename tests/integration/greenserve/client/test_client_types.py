"""The types are true: each list of the API, and rows of each by their keys, are read with either client and decode."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from frontend.api.resources import documents
from greenserve.client import AsyncClient, Client, NotFoundError, models
from greenserve.client.paging import Rows
from pools.access import people, rights
from pools.access.audit import Actor
from scripts.client.document import Document
from telemetry.models import RequestRecord
from tests.fakes import several

from .over_wsgi import AsyncWsgi, connection_kept, driven, wsgi

pytestmark = pytest.mark.django_db
MOST_ROWS = 5  # that are read one by one
KEYS = ("uid", "id", "name")  # what a row of a list that has no `url` is read by, the first that the method takes
EMPTY = {"overheads", "synthetic_history", "webhook_deliveries", "requests", "approvals", "decisions"}  # may be


@pytest.fixture(scope="module")
def token(shared_rows) -> str:
    user, _ = people.create(Actor(), "reader", "administrator", password="a long pass phrase")
    several.of_everything(Actor(user, None, "api"))
    _, secret = people.new_token(Actor(), user, "reader", [right.value for right in rights.RIGHTS["administrator"]])
    return secret


@pytest.fixture(autouse=True)
def _many_requests(settings, redis_client):
    settings.GREENSERVE_API_LIMITS = {"reads": 1_000_000, "writes": 1_000_000}
    with connection_kept():
        yield


def lists() -> list[str]:
    return sorted({one.group for one in Document(documents.document()).operations() if one.name == "list"})


def key_of(get: Callable[..., Any], row: msgspec.Struct) -> Any:
    taken = next(iter(inspect.signature(get).parameters))
    return row.id if taken == "key" else getattr(row, taken)


def test_every_list_and_its_rows_decode(token):
    groups, read = lists(), {}
    assert len(groups) > 38
    with Client("http://testserver", token, inner=wsgi()) as client:
        for group in groups:
            resource = getattr(client, group)
            rows = resource.list()
            assert isinstance(rows, Rows)
            read[group] = found = list(rows)
            assert found == list(resource.list(page_size=2) if "page_size" in _parameters(resource.list) else rows)
            for row in found[:MOST_ROWS] if hasattr(resource, "get") else []:
                assert isinstance(resource.get(key_of(resource.get, row)), msgspec.Struct)
    assert {group for group, rows in read.items() if not rows} <= EMPTY, "seed a row of these, or nothing is proven"
    assert sum(map(len, read.values())) > 150


def test_every_list_and_its_rows_decode_with_the_async_client(token):
    async def run() -> int:
        seen = 0
        async with AsyncClient("http://testserver", token, inner=AsyncWsgi()) as client:
            for group in lists():
                resource = getattr(client, group)
                found = [row async for row in resource.list()]
                for row in found[:1] if hasattr(resource, "get") else []:
                    assert isinstance(await resource.get(key_of(resource.get, row)), msgspec.Struct)
                seen += len(found)
        return seen

    assert driven(run()) > 150


def test_what_is_read_otherwise_decodes(token):
    with Client("http://testserver", token, inner=wsgi()) as client:
        service = next(iter(client.services.list())).name
        tenant = next(iter(client.tenants.list())).name
        request = client.requests.list().first()
        assert request is not None
        RequestRecord.objects.filter(request_id=request.request_id).update(predicted_energy_j=12.5)
        use = client.requests.use(request.request_id, started_at=request.started_at)
        assert (use.energy_j, use.measured, use.carbon_gco2e) == (12.5, False, None)
        assert isinstance(client.modes.advice(service), models.Advice)
        assert isinstance(client.modes.preview(service=service, mode="advise"), models.Preview)
        begin = datetime.now(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        assert client.tenants.use(tenant, from_=begin, by="site,day").start_at == begin
        for name in ("power", "energy", "carbon", "carbon_rate", "intensity", "slo", "jain"):
            assert client.series.get(name).name == name
        with pytest.raises(NotFoundError):
            client.experiments.get("nothing")


def _parameters(method: Callable[..., Any]) -> set[str]:
    return set(inspect.signature(method).parameters)

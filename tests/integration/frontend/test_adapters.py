"""LoRA adapters of a service: entered by REST and by forms, listed by its page, with names that nobody else has."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.db.models import Sum
from django.test import Client
from django.urls import reverse

from pools.models import Adapter, Instance, Node, Service
from scheduler.operations.configure import consequences
from telemetry.ledger import settlement
from telemetry.models import RequestRecord, StatementLine
from tests.fakes import metering, seed
from tests.fakes.house import moment, start_instance

pytestmark = pytest.mark.django_db
LEGAL = {"service": "llama3-70b", "name": "legal", "source": "acme/legal-lora", "rank": 16}


@pytest.fixture
def client(admin_client: Client, redis_client: object) -> Client:
    return admin_client


@pytest.fixture
def service() -> Service:
    """One without engines, whose operator has nothing to be warned of."""
    found = seed.fleet().service
    Instance.objects.update(state=Instance.State.STOPPED)
    return found


def send(client: Client, method: str, path: str, body: dict[str, Any]) -> Any:
    data = json.dumps(body) if body else ""
    return client.generic(
        method, f"/api/v1/{path}", data=data, content_type="application/json", headers={"If-Match": "*"}
    )


def test_adapter_is_entered_changed_and_deleted_by_rest(client: Client, service: Service) -> None:
    made = send(client, "POST", "adapters/", LEGAL)
    assert made.status_code == 201, made.content
    assert {name: made.json()[name] for name in LEGAL} == LEGAL
    assert send(client, "PATCH", "adapters/legal/", {"rank": 64}).json()["rank"] == 64
    assert send(client, "PATCH", f"services/{service}/", {"max_loras": 2}).json()["max_loras"] == 2
    assert send(client, "DELETE", "adapters/legal/", {}).status_code == 204
    assert not Adapter.objects.exists()


@pytest.mark.parametrize(
    ("changed", "field", "words"),
    [
        ({"name": "llama3-70b"}, "name", "A service is called 'llama3-70b': choose another name."),
        ({"name": "Llama3-70B"}, "name", "The engines of llama3-70b call its model so: choose another name."),
        ({"source": "../secrets"}, "source", "neither owner/name nor a folder's absolute path"),
        ({"rank": 0}, "rank", "must be at least 1"),
        ({"rank": 1024}, "rank", "must be at most 512"),
        ({"service": "nobody"}, "service", "no service 'nobody'"),
    ],
)
def test_adapter_that_cannot_be_is_refused_by_field(
    client: Client, service: Service, changed: dict[str, Any], field: str, words: str
) -> None:
    answer = send(client, "POST", "adapters/", LEGAL | changed)
    assert answer.status_code == 400
    (error,) = answer.json()["errors"]
    assert error["field"] == field
    assert words in error["detail"]


def test_name_belongs_to_one_adapter_or_one_service(client: Client, service: Service) -> None:
    send(client, "POST", "adapters/", LEGAL)
    assert send(client, "POST", "adapters/", LEGAL).json()["errors"][0]["field"] == "name"
    answer = send(client, "PATCH", f"services/{service}/", {"name": "legal"})
    assert answer.json()["errors"][0]["detail"] == "A LoRA adapter is called 'legal': choose another name."


def test_page_of_a_service_lists_its_adapters_and_adds_and_takes_away(client: Client, service: Service) -> None:
    page = reverse("service", args=[service.name])
    assert "None. An adapter that is entered here" in client.get(page).content.decode()
    new = f"{reverse('configure-new', args=['adapters'])}?service={service.pk}"
    assert new in client.get(page).content.decode()
    answer = client.post(new, {**LEGAL, "service": service.pk})
    assert answer.status_code == 302, answer.content.decode()
    shown = client.get(page).content.decode()
    for words in ("<code>legal</code>", "acme/legal-lora", "at most 4 loaded at once"):
        assert words in shown
    pk = Adapter.objects.get().pk
    for name in ("configure-edit", "configure-delete"):
        assert reverse(name, args=["adapters", pk]) in shown
    client.post(reverse("configure-delete", args=["adapters", pk]), {"confirmed": "1"})
    assert not Adapter.objects.exists()


def test_form_warns_where_engines_were_started_for_less(service: Service) -> None:
    adapter = Adapter(service=service, name="legal", source="acme/legal-lora", rank=16)
    assert consequences.of(adapter) == ()
    Instance.objects.update(state=Instance.State.READY)
    (found,) = consequences.of(adapter)
    assert (found.level, found.field) == ("warning", "rank")
    assert "were started for no adapters" in found.text
    adapter.save()
    assert consequences.of(adapter) == ()
    adapter.rank = 32
    assert "of rank 16 at most" in consequences.of(adapter)[0].text


def test_page_and_rest_have_what_each_adapter_used_and_add_up_to_the_service(
    client: Client, demo_rows: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = Service.objects.get()
    instance = start_instance(service.pools.first(), Node.objects.get(name="loc1-a100"), tp=2)
    tenants = metering.quarter_hour(instance)
    Adapter.objects.create(service=service, name="legal", source="acme/legal-lora", rank=16)
    for n, record in enumerate(RequestRecord.objects.order_by("started_at")):
        record.adapter = (None, None, "legal", "by-hand")[n % 4]
        record.save(update_fields=["adapter"])
    settlement.settle(moment(metering.LATER))
    monkeypatch.setattr("frontend.fleet.services.time.time", lambda: metering.LATER)
    answer = client.get(reverse("service", args=[service.name]))
    table = answer.context["adapters"]
    assert [row.name for row in table.rows] == ["legal", "by-hand", ""]
    serving = StatementLine.objects.filter(kind="serving").exclude(service="")
    whole = serving.aggregate(Sum("energy_uj"), Sum("requests"), Sum("prompt_tokens"), Sum("carbon_ug"))
    assert sum(round(row.figures.energy_j * 1e6) for row in table.rows) == whole["energy_uj__sum"]
    assert sum(row.served for row in table.rows) == whole["requests__sum"] == 60
    assert sum(row.prompt_tokens for row in table.rows) == whole["prompt_tokens__sum"]
    assert sum(row.figures.carbon_g for row in table.rows) == pytest.approx(whole["carbon_ug__sum"] / 1e6)
    shown = answer.content.decode()
    for words in ("not entered here", "itself</span>", "acme/legal-lora"):
        assert words in shown
    use = f"/api/v1/tenants/{tenants[0].name}/use/?from=2026-01-01&to=2026-01-02"
    body = client.get(f"{use}&by=adapter").json()
    assert [row["adapter"] for row in body["rows"]] == ["legal", None]
    (one,) = client.get(f"{use}&by=adapter&adapter=legal").json()["rows"]
    assert one == body["rows"][0]

"""A model is offered in one act, by a form or by one call: all that its service needs is made, or nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.urls import reverse

from pools.models import AuditEntry, ModelCard, Partition, Pool, Service, Site, Slo

pytestmark = pytest.mark.django_db

ASKED = {"name": "small", "model": "Llama3-8B", "max_model_len": 8192, "ttft_s": 1.5, "e2e_s": 30}


@pytest.fixture
def offer(demo_rows, redis_client, admin_client) -> Any:
    def send(**body: Any) -> Any:
        return admin_client.post("/api/v1/offers/", json.dumps(body), content_type="application/json")

    return send


def wrong(answer: Any) -> dict[str, str]:
    assert answer.status_code == 400, answer.content
    return {error["field"]: error["detail"] for error in answer.json()["errors"]}


def rows() -> tuple[int, ...]:
    return tuple(model.objects.count() for model in (ModelCard, Partition, Service, Slo, Pool, AuditEntry))


def test_one_call_makes_model_service_objectives_and_pools(offer, admin_client):
    made = offer(**ASKED, expected_rps=2, expected_prompt_tokens=400, expected_output_tokens=40)
    assert made.status_code == 201, made.content
    assert made["Location"] == "/api/v1/services/small/"
    assert made.json() == admin_client.get(made["Location"]).json()
    service = Service.objects.get(name="small")
    assert (service.model_card.name, service.model_card.max_model_len) == ("Llama3-8B", 8192)
    assert {(slo.kind, slo.objective_s, slo.percentile) for slo in service.slos.all()} == {
        ("ttft", 1.5, 99.0),
        ("e2e", 30.0, 99.0),
    }
    served = service.pools.filter(request_class__partition=service.partition)
    assert {pool.site for pool in served} == set(Site.objects.all())
    assert {"modelcard", "service", "slo", "pool"} <= set(AuditEntry.objects.values_list("kind", flat=True))


def test_second_service_of_a_model_stands_at_the_sites_that_are_named(offer):
    site = Site.objects.first()
    made = offer(name="again", model="Llama3-70B", tpot_s=0.2, sites=[site.name], policy="single_pool")
    assert made.status_code == 201, made.content
    service = Service.objects.get(name="again")
    assert (service.model_card, service.policy) == (Service.objects.get(name="llama3-70b").model_card, "single_pool")
    assert {pool.site for pool in service.pools.all()} == {site}


@pytest.mark.parametrize(
    ("changed", "field", "words"),
    [
        ({"name": "llama3-70b"}, "name", "already exists"),
        ({"model": "Gigant-9T"}, "model", "is no model: enter it with its config.json"),
        ({"max_model_len": None}, "max_model_len", "how many tokens"),
        ({"model": "Llama3-70B"}, "max_model_len", "has 16384"),
        ({"ttft_s": None, "e2e_s": None}, "ttft_s", "at least one objective"),
        ({"ttft_s": 0}, "ttft_s", "0"),
        ({"percentile": 0}, "percentile", "0"),
        ({"expected_rps": 1, "expected_output_tokens": 9}, "expected_prompt_tokens", "is needed here"),
        ({"sites": ["nowhere"]}, "sites.0", "nowhere"),
        ({"policy": "best"}, "policy", "best"),
        ({"slo": 1}, "slo", "no such field"),
    ],
)
def test_nothing_is_made_when_a_field_is_wrong(offer, changed, field, words):
    before = rows()
    found = wrong(offer(**{**ASKED, **changed}))
    assert list(found) == [field]
    assert words in found[field]
    assert rows() == before


def test_form_makes_the_same_and_shows_the_service(offer, admin_client):
    url = reverse("offer")
    page = admin_client.get(url).content.decode()
    assert "Llama3-70B" in page
    assert "Qwen3-8B" in page
    typed = {**ASKED, "percentile": 99, "policy": "greenserve"}
    refused = admin_client.post(url, {**typed, "max_model_len": ""})
    assert "how many tokens" in refused.content.decode()
    assert not Service.objects.filter(name="small").exists()
    done = admin_client.post(url, typed)
    assert done["Location"] == reverse("service", args=["small"])
    assert Service.objects.get(name="small").pools.exists()
    assert "Offer a model" in admin_client.get(reverse("configure", args=["services"])).content.decode()

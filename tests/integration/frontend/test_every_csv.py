"""No CSV that pages and REST offer has JSON in its cells. Links lead to them, so what is added is looked at too."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from html import unescape
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.core.cache import cache
from django.db.models import JSONField
from django.http import HttpResponse
from django.test import Client
from django.urls import reverse

from frontend.api.resources.series_sources import SERIES
from pools.access.audit import Actor
from pools.models import AccessToken, GpuType, ModelCard, Service
from scheduler.operations.configure import registry
from telemetry.models import CarbonFeed, Instrument, ReportSchedule, Tariff, WeatherFeed
from tests.fakes import several
from tests.fakes.csv_cells import json_cells

from .test_every_page import PAGES, address

LINK = re.compile(r'href="([^"]*csv[^"]*)"')
JSON_VALUES: dict[tuple[type, str], Any] = {
    (GpuType, "driver_names"): ["NVIDIA L40S", "NVIDIA L40S lab"],
    (GpuType, "assumed"): ["min_mhz", "idle_w"],
    (ModelCard, "config"): {
        **{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16"},
        **{"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8},
        **{"intermediate_size": 14336, "vocab_size": 128256, "max_position_embeddings": 131072},
    },
    (ModelCard, "engine_arguments"): ["--kv-cache-dtype", "fp8"],
    (ModelCard, "engine_environment"): {"VLLM_ATTENTION_BACKEND": "FLASHINFER"},
    (Service, "knobs"): {"clock": "fixed", "tuning": {"dynamo": {"wave": 4}}},
    (CarbonFeed, "config"): {"file": "x.csv", "zone": "DE"},
    (WeatherFeed, "config"): {"file": "x.csv", "region": "DE"},
    (Tariff, "windows"): [{"from": "17:00", "to": "20:00", "price_per_kwh": 0.2, "days": ["sat", "sun"]}],
    (Instrument, "profile"): [0] * 12 + [1] * 12,
    (Instrument, "mix"): {"wind": 0.6, "solar": 0.4},
    (ReportSchedule, "asked"): {"by": ["site", "tenant"], "formats": ["csv"]},
    (ReportSchedule, "recipients"): ["a@example.org", "b@example.org"],
}


@pytest.fixture(scope="module")
def client(shared_rows) -> Client:
    """Signed in as an administrator, where every list has several rows and every JSON column a value."""
    admin = get_user_model().objects.create_superuser("admin", password="secret")
    several.of_everything(Actor(admin, None, "page"))
    AccessToken.objects.create(user=admin, label="t", prefix="p", token_hash="t", rights=["view"])
    for (model, name), value in JSON_VALUES.items():
        if model not in (Tariff, Instrument):
            model._default_manager.update(**{name: value})
    for card in ModelCard.objects.all():
        card.save()  # with its shape
    _versions()
    signed_in = Client()
    signed_in.force_login(admin)
    return signed_in


def _versions() -> None:
    """Enters another version of each with values, since none is ever changed."""
    tariff, contract = Tariff.objects.latest("pk"), Instrument.objects.filter(kind="ppa").latest("pk")
    tariff.pk, tariff.version, tariff.windows = None, "2", JSON_VALUES[Tariff, "windows"]
    contract.pk, contract.source, contract.generation, contract.volume_kwh = None, "y", "profile", 1
    contract.valid_to = contract.valid_from + timedelta(days=2)
    contract.profile, contract.mix = JSON_VALUES[Instrument, "profile"], JSON_VALUES[Instrument, "mix"]
    for row in (tariff, contract):
        row.full_clean()
        row.save(force_insert=True)


@pytest.fixture(autouse=True)
def _clean_slate(redis_client) -> None:
    cache.clear()


def text_of(answer: HttpResponse) -> str:
    return b"".join(answer).decode()


def offered(client: Client) -> Iterator[str]:
    """Yields the addresses of tables: those of the URLconf, those that pages link to, and those of each figure."""
    for name, route in PAGES:
        if name == "logout":
            continue
        path = address(name, route)
        answer = client.get(path)
        kind = answer.headers.get("Content-Type", "")
        if kind.startswith("text/csv"):
            yield path
        elif kind.startswith("application/json"):
            yield from (f"{path}?csv={figure}" for figure in answer.json().get("figures", {}))
        elif kind.startswith("text/html"):
            links = map(unescape, LINK.findall(answer.content.decode()))
            yield from (link if link.startswith("/") else f"{path.partition('?')[0]}{link}" for link in links)
    yield from (reverse("configure-export", args=[owned, "csv"]) for owned in registry.OWNED)


def test_every_json_column_that_an_operator_owns_has_a_value_here() -> None:
    columns = {
        (owned.model, name)
        for owned in registry.OWNED.values()
        for name in owned.fields
        if isinstance(owned.field(name), JSONField)
    }
    assert columns == set(JSON_VALUES)


@pytest.mark.django_db
def test_no_cell_is_json_in_the_tables_that_pages_offer(client: Client) -> None:
    looked_at = set()
    for path in dict.fromkeys(offered(client)):
        answer = client.get(path)
        if answer.headers.get("Content-Type", "").startswith("text/csv"):
            looked_at.add(path.partition("?")[0])
            assert json_cells(text_of(answer)) == [], path
    assert {path.split("/")[1] for path in looked_at} == {
        *(
            "audit.csv",
            "configure",
            "decisions",
            "engine-profiles",
            "feeds",
            "models",
            "nodes",
            "overview",
            "pools",
            "services",
            "sites",
        ),
        *("tenants", "trials", "what-if"),
    }


@pytest.mark.django_db
@pytest.mark.parametrize("name", SERIES)
def test_no_cell_is_json_in_the_series_of_rest(client: Client, name: str) -> None:
    gpu = "&gpu=SIM-n1-0" if name == "gpu" else ""
    answer = client.get(f"/api/v1/series/{name}/?format=csv{gpu}")
    assert answer.status_code == 200, answer.content
    assert json_cells(text_of(answer)) == []


@pytest.mark.django_db
def test_json_columns_come_back_when_an_export_is_imported(client: Client) -> None:
    for kind, owned in registry.OWNED.items():
        names = [name for model, name in JSON_VALUES if model is owned.model]
        if not names:
            continue
        url = reverse("configure-import", args=[kind])
        text = text_of(client.get(reverse("configure-export", args=[kind, "csv"])))
        before = list(owned.model._default_manager.order_by("pk").values(*names))
        unchanged = client.post(url, {"text": text, "format": "csv"}).context
        assert {item.what for item in unchanged["outcomes"]} == {"unchanged"}, (kind, unchanged["outcomes"])
        if owned.versions:
            continue  # none is changed, and so none can be changed back
        owned.model._default_manager.update(**{name: owned.field(name).get_default() for name in names})
        answer = client.post(url, {"text": text, "format": "csv", "apply": "1"})
        assert answer.status_code == 302, answer.context["outcomes"]
        assert list(owned.model._default_manager.order_by("pk").values(*names)) == before


@pytest.mark.django_db
def test_an_older_export_with_json_in_its_cells_is_read_and_a_wrong_one_refused(client: Client) -> None:
    url = reverse("configure-import", args=["services"])
    older = 'name,knobs\nother,"{""clock"": ""miad"", ""tuning"": {""dynamo"": {""wave"": 2}}}"\n'
    assert client.post(url, {"text": older, "format": "csv", "apply": "1"}).status_code == 302
    assert Service.objects.get(name="other").knobs == {"clock": "miad", "tuning": {"dynamo": {"wave": 2}}}
    wrong = client.post(url, {"text": "name,knobs.clock\nother,[1]\n", "format": "csv", "apply": "1"}).context["wrong"]
    assert "line 2: knobs.clock: '[1]' is JSON: write each part in a column, or import YAML" in wrong
    assert "no such column: nobs.clock" in client.post(url, {"text": "name,nobs.clock\nother,1\n"}).context["wrong"]

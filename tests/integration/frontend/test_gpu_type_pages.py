"""Pages and REST of GPU types: shipped ones beside those that operators entered, and whose figures they are."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from django.test import Client
from django.urls import reverse

from core.engine.gpu_type_fields import values_of
from core.engine.gpu_types import SHIPPED
from pools import engine_knowledge
from pools.models import GpuType, Node
from tests.fakes import seed

pytestmark = pytest.mark.django_db
OWN = replace(SHIPPED["L40S-48GB"], name="L40S-lab", tdp_w=300.0, nvml=(), source="our own meter")


@pytest.fixture
def client(admin_client: Client, redis_client: object) -> Client:
    return admin_client


def test_list_has_shipped_and_entered_types_with_what_they_rest_on(client: Client) -> None:
    GpuType.of_sheet(OWN).save()
    page = client.get("/gpu-types/").content.decode()
    for words in ("A100-80GB", "L40S-lab", "our own meter", "measured", "data sheet", "shipped", "entered"):
        assert words in page
    measured = client.get("/gpu-types/", {"basis": "measured"}).content.decode()
    assert "A100-80GB" in measured
    assert "L40S-lab" not in measured
    assert 'href="/gpu-types/"' in client.get(reverse("configure", args=["gpu-types"])).content.decode()


def test_page_says_with_which_engines_a_type_was_measured(client: Client) -> None:
    part, whole = (client.get(f"/gpu-types/{name}/").content.decode() for name in ("B200-180GB", "A100-80GB"))
    assert "for the engines eager-2023, vllm-2025, vllm-2025-busy-host" in part
    assert "for the engines" not in whole


def test_page_says_what_is_assumed_and_where_it_is(client: Client) -> None:
    seed.everything(minutes=1)
    GpuType.of_sheet(OWN).save()
    node = Node.objects.order_by("name")[0]
    node.gpus.update(gpu_type=OWN.name)
    page = client.get(f"/gpu-types/{OWN.name}/").content.decode()
    assert f'href="/nodes/{node}/"' in page
    assert "planned with by its data sheet and the efficiencies of H100-SXM-80GB" in page
    assert re.search(r"a margin of 25\s?%", page)
    assert "assumed" in page
    assert reverse("configure-edit", args=["gpu-types", GpuType.objects.get().pk]) in page
    shipped = client.get("/gpu-types/A100-80GB/").content.decode()
    assert "fitted to published measurements" in shipped
    assert "/configure/gpu-types/" not in shipped
    assert client.get("/gpu-types/none-such/").status_code == 404
    engine_knowledge.refresh()
    there = client.get(f"/nodes/{node}/").content.decode()
    assert "planned by data sheet" in there


def test_rest_makes_and_keeps_types_and_shows_the_shipped_ones(client: Client) -> None:
    body = {"name": OWN.name, **values_of(OWN)}
    made = client.post("/api/v1/gpu-types/", json.dumps(body), content_type="application/json")
    assert made.status_code == 201, made.content
    assert {name: made.json()[name] for name in body} == body
    again = client.post("/api/v1/gpu-types/", json.dumps(body | {"name": "H200-SXM-141GB"}), "application/json")
    assert again.status_code == 400
    assert "shipped" in again.content.decode()
    shown = client.get("/api/v1/shipped-gpu-types/").json()["results"]
    assert [row["name"] for row in shown] == list(SHIPPED)
    bases = {row["name"]: row["basis"] for row in shown}
    assert (bases["A100-80GB"], bases["H200-SXM-141GB"]) == ("measured", "data sheet")
    assert bases["B200-180GB"] == "measured in part"  # with the engines of 2025
    assert shown[0]["peak_tflops"] == 989.0

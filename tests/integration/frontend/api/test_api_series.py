"""Series over REST: three formats, steps and points, gaps, and what is wrong with a question."""

from __future__ import annotations

import csv
import io

import polars as pl
import pytest
from django.contrib.auth import get_user_model
from django.test import Client

from pools.access import people
from pools.access.audit import Actor
from tests.fakes import seed


@pytest.fixture(scope="module")
def seeded(shared_rows):
    """One fleet with its history for all tests here."""
    return seed.everything(minutes=20, rps=1.0)


@pytest.fixture
def get(seeded, db, redis_client):
    client = Client()
    client.force_login(get_user_model().objects.create_superuser("admin", password="secret"))

    def ask(name: str, headers: dict[str, str] | None = None, **query: object):
        window = {"from": seeded.now.timestamp() - 1_100, "to": seeded.now.timestamp()}
        return client.get(f"/api/v1/series/{name}/", {**window, **query}, headers=headers or {})

    return ask


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        *(("power", "W"), ("energy", "J"), ("carbon", "gCO2e"), ("carbon_rate", "gCO2e/h"), ("intensity", "gCO2e/kWh")),
        *(("slo", "share"), ("jain", "index")),
    ],
)
def test_series_has_unit_source_and_points(get, name, unit):
    body = get(name, step=60).json()
    assert body["step_s"] == 60
    assert {line["unit"] for line in body["series"]} == {unit}
    assert all(line["source"] for line in body["series"])
    assert any(value is not None for line in body["series"] for _, value in line["points"])


def test_gap_is_null_and_no_zero_when_meters_were_silent(get, seeded):
    lines = get("power", step=10, site="location-3").json()["series"]
    assert {line["labels"]["site"] for line in lines} == {"location-3"}
    values = [value for _, value in lines[0]["points"]]
    assert None in values
    assert 0.0 not in values


def test_csv_and_arrow_say_the_same_as_json(get):
    body = get("power", step=60).json()
    points = [value for line in body["series"] for _, value in line["points"]]
    text = get("power", step=60, format="csv")
    assert text.headers["Content-Type"].startswith("text/csv")
    rows = list(csv.DictReader(io.StringIO(text.content.decode())))
    assert [float(row["value"]) if row["value"] else None for row in rows] == points
    arrow = get("power", step=60, headers={"Accept": "application/vnd.apache.arrow.stream"})
    frame = pl.read_ipc_stream(io.BytesIO(arrow.content))
    assert frame["value"].to_list() == points
    assert frame.columns == [
        *("at", "labels.part", "labels.site", "unit", "value", "source", "heard_share", "silent", "unknown_share")
    ]


def test_points_bound_the_answer_when_they_are_asked_for(get):
    for method in ("lttb", "minmax", "mean"):
        body = get("power", points=12, method=method, site="location-1").json()
        assert body["method"] == method
        assert all(len(line["points"]) <= 16 for line in body["series"])


def test_gpu_is_found_by_its_uuid(get):
    assert get("gpu", gpu="SIM-n1-0").json()["step_s"] == 60
    assert get("gpu", gpu="none").json()["errors"][0]["field"] == "gpu"


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"step": 7}, "step"),
        ({"step": 15}, "step"),
        ({"from": "soon"}, "from"),
        ({"from": "2026-01-01", "to": "2025-01-01"}, "from"),
        ({"points": 1}, "points"),
        ({"method": "best"}, "method"),
        ({"site": "none"}, "site"),
        ({"colour": "green"}, "colour"),
        ({"from": 0, "to": 86_400 * 399, "step": 10}, "step"),
    ],
)
def test_question_is_refused_by_field_when_it_makes_no_sense(get, query, field):
    answer = get("power", **query)
    assert answer.status_code == 400
    assert answer.json()["errors"][0]["field"] == field
    assert get("nothing").status_code == 404


def test_only_own_sites_are_shown_when_a_role_is_for_some(seeded, db, redis_client):
    user, _ = people.create(Actor(), "here", "viewer", (seeded.sites[1],), password="a long pass phrase")
    client = Client()
    client.force_login(user)
    lines = client.get("/api/v1/series/power/").json()["series"]
    assert {line["labels"]["site"] for line in lines} == {"location-2"}
    assert client.get("/api/v1/series/power/?site=location-1").status_code == 400

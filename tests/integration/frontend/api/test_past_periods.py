"""Figures of past periods and scenarios over REST, on a seeded fleet."""

from __future__ import annotations

import io
import zipfile
from datetime import UTC, datetime
from typing import Any

import pytest
import yaml
from django.contrib.auth import get_user_model
from django.db.models import Sum
from django.test import Client

from core.simulator.runs.runner import requests_of
from core.simulator.scenario.scenario import parse_scenario
from pools.models import Membership, MembershipSite, Site
from telemetry.models import EnergyEntry, RequestRecord
from tests.fakes import seed


@pytest.fixture(scope="module")
def seeded(shared_rows):
    """One fleet with its history for all tests here."""
    return seed.everything(minutes=10, rps=1.0)


def _client(user: Any) -> Client:
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def admin(seeded, db, redis_client):
    return _client(get_user_model().objects.create_superuser("admin", password="secret"))


def _span(seeded) -> dict[str, str]:
    end_s = int(seeded.now.timestamp()) - 60
    return {key: datetime.fromtimestamp(at_s, UTC).isoformat() for key, at_s in (("from", end_s - 300), ("to", end_s))}


def test_figures_of_a_period_are_the_ledgers_and_the_records(admin, seeded):
    span = _span(seeded)
    found = admin.get("/api/v1/period-figures/", span).json()
    start, end = (datetime.fromisoformat(span[key]) for key in ("from", "to"))
    within = EnergyEntry.objects.filter(start_at__gte=start, end_at__lte=end).aggregate(j=Sum("energy_j"))["j"]
    cut = EnergyEntry.objects.filter(start_at__lt=end, end_at__gt=start).aggregate(j=Sum("energy_j"))["j"]
    rounding = 1e-9 * cut  # the period may end where entries do
    assert within - rounding <= 3600 * found["energy_wh"] <= cut + rounding
    assert sum(found["energy_wh_by"].values()) == pytest.approx(found["energy_wh"])
    records = RequestRecord.objects.filter(started_at__gte=start, started_at__lt=end)
    assert found["requests"] == records.count() > 0
    assert found["gpu_hours"] > 0
    assert found["ttft_s"]["p50"] <= found["ttft_s"]["p99"]


def test_figures_are_of_the_sites_that_one_may_see(admin, seeded):
    user = get_user_model().objects.create_user("site", password="secret")
    member = Membership.objects.create(user=user, role=Membership.Role.VIEWER)
    MembershipSite.objects.create(membership=member, site=Site.objects.get(name="location-1"))
    own, every = (client.get("/api/v1/period-figures/", _span(seeded)).json() for client in (_client(user), admin))
    assert 0 < own["energy_wh"] < every["energy_wh"]
    assert own["requests"] < every["requests"]


def test_a_period_is_refused_by_the_name_of_its_parameter(admin, seeded):
    answer = admin.get("/api/v1/period-figures/", {"from": "yesterday", "to": _span(seeded)["to"]})
    assert answer.status_code == 400
    assert answer.json()["errors"][0]["field"] == "from"


def test_a_past_fleet_comes_as_files_that_the_simulator_reads(admin, seeded, tmp_path):
    answer = admin.get("/api/v1/scenario/", _span(seeded))
    with zipfile.ZipFile(io.BytesIO(answer.content)) as archive:
        archive.extractall(tmp_path)
    scenario = parse_scenario(yaml.safe_load((tmp_path / "scenario.yaml").read_text()), tmp_path / "scenario.yaml")
    (service,) = scenario.services
    assert scenario.policy.name == seeded.service.policy
    assert service.declared
    assert all(site.powered_gpus for site in scenario.sites.values())
    assert set(scenario.usual_s) == {"carbon", "scale", "shard", "clock"}
    assert requests_of(scenario).count > 100

"""The web process's `/metrics`: figures as they are stored, who may read them, and where the other pages are."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.core.cache import cache
from django.db import connection
from django.test.utils import CaptureQueriesContext
from prometheus_client.parser import text_string_to_metric_families

from frontend.metrics import metrics_page, views
from greenserve import task_counts
from pools import wire
from pools.access.audit import Actor
from pools.models import Pool, Tenant
from scheduler.models import Epoch
from scheduler.operations import pauses
from telemetry.models import EnergyRollup, Settlement, StatementLine
from telemetry.providers.secrets import Secret
from tests.fakes import seed

pytestmark = pytest.mark.django_db
BUDGET = 45  # queries of a page that is made anew


@pytest.fixture(autouse=True)
def _fresh(redis_client, monkeypatch) -> None:
    cache.clear()
    monkeypatch.setattr(views, "PAGE", metrics_page.Page())
    monkeypatch.setattr(metrics_page, "KEPT_S", 0.0)


Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def scrape(client: Any) -> Samples:
    answer = client.get("/metrics")
    assert answer.status_code == 200
    families = text_string_to_metric_families(answer.content.decode())
    return {(s.name, frozenset(s.labels.items())): s.value for f in families for s in f.samples}


def value(found: Samples, name: str, **labels: str) -> float | None:
    return found.get((f"greenserve_{name}", frozenset(labels.items())))


def rollup(seeded: seed.Seeded, energy_j: float, carbon_g: float) -> None:
    midnight = seeded.now.replace(hour=0, minute=0, second=0, microsecond=0)
    EnergyRollup.objects.update_or_create(
        step_s=86_400, start_at=midnight, site=seeded.sites[0], pool=None, kind="test",
        defaults={"energy_uj": round(energy_j * 1e6), "gpu_us": 0, "carbon_gco2e": carbon_g, "unknown_uj": 0,
                  "until": midnight},
    )  # fmt: skip


def test_figures_are_those_that_are_stored(client):
    seeded = seed.everything(minutes=6, rps=1.0)
    seed.well()
    rollup(seeded, 1_000.0, 5.0)
    found = scrape(client)
    assert value(found, "scrape_failed_groups") == 0.0
    assert value(found, "process_up", process="gateway") == 1.0
    assert value(found, "node_up", node="n1") == 1.0
    assert value(found, "energy_joules_total", site="location-1", kind="test") == 1_000.0
    assert value(found, "carbon_grams_total", site="location-1") == 0.0
    assert value(found, "site_gpus", site="location-1") == 8.0
    assert value(found, "slo_target_ratio", service="llama3-70b", objective="ttft") == 0.99
    assert value(found, "carbon_intensity_grams_per_joule", site="location-2") == pytest.approx(280 / 3.6e6, rel=0.3)
    assert 0.0 < (value(found, "tenant_fairness_jain_ratio") or 0.0) <= 1.0
    assert value(found, "loop_up", kind="carbon", service="llama3-70b") == 1.0
    assert value(found, "loop_paused", kind="carbon", service="llama3-70b") == 0.0


def test_paused_loop_is_up_and_says_that_it_is_paused(client):
    seeded = seed.everything(minutes=6, rps=1.0)
    Epoch.objects.all().delete()
    assert value(scrape(client), "loop_up", kind="carbon", service="llama3-70b") == 0.0
    pauses.pause(Actor(), seeded.service, "carbon", "new racks")
    found = scrape(client)
    assert value(found, "loop_up", kind="carbon", service="llama3-70b") == 1.0
    assert value(found, "loop_paused", kind="carbon", service="llama3-70b") == 1.0


def test_page_answers_when_nothing_is_known_and_leaves_out_what_is_not(client):
    found = scrape(client)
    assert value(found, "scrape_failed_groups") == 0.0
    assert value(found, "tenant_fairness_jain_ratio") is None
    assert value(found, "ingest_newest_sample_age_seconds") is None


def test_stream_is_shown_as_a_part_of_what_it_takes(client, redis_client, monkeypatch):
    monkeypatch.setattr(wire, "REQUEST_STREAM_MOST", 4)
    redis_client.xadd(wire.REQUEST_STREAM, {"b": b""})
    found = scrape(client)
    assert value(found, "ingest_stream_ratio", stream="requests") == 0.25
    assert value(found, "ingest_stream_ratio", stream="samples") == 0.0


def test_carbon_rises_with_what_is_recorded_and_never_falls(client):
    seeded = seed.fleet()
    seen = []
    for energy_j, carbon_g in ((10.0, 5.0), (20.0, 9.0), (20.0, 7.0), (30.0, 8.0)):
        rollup(seeded, energy_j, carbon_g)
        seen.append(value(scrape(client), "carbon_grams_total", site="location-1"))
    assert seen == [0.0, 4.0, 4.0, 5.0]


def test_cost_rises_with_what_is_settled(client):
    seeded = seed.fleet()

    def settle(hours: int, cost_nano: int) -> None:
        start = seeded.now - timedelta(hours=hours)
        settlement = Settlement.objects.create(
            site=seeded.sites[0], start_at=start, end_at=start + timedelta(hours=1), revision=0, cause="first",
            sources={}, currency="USD", energy_uj=1, unattributed_uj=0,
        )  # fmt: skip
        StatementLine.objects.create(
            settlement=settlement, entry="original", kind="serving", pool=Pool.objects.first(), service="s",
            tenant=Tenant.objects.first(), energy_uj=1, cost_nano=cost_nano, embodied_ug=3_000_000,
        )  # fmt: skip

    settle(9, 5_000_000_000)
    scrape(client)
    settle(8, 250_000_000)
    found = scrape(client)
    assert value(found, "electricity_cost_total", site="location-1", currency="USD") == pytest.approx(0.25)
    assert value(found, "embodied_carbon_grams_total", site="location-1") == pytest.approx(3.0)
    assert value(scrape(client), "electricity_cost_total", site="location-1", currency="USD") == pytest.approx(0.25)


def test_tasks_are_counted_by_outcome(client, redis_client):
    for outcome in ("success", "success", "failure"):
        task_counts.count(redis_client, "telemetry.tasks.post_ledger", outcome, 0.5)
    found = scrape(client)
    task = "telemetry.tasks.post_ledger"
    assert value(found, "task_runs_total", task=task, outcome="success") == 2.0
    assert value(found, "task_duration_seconds_count", task=task) == 3.0
    assert value(found, "task_duration_seconds_sum", task=task) == pytest.approx(1.5)


def test_figures_of_the_database_are_there_when_redis_is_away(client, settings):
    seeded = seed.fleet()
    rollup(seeded, 10.0, 5.0)
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    found = scrape(client)
    assert value(found, "scrape_failed_groups") == 1.0  # tasks: health says by itself what it could not ask
    assert value(found, "energy_joules_total", site="location-1", kind="test") == 10.0


def test_queries_do_not_grow_with_what_is_stored(client):
    seed.everything(minutes=5, rps=1.0)
    seed.well()
    with CaptureQueriesContext(connection) as queries:
        scrape(client)
    assert len(queries) <= BUDGET, [query["sql"][:90] for query in queries]


def test_page_is_made_once_in_a_while_however_many_ask(client, monkeypatch):
    monkeypatch.setattr(metrics_page, "KEPT_S", 3_600.0)
    scrape(client)
    with CaptureQueriesContext(connection) as queries:
        scrape(client)
    assert len(queries) == 0


@pytest.mark.parametrize("path", ["/metrics", "/metrics/targets"])
def test_metrics_are_for_this_machine_alone_without_a_token(client, path):
    assert client.get(path).status_code == 200
    away = client.get(path, REMOTE_ADDR="192.0.2.7")
    assert (away.status_code, b"GREENSERVE_METRICS_TOKEN" in away.content) == (403, True)
    assert client.get(path, headers={"X-Forwarded-For": "192.0.2.7"}).status_code == 403
    assert client.post(path).status_code == 405


@pytest.mark.parametrize("path", ["/metrics", "/metrics/targets"])
def test_metrics_need_the_token_when_there_is_one(client, settings, path):
    settings.GREENSERVE_METRICS_TOKEN = Secret("a-token-of-prometheus")
    assert client.get(path).status_code == 401
    assert client.get(path, headers={"Authorization": "Bearer wrong"}).status_code == 401
    given = client.get(path, headers={"Authorization": "Bearer a-token-of-prometheus"}, REMOTE_ADDR="192.0.2.7")
    assert given.status_code == 200


def test_targets_name_gateways_agents_and_engines(client, redis_client):
    seeded = seed.fleet()
    engine = wire.InstanceState(
        uid=str(seeded.instances[0].uid), pool_id=1, url="http://10.0.0.7:9001", state="ready", model="m",
        engine="vllm", gpu_type="A100", tp=4, sm_clock_mhz=None, min_mhz=1.0, max_mhz=2.0,
    )  # fmt: skip
    state = wire.AgentState(
        "n1", "boot", seeded.now.timestamp(), 1, [engine], metrics_url="http://10.0.0.7:9400/metrics"
    )
    redis_client.set(wire.agent_key("n1"), wire.encode(state), ex=30)
    found = {group["labels"]["kind"]: group for group in client.get("/metrics/targets").json()}
    assert set(found) == {"gateway", "agent", "engine"}
    assert found["agent"]["targets"] == ["10.0.0.7:9400"]
    assert found["agent"]["labels"]["__metrics_path__"] == "/metrics"
    assert found["agent"]["labels"]["site"] == "location-1"
    assert found["engine"]["targets"] == ["10.0.0.7:9001"]
    assert found["engine"]["labels"]["instance_uid"] == engine.uid

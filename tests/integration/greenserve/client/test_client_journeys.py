"""Journeys through the product with the typed client."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal

import pytest
from django.utils import timezone

from greenserve import client as api
from greenserve.client import Client
from pools import demo
from pools.access import people, rights
from pools.access.audit import Actor
from pools.models import Cluster, Node, Site
from telemetry.ledger import settlement
from telemetry.models import Alert
from telemetry.reports.tasks import make_report
from tests.fakes import metering
from tests.fakes.house import moment, start_instance
from tests.fakes.metering import LATER, START

from .over_wsgi import connection_kept, wsgi

pytestmark = pytest.mark.django_db


@pytest.fixture
def client(redis_client, settings, tmp_path) -> Iterator[Client]:
    settings.GREENSERVE_REPORTS_DIR = tmp_path / "reports"
    yield from _client_of("administrator")


def _client_of(role: str) -> Iterator[Client]:
    user, _ = people.create(Actor(), role, role, password="a long pass phrase")
    _, token = people.new_token(Actor(), user, role, [right.value for right in rights.RIGHTS[role]])
    with connection_kept(), Client("http://testserver", token, inner=wsgi()) as made:
        yield made


def test_fleet_is_made_changed_and_deleted(client):
    site = client.sites.create(
        name="dublin", label="Dublin", grid_zone="IE", time_zone="Europe/Dublin", pue=1.2, currency="EUR"
    )
    assert client.clusters.create(site="dublin", name="main").url == f"/api/v1/clusters/~{Cluster.objects.get().pk}/"
    client.nodes.create(cluster="dublin/main", name="d1", simulated=True)
    gpu = {"gpu_type": "H100-SXM-80GB", "memory_gb": 80.0, "min_mhz": 210.0, "max_mhz": 1980.0, "tdp_w": 700.0}
    made = client.gpus.create_many([{"node": "d1", "index": n, "uuid": f"SIM-{n}", **gpu} for n in range(2)])
    assert [one.index for one in made] == [0, 1]
    assert client.nodes.get("d1").gpus == {"H100-SXM-80GB": 2}

    changed = client.sites.change("dublin", etag=site.etag, power_cap_w=40_000, market="AIB")
    assert (changed.power_cap_w, changed.market, changed.label) == (40_000, "AIB", "Dublin")
    with pytest.raises(api.StaleError, match="read it again and send its new ETag") as stale:
        client.sites.change("dublin", etag=site.etag, power_cap_w=1)
    assert stale.value.status == 412
    assert Site.objects.get().power_cap_w == 40_000

    items = client.gpus.change_many([{"id": one.id, "etag": one.etag, "tdp_w": 650.0} for one in made])
    assert {one.tdp_w for one in items} == {650.0}
    with pytest.raises(api.InvalidError, match=r"0\.etag: .*Read it again"):
        client.gpus.change_many([{"id": made[0].id, "etag": made[0].etag, "tdp_w": 600.0}])

    with pytest.raises(api.ConflictError):
        client.sites.delete("dublin", etag=changed.etag)
    for one in items:
        client.gpus.delete(one.id, etag=one.etag)
    client.nodes.delete("d1", etag=client.nodes.get("d1").etag)
    assert not Node.objects.exists()
    with pytest.raises(api.NotFoundError):
        client.nodes.get("d1")


def test_consequences_are_shown_and_nothing_is_stored_when_a_change_is_only_tried(client):
    new = {"name": "dublin", "label": "Dublin", "grid_zone": "IE"}
    assert client.sites.validate(**new).valid
    assert [one.valid for one in client.sites.validate_many([new, new | {"name": "cork"}])] == [True, True]
    result = client.sites.validate(**new, pue=0.5)
    assert not result.valid
    assert {(one.level, one.field) for one in result.consequences} == {("error", "pue")}
    site = client.sites.create(**new)
    assert not client.sites.validate_change("dublin", pue=0.5).valid
    change = client.sites.validate_many([{"id": site.id, "etag": site.etag, "pue": 1.5}])
    assert [one.valid for one in change] == [True]
    assert Site.objects.get().pue == site.pue


def test_lists_are_filtered_ordered_and_read_in_pages(client):
    demo.load()
    nodes = list(client.nodes.list(site="location-1", schedulable=True, page_size=1))
    assert len(nodes) == Node.objects.filter(cluster__site__name="location-1", schedulable=True).count() > 1
    assert {node.site for node in nodes} == {"location-1"}
    names = [site.name for site in client.sites.list(ordering="-name", page_size=2)]
    assert names == sorted(names, reverse=True)
    assert len(names) == Site.objects.count() == 3
    first = client.sites.list(ordering="name").first()
    assert first is not None
    assert first.name == names[-1]
    assert client.sites.list(name="nowhere").first() is None
    assert [row["name"] for row in client.rows("sites/", ordering="name")] == sorted(names)


def test_service_is_made_with_its_pools_and_rows_without_a_name_are_addressed_by_id(client):
    service = demo.load()
    pool = client.pools.list(service=service.name).first()
    assert pool is not None
    assert client.pools.get(pool.id) == pool
    warmer = client.pools.change(pool.id, etag=pool.etag, warm=1)
    assert (warmer.warm, warmer.id) == (1, pool.id)
    made = client.services.create(
        name="second", model_card=service.model_card.name, partition=service.partition.name,
        partitions=[service.partition.name], policy="freesh", knobs={"clock": "fixed"},
    )  # fmt: skip
    assert (made.policy, made.knobs, made.expected_prompt_tokens) == ("freesh", {"clock": "fixed"}, None)
    assert client.modes.get("second").mode == "act"
    assert client.modes.set("second", mode="approve", approve_within_s=600).approve_within_s == 600


def test_post_is_done_once_when_it_is_sent_again_with_its_key(client):
    key = uuid.uuid4().hex
    demo.load()
    tenant = client.tenants.create(name="new", idempotency_key=key)
    assert client.tenants.create(name="new", idempotency_key=key) == tenant
    with pytest.raises(api.UnprocessableError):
        client.tenants.create(name="other", idempotency_key=key)
    budget = client.budgets.create(tenant="new", amount=Decimal("1200.50"), currency="USD")
    assert (budget.amount, budget.carbon_kg) == (Decimal("1200.50"), None)
    secret = client.keys.create(tenant="new", label="first", idempotency_key="first").secret
    assert secret is not None
    assert client.keys.create(tenant="new", label="first", idempotency_key="first").secret is None
    assert len(list(client.keys.list(tenant="new"))) == 1


def test_version_is_entered_and_none_is_changed_when_a_rate_changes(client):
    demo.load()
    now = timezone.now().replace(microsecond=0)
    old = client.tariffs.create(
        site="location-1", currency="USD", price_per_kwh=0.1, valid_from=now, source="bill", version="1"
    )
    new = client.tariffs.change(old.id, etag=old.etag, valid_from=now + timedelta(days=1), version="2")
    assert new.id != old.id
    assert (new.valid_from, new.price_per_kwh) == (now + timedelta(days=1), 0.1)


def test_report_is_asked_for_waited_for_fetched_and_signed(client):
    service = demo.load()
    instance = start_instance(service.pools.first(), Node.objects.get(name="loc1-a100"), tp=4)
    metering.quarter_hour(instance)
    assert settlement.settle(moment(LATER)) == 3
    report = client.reports.create(period=f"{moment(START):%Y-%m-%d}", by=["site"], formats=["csv", "pdf"])
    assert (report.state, report.files, report.summary) == ("queued", (), None)
    with pytest.raises(api.JobError, match="queued after 0 s"):
        client.jobs.wait(report.job, timeout_s=0)
    assert make_report(report.id)  # as a worker does
    assert client.jobs.wait(report.job).state == "done"
    done = client.reports.get(report.id)
    assert {file.format for file in done.files} == {"csv", "pdf", "reconciliation"}
    for file in done.files:
        content = client.reports.file(report.id, file.format)
        assert (hashlib.sha256(content).hexdigest(), len(content)) == (file.sha256, file.size_bytes)
    with pytest.raises(api.NotFoundError, match="no file of that format"):
        client.reports.file(report.id, "xlsx")
    signed = client.reports.sign(report.id)
    assert signed.signed_by == "administrator"
    assert signed.signed_at is not None


def test_alert_is_acknowledged(client):
    now = timezone.now()
    moments = {"since": now, "opened_at": now, "last_seen_at": now}
    made = Alert.objects.create(rule="r", level="bad", summary="hot", step="look", threshold=1.0, **moments)
    (alert,) = client.alerts.list(state="open")
    assert (alert.id, alert.level, alert.acknowledged_by) == (made.pk, "bad", None)
    assert abs(alert.since - now) < timedelta(milliseconds=1)
    assert client.alerts.acknowledge(alert.id).acknowledged_by == "administrator"
    silence = client.alert_silences.create(rule="node_silent", for_s=3600, reason="works")
    client.alert_silences.delete(silence.id)
    assert not client.alert_silences.list().first()


def test_webhook_is_changed_with_the_etag_of_its_row(client):
    made = client.webhooks.create(name="ops", url="https://ops.example.org/", events=["alert.opened"])
    assert made.secret
    (row,) = client.webhooks.list()
    assert row.etag == made.etag
    assert not client.webhooks.change(row.id, etag=row.etag, enabled=False).enabled
    with pytest.raises(api.StaleError):
        client.webhooks.change(row.id, etag=row.etag, enabled=True)


def test_series_are_values_text_and_arrow(client):
    demo.load()
    now = timezone.now()
    series = client.series.get("power", from_=now - timedelta(hours=2), to=now, step=600)
    assert (series.name, series.step_s) == ("power", 600.0)
    assert series.start_at < series.end_at
    assert client.series.csv("power", step=600).splitlines()[0].startswith("at,")
    assert client.series.arrow("power").startswith(b"\xff\xff\xff\xff")
    with pytest.raises(api.InvalidError, match="step"):
        client.series.get("power", step=7)


def test_what_is_not_allowed_is_said_to_be(redis_client):
    for viewer in _client_of("viewer"):
        with pytest.raises(api.NotAllowedError):
            viewer.tenants.create(name="acme")
        with pytest.raises(api.InvalidError, match="grid_zone"):
            viewer.call("GET", "sites/", query={"grid_zoen": "IE"})
    with (
        connection_kept(),
        Client("http://testserver", "gs_wrong", inner=wsgi()) as stranger,
        pytest.raises(api.NotSignedInError, match="Bearer"),
    ):
        list(stranger.sites.list())


def test_error_names_the_address_when_the_page_is_none_of_the_api(client):
    with pytest.raises(api.NotFoundError):
        client.call("GET", "nothing/")

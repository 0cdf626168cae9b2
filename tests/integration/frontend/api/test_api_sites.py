"""Somebody whose role is for one site, at every address of the document: it names nothing of others, changes none."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.apps import apps
from django.test import Client

from frontend.api.resources import documents
from pools.access import audit
from pools.models import Job, JobState, Pool, Service, Site
from scheduler.models import Approval, ControllerState, Decision, Epoch, Study
from scheduler.operations import overrides, pauses
from telemetry.models import Alert, AlertSilence, GpuRate, Pue, Report, ReportSchedule, RequestRecord, Tariff
from tests.fakes import seed
from tests.fakes.people import person

pytestmark = pytest.mark.django_db
OWN, OTHER = "location-1", "location-2"
NODES = {"location-1": ("n1", "n2"), "location-2": ("n3", "n4"), "location-3": ("n5",)}
FOREIGN = re.compile(r"location-[23]|Location [23]|\bn[345]\b|SIM-n[345]|not-for-all")
MADE = {"study", "studyrun", "studyfile", "job", "report", "idempotentanswer", "auditentry", "decision", "looppause"}
SYSTEM = audit.Actor()


@pytest.fixture(autouse=True)
def _unlimited(redis_client, settings) -> None:
    settings.GREENSERVE_API_LIMITS = {"reads": 1_000_000, "writes": 1_000_000}


@pytest.fixture(scope="module")
def seeded(shared_rows) -> seed.Seeded:
    """Something of everything at each site, and of all of them together."""
    found = seed.everything(minutes=3, rps=0.3)
    until, now = found.now + timedelta(hours=1), datetime.now(UTC)
    for site in found.sites:
        pool = next(pool for pool in found.pools if pool.site_id == site.pk)
        overrides.pin_workers(SYSTEM, pool, {}, until, f"why at {site}")
        overrides.fix_clock(SYSTEM, pool, 1000.0, until, f"why at {site}")
        overrides.drain_site(SYSTEM, site, until, f"why at {site}")
        _rates(site, now)
        node, subject = NODES[site.name][0], f"{found.service}/{site.name}/SS"
        uid = next(str(one.uid) for one in found.instances if one.pool.site_id == site.pk)
        for rule, whose in (("feed_stale", f"{site.name}/average"), ("node_silent", node), ("queue_growing", subject)):
            _alert(rule, whose, f"{rule} at {site.name} on {node}", now)
        _alert("crash_loop", uid, f"falls over at {site.name}", now)
        AlertSilence.objects.create(rule="node_silent", subject=node, created_at=now, expires_at=until)
        _report([site.name])
        ReportSchedule.objects.create(name=f"monthly-{site.name}", cadence="monthly", asked={"sites": [site.name]})
    for decision in Decision.objects.exclude(pool=None).select_related("pool__site"):
        words = {"summary": f"at {decision.pool.site.name}", "inputs": {}, "alternatives": [], "commands": []}
        Decision.objects.filter(pk=decision.pk).update(**words)
    _alert("epoch_failed", f"{found.service}/carbon", "no room at location-2", now)
    _report([])
    _plan(found.service, now)
    job = Job.objects.create(kind="study", parameters={"name": "not-for-all"}, log="not-for-all")
    Study.objects.create(name="not-for-all", base="fleet", scenario={}, notes=[], job=job, heard_at=now)
    pauses.pause(SYSTEM, found.service, "scale", "spring cleaning")
    return found


def _rates(site: Site, now: datetime) -> None:
    valid = {"site": site, "valid_from": now, "source": f"contract of {site}"}
    Tariff.objects.create(currency="USD", price_per_kwh=0.1, **valid)
    GpuRate.objects.create(currency="USD", gpu_type="A100-80GB", rate_per_gpu_hour=2.0, **valid)
    Pue.objects.create(value=1.2, **valid)


def _alert(rule: str, subject: str, summary: str, now: datetime) -> None:
    Alert.objects.create(
        rule=rule,
        subject=subject,
        summary=summary,
        level="bad",
        threshold=1.0,
        since=now,
        opened_at=now,
        last_seen_at=now,
    )


def _report(sites: list[str]) -> None:
    job = Job.objects.create(kind="report", state=JobState.DONE, parameters={"sites": sites}, log=f"{sites or OTHER}")
    start = datetime(2026, 10, 1, tzinfo=UTC)
    Report.objects.create(
        asked={"sites": sites, "by": []}, period_start=start, period_end=start + timedelta(days=31), revision=1, job=job
    )


def _plan(service: Service, now: datetime) -> None:
    """Of the whole service: it names all sites."""
    controller = ControllerState.objects.filter(service=service, kind="carbon").first()
    controller = controller or ControllerState.objects.create(service=service, kind="carbon", value={})
    epoch = Epoch.objects.create(
        kind="carbon",
        service=service,
        index=7,
        period_s=1800.0,
        due_at=now,
        started_at=now,
        finished_at=now,
        status="waiting",
        error="at location-2",
    )
    Decision.objects.create(kind="carbon", epoch=epoch, service=service, at=now, reason="plan", summary="to location-2")
    Approval.objects.create(
        epoch=epoch, service=service, controller=controller, loop="carbon", created_at=now,
        expires_at=now + timedelta(minutes=9), commands=[{"type": "ScaleTo", "pool": {"site": OTHER}}],
    )  # fmt: skip


@pytest.fixture(
    params=[
        "operator",
        pytest.param("finance", marks=pytest.mark.slow("by the same rule as operators")),
    ]
)
def scoped(request, seeded) -> Client:
    client = Client()
    client.force_login(person(request.param, sites=[seeded.sites[0]]))
    return client


@pytest.fixture
def administrator(seeded) -> Client:
    client = Client()
    client.force_login(person("administrator", "ada"))
    return client


def operations(methods: tuple[str, ...]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, found in documents.document()["paths"].items():
        yield from ((path, method, found[method]) for method in methods if method in found)


def addresses(administrator: Client, path: str) -> list[tuple[str, dict[str, Any]]]:
    """The path for each row that there is, with the row; as an administrator finds them."""
    if "{" not in path:
        return [(path, {})]
    if path.startswith("/api/v1/series/"):
        return [(path.replace("{name}", name), {}) for name in ("power", "carbon", "intensity", "slo")]
    if path.startswith("/api/v1/modes/"):
        return [(path.replace("{service}", "llama3-70b"), {})]
    head, rest = path.split("{", 1)
    tail = re.sub(r"\{index\}", "0", re.sub(r"\{(kind|format)\}", "pdf", rest.partition("}")[2]))
    rows = administrator.get(head, {"limit": 500}).json()["results"]
    if path.startswith("/api/v1/requests/"):  # a record is found by its moment too
        return [(f"{head}{row['request_id']}{tail}?started_at={row['started_at']}", row) for row in rows]
    keys = [(row.get("url") or f"{head}{row.get('uid') or row.get('id') or row['name']}/", row) for row in rows]
    return [(own.removesuffix("/") + tail, row) for own, row in keys]


def strange(received: str, sent: str) -> set[str]:
    """What is named of other sites, but for what was sent: an error repeats what it was asked for."""
    return set(FOREIGN.findall(received)) - set(FOREIGN.findall(sent))


def test_nothing_of_another_site_is_named(scoped, administrator):
    seen = 0
    for path, _, _ in operations(("get",)):
        if "/experiments/" in path:
            continue  # the product's own, with sites of papers, which happen to be called so
        rows = addresses(administrator, path)
        others = [(address, row) for address, row in rows if FOREIGN.search(json.dumps(row))]
        for address, _ in [*others[:5], *rows[-3:]]:
            answer = scoped.get(address, {"limit": 500} if "{" not in path and "docs" not in path else {})
            received = (b"".join(answer) if answer.streaming else answer.content).decode()
            assert not strange(received, address), f"{address} tells of {strange(received, address)}: {received[:2000]}"
            seen += answer.status_code == 200
    assert seen > 50


def test_use_of_requests_at_other_sites_is_unknown(scoped, administrator):
    RequestRecord.objects.update(predicted_energy_j=1.0)
    own = {row["request_id"] for row in scoped.get("/api/v1/requests/?limit=500").json()["results"]}
    rows = administrator.get("/api/v1/requests/?limit=500").json()["results"]
    assert own
    assert len(own) < len(rows)
    for row in rows[:40]:
        answer = scoped.get(f"/api/v1/requests/{row['request_id']}/use/", {"started_at": row["started_at"]})
        assert answer.status_code == (200 if row["request_id"] in own else 404)


def test_own_things_are_named(scoped):
    for path, least in (
        ("alerts", 4), ("overrides", 3), ("reports", 1), ("report-schedules", 1), ("decisions", 1), ("pauses", 1),
        ("nodes", 2), ("tariffs", 1), ("alert-silences", 1), ("instances", 1), ("requests", 1),
    ):  # fmt: skip
        assert len(scoped.get(f"/api/v1/{path}/?limit=500").json()["results"]) >= least, path
    for path in ("approvals", "epochs", "studies", "jobs"):
        assert scoped.get(f"/api/v1/{path}/").json()["results"] == [], path


def body_of(operation: dict[str, Any], row: dict[str, Any], seeded: seed.Seeded) -> Any:
    """The document's example, with another site's things in it."""
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    found = json.loads(json.dumps(content.get("example", {})))
    pool = next(pool for pool in seeded.pools if pool.site.name == OTHER)
    foreign = {
        "site": OTHER, "cluster": f"{OTHER}/main", "node": "n3", "service": "llama3-70b", "pool": pool.pk,
        "subject": f"{OTHER}/average", "rule": "feed_stale", "sites": [OTHER], "for_s": 600, "kind": None,
        "expires_at": (seeded.now + timedelta(hours=2)).isoformat(), "partition": "freesh-a",
    }  # fmt: skip

    def put(item: Any) -> Any:
        if not isinstance(item, dict):
            return item
        more = {name: row[name] for name in ("id", "etag") if name in row and name in item}
        own = {name: value for name, value in foreign.items() if name in item and value is not None}
        return {**item, **own, **more}

    return [put(item) for item in found] if isinstance(found, list) else put(found)


def stored() -> dict[tuple[str, Any], Any]:
    """Every row of what people and loops own."""
    found: dict[tuple[str, Any], Any] = {}
    for model in apps.get_models():
        if model._meta.app_label not in ("pools", "scheduler", "telemetry") or not model._meta.managed:
            continue
        name = str(model._meta.model_name)
        if (
            model._meta.pk.attname != "pk"
            and model._default_manager.count() < 400
            and name not in ("auditentry", "idempotentanswer")
        ):
            found |= {(name, row[model._meta.pk.attname]): row for row in model._default_manager.values()}
    return found


def test_nothing_of_another_site_is_changed(scoped, administrator, seeded):
    before, sent = stored(), 0
    for path, method, operation in operations(("post", "patch", "put", "delete")):
        if path == "/api/v1/nodes/join/":
            continue
        rows = addresses(administrator, path)
        foreign = [(address, row) for address, row in rows if "{" not in path or FOREIGN.search(json.dumps(row))]
        for address, row in foreign[:3]:
            if method == "patch" and "{" not in path:
                row = next(iter(administrator.get(address, {"ordering": "-id"}).json()["results"]), {})
            body = body_of(operation, row, seeded)
            answer = scoped.generic(
                method.upper(), address, json.dumps(body), content_type="application/json", headers={"If-Match": "*"}
            )
            assert answer.status_code < 500, f"{method} {address}: {answer.content!r}"
            found = strange(answer.content.decode(), address + json.dumps(body))
            assert not found, f"{method} {address} tells of {found}: {answer.content!r}"
            sent += 1
    after = stored()
    assert {key: row for key, row in after.items() if key in before} == before
    new = {key: row for key, row in after.items() if key not in before}
    assert not [row for row in new.values() if FOREIGN.search(str(row))], new
    assert {kind for kind, _ in new} <= MADE
    assert sent > 80


def test_overrides_of_another_site_are_refused_and_own_ones_kept(seeded, redis_client):
    client = Client()
    client.force_login(person("operator", sites=[seeded.sites[0]]))
    until = (seeded.now + timedelta(hours=2)).isoformat()

    def pin(pool: Pool) -> Any:
        body = {"kind": "clock", "pool": pool.pk, "mhz": 900, "expires_at": until, "reason": "test"}
        return client.post("/api/v1/overrides/", body, content_type="application/json")

    own, other = (next(pool for pool in seeded.pools if pool.site.name == name) for name in (OWN, OTHER))
    assert pin(own).status_code == 201
    refused = pin(other)
    assert refused.status_code == 400
    assert "pool" in refused.json()["detail"]
    assert (
        client.post(
            "/api/v1/alert-silences/", {"rule": "node_silent", "for_s": 600}, content_type="application/json"
        ).status_code
        == 403
    )
    mine = {"rule": "node_silent", "for_s": 600, "subject": "n2"}
    assert client.post("/api/v1/alert-silences/", mine, content_type="application/json").status_code == 201
    alert = Alert.objects.get(subject="n1")
    assert client.post(f"/api/v1/alerts/{alert.pk}/acknowledge/").status_code == 200
    alert = Alert.objects.get(subject="n3")
    assert client.post(f"/api/v1/alerts/{alert.pk}/acknowledge/").status_code == 404

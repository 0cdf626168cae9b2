"""Somebody whose role is for one site: what the pages that show the whole fleet tell of the others."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest
from django.core.cache import cache
from django.test import Client

from pools import wire
from pools.models import Job, JobState, Membership
from scheduler.models import Decision
from telemetry.models import Alert, CarbonFeed, Report
from tests.fakes import seed
from tests.fakes.people import person

pytestmark = pytest.mark.django_db
FOREIGN = re.compile(r"location-[23]|Location [23]|\bn[345]\b|SIM-n[345]|report 7[23]")
# Administrators are for all sites; who has no role sees no page of a site.
ROLES = [role for role in Membership.Role.values if role not in (Membership.Role.ADMINISTRATOR, Membership.Role.NONE)]
PAGES = (
    "/",
    "/overview/summary/",
    "/overview/pools/",
    "/overview/pools/?pools=all",
    "/overview/decisions/",
    "/overview/figures.json",
    "/overview/power.csv",
    "/overview/carbon.csv",
    "/decisions/",
    "/alerts/",
    "/health/",
    "/health/?part=1",
    "/health.json",
)


@pytest.fixture
def seeded(redis_client) -> seed.Seeded:
    """Something is the matter at each site, and with what is of all of them."""
    cache.clear()
    found = seed.everything(minutes=6, rps=1.0)
    now = datetime.now(UTC)
    alerts = [_alert("epoch_failed", f"{found.service}/carbon", "no room at location-2", now)]
    nodes = {"n1": "location-1", "n3": "location-2", "n5": "location-3"}
    for node, site in nodes.items():
        for rule, subject in (("node_silent", node), ("queue_growing", f"{found.service}/{site}/SS"), ("cap", site)):
            alerts.append(_alert(rule, subject, f"{rule} at {site} on {node}", now))
    Alert.objects.bulk_create(alerts)
    row = {"pid": 7, "state": "running", "started_at_s": 0.0, "restarts": 0, "log": ""}
    table = wire.ProcessTable(
        at_s=now.timestamp(), processes=[wire.ProcessRow(name=f"node.{node}", **row) for node in nodes]
    )
    redis_client.set(wire.PROCESSES_KEY, wire.encode(table))
    CarbonFeed.objects.update(last_error="no answer", last_error_at=now)
    for decision in Decision.objects.select_related("pool__site"):
        where = decision.pool.site.name if decision.pool else "location-2"
        Decision.objects.filter(pk=decision.pk).update(summary=f"at {where}")
    for pk, site in ((72, ["location-2"]), (73, [])):
        _report(pk, site, now)
    return found


def _alert(rule: str, subject: str, summary: str, now: datetime) -> Alert:
    moments = {"since": now, "opened_at": now, "last_seen_at": now}
    return Alert(rule=rule, subject=subject, summary=summary, level="bad", threshold=1.0, step="look", **moments)


BASELINE = {
    **{"policy": "none", "energy_uj": 2_000_000_000_000, "location_ug": None, "requests": 9, "left_out": 0},
    **{"how": "", "span_s": 90 * 3600},
}


def _report(pk: int, sites: list[str], now: datetime) -> None:
    """With a baseline, as the Overview shows the newest of them."""
    job = Job.objects.create(kind="report", state=JobState.DONE)
    Report.objects.create(
        pk=pk,
        asked={"sites": sites, "period": "2026-10"},
        basis={"baseline": BASELINE},
        summary={"energy_j": 1e6},
        period_start=now - timedelta(days=1),
        period_end=now,
        job=job,
    )


def test_no_other_site_is_named_when_a_role_is_for_one_site(seeded):
    for role in ROLES:
        client = Client()
        client.force_login(person(role, f"{role}-of-one", sites=[seeded.sites[0]]))
        for path in PAGES:
            answer = client.get(path)
            assert answer.status_code == 200, (role, path)
            found = FOREIGN.search(answer.content.decode())
            assert not found, (role, path, found, answer.content.decode()[max(0, found.start() - 200) : found.end()])


def test_own_site_is_named_and_sums_are_the_fleets_when_a_role_is_for_one_site(seeded):
    cache.clear()
    local, everywhere = Client(), Client()
    local.force_login(person("operator", sites=[seeded.sites[0]]))
    everywhere.force_login(person("viewer", "anywhere"))
    page = local.get("/").content.decode()
    for own in ("Location 1", "node_silent at location-1 on n1", "at location-1"):
        assert own in page, own
    health = local.get("/health.json").json()
    assert [node["name"] for node in health["nodes"]] == ["n1", "n2"]
    assert [row["name"] for row in health["processes"]] == ["node.n1"]
    of_all = everywhere.get("/").content.decode()
    for named in ("Location 2", "node_silent at location-2 on n3", "at location-2"):
        assert named in of_all, named
    counts = re.compile(r"\d+ sites?, \d+ nodes?.*?serving", re.DOTALL)
    assert counts.findall(page) == counts.findall(of_all)
    traces = {trace["name"] for trace in local.get("/overview/figures.json").json()["figures"]["power"]["data"]}
    assert any("2 others" in name for name in traces), traces

"""A tenant's fully loaded bill of a month, on its page and by REST: to the digit that of the month's report."""

from __future__ import annotations

import csv
import io
from datetime import timedelta
from decimal import Decimal

import pytest
from django.core.cache import cache
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from pools.models import Job, JobState, Node, Service, Site
from telemetry.ledger import settlement
from telemetry.models import Report, Settlement, Tariff
from telemetry.report_values.bill import PART_WORDS
from telemetry.report_values.bill_table import CELLS
from telemetry.reports import report_jobs, report_requests, tenant_bills
from tests.fakes import metering
from tests.fakes.house import moment, start_instance
from tests.fakes.metering import LATER, START
from tests.fakes.people import person

pytestmark = pytest.mark.django_db
MONTH = f"{moment(START):%Y-%m}"
TENANT = "tenant-0"
PAGE, REST = f"/tenants/{TENANT}/", f"/api/v1/tenants/{TENANT}/bill/"


@pytest.fixture(autouse=True)
def _own_folder(settings, tmp_path) -> None:
    settings.GREENSERVE_REPORTS_DIR = tmp_path / "reports"
    cache.clear()


@pytest.fixture(scope="module")
def settled_rows(demo_rows: None) -> None:
    Site.objects.update(time_zone="UTC")  # so that the quarter of an hour is the month's peak there too
    instance = start_instance(Service.objects.get().pools.first(), Node.objects.get(name="loc1-a100"), tp=4)
    site = instance.node.cluster.site
    metering.quarter_hour(instance)
    Tariff.objects.create(
        site=site, currency=site.currency, price_per_kwh=0.30, demand_per_kw=12.0, valid_from=moment(START),
        source="contract 77", version="2026-01",
    )  # fmt: skip
    assert settlement.settle(moment(LATER)) == 3


@pytest.fixture
def settled(settled_rows: None) -> Site:
    return Site.objects.get(name="location-1")


@pytest.fixture
def client(settled, redis_client) -> Client:
    found = Client()
    found.force_login(person("administrator"))
    return found


def made(**given) -> Report:
    report = report_requests.ask({"period": MONTH, "formats": "bill-csv", **given})
    assert report_jobs.make(report.pk), Job.objects.get(pk=report.job_id).error
    return Report.objects.get(pk=report.pk)


def in_file(report: Report) -> list[dict[str, str]]:
    """The tenant's rows of the bill's CSV, each of one part at the only site."""
    text = report_requests.path_of(report.files.get(format="bill-csv")).read_text()
    return [row for row in csv.DictReader(io.StringIO(text)) if row["tenant"] == TENANT]


@pytest.mark.parametrize("basis", ["usage", "allocation", "marginal"])
def test_bill_is_the_reports_to_the_digit(client, basis):
    report = made(basis=basis)
    body = client.get(REST, {"month": MONTH, "basis": basis}).json()
    (expected,) = [row for row in report.summary["bill"]["tenants"] if row["tenant"] == TENANT]
    assert body["totals"] == [{name: value for name, value in expected.items() if name != "tenant"}]
    assert (body["report"]["version"], body["report"]["signature"]) == (
        report.summary["version"],
        report.summary["signature"],
    )
    words = {PART_WORDS[name]: name for name in PART_WORDS} | {f"demand charge {MONTH}": tenant_bills.DEMAND}
    rows = {words[row["part"]]: row for row in in_file(report)}
    assert rows.keys() == {part["part"] for part in body["parts"]}
    assert (basis == "marginal") == (tenant_bills.DEMAND not in rows), "the operator bears capacity"
    for part in body["parts"]:
        row = rows[part["part"]]
        assert {name: part[name] for name in CELLS} == {name: row[name] or None for name in CELLS}
    page = client.get(PAGE, {"month": MONTH, "basis": basis}).content.decode()
    assert f'href="/reports/{report.pk}/"' in page
    assert report.summary["version"] in page
    assert report.summary["signature"] in page


def test_parts_add_up_to_the_total(client):
    made()
    body = client.get(REST, {"month": MONTH}).json()
    (total,) = body["totals"]
    for name in ("energy_j", "electricity_cost", "gpu_hour_cost", "demand_charge", "due"):
        assert sum(Decimal(part[name]) for part in body["parts"]) == Decimal(total[name])
    assert {"direct", "idle", "demand"} <= {part["part"] for part in body["parts"]}


def test_month_without_a_report_offers_to_make_one_and_says_nothing_of_the_bill(client):
    made(basis="allocation")
    body = client.get(REST, {"month": MONTH}).json()
    assert (body["report"], body["totals"], body["parts"]) == (None, [], None)
    page = client.get(PAGE, {"month": MONTH}).content.decode()
    assert "Make the month&#x27;s report" in page or "Make the month's report" in page
    for _ in range(2):
        answer = client.post(f"{PAGE}bill/make/?month={MONTH}", {"basis": "usage"})
        assert answer["Location"] == f"{PAGE}?month={MONTH}&basis=usage#bill"
    (asked,) = Report.objects.filter(asked__basis="usage")  # the second press finds the first one's report
    assert (asked.asked["period"], asked.asked["sites"], asked.job.state) == (MONTH, [], JobState.QUEUED)
    part = client.get(f"{PAGE}bill/", {"month": MONTH}).content.decode()
    assert "waits for a worker" in part
    assert 'hx-trigger="every 3s"' in part
    Job.objects.filter(pk=asked.job_id).update(state=JobState.FAILED, error="the disk is full")
    assert "the disk is full" in client.get(PAGE, {"month": MONTH}).content.decode()


def test_viewer_is_not_offered_to_make_one(settled, redis_client):
    viewer = Client()
    viewer.force_login(person("viewer"))
    assert "bill/make/" not in viewer.get(PAGE, {"month": MONTH}).content.decode()
    assert viewer.post(f"{PAGE}bill/make/?month={MONTH}", {"basis": "usage"}).status_code == 403
    assert not Report.objects.exists()


def test_bill_says_when_the_ledger_has_settled_more_since(client, settled):
    made()
    assert client.get(REST, {"month": MONTH}).json()["older"] is False
    at = moment(START) + timedelta(days=2)
    Settlement.objects.create(
        site=settled, start_at=at, end_at=at + timedelta(minutes=5), revision=0, cause="", sources={},
        currency=settled.currency, energy_uj=1, unattributed_uj=0,
    )  # fmt: skip
    assert client.get(REST, {"month": MONTH}).json()["older"] is True
    page = client.get(PAGE, {"month": MONTH}).content.decode()
    assert "has settled more of the month since" in page
    assert "report anew" in page


def test_newest_report_of_exactly_the_month_is_taken(client):
    first, day = made(), made(period=f"{MONTH}-01")
    assert client.get(REST, {"month": MONTH}).json()["report"]["id"] == first.pk != day.pk
    second = made()
    assert client.get(REST, {"month": MONTH}).json()["report"]["id"] == second.pk


def test_report_that_is_older_than_kept_parts_has_its_totals(client):
    report = made()
    (report_requests.folder_of(report) / tenant_bills.KEPT).unlink()
    body = client.get(REST, {"month": MONTH}).json()
    assert body["parts"] is None
    (expected,) = [row for row in report.summary["bill"]["tenants"] if row["tenant"] == TENANT]
    assert body["totals"][0]["due"] == expected["due"]
    assert "its parts are in its files" in client.get(PAGE, {"month": MONTH}).content.decode()


def test_bill_of_all_sites_is_not_for_who_sees_some(client, settled):
    whole = made()
    own = Client()
    own.force_login(person("finance", "here", sites=[settled]))
    assert own.get(REST, {"month": MONTH}).json()["report"] is None
    answer = own.post(f"{PAGE}bill/make/?month={MONTH}", {"basis": "usage"})
    assert answer.status_code == 302
    asked = Report.objects.exclude(pk=whole.pk).get()
    assert asked.asked["sites"] == [settled.name]
    assert report_jobs.make(asked.pk)
    assert own.get(REST, {"month": MONTH}).json()["report"]["id"] == asked.pk
    assert client.get(REST, {"month": MONTH}).json()["report"]["id"] == whole.pk
    elsewhere = Client()
    elsewhere.force_login(person("finance", "there", sites=[Site.objects.exclude(pk=settled.pk).first()]))
    assert elsewhere.get(REST, {"month": MONTH}).status_code == 404


@pytest.mark.parametrize("query", [{"month": "soon"}, {"basis": "luck"}, {"by": "site"}])
def test_question_is_refused_by_field_when_it_makes_no_sense(client, query):
    answer = client.get(REST, query)
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (400, next(iter(query)))


def test_bill_is_read_in_a_constant_number_of_queries(client):
    made()
    client.get(REST, {"month": MONTH})
    with CaptureQueriesContext(connection) as few:
        client.get(REST, {"month": MONTH})
    for _ in range(3):
        made()
    with CaptureQueriesContext(connection) as more:
        client.get(REST, {"month": MONTH})
    assert len(more) == len(few)

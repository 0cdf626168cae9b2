"""A report of a site whose node has host meters: files, REST and page have the host energy that the ledger has."""

from __future__ import annotations

import csv
import io
from decimal import Decimal

import pytest
from django.db.models import Sum
from django.test import Client

from pools.models import Instance, Node
from telemetry.ledger import host_posting, settlement
from telemetry.models import HostEntry, HostSample, Report
from telemetry.reports import report_jobs, report_requests
from telemetry.storage import time_partitions
from tests.fakes.house import moment
from tests.fakes.metering import END, LATER, START
from tests.fakes.people import person

pytestmark = pytest.mark.django_db
UJ_PER_KWH = Decimal(3_600_000_000_000)


@pytest.fixture(autouse=True)
def _own_folder(settings, tmp_path) -> None:
    settings.GREENSERVE_REPORTS_DIR = tmp_path / "reports"


@pytest.fixture
def instance(metered_rows: None) -> Instance:
    return Instance.objects.get()


@pytest.fixture
def finance() -> Client:
    client = Client()
    client.force_login(person("finance"))
    return client


def meter_host(node: Node) -> int:
    """Two domains from START to END. Returns their microjoules, as entered."""
    time_partitions.ensure({moment(START).date()})
    for domain, watts in (("package-0", 181.3), ("rest of the node", 95.07)):
        HostSample.objects.bulk_create(
            HostSample(at=moment(START + n), node=node, domain=domain, method="zeusd", energy_j=watts * n)
            for n in range(int(END - START) + 13)
        )
    for at_s in range(60, 901, 60):
        host_posting.post(moment(START + at_s))
    host_posting.post(moment(END + 12))
    return int(HostEntry.objects.filter(start_at__lt=moment(END)).aggregate(sum=Sum("energy_uj"))["sum"])


def made() -> Report:
    asked = {"period": f"{moment(START):%Y-%m-%d}", "by": "tenant", "formats": "csv,xlsx,pdf"}
    report = report_requests.ask(asked)
    assert report_jobs.make(report.pk), report.job.error
    return Report.objects.get(pk=report.pk)


def rows(report: Report) -> list[dict[str, str]]:
    text = report_requests.path_of(report.files.get(format="csv")).read_text()
    return list(csv.DictReader(io.StringIO(text)))


def test_files_page_and_rest_have_the_hosts_joules_when_they_were_metered(instance: Instance, finance: Client) -> None:
    host_uj = meter_host(instance.node)
    assert host_uj > 0
    settlement.settle(moment(LATER))
    report = made()
    found = rows(report)
    assert len(found) == 3  # two tenants, and nobody
    assert abs(sum(Decimal(row["host_kwh"]) for row in found) - host_uj / UJ_PER_KWH) < Decimal("1e-11")
    assert {Decimal(row["without_host_kwh"]) for row in found} == {0}
    for row in found:  # one instance has the node's GPUs: all share its host alike, in time
        assert Decimal(row["host_kwh"]) / Decimal(row["energy_kwh"]) == pytest.approx(
            Decimal("0.2303"), abs=Decimal("2e-4")
        )
        assert Decimal(row["facility_kwh"]) == pytest.approx(
            Decimal(row["energy_kwh"]) * Decimal("1.2"), abs=Decimal("1e-9")
        )
    summary = finance.get(f"/api/v1/reports/{report.pk}/").json()["summary"]
    assert (summary["host_j"], summary["without_host_j"]) == (host_uj / 1e6, 0.0)
    page = finance.get(f"/reports/{report.pk}/").content.decode()
    assert "beside the GPUs, and in no other figure" in page
    assert not report_jobs.reproduce(report)


def test_host_is_empty_and_the_page_says_why_when_nothing_meters_it(instance: Instance, finance: Client) -> None:
    settlement.settle(moment(LATER))
    report = made()
    assert {row["host_kwh"] for row in rows(report)} == {""}
    summary = finance.get(f"/api/v1/reports/{report.pk}/").json()["summary"]
    assert summary["host_j"] is None
    assert summary["without_host_j"] == summary["energy_j"]
    page = finance.get(f"/reports/{report.pk}/").content.decode()
    assert "not metered: all figures are of the GPUs alone" in page
    assert not report_jobs.reproduce(report)

"""A report's page with a bill of more tenants than it shows at once: they are turned over and found, with invoices."""

from __future__ import annotations

import html
import re
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from frontend import report_bill
from pools.models import Job, JobState
from telemetry.models import Report, ReportFile
from telemetry.report_values.bill_table import CELLS
from tests.fakes.people import person

pytestmark = pytest.mark.django_db
TENANTS = [f"team-{n:03}" for n in range(120)]


def billed(tenant: str | None) -> dict[str, Any]:
    return {"tenant": tenant, "currency": "EUR", **dict.fromkeys(CELLS, "1.50")}


@pytest.fixture
def report() -> Report:
    """A report that is done, with an invoice for each tenant and a CSV."""
    now = timezone.now()
    found = Report.objects.create(
        asked={"period": "2026-11", "zone": "UTC", "sites": [], "by": ["tenant"], "basis": "usage"},
        period_start=now - timedelta(days=30),
        period_end=now,
        summary={
            "bill": {"basis": "usage", "tenants": [*map(billed, TENANTS), billed(None)], "totals": [billed(None)]}
        },
        job=Job.objects.create(kind="report", state=JobState.DONE, progress=1.0),
    )
    kinds = ["csv", *(f"invoice-{tenant}" for tenant in TENANTS)]
    ReportFile.objects.bulk_create(
        [ReportFile(report=found, format=kind, name=kind, sha256="ab" * 32, size_bytes=1_000) for kind in kinds]
    )
    return found


@pytest.fixture
def client() -> Client:
    found = Client()
    found.force_login(person("viewer"))
    return found


def invoices(page: str) -> list[str]:
    return re.findall(r'files/invoice-([\w-]+)/"', page)


def test_every_invoice_is_reached_by_turning_over_the_bill(client: Client, report: Report) -> None:
    seen, address = [], f"/reports/{report.pk}/"
    while address:
        page = client.get(address).content.decode()
        assert len(invoices(page)) <= report_bill.PAGE
        seen += invoices(page)
        further = re.search(r'href="(\?[^"]+)" rel="next"', page)
        address = f"/reports/{report.pk}/{html.unescape(further[1]).partition('#')[0]}" if further else ""
    assert seen == TENANTS
    assert "(operator)" in page  # it bears some, and gets no invoice
    assert "120 invoices" in page


def test_tenant_of_the_bill_is_found_by_a_part_of_the_name(client: Client, report: Report) -> None:
    page = client.get(f"/reports/{report.pk}/", {"tenant": "TEAM-07"}).content.decode()
    assert invoices(page) == TENANTS[70:80]
    page = client.get(f"/reports/{report.pk}/", {"tenant": "team-1", "bill": "7"}).content.decode()
    assert invoices(page) == TENANTS[100:]  # beyond the last page: the last
    page = client.get(f"/reports/{report.pk}/", {"tenant": "<nobody>"}).content.decode()
    assert "The bill has no tenant of that name." in page
    assert "&lt;nobody&gt;" in page


def test_reports_say_how_many_invoices_there_are_in_as_many_queries(
    client: Client, report: Report, django_assert_max_num_queries: Any
) -> None:
    client.get("/reports/")
    with django_assert_max_num_queries(7):
        page = client.get("/reports/").content.decode()
    assert f'<a href="/reports/{report.pk}/#bill">120 invoices</a>' in page
    assert invoices(page) == []
    assert ">CSV</a>" in page

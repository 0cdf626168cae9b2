"""The pages of reports: one is asked for, made, looked at, downloaded and signed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from playwright.sync_api import Page, expect

from frontend import report_bill
from greenserve.celery import app
from pools import demo
from pools.models import Node
from telemetry.ledger import settlement
from telemetry.models import Report
from telemetry.reports import report_jobs, report_requests
from tests.browser.conftest import SignIn
from tests.fakes import metering
from tests.fakes.house import moment, start_instance
from tests.fakes.metering import LATER, START

DAY = f"{moment(START):%Y-%m-%d}"


@pytest.fixture(scope="module")
def fleet(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """A quarter of an hour that is metered and settled, in the place of the seeded fleet: its ledger is no ledger."""
    with django_db_blocker.unblock():
        instance = start_instance(demo.load().pools.first(), Node.objects.get(name="loc1-a100"), tp=4)
        metering.quarter_hour(instance)
        settlement.settle(moment(LATER))
        yield
        call_command("flush", verbosity=0, interactive=False)


@pytest.fixture(autouse=True)
def _own_folder_and_celery(settings: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    app.set_default()  # for the server's threads
    settings.GREENSERVE_REPORTS_DIR = tmp_path_factory.getbasetemp() / "browser-reports"


@pytest.fixture
def made(fleet: None) -> Report:
    """A report that is finished, and not signed."""
    report = report_requests.ask({"period": DAY})
    assert report_jobs.make(report.pk)
    return report


def test_report_is_made_and_read_when_finance_asks(
    signed_in: SignIn, accessible: Callable[[Page], None], picture: Callable[[Page, str], None]
) -> None:
    page = signed_in("finance")
    page.clock.install()
    page.goto("/reports/")
    page.get_by_label("Period").fill(DAY)
    page.get_by_label("tenant", exact=True).check()
    page.get_by_role("button", name="Make the report").click()
    page.locator("td", has_text="queued").wait_for()
    page.get_by_role("link", name=DAY).first.click()
    page.get_by_text("Waits for a worker").wait_for()
    assert report_jobs.make(Report.objects.latest("pk").pk)
    page.clock.fast_forward(3_000)  # the page asks each two seconds
    page.get_by_text("adds up to the meters").wait_for()
    page.get_by_role("heading", name="The bill, by usage").wait_for()
    assert page.get_by_role("region", name="The bill").get_by_role("row").last.inner_text().startswith("total")
    accessible(page)
    picture(page, "report")


@pytest.mark.slow("signing is tested without a browser")
def test_report_is_downloaded_and_signed_when_it_is_finished(
    made: Report, signed_in: SignIn, accessible: Callable[[Page], None], picture: Callable[[Page, str], None]
) -> None:
    page = signed_in("finance")
    page.goto(f"/reports/{made.pk}/")
    with page.expect_download() as download:
        page.get_by_role("link", name="CSV", exact=True).click()
    sha256 = hashlib.sha256(Path(download.value.path()).read_bytes()).hexdigest()
    assert sha256 in page.locator("#report").inner_text()
    page.get_by_role("button", name="Sign this version").click()
    page.get_by_text("Signed by finance.").wait_for()
    page.get_by_role("link", name="All reports").click()
    page.wait_for_url("**/reports/")
    accessible(page)
    picture(page, "reports")


@pytest.mark.slow("a second report in a browser")
def test_bill_is_turned_over_and_searched_in_its_place(
    made: Report, signed_in: SignIn, accessible: Callable[[Page], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_bill, "PAGE", 1)
    made.refresh_from_db()
    assert made.summary is not None
    names = [row["tenant"] or report_bill.OPERATOR for row in made.summary["bill"]["tenants"]]
    page = signed_in("viewer")
    page.goto(f"/reports/{made.pk}/")
    bill = page.get_by_role("region", name="The bill", exact=True)
    charts = page.locator("[data-chart]").first.element_handle()
    expect(bill.get_by_role("row").nth(1)).to_contain_text(names[0])
    page.get_by_role("navigation", name="Pages of the bill").get_by_role("link", name="Next").click()
    expect(bill.get_by_role("row").nth(1)).to_contain_text(names[1])
    page.get_by_placeholder("Tenant").fill(names[0])
    page.get_by_role("button", name="Find").click()
    expect(bill.get_by_role("row").nth(1)).to_contain_text(names[0])
    expect(page.get_by_placeholder("Tenant")).to_have_value(names[0])
    assert charts.evaluate("chart => chart.isConnected")  # the rest of the page stays as it is
    accessible(page)


@pytest.mark.slow("rights are tested without a browser")
def test_viewer_reads_and_cannot_sign_when_a_report_is_made(made: Report, signed_in: SignIn) -> None:
    page = signed_in("viewer")
    page.goto(f"/reports/{made.pk}/")
    page.get_by_text("by nobody yet").wait_for()
    assert page.get_by_role("button", name="Sign this version").count() == 0
    assert page.request.post(f"/reports/{made.pk}/sign/").status == 403

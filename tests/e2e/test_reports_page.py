"""The page of reports in a browser: asked for, made, downloaded, signed."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth import get_user_model

from greenserve.celery import app
from pools import demo
from pools.models import Node, Tenant
from telemetry import settlement
from telemetry.models import Report
from telemetry.reports.making import make
from tests.e2e import browser as chrome
from tests.e2e.test_dashboard import PASSWORD, Visit, in_thread
from tests.fakes import metering
from tests.fakes.house import moment, start_instance
from tests.fakes.metering import START

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def base(live_server: Any, settings: Any, tmp_path: Path) -> str:
    chrome.chromium()
    app.set_default()  # for the server's threads
    settings.GREENSERVE_REPORTS_DIR = tmp_path / "reports"
    get_user_model().objects.create_user("operator", password=PASSWORD)
    instance = start_instance(demo.load().pools.first(), Node.objects.get(name="loc1-a100"), tp=4)
    site = instance.node.cluster.site
    metering.intensity(site, START, 600.0, 400.0)
    metering.rates(site)
    metering.meters(instance, START + 602)
    tenant = Tenant.objects.get_or_create(name="acme")[0]
    for n in range(30):
        metering.request(instance, START + 3 + 9.7 * n, f"r{n}", tenant)
    settlement.settle(moment(START + 3_000))
    return str(live_server.url)


def test_report_is_asked_for_downloaded_and_signed_when_it_is_made(base: str, artifacts: Path) -> None:
    def ask() -> None:
        with chrome.launched() as browser:
            visit = Visit(browser, base, viewport={"width": 1280, "height": 900})
            page = visit.page
            page.get_by_role("link", name="Reports").click()
            page.wait_for_selector("#period")
            page.get_by_label("Period").fill("2026-01-01")
            page.get_by_role("button", name="Make the report").click()
            page.locator("td", has_text="queued").wait_for()
            visit.close()

    def use() -> None:
        with chrome.launched() as browser:
            visit = Visit(browser, base, viewport={"width": 1280, "height": 900})
            page = visit.page
            page.goto(f"{base}/reports/")
            chrome.screenshot(page, artifacts, "reports-light")
            with page.expect_download() as download:
                page.get_by_role("link", name="PDF").click()
            digest = hashlib.sha256(Path(download.value.path()).read_bytes()).hexdigest()
            assert digest == pdf.sha256
            page.get_by_role("button", name="sign", exact=True).click()
            page.locator("td", has_text="operator").wait_for()
            visit.close()
            narrow = Visit(browser, base, viewport={"width": 390, "height": 844}, color_scheme="dark")
            narrow.page.goto(f"{base}/reports/")
            width = narrow.page.evaluate("document.documentElement.scrollWidth")
            assert width <= 390
            chrome.screenshot(narrow.page, artifacts, "reports-narrow-dark")
            narrow.close()

    in_thread(ask)
    report = Report.objects.get()
    assert make(report.pk)
    pdf = report.files.get(format="pdf")
    in_thread(use)
    report.refresh_from_db()
    assert report.signed_by == "operator"

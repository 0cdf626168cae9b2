"""What a newcomer sees: minutes after `greenserve up`, four charts with data and decisions from four loops."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.e2e import browser as chrome
from tests.e2e.product import Product, wait_for

pytestmark = pytest.mark.browser
CHARTS = ("power", "carbon", "slo", "jain")
LOOPS = {"carbon", "scale", "shard", "clock"}
WITHIN_S = 180.0


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    chrome.chromium()
    product = Product(tmp_path_factory.mktemp("demo"))
    try:
        product.up()
        yield product
    finally:
        product.down()


def test_charts_and_decisions_are_there_when_three_minutes_have_passed(demo: Product, artifacts: Path) -> None:
    start = time.monotonic()
    wait_for(
        "decisions of all four loops",
        lambda: {row[0] for row in demo.sql("SELECT DISTINCT kind FROM scheduler_decision")} == LOOPS,
        timeout_s=WITHIN_S,
    )
    admin = demo.credentials["admin"]
    with chrome.launched() as browser:
        page = browser.new_page(viewport={"width": 1440, "height": 1000})
        watch = chrome.Watch(urlsplit(demo.web).netloc)
        watch.attach(page)
        chrome.sign_in(page, demo.web, admin["user"], admin["password"])
        chrome.wait_for_charts(page)
        while not all(drawn := {chart: chrome.drawn_points(page, chart) for chart in CHARTS}.values()):
            assert time.monotonic() - start < WITHIN_S, f"points drawn after {WITHIN_S:g} s: {drawn}"
            page.wait_for_timeout(1000)
        print(f"four charts and four loops after {time.monotonic() - start:.0f} s")
        page.wait_for_timeout(max(0.0, 40 - (time.monotonic() - start)) * 1000)  # something to look at
        chrome.screenshot(page, artifacts, "demo-overview")
        page.goto(f"{demo.web}/decisions/?kind=carbon")
        page.locator("main a[href^='/decisions/']").filter(has_text="Partition").last.click()
        page.wait_for_url("**/decisions/*/")
        assert page.get_by_text("freesh-", exact=False).count()
        chrome.screenshot(page, artifacts, "demo-decision")
        page.goto(f"{demo.web}/health/")
        chrome.screenshot(page, artifacts, "demo-health")
    assert watch.complaints == []
    assert watch.strangers == []


def test_served_requests_keep_their_energy_and_objectives_on_record(demo: Product) -> None:
    judged = wait_for(
        "judged requests",
        lambda: demo.sql("SELECT slo_met, count(*) FROM telemetry_requestrecord WHERE status = 'ok' GROUP BY 1"),
        timeout_s=30,
    )
    assert sum(count for met, count in judged if met) > 0
    kinds = {row[0] for row in demo.sql("SELECT DISTINCT kind FROM telemetry_energyentry")}
    assert {"serving", "idle", "transition"} <= kinds
    missing = demo.sql("SELECT count(*) FROM telemetry_energyentry WHERE carbon_gco2e IS NULL")[0][0]
    total = demo.sql("SELECT count(*) FROM telemetry_energyentry")[0][0]
    assert missing < total

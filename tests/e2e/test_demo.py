"""What a newcomer sees: minutes after `greenserve up`, four charts with data and decisions from four loops."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e import browser as chrome
from tests.e2e.product import Product, wait_for

pytestmark = [pytest.mark.browser, pytest.mark.slow("the demo's first minutes")]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    chrome.chromium()
    product = Product(tmp_path_factory.mktemp("demo"), days=7)
    try:
        product.up()
        yield product
    finally:
        product.down()


def test_charts_and_decisions_are_there_when_three_minutes_have_passed(demo: Product, artifacts: Path) -> None:
    chrome.overview_is_drawn(demo, artifacts, "demo", within_s=180.0, watch_s=40.0)


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

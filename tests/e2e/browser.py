"""Headless Chromium for tests: found on the machine, kept to one host, its complaints collected."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, Page, sync_playwright

from tests.conftest import skip_or_fail
from tests.e2e.product import Product, wait_for

CHARTS = ("power", "carbon", "slo", "jain")
LOOPS = {"carbon", "scale", "shard", "clock"}
ARGUMENTS = ["--no-sandbox", "--disable-background-networking", "--disable-gpu", "--disable-dev-shm-usage"]


def chromium() -> str:
    """Its path. Skips the test (fails in CI) when the machine has none."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        path = shutil.which(name)
        if path:
            return path
    skip_or_fail("no Chromium on the PATH; the distribution's package is called chromium")
    raise AssertionError("unreachable")


@dataclass
class Watch:
    """What a page did that a person would not see: complaints on its console, requests to other hosts."""

    host: str
    complaints: list[str] = field(default_factory=list)
    strangers: list[str] = field(default_factory=list)

    def attach(self, page: Page) -> None:
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.complaints.append(f"exception: {error}"))
        page.on("request", lambda request: self._request(request.url))

    def _console(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.type}: {message.text} ({message.location})")

    def _request(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("data", "blob") and parts.netloc != self.host:
            self.strangers.append(url)


@contextmanager
def launched() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()


def sign_in(page: Page, base: str, username: str, password: str) -> None:
    page.goto(base)
    page.get_by_label("User name").fill(username)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_selector("#charts")


def wait_for_charts(page: Page, draws: int = 1) -> None:
    """Until the four charts have been drawn `draws` times. (The page's policy forbids Playwright's own waiting.)"""
    deadline = time.monotonic() + 20
    while (drawn := int(page.get_attribute("#charts", "data-drawn") or 0)) < draws:
        assert time.monotonic() < deadline, f"the charts were drawn {drawn} times in 20 s, not {draws}"
        page.wait_for_timeout(100)


def drawn_points(page: Page, chart: str) -> int:
    """Bars and line points that stand in the chart's SVG, decisions' ticks not counted."""
    return int(
        page.evaluate(
            """(chart) => {
                const svg = document.querySelector(`[data-chart="${chart}"] .plot`);
                const bars = svg.querySelectorAll(".barlayer .point path").length;
                const lines = [...svg.querySelectorAll(".scatterlayer path.js-line")]
                    .reduce((sum, path) => sum + (path.getAttribute("d") || "").split(/[LHV]/).length - 1, 0);
                return bars + lines;
            }""",
            chart,
        )
    )


def time_range(page: Page, chart: str) -> list[str]:
    """From when to when a chart shows, as Plotly has it."""
    found: list[str] = page.evaluate(
        "(chart) => document.querySelector(`[data-chart='${chart}'] .plot`)._fullLayout.xaxis.range", chart
    )
    return found


def screenshot(page: Page, folder: Path, name: str) -> None:
    page.screenshot(path=str(folder / f"{name}.png"), full_page=True)


def overview_is_drawn(
    product: Product, artifacts: Path, name: str, within_s: float = 180.0, watch_s: float = 0.0
) -> None:
    """Signs in as the demo's administrator; four charts have data, and decisions of four loops are there to be read.

    With `watch_s` the charts are looked at for that long first, so that there is something to see in the pictures.
    """
    start = time.monotonic()
    wait_for(
        "decisions of all four loops",
        lambda: {row[0] for row in product.sql("SELECT DISTINCT kind FROM scheduler_decision")} == LOOPS,
        timeout_s=within_s,
    )
    admin = product.credentials["admin"]
    with launched() as browser:
        page = browser.new_page(viewport={"width": 1440, "height": 1000})
        watch = Watch(urlsplit(product.web).netloc)
        watch.attach(page)
        sign_in(page, product.web, admin["user"], admin["password"])
        wait_for_charts(page)
        while not all(drawn := {chart: drawn_points(page, chart) for chart in CHARTS}.values()):
            assert time.monotonic() - start < within_s, f"points drawn after {within_s:g} s: {drawn}"
            page.wait_for_timeout(1000)
        print(f"four charts and four loops after {time.monotonic() - start:.0f} s")
        page.wait_for_timeout(max(0.0, watch_s - (time.monotonic() - start)) * 1000)
        screenshot(page, artifacts, f"{name}-overview")
        page.goto(f"{product.web}/decisions/?kind=carbon")
        page.locator("main a[href^='/decisions/']").filter(has_text="Partition").last.click()
        page.wait_for_url("**/decisions/*/")
        assert page.get_by_text("g/kWh ahead", exact=False).count()
        screenshot(page, artifacts, f"{name}-decision")
        page.goto(f"{product.web}/health/")
        screenshot(page, artifacts, f"{name}-health")
    assert watch.complaints == []
    assert watch.strangers == []

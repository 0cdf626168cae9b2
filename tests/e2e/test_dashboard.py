"""The dashboard in a browser, on rows of our own making."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import pytest
import redis
from django.conf import settings
from playwright.sync_api import Browser, BrowserContext, Page

from tests.e2e import browser as chrome
from tests.fakes import seed
from tests.fakes.people import person

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]
T = TypeVar("T")
CHARTS = ("power", "carbon", "slo", "jain")
PASSWORD = "correct horse battery staple"


def in_thread(work: Callable[[], T]) -> T:
    """Playwright's loop owns its thread, in which Django then refuses to query: so the browser gets one of its own."""
    box: dict[str, Any] = {}

    def run() -> None:
        try:
            box["value"] = work()
        except BaseException as error:
            box["error"] = error

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(timeout=120)
    assert not thread.is_alive(), "the browser did not finish within two minutes"
    if "error" in box:
        raise box["error"]
    return box["value"]  # type: ignore[no-any-return]


class Visit:
    """One signed-in page, watched."""

    def __init__(self, browser: Browser, base: str, **options: Any) -> None:
        self.base = base
        self.watch = chrome.Watch(urlsplit(base).netloc)
        self.context: BrowserContext = browser.new_context(**options)
        self.page: Page = self.context.new_page()
        self.watch.attach(self.page)
        chrome.sign_in(self.page, base, "operator", PASSWORD)

    def close(self) -> None:
        self.context.close()
        assert self.watch.complaints == []
        assert self.watch.strangers == []


@pytest.fixture(autouse=True)
def quiet_redis() -> Iterator[None]:
    """No process is known to Redis unless a test says so."""
    client = redis.Redis.from_url(settings.REDIS_URL, socket_timeout=2, socket_connect_timeout=2)

    def clear() -> None:
        for key in client.scan_iter("greenserve:*"):
            client.delete(key)

    clear()
    yield
    clear()
    client.close()


@pytest.fixture
def base(live_server: Any) -> str:
    chrome.chromium()
    person("operator")
    return str(live_server.url)


def test_overview_draws_four_charts_and_leads_to_a_decision_when_there_is_history(base: str, artifacts: Path) -> None:
    # Ahead of the clock, so that nothing goes stale meanwhile: a longer list of what needs attention moves the table
    # below it, away from under a click.
    seeded = seed.everything(datetime.now(UTC) + timedelta(minutes=2), sampled=range(0, 150, 5))
    seed.well(seeded.now.timestamp())

    def work() -> None:
        with chrome.launched() as browser:
            visit = Visit(browser, base, viewport={"width": 1280, "height": 900})
            page = visit.page
            chrome.wait_for_charts(page)
            counts = {chart: chrome.drawn_points(page, chart) for chart in CHARTS}
            assert all(count > 20 for count in counts.values()), counts
            chrome.screenshot(page, artifacts, "overview-light")

            chrome.wait_for_charts(page, draws=2)
            page.locator("#pool-table th button", has_text="Power").click()
            assert page.locator("#pool-table th", has_text="Power").get_attribute("aria-sort") == "ascending"

            page.locator("[data-chart=power]").scroll_into_view_if_needed()
            box = page.locator("[data-chart=power] .plot").bounding_box()
            assert box is not None
            page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + 100)
            page.wait_for_timeout(300)
            page.screenshot(path=str(artifacts / "overview-hover.png"))
            page.mouse.down()
            page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 100, steps=5)
            page.mouse.up()
            page.get_by_role("link", name="Show the whole range").wait_for()
            chrome.wait_for_charts(page, draws=int(page.get_attribute("#charts", "data-drawn") or 0) + 2)
            assert "from=" in page.url, "live data must not undo a zoom"
            ranges = [chrome.time_range(page, chart) for chart in CHARTS]
            assert all(found == ranges[0] for found in ranges), ranges
            page.get_by_role("link", name="Show the whole range").click()

            with page.expect_download() as picture:
                page.locator("[data-chart=carbon] [data-download=png]").click()
            picture.value.save_as(artifacts / "download-carbon.png")
            assert (artifacts / "download-carbon.png").read_bytes().startswith(b"\x89PNG")
            with page.expect_download() as csv:
                page.locator("[data-chart=slo] a[download]").click()
            assert csv.value.suggested_filename.endswith(".csv")

            link = page.locator("td.sentence a").filter(has_text="becomes").first
            sentence = link.inner_text()
            link.click()
            page.wait_for_selector("h1.sentence")
            assert page.locator("h1.sentence").inner_text() == sentence
            assert page.locator("tr.chosen").count() == 1
            chrome.screenshot(page, artifacts, "decision-light")

            page.keyboard.press("g")
            page.keyboard.press("h")
            page.wait_for_selector("#processes")
            assert page.locator("td", has_text="running").count() == 12
            chrome.screenshot(page, artifacts, "health-light")
            page.goto(f"{base}/decisions/")
            chrome.screenshot(page, artifacts, "decisions-light")
            visit.close()

    in_thread(work)


@pytest.mark.slow("every page, dark and narrow")
def test_pages_hold_together_when_dark_and_when_narrow(base: str, artifacts: Path) -> None:
    seed.everything()  # and nothing in Redis: no process is known

    def work() -> None:
        with chrome.launched() as browser:
            dark = Visit(browser, base, viewport={"width": 1440, "height": 900}, color_scheme="dark")
            chrome.wait_for_charts(dark.page)
            chrome.screenshot(dark.page, artifacts, "overview-dark")
            dark.page.goto(f"{base}/health/")
            assert "No supervisor reports its processes" in dark.page.inner_text("main")
            chrome.screenshot(dark.page, artifacts, "health-dark")
            dark.close()

            narrow = Visit(browser, base, viewport={"width": 390, "height": 844}, is_mobile=True, has_touch=True)
            chrome.wait_for_charts(narrow.page)
            chrome.screenshot(narrow.page, artifacts, "overview-390")
            for path in ("/", "/decisions/", "/health/"):
                narrow.page.goto(base + path)
                width = narrow.page.evaluate("document.documentElement.scrollWidth")
                assert width <= 390, f"{path} is {width} px wide"
            chrome.screenshot(narrow.page, artifacts, "health-390")
            narrow.close()

    in_thread(work)


@pytest.mark.slow("what empty charts say is tested without a browser")
def test_empty_charts_say_what_to_do_when_nothing_has_happened(base: str, artifacts: Path) -> None:
    seed.fleet()

    def work() -> None:
        with chrome.launched() as browser:
            visit = Visit(browser, base, viewport={"width": 1280, "height": 900})
            chrome.wait_for_charts(visit.page)
            assert visit.page.locator("[data-chart=slo] .empty").is_visible()
            assert "curl" in visit.page.inner_text("[data-chart=slo] .empty")
            chrome.screenshot(visit.page, artifacts, "overview-empty")
            visit.close()

    in_thread(work)

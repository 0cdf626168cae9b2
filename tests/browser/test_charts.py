"""Charts over days, of sites that come and go, and of a site whose carbon feed is silent."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Page

from pools.models import Site
from tests.browser import chart_layout
from tests.browser.conftest import PHONE, SignIn
from tests.e2e import browser as chrome
from tests.fakes import seed

TICKS = (
    "(chart) => [...document.querySelectorAll(`[data-chart='${chart}'] .xtick text`)].map((tick) => tick.textContent)"
)


def ticks(page: Page, chart: str) -> list[str]:
    found: list[str] = page.evaluate(TICKS, chart)
    return found


def colour_of(page: Page, label: str) -> str:
    found: str = page.evaluate(
        """(label) => document.querySelector("[data-chart='power'] .plot").data
            .find((trace) => trace.name === label).marker.color""",
        label,
    )
    return found


@pytest.fixture
def newcomer(fleet: seed.Seeded) -> Iterator[Site]:
    """A site without a feed that stands before all others on pages."""
    site = Site.objects.create(name="aachen", label="Aachen", grid_zone="DE", rank=0)
    yield site
    site.delete()


@pytest.mark.slow("charts are drawn in test_dashboard.py")
@pytest.mark.parametrize("phone", [False, True])
def test_ticks_have_dates_when_a_range_is_seven_days(signed_in: SignIn, phone: bool) -> None:
    page = signed_in(**({"viewport": PHONE} if phone else {}))
    page.goto("/?range=7d")
    chrome.wait_for_charts(page)
    shown = ticks(page, "power")
    assert len(shown) >= 3
    assert len(set(shown)) == len(shown)
    assert all(tick.split()[1].isalpha() for tick in shown)
    page.goto("/?range=24h")
    chrome.wait_for_charts(page)
    shown = ticks(page, "power")
    assert all(":" in tick for tick in shown)
    assert sum(tick[-3:].isalpha() for tick in shown) >= 1  # the first, and each midnight
    assert chart_layout.complaints(page) == []


@pytest.mark.slow("charts are drawn in test_dashboard.py")
def test_hover_has_the_date_when_a_range_began_yesterday(page: Page) -> None:
    page.goto("/?range=24h")
    chrome.wait_for_charts(page)
    plot = page.locator("[data-chart=power] .plot .nsewdrag[data-subplot=xy]").bounding_box()
    assert plot is not None
    hover = page.locator("[data-chart=power] .hoverlayer .legendtitletext")
    for turn in range(60):  # a refresh clears what the pointer had brought up
        page.mouse.move(plot["x"] + plot["width"] * (0.9 + 0.005 * (turn % 5)), plot["y"] + plot["height"] / 2)
        page.wait_for_timeout(200)
        if hover.count():
            break
    assert re.match(r"\d+ [A-Z][a-z]{2} \d\d:\d\d:\d\d", hover.text_content(timeout=1_000) or "")


@pytest.mark.slow("charts are drawn in test_dashboard.py")
def test_sites_keep_their_colours_and_one_without_a_feed_is_named_when_a_site_is_added(
    page: Page, fleet: seed.Seeded, request: pytest.FixtureRequest, picture: Callable[[Page, str], None]
) -> None:
    page.goto("/?range=1h")
    chrome.wait_for_charts(page)
    before = {site.label: colour_of(page, site.label) for site in fleet.sites}
    request.getfixturevalue("newcomer")
    page.reload()
    chrome.wait_for_charts(page)
    assert {label: colour_of(page, label) for label in before} == before
    assert colour_of(page, "Aachen") not in before.values()
    carbon = page.locator("[data-chart=carbon]")
    assert (carbon.locator("[data-lacking]").text_content() or "").startswith("Without Aachen: no carbon feed")
    assert carbon.locator(".barlayer .point path").count() > 0  # all others stay drawn
    picture(page, "charts")

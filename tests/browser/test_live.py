"""Lists that stay fresh: what has changed is put in, and what the reader was doing is left alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page

from pools.models import Node, Site
from tests.browser.conftest import SignIn
from tests.e2e import browser as chrome
from tests.fakes import seed


@pytest.fixture
def crowd(fleet: seed.Seeded) -> Iterator[None]:
    """Fifty sites in all; the further ones have nothing yet."""
    count = 50 - len(fleet.sites)
    more = Site.objects.bulk_create(
        Site(name=f"more-{n}", label=f"More {n}", rank=9 + n, colour=9 + n) for n in range(count)
    )
    yield
    Site.objects.filter(pk__in=[site.pk for site in more]).delete()


def test_row_changes_and_focus_stays_when_a_list_is_refreshed(page: Page, fleet: seed.Seeded) -> None:
    page.clock.install()
    page.goto("/nodes/?sort=-name")
    names = page.locator("tbody tr[id] td:first-child a").all_inner_texts()
    page.get_by_role("button", name="GPUs of n3").click()
    page.locator(".details tbody tr").first.wait_for()
    page.get_by_role("link", name="n4", exact=True).focus()
    page.evaluate("document.getElementById('node-n4').marked = true")
    Node.objects.filter(name="n4").update(schedulable=False)
    try:
        page.clock.fast_forward(10_000)  # the list asks again every few seconds
        page.locator("#node-n4 td", has_text="closed").wait_for()
    finally:
        Node.objects.filter(name="n4").update(schedulable=True)
    assert page.evaluate("document.getElementById('node-n4').marked"), "the row was made anew"
    assert page.evaluate("document.activeElement.textContent") == "n4"
    assert page.locator("#node-n3 + .details").is_visible()
    assert page.locator("tbody tr[id] td:first-child a").all_inner_texts() == names


@pytest.mark.slow("the rail is tested without a browser")
def test_rail_keeps_range_and_zone_when_they_stand_in_the_url(page: Page, fleet: seed.Seeded) -> None:
    page.goto("/?range=1h&zone=UTC&pools=all")
    links = page.locator("#rail a").evaluate_all("(links) => links.map((link) => link.search)")
    assert set(links) == {"?range=1h&zone=UTC"}


@pytest.mark.slow("fifty sites")
def test_chart_shows_six_sites_and_leads_to_the_rest_when_there_are_fifty(
    signed_in: SignIn, crowd: None, fleet: seed.Seeded
) -> None:
    page = signed_in("viewer")
    page.goto("/")
    chrome.wait_for_charts(page)
    legend = page.locator("[data-chart=power] .legendtext").all_text_contents()
    assert len(legend) == 6
    assert legend[-1].endswith("others")
    page.locator("[data-chart=power] [data-rest]").click()
    page.wait_for_url("**/sites/")

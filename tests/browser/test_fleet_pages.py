"""The fleet's pages as a person goes through them: lists, objects, charts, a job that is stopped."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page

from pools.models import Job
from scheduler.models import Decision
from telemetry.models import CarbonFeed
from tests.browser import chart_layout
from tests.browser.conftest import PHONE, SignIn
from tests.e2e import browser as chrome
from tests.fakes import seed

pytestmark = pytest.mark.slow("each page of the fleet, both themes and a phone")


def paths(fleet: seed.Seeded) -> dict[str, str]:
    """Every page of mine, by name."""
    pool = next(p for p in fleet.pools if p.workers)
    decision = Decision.objects.filter(kind="carbon", reason="optimal").order_by("at")[3]
    return {
        "overview": "/",
        "sites": "/sites/",
        "site": f"/sites/{fleet.sites[0].name}/",
        "pools": "/pools/",
        "pool": f"/pools/{pool.pk}/",
        "nodes": "/nodes/",
        "node": "/nodes/n3/?range=6h",
        "models": "/models/",
        "model": f"/models/{fleet.service.model_card_id}/",
        "services": "/services/",
        "service": f"/services/{fleet.service.name}/",
        "feeds": "/feeds/",
        "feed": f"/feeds/{CarbonFeed.objects.values_list('pk', flat=True)[0]}/",
        "decisions": "/decisions/",
        "decision": f"/decisions/{decision.pk}/",
        "jobs": "/jobs/",
        "job": f"/jobs/{Job.objects.get(state='running').uid}/",
        "alerts": "/alerts/",
        "health": "/health/",
        "tenants": "/tenants/",
        "tenant": f"/tenants/{fleet.tenants[0].name}/",
        "trials": "/trials/",
        "trial-new": "/trials/new/",
    }


CHARTED = ("overview", "site", "pool", "node", "model", "service", "feed", "decision")


@pytest.mark.parametrize(
    "name",
    [
        "overview", "sites", "site", "pools", "pool", "nodes", "node", "models", "model", "services", "service",
        "feeds", "feed", "decisions", "decision", "jobs", "job", "alerts", "health", "tenants", "tenant", "trials",
        "trial-new",
    ],
)  # fmt: skip
def test_page_is_whole_when_there_is_history(
    page: Page,
    fleet: seed.Seeded,
    name: str,
    accessible: Callable[[Page], None],
    picture: Callable[[Page, str], None],
) -> None:
    answer = page.goto(paths(fleet)[name])
    assert answer is not None
    assert answer.status == 200
    if name in CHARTED:
        chrome.wait_for_charts(page)
        assert page.locator(".chart .empty:visible").count() == 0
    assert chart_layout.complaints(page) == []
    accessible(page)
    picture(page, name)
    page.set_viewport_size(PHONE)
    assert chart_layout.complaints(page) == []


def test_zoom_stands_in_the_url_and_holds_for_all_charts_when_one_is_zoomed(page: Page, fleet: seed.Seeded) -> None:
    page.goto(paths(fleet)["site"])
    chrome.wait_for_charts(page)
    box = page.locator("[data-chart=power] .plot").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + 100)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 100, steps=5)
    page.mouse.up()
    page.get_by_role("link", name="Show the whole range").wait_for()
    assert "from=" in page.url
    assert "to=" in page.url
    assert "zone=UTC" in page.url
    page.reload()
    chrome.wait_for_charts(page)
    starts = {chrome.time_range(page, chart)[0] for chart in ("power", "intensity", "carbon")}
    assert len(starts) == 1
    with page.expect_download() as table:
        page.locator("[data-chart=power] a[download]").click()
    lines = table.value.path().read_text().splitlines()
    assert lines[0] == "start_utc,in use [W],idle [W]"
    for kind, begins in (("png", b"\x89PNG"), ("svg", b"<svg")):
        with page.expect_download() as drawing:
            page.locator(f"[data-chart=carbon] [data-download={kind}]").click()
        assert drawing.value.path().read_bytes().startswith(begins)
    assert b"How much carbon does it emit?" in drawing.value.path().read_bytes()
    page.get_by_role("link", name="Show the whole range").click()
    page.wait_for_url(lambda url: "from=" not in url)


def test_small_figures_stay_drawn_and_have_new_values_when_a_list_is_refreshed(page: Page, fleet: seed.Seeded) -> None:
    page.clock.install()
    page.goto("/sites/")
    figure = page.locator(f"#site-{fleet.sites[0].name} [data-figure]")
    figure.locator(".scatterlayer path.js-line").first.wait_for(state="attached")
    drawn = (
        "place => { place.seen = true; place.dataset.figure = place.dataset.figure.replaceAll('#0072B2', '#FF0000'); }"
    )
    figure.evaluate(drawn)
    with page.expect_response("**/sites/"):
        page.clock.fast_forward(6_000)
    page.locator('[data-figure*="#FF0000"]').wait_for(state="detached")
    assert figure.evaluate("place => place.seen && place.data[0].line.color") == "#0072B2"


def test_list_is_narrowed_and_sorted_by_its_url_when_filters_are_chosen(page: Page, fleet: seed.Seeded) -> None:
    page.goto("/nodes/")
    page.locator("select[name=site]").select_option("Location 2")
    page.wait_for_url("**site=Location+2**")
    page.get_by_role("link", name="Power").click()
    page.wait_for_url("**sort=-power_w**")
    assert names(page) == ["n3", "n4"]
    page.keyboard.press("/")
    page.keyboard.type("n4")
    page.keyboard.press("Enter")
    page.wait_for_url("**q=n4**")
    assert names(page) == ["n4"]


def test_rows_are_cards_that_name_their_figures_when_the_screen_is_a_phone(
    signed_in: SignIn, fleet: seed.Seeded, accessible: Callable[[Page], None]
) -> None:
    page = signed_in("viewer", viewport=PHONE, is_mobile=True)
    page.goto("/nodes/")
    card = page.locator("tbody tr").first
    assert {"Power", "Clock"} <= set(card.locator("td").evaluate_all("cells => cells.map(c => c.dataset.label)"))
    assert page.locator(".scroll").evaluate("e => e.scrollWidth <= e.clientWidth")
    with page.expect_response("**/nodes/**"):  # a live list's next answer
        pass
    page.get_by_role("link", name="Power").click()
    page.wait_for_url("**sort=-power_w**")
    box, wide = card.bounding_box(), PHONE["width"]
    assert box is not None
    assert box["width"] <= wide
    accessible(page)


def names(page: Page) -> list[str]:
    """Of the first column, in which a row may have room for its opener."""
    return [text.strip() for text in page.locator("tbody tr td:first-child").all_inner_texts()]


def test_job_is_stopped_by_an_operator_only_when_it_runs(signed_in: SignIn, fleet: seed.Seeded) -> None:
    job = Job.objects.create(kind="what_if", state="running", progress=0.3)
    viewer = signed_in("viewer")
    viewer.goto(f"/jobs/{job.uid}/")
    assert viewer.get_by_role("button", name="Cancel the job").count() == 0
    operator = signed_in("operator")
    operator.goto(f"/jobs/{job.uid}/")
    operator.get_by_role("button", name="Cancel the job").click()
    operator.get_by_text("asked to stop").wait_for()
    job.refresh_from_db()
    assert job.cancel_requested

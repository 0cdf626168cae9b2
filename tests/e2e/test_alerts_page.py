"""The page of alerts in a browser: acknowledged and silenced by hand, in light, dark and on a phone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from telemetry.alerts import evaluation
from telemetry.models import Alert, AlertNotice
from tests.e2e import browser as chrome
from tests.e2e.test_dashboard import Visit, base, in_thread, quiet_redis
from tests.fakes import seed

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]
__all__ = ["base", "quiet_redis"]  # fixtures


def _alerts() -> list[Alert]:
    now = datetime.now(UTC)
    rows = []
    for rule, subject, level, summary, step, value, threshold, unit, minutes in (
        ("slo_burn_fast", "llama3-70b/ttft", "bad",
         "TTFT of llama3-70b burns its error budget: 31.4 times too fast over 5 min and 1 h",
         "See which pool waits in the Overview's table of pools, and what the last decisions were", 31.4, 14.4,
         "times", 9),
        ("ledger_imbalance", "location-1", "bad",
         "Location 1: entries and meters differ by 48231 J, 1.40% of two days' energy",
         "Sign no report of this site; `greenserve logs epochs` for what the postings say", 0.014, 0.01, "share", 41),
        ("feed_stale", "location-2/average", "warn",
         "The average carbon feed of Location 2 (electricity_maps) has not answered for 27 min: 503: its fault",
         "`greenserve logs epochs`: what the provider answered; decisions go on without its site's intensity", 1620.0,
         905.0, "s", 12),
        ("queue_growing", "llama3-70b/location-1/SL", "warn",
         "SL at Location 1, llama3-70b: 88 requests wait, ever more for 5 min",
         "See whether the scale loop has answered: the last decisions; else raise the pool's GPU budget", 64.0, 20.0,
         "", 3),
    ):  # fmt: skip
        at = now - timedelta(minutes=minutes)
        rows.append(
            Alert.objects.create(
                rule=rule, subject=subject, level=level, summary=summary, step=step, value=value, threshold=threshold,
                unit=unit, since=at, opened_at=at, last_seen_at=now,
            )
        )  # fmt: skip
    AlertNotice.objects.create(alert=rows[0], event="raised", channel="webhook", state="sent", due_at=now)
    AlertNotice.objects.create(alert=rows[1], event="raised", channel="email", due_at=now, error="e-mail: OSError")
    evaluation.silence("queue_growing", "", 3_600.0, "load test", None, now)
    return rows


@pytest.mark.slow("alerts of a whole product: one is acknowledged in test_journeys.py")
def test_alerts_are_seen_acknowledged_and_silenced_in_a_browser(base: str, artifacts: Path) -> None:
    seeded = seed.everything(minutes=6)
    seed.well(seeded.now.timestamp() + 120)
    rows = _alerts()

    def work() -> None:
        with chrome.launched() as browser:
            visit = Visit(browser, base, viewport={"width": 1280, "height": 900})
            page = visit.page
            chrome.screenshot(page, artifacts, "overview-alerts")
            page.click(f"#attention-alert-{rows[0].pk}")
            page.wait_for_selector(f"#alert-{rows[0].pk}")
            chrome.screenshot(page, artifacts, "alerts-light")
            page.locator(f"#alert-{rows[0].pk}").get_by_role("button", name="Acknowledge").click()
            page.get_by_text("acknowledged by operator").wait_for()
            page.locator(f"#alert-{rows[2].pk}").get_by_role("button", name="Silence 1 h").click()
            page.locator(f"#alert-{rows[2].pk}").get_by_text("nobody until").wait_for()
            page.get_by_role("button", name="End it").first.click()
            page.get_by_text("load test").wait_for(state="detached")
            visit.close()
            for name, options in (
                ("alerts-dark", {"viewport": {"width": 1280, "height": 900}, "color_scheme": "dark"}),
                ("alerts-phone", {"viewport": {"width": 390, "height": 844}}),
            ):
                visit = Visit(browser, base, **options)
                visit.page.goto(f"{base}/alerts/")
                visit.page.wait_for_selector("#silence")
                wide = visit.page.evaluate("document.documentElement.scrollWidth")
                assert wide <= options["viewport"]["width"], f"{name} is {wide} px wide"
                chrome.screenshot(visit.page, artifacts, name)
                visit.close()

    in_thread(work)
    rows[0].refresh_from_db()
    assert rows[0].state == "acknowledged"
    assert rows[0].acknowledged_by is not None

"""The shell around all pages: the rail, shortcuts, help, the menu on a phone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page

from tests.browser.conftest import PHONE, SignIn


@pytest.mark.slow("every page by its key")
def test_keys_lead_from_page_to_page_when_g_is_pressed_first(page: Page, accessible: Callable[[Page], None]) -> None:
    page.goto("/health/")
    assert page.locator("#rail [aria-current=page]").inner_text() == "Health"
    page.keyboard.press("?")
    assert "Decisions" in page.locator("#keys").inner_text()
    page.keyboard.press("Escape")
    accessible(page)
    page.keyboard.press("g")
    page.keyboard.press("d")
    page.wait_for_url("**/decisions/")
    assert page.locator("#rail [aria-current=page]").inner_text() == "Decisions"


@pytest.mark.slow("one menu, in a browser and a fleet of its own")
def test_rail_is_a_menu_when_the_screen_is_a_phone(signed_in: SignIn, accessible: Callable[[Page], None]) -> None:
    page = signed_in("viewer", viewport=PHONE, is_mobile=True)
    page.goto("/alerts/")
    assert not page.locator("#rail").is_visible()
    page.get_by_role("button", name="Menu").click()
    assert page.locator("#rail").is_visible()
    accessible(page)
    page.locator("#rail").get_by_text("Health").click()
    page.wait_for_url("**/health/")

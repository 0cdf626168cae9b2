"""The API's documents in a browser: drawn under the policy of all pages, with scripts of the product's own."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import expect

from .conftest import SignIn

pytestmark = pytest.mark.slow("draws all of the API's documents, most of a megabyte of scripts")


def test_docs_list_the_operations_and_try_one_out(signed_in: SignIn, artifacts: Path) -> None:
    page = signed_in("operator")
    page.goto("/api/v1/docs/")
    expect(page.locator(".info .title")).to_contain_text("GreenServe", timeout=30_000)
    page.locator("#operations-sites-sites_list .opblock-summary-control").or_(
        page.locator("#operations-tag-sites button.expand-operation")
    ).first.click()
    page.locator("#operations-sites-sites_list .opblock-summary-control").click()
    page.locator("#operations-sites-sites_list .try-out__btn").click()
    page.locator("#operations-sites-sites_list .execute").click()
    expect(
        page.locator("#operations-sites-sites_list .live-responses-table tr.response .response-col_status").first
    ).to_contain_text("200", timeout=15_000)
    page.screenshot(path=str(artifacts / "api-docs.png"))

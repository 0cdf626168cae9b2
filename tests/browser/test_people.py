"""People, keys, the account's page and the trail as a person goes through them."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from allauth.mfa.totp.internal import auth as totp
from allauth.mfa.totp.internal.auth import format_hotp_value, hotp_value, yield_hotp_counters_from_time
from django.contrib.auth import get_user_model
from playwright.sync_api import Browser, Page, expect

from pools.access import audit, people
from pools.models import AccessToken, ApiKey, Tenant
from tests.browser.conftest import SignIn
from tests.fakes import seed
from tests.fakes.people import PASSWORD as PEOPLES_PASSWORD

pytestmark = pytest.mark.slow("a person set up from the invitation to the second step")

PASSWORD = "a long enough phrase"


@pytest.fixture
def clock_of_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stops the clock of one-time codes: a code that was good when it was read is good when it is entered."""
    now = time.time()
    monkeypatch.setattr(totp, "time", SimpleNamespace(time=lambda: now))


def code_of(secret: str) -> str:
    counters = list(yield_hotp_counters_from_time())
    return format_hotp_value(hotp_value(secret, counters[len(counters) // 2]))


def sign_in(page: Page, name: str, password: str) -> None:
    page.goto("/sign-in/")
    page.get_by_label("User name").fill(name)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Sign in").click()


@pytest.mark.usefixtures("clock_of_codes")
def test_somebody_is_let_in_chooses_a_password_and_sets_up_the_second_step(
    page: Page, chromium: Browser, server: str, accessible: Callable[[Page], None], picture: Callable[[Page, str], None]
) -> None:
    page.goto("/people/")
    page.get_by_label("User name").last.fill("nora")
    page.get_by_label("Role").select_option("operator")
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("heading", name="nora can sign in")).to_be_visible()
    accessible(page)
    given = page.locator("dd code").last.inner_text()
    page.get_by_role("link", name="I have copied it").click()
    expect(page.get_by_role("row", name=re.compile("nora"))).to_contain_text("one-time password")
    accessible(page)
    picture(page, "people")

    context = chromium.new_context(base_url=server, viewport={"width": 390, "height": 844})
    theirs = context.new_page()
    sign_in(theirs, "nora", given)
    expect(theirs.get_by_text("You signed in with a one-time password")).to_be_visible()
    theirs.get_by_label("Your password now").fill(given)
    theirs.get_by_label("New password", exact=True).fill(PASSWORD)
    theirs.get_by_label("New password again").fill(PASSWORD + "!")
    theirs.get_by_role("button", name="Change the password").click()
    expect(theirs.get_by_text("Both must be the same.")).to_be_visible()
    theirs.get_by_label("Your password now").fill(given)
    theirs.get_by_label("New password", exact=True).fill(PASSWORD)
    theirs.get_by_label("New password again").fill(PASSWORD)
    theirs.get_by_role("button", name="Change the password").click()
    theirs.get_by_role("link", name="Set it up").click()
    theirs.get_by_label("Code of your app").wait_for()
    accessible(theirs)
    picture(theirs, "two-step")
    secret = theirs.locator("p code").inner_text().replace(" ", "")
    theirs.get_by_label("Your password").fill(PASSWORD)
    theirs.get_by_label("Code of your app").fill(code_of(secret))
    theirs.get_by_role("button", name="Turn it on").click()
    expect(theirs.locator("li code")).to_have_count(10)
    codes = theirs.locator("li code").all_inner_texts()
    picture(theirs, "recovery-codes")

    theirs.get_by_role("button", name="Menu").click()
    theirs.get_by_role("button", name="Sign out").click()
    sign_in(theirs, "nora", PASSWORD)
    theirs.get_by_label("Code of your app").wait_for()
    accessible(theirs)
    picture(theirs, "sign-in-code")
    theirs.get_by_label("Code of your app").fill(codes[0])
    theirs.get_by_role("button", name="Sign in").click()
    theirs.get_by_role("button", name="Menu").click()
    expect(theirs.get_by_role("link", name="nora")).to_be_visible()
    theirs.goto("/people/")
    expect(theirs.get_by_role("heading", name="Not permitted")).to_be_visible()
    picture(theirs, "not-yours")
    context.close()


def test_keys_are_made_seen_once_and_revoked(
    page: Page,
    signed_in: SignIn,
    fleet: seed.Seeded,
    accessible: Callable[[Page], None],
    picture: Callable[[Page, str], None],
) -> None:
    page.goto("/keys/")
    page.get_by_text("New key").click()
    tenant = Tenant.objects.latest("name").name
    field = page.get_by_role("combobox", name="Tenant")
    field.press_sequentially(tenant[:4])
    expect(page.locator(f'#tenant-names option[value="{tenant}"]')).to_be_attached()
    field.fill(tenant)
    page.get_by_label("What for").fill("shop")
    page.get_by_role("button", name="Make the key").click()
    secret = page.locator("dd code").inner_text()
    assert secret.startswith("gs-")
    picture(page, "secret")
    page.get_by_role("link", name="I have copied it").click()
    page.get_by_text("New key").wait_for()
    assert secret not in page.content()
    accessible(page)

    theirs = signed_in("operator")
    theirs.goto("/account/")
    theirs.get_by_text("New token").click()
    theirs.get_by_label("What for").fill("nightly export")
    theirs.get_by_label("operate: change").check()
    theirs.get_by_label("Your password", exact=True).fill(PEOPLES_PASSWORD)
    accessible(theirs)
    picture(theirs, "account")
    theirs.get_by_role("button", name="Make the token").click()
    assert people.find_token(theirs.locator("dd code").first.inner_text(), fleet.now) is not None

    page.reload()
    picture(page, "keys")
    page.get_by_role("button", name="Revoke nightly export").click()
    expect(page.get_by_text("is revoked.")).to_be_visible()
    assert AccessToken.objects.get(label="nightly export").revoked_at is not None
    page.get_by_role("row", name=re.compile("shop")).get_by_role("button").click()
    expect(page.get_by_role("row", name=re.compile("shop"))).to_contain_text("revoked")
    assert ApiKey.objects.get(label="shop").revoked_at is not None


def test_trail_is_filtered_read_and_downloaded(
    page: Page, fleet: seed.Seeded, accessible: Callable[[Page], None], picture: Callable[[Page, str], None]
) -> None:
    site = fleet.sites[0]
    actor = audit.Actor(get_user_model().objects.get(username="administrator"), channel="page")
    before = audit.values(site)
    audit.record(actor, "update", site, before, before | {"pue": 1.21, "power_cap_w": 250_000.0})
    page.goto("/audit/")
    page.get_by_label("Kind").select_option("site")
    page.get_by_role("button", name="Show").click()
    page.locator("summary").first.click()
    expect(page.locator("ins").first).to_be_visible()
    accessible(page)
    picture(page, "audit")
    with page.expect_download() as download:
        page.get_by_role("link", name="CSV").click()
    text = download.value.path().read_text()
    assert text.startswith("entry,at_utc,who,")
    assert text.count("\n") == 3, "the header, and a line for each of two fields"


def test_sign_in_page_is_whole_and_says_what_is_wrong(
    chromium: Browser, server: str, accessible: Callable[[Page], None], picture: Callable[[Page, str], None]
) -> None:
    context = chromium.new_context(base_url=server)
    page = context.new_page()
    page.goto("/sign-in/")
    accessible(page)
    picture(page, "sign-in")
    sign_in(page, "nobody", "wrong")
    expect(page.get_by_role("alert")).to_contain_text("Please enter a correct")
    context.close()

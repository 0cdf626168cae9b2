"""The pages in headless Chromium, on a seeded fleet: one server, one browser and one fleet a module.

A test asks for `signed_in` (or `page`, an administrator's) and drives it as a person would. A complaint on the console
or a request to another host fails it. `fleet` are the rows; what a test adds to them stays for the module's others.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import pytest
import redis
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from django.conf import settings
from django.contrib.auth import get_user_model
from django.contrib.auth.hashers import make_password
from django.core.cache import cache
from django.core.management import call_command
from django.db import connection, connections
from django.test import Client
from PIL import Image
from playwright.sync_api import Browser, Page, ViewportSize, expect
from pytest_django.live_server_helper import LiveServer

from greenserve.celery import app
from pools.models import Membership
from scheduler.models import Study
from scheduler.whatif import study_worker, tasks
from tests.e2e import browser as chrome
from tests.fakes import seed
from tests.fakes.people import PASSWORD

WIDE: ViewportSize = {"width": 1440, "height": 900}
PHONE: ViewportSize = {"width": 390, "height": 844}
TALLEST = 1_600
SERIOUS = ("serious", "critical")
expect.set_options(timeout=30_000)  # a busy machine is slow


class SignIn(Protocol):
    def __call__(self, role: str = "administrator", **options: Any) -> Page: ...


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--pictures", action="store_true", help="with tests/browser: takes what docs/pictures.md shows")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.browser)
            item.add_marker(pytest.mark.django_db)  # so that the database is made


@pytest.fixture
def _django_db_helper(fleet: seed.Seeded) -> None:
    """In place of pytest-django's: no transaction around a test, which would hide its rows from the server."""


@pytest.fixture(scope="module")
def fleet(django_db_setup: None, django_db_blocker: Any, pytestconfig: pytest.Config) -> Iterator[seed.Seeded]:
    """A small fleet with half an hour behind it, all processes well. Gone after the module."""
    with django_db_blocker.unblock():
        _forget()
        seeded = seed.everything(**(_lasting() if _pictured(pytestconfig) else {}))
        seed.more(seeded)
        seed.well(seeded.now.timestamp() + 60)
        yield seeded
        call_command("flush", verbosity=0, interactive=False)
        _forget()


def _lasting() -> dict[str, Any]:
    """Pictures take minutes, through which the fleet is to look alive: its history goes on for a quarter of an hour."""
    return {"now": datetime.now(UTC) + timedelta(minutes=15), "minutes": 60, "sampled": range(0, 900, 5)}


def _forget() -> None:
    cache.clear()
    client = redis.Redis.from_url(settings.REDIS_URL, socket_timeout=2, socket_connect_timeout=2)
    for key in client.scan_iter("greenserve:*"):
        client.delete(key)
    client.close()


@pytest.fixture(scope="module")
def server(fleet: seed.Seeded) -> Iterator[str]:
    """The address of the pages."""
    app.set_default()  # for the server's threads, which would otherwise look for a broker that is not there
    live = LiveServer("localhost")
    live._live_server_modified_settings.enable()
    yield str(live.url)
    live.stop()
    live._live_server_modified_settings.disable()


@pytest.fixture(scope="module")
def chromium(server: str) -> Iterator[Browser]:
    # Playwright's loop runs in this thread, in which Django then takes each query for a mistake; here it is none.
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "true"
    try:
        with chrome.launched() as browser:
            yield browser
            connections.close_all()  # of Playwright's loop, which has its own
    finally:
        del os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"]


def person(role: str) -> Any:
    """A user of that role, made at the first call."""
    user, made = get_user_model().objects.get_or_create(
        username=role, defaults={"password": lambda: make_password(PASSWORD)}
    )
    if made:
        Membership.objects.create(user=user, role=role)
    return user


@pytest.fixture
def signed_in(chromium: Browser, server: str) -> Iterator[SignIn]:
    """Opens a page as somebody of a role: viewer, operator, finance or administrator. Options are Playwright's."""
    contexts, watches = [], []

    def opened(role: str = "administrator", **options: Any) -> Page:
        client = Client()
        client.force_login(person(role))
        name = settings.SESSION_COOKIE_NAME
        context = chromium.new_context(base_url=server, **({"viewport": WIDE} | options))
        context.add_cookies([{"name": name, "value": client.cookies[name].value, "url": server}])
        context.set_default_timeout(30_000)  # a busy machine is slow
        page = context.new_page()
        watch = chrome.Watch(urlsplit(server).netloc)
        watch.attach(page)
        contexts.append(context)
        watches.append(watch)
        return page

    yield opened
    for context in contexts:
        context.close()
    for watch in watches:
        assert watch.complaints == []
        assert watch.strangers == []


@pytest.fixture
def page(signed_in: SignIn) -> Page:
    """An administrator's."""
    return signed_in()


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[threading.Thread]]:
    """Runs what is sent in a thread, as the worker for simulations would."""
    threads: list[threading.Thread] = []

    def run(study_id: int) -> None:
        try:
            study_worker.run(study_id)
        finally:
            connection.close()

    def send(study: Study) -> None:
        threads.append(threading.Thread(target=run, args=(study.pk,)))
        threads[-1].start()

    monkeypatch.setattr(tasks, "send", send)
    yield threads
    for thread in threads:
        thread.join(300)


@pytest.fixture(autouse=True)
def _alive(fleet: seed.Seeded | None) -> None:
    """What processes say of themselves is soon too old."""
    if fleet is not None:
        seed.well()


@pytest.fixture(scope="session")
def accessible() -> Callable[[Page], None]:
    """Fails when axe-core finds a serious or critical violation on the page; its contrasts in both themes."""
    axe = Axe()

    def check(page: Page) -> None:
        found = axe.run(page, options={"resultTypes": ["violations"], "exclude": []}).response["violations"]
        page.emulate_media(color_scheme="dark")
        found += axe.run(page, options={"runOnly": ["color-contrast"]}).response["violations"]
        page.emulate_media(color_scheme="light")
        bad = [
            {"rule": v["id"], "impact": v["impact"], "nodes": [n["html"][:160] for n in v["nodes"][:4]]}
            for v in found
            if v["impact"] in SERIOUS
        ]
        assert bad == [], f"{page.url}: {json.dumps(bad, indent=1)}"

    return check


@pytest.fixture(scope="session")
def picture(pytestconfig: pytest.Config) -> Callable[[Page, str], None]:
    """Fails when a page is wider than a phone. With --pictures: what is shown of NAME-light, -dark and -phone."""
    folder = pytestconfig.rootpath / "docs" / "pictures"
    shown = folder.with_suffix(".md").read_text()

    def take(page: Page, name: str) -> None:
        size = page.viewport_size or WIDE
        if _pictured(pytestconfig):
            for suffix in (each for each in ("light", "dark", "phone") if f"/{name}-{each}.png" in shown):
                _show(page, "dark" if suffix == "dark" else "light", PHONE if suffix == "phone" else WIDE)
                path = folder / f"{name}-{suffix}.png"
                page.screenshot(path=path)
                _small(Image.open(path).convert("RGB")).save(path, optimize=True)
        page.set_viewport_size(PHONE)
        for _ in range(100):  # charts are drawn anew, which takes a while
            width = page.evaluate("document.documentElement.scrollWidth")
            if width <= PHONE["width"]:
                break
            page.wait_for_timeout(100)
        assert width <= PHONE["width"], f"{page.url} is {width} px wide on a phone"
        page.emulate_media(color_scheme="light")
        page.set_viewport_size(size)

    return take


def _small(drawn: Image.Image) -> Image.Image:
    """In 64 colours so chosen that the few coloured dots stay; those seen most are as they were."""
    counted = sorted(drawn.getcolors(drawn.width * drawn.height) or [], reverse=True)
    often: list[Any] = [colour for _, colour in counted[:24]]
    small = drawn.quantize(64, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    palette = small.getpalette() or []
    for at in range(0, len(palette), 3):
        distance = {c: max(abs(a - b) for a, b in zip(c, palette[at : at + 3], strict=True)) for c in often}
        nearest = min(often, key=lambda colour: distance[colour])
        if distance[nearest] <= 12:
            palette[at : at + 3] = nearest
    small.putpalette(palette)
    return small


def _pictured(config: pytest.Config) -> bool:
    return bool(config.getoption("--pictures", default=False))


def _show(page: Page, scheme: Any, viewport: ViewportSize) -> None:
    """The page in those colours and width, as tall as it is within limits, its charts drawn anew."""
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size(viewport)
    height = int(page.evaluate("document.documentElement.scrollHeight"))
    page.set_viewport_size({"width": viewport["width"], "height": min(max(height, viewport["height"]), TALLEST)})
    page.wait_for_timeout(2_500 if page.locator("#charts").count() else 300)  # for the charts' answer

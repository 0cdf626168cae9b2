"""How long sessions last, and what keeps them."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest
from django.test import Client

from frontend.people import session_limits
from pools.models import AuditEntry
from tests.fakes.people import PASSWORD, person

pytestmark = pytest.mark.django_db
PAGE = {"accept": "text/html,application/xhtml+xml"}  # as browsers ask for one
POLL = {"accept": "*/*", "hx-request": "true"}  # as htmx does


class Clock:
    def __init__(self) -> None:
        self.now_s = time.time()

    def time(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch, settings) -> Clock:
    found = Clock()
    monkeypatch.setattr(session_limits, "time", SimpleNamespace(time=found.time))
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    settings.GREENSERVE_SESSION_S, settings.GREENSERVE_SESSION_IDLE_S = 12 * 3600.0, 3600.0
    return found


def signed_in(role: str) -> Client:
    client = Client()
    person(role)
    client.post("/sign-in/", {"username": role, "password": PASSWORD})
    return client


def asks(client: Client, headers: dict[str, str]) -> int:
    return client.get("/decisions/", headers=headers).status_code


def test_session_ends_without_activity_though_its_page_asks_on(clock: Clock) -> None:
    client = signed_in("operator")
    for minutes in (0, 30, 29):  # after each page an hour is left
        clock.now_s += minutes * 60
        assert asks(client, PAGE) == 200
    for _ in range(59):
        clock.now_s += 60
        assert asks(client, POLL) == 200
    clock.now_s += 60
    assert asks(client, POLL) == 302
    assert client.get("/api/v1/sites/").status_code in (401, 403)
    page = client.get("/sign-in/?next=/decisions/").content.decode()
    assert "You did nothing for 60 min: sign in again." in page
    entry = AuditEntry.objects.get(action="sign-out")
    assert (entry.who, entry.after) == ("operator", {"why": "You did nothing for 60 min: sign in again."})
    again = client.post("/sign-in/", {"username": "operator", "password": PASSWORD, "next": "/decisions/"})
    assert again.headers["Location"] == "/decisions/"
    assert asks(client, POLL) == 200
    assert session_limits.ENDED not in client.session


@pytest.mark.parametrize(("role", "headers"), [("viewer", POLL), ("administrator", PAGE)])
def test_session_ends_after_half_a_day_whatever_is_done(clock: Clock, role: str, headers: dict[str, str]) -> None:
    client = signed_in(role)
    for _ in range(23):
        clock.now_s += 1800
        assert asks(client, headers) == 200  # a screen on the wall only looks, and stays
    clock.now_s += 1800
    assert asks(client, headers) == 302
    assert "A session lasts 12 h at most" in client.get("/sign-in/").content.decode()


def test_session_of_an_earlier_version_begins_now(clock: Clock) -> None:
    client = Client()
    client.force_login(person("operator"))
    session = client.session
    for name in (session_limits.BEGAN, session_limits.ACTIVE):
        del session[name]
    session.save()
    assert asks(client, POLL) == 200
    clock.now_s += 3600
    assert asks(client, POLL) == 302

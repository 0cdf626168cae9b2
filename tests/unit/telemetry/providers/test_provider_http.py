"""The way out: bounded, polite, and to allowed hosts only. Nothing that an error says holds a key."""

import logging
import socket
import threading
import traceback
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from aiohttp.abc import ResolveResult

from core.ports import AdapterError, CoolDownError, PermanentError, RetryableError
from telemetry.providers import provider_http
from telemetry.providers.electricity_maps import ElectricityMapsProvider
from telemetry.providers.entsoe import EntsoeProvider
from telemetry.providers.provider_http import Bounds, HttpClient, Outside
from telemetry.providers.watttime import WattTimeProvider
from tests.fakes.web import Answer
from tests.unit.telemetry.providers.conftest import KEYS, QUICK


@pytest.fixture
def client(web, outside):
    return HttpClient("eia", "api.eia.gov", outside, web.url, gap_s=1.0)


def test_body_comes_back_when_all_is_well(client, web):
    web.routes["/x"] = Answer("hello")
    assert client.get("/x", [("a[0]", "1 2")], {"X-Own": "y"}) == b"hello"
    assert web.asked[0].query == {"a[0]": ["1 2"]}
    assert web.asked[0].headers["X-Own"] == "y"


def test_call_is_made_again_after_a_while_when_the_server_fails(client, web, clock):
    web.routes["/x"] = [Answer("oops", 500), Answer("", 502), Answer("fine")]
    assert client.get("/x") == b"fine"
    assert len(web.asked) == 3
    assert sum(clock.slept) >= 0.25 + 0.5


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (Answer("", 500), RetryableError, "500: its fault"),
        (Answer("{}", 401), PermanentError, "the key is refused, or does not cover this; check GREENSERVE_EIA_KEY"),
        (Answer('{"error": "no"}', 403), PermanentError, 'check GREENSERVE_EIA_KEY: {"error": "no"}'),
        (Answer("bad\x00\x1b[31m\nrange", 400), PermanentError, "/x: 400: bad [31m range"),
        (Answer("", 404), PermanentError, "/x: 404"),
        (Answer("", 302, {"Location": "http://169.254.169.254/"}), PermanentError, "redirect, which is not followed"),
        (Answer("", 429), CoolDownError, "429: it wants to be left alone"),
        (Answer("half", cut=True), RetryableError, "the answer ended early"),
        (Answer("x" * (QUICK.body_bytes + 1)), PermanentError, "is cut"),
    ],
)
def test_error_says_what_to_do_when_the_answer_is_none(client, web, answer, kind, words):
    web.routes["/x"] = answer
    with pytest.raises(kind) as caught:
        client.get("/x")
    assert words in str(caught.value)


def test_all_answers_of_a_turn_are_bounded_together(web, outside):
    web.routes["/x"] = Answer("x" * 600_000)
    bounds = replace(outside.bounds, body_bytes=1 << 20, turn_bytes=1 << 20)
    client = HttpClient("eia", "api.eia.gov", replace(outside, bounds=bounds), web.url)
    assert len(client.get("/x")) == 600_000
    with pytest.raises(PermanentError, match="answers of one turn of the feed have more than 1048576 bytes together"):
        client.get("/x")
    assert len(HttpClient("eia", "api.eia.gov", replace(outside, bounds=bounds), web.url).get("/x")) == 600_000


@pytest.mark.parametrize(
    ("header", "least_s", "most_s"),
    [
        ("7", 7.0, 7.0),
        ("0", 0.0, 0.0),
        ("999999999", provider_http.LONGEST_WAIT_S, provider_http.LONGEST_WAIT_S),
        ("-5", 0.0, 0.0),
    ],
)
@pytest.mark.parametrize("status", [429, 503])
def test_wait_is_as_long_as_demanded_when_there_is_a_retry_after(client, web, header, least_s, most_s, status):
    web.routes["/x"] = Answer("", status, {"Retry-After": header})
    with pytest.raises(CoolDownError) as caught:
        client.get("/x")
    assert least_s <= caught.value.wait_s <= most_s
    assert len(web.asked) == 1


def test_wait_lasts_until_then_when_retry_after_is_a_date(client, web):
    until = datetime.now(UTC) + timedelta(hours=1)
    web.routes["/x"] = Answer("", 429, {"Retry-After": format_datetime(until, usegmt=True)})
    with pytest.raises(CoolDownError) as caught:
        client.get("/x")
    assert 3_000.0 <= caught.value.wait_s <= 3_600.0


@pytest.mark.parametrize("header", ["soon", "nan", ""])
def test_wait_is_unknown_when_retry_after_is_none(client, web, header):
    web.routes["/x"] = Answer("", 429, {"Retry-After": header})
    with pytest.raises(CoolDownError) as caught:
        client.get("/x")
    assert caught.value.wait_s is None


@pytest.mark.parametrize(
    ("bounds", "answer"),
    [
        (Bounds(total_s=0.3, tries=1), Answer("x" * 10_000, drip_s=0.02)),  # never silent, never done
        (Bounds(read_s=0.2, total_s=20.0, tries=1), Answer("x", delay_s=60.0)),
    ],
)
def test_slow_answer_is_cut_when_time_is_up(web, outside, bounds, answer):
    web.routes["/x"] = answer
    client = HttpClient("eia", "api.eia.gov", replace(outside, bounds=bounds), web.url)
    with pytest.raises(RetryableError, match="did not answer within"):
        client.get("/x")


def test_nothing_is_asked_when_no_time_is_left(web, outside, clock):
    client = HttpClient("eia", "api.eia.gov", replace(outside, deadline=clock.at_s), web.url)
    with pytest.raises(AdapterError, match=r"no call for now|no time was left"):
        client.get("/x")
    assert not web.asked


def test_calls_keep_apart_when_a_provider_has_a_rate_limit(client, web, clock):
    web.routes["/x"] = Answer("hello")
    for _ in range(3):
        client.get("/x")
    assert clock.slept == [1.0, 1.0]


def test_call_is_put_off_when_its_turn_comes_too_late(web, outside, clock):
    web.routes["/x"] = Answer("hello")
    client = HttpClient("pjm", "api.pjm.com", replace(outside, deadline=clock.at_s + 5.0), web.url, gap_s=10.0)
    client.get("/x")
    with pytest.raises(CoolDownError) as caught:
        client.get("/x")
    assert caught.value.wait_s == pytest.approx(10.0)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://api.eia.gov", "https on port 443 only"),
        ("https://api.eia.gov:8443", "https on port 443 only"),
        ("ftp://api.eia.gov", "https on port 443 only"),
        ("https://user:pw@api.eia.gov", "more than a host and a path"),
        ("https://api.eia.gov/?x=1", "more than a host and a path"),
        ("https://evil.example", "GREENSERVE_CARBON_HOSTS"),
        ("https://api.eia.gov.evil.example", "GREENSERVE_CARBON_HOSTS"),
        ("https://127.0.0.1", "GREENSERVE_CARBON_HOSTS"),
        ("https://[::1]", "GREENSERVE_CARBON_HOSTS"),
        ("https://api.eia.gov:port", "is no URL"),
        (7, "is no text"),
    ],
)
def test_base_url_is_refused_when_it_is_not_a_provider(url, words):
    with pytest.raises(PermanentError, match=words):
        HttpClient("eia", "api.eia.gov", Outside(), url)


def test_loopback_is_refused_when_no_test_allows_it(web):
    with pytest.raises(PermanentError, match="https on port 443 only"):
        HttpClient("eia", "api.eia.gov", Outside(), web.url)


def test_mirror_is_allowed_when_the_operator_names_it():
    outside = Outside(hosts=frozenset({"mirror.example"}))
    assert HttpClient("eia", "api.eia.gov", outside, "https://mirror.example/eia/").base_url.endswith("/eia")


@pytest.mark.parametrize("address", ["10.0.0.7", "169.254.169.254", "127.0.0.1", "fd00::1", "::ffff:10.0.0.1"])
def test_host_is_refused_when_its_name_leads_inside(monkeypatch, address):
    def answer(host, port, **_):
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("93.184.215.14", port)), (0, 0, 6, "", (address, port))]

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    with pytest.raises(PermanentError, match="no public address"):
        HttpClient("eia", "api.eia.gov", Outside()).get("/x")


def test_connection_goes_to_the_address_that_was_checked_when_the_name_changes(monkeypatch, web, outside):
    port = int(web.url.rpartition(":")[2])
    asked = []

    def answer(host, _port, timeout_s):
        asked.append(host)
        return [ResolveResult(hostname=host, host="127.0.0.1", port=port, family=socket.AF_INET, proto=6, flags=0)]

    monkeypatch.setattr(provider_http, "resolve", answer)
    web.routes["/x"] = Answer("hello")
    client = HttpClient("eia", "api.eia.gov", outside)
    client.base_url = f"http://rebinding.example:{port}"
    assert client.get("/x") == b"hello"
    assert asked == ["rebinding.example"]


def test_name_is_not_waited_for_when_the_resolver_hangs(monkeypatch):
    answers = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answers.wait(60) and [])
    with pytest.raises(RetryableError, match="not resolved within"):
        provider_http.resolve("api.eia.gov", 443, 0.05)
    answers.set()


@pytest.mark.parametrize(
    "answer", [Answer("", 500), Answer("", 403), Answer("", 400), Answer("?"), Answer("x", cut=True)]
)
@pytest.mark.parametrize(
    ("kind", "config"),
    [
        (ElectricityMapsProvider, {}),
        (WattTimeProvider, {}),
        (EntsoeProvider, {"signal": "price"}),
    ],
)
def test_no_key_is_shown_when_a_provider_fails(make, web, caplog, answer, kind, config):
    """Not in the error, not in what it was raised from, not in the log, whatever the other side repeats."""
    caplog.set_level(logging.DEBUG)
    secrets = [secret.reveal() for secret in KEYS.values()]
    echo = Answer(f"{answer.body}{secrets}", answer.status, cut=answer.cut)
    for path in ("/v3/carbon-intensity/history", "/login", "/api"):
        web.routes[path] = echo
    with pytest.raises(AdapterError) as caught:
        make(kind, **config).actuals("DE", 0.0, 3_600.0)
    seen = "".join(traceback.format_exception(caught.value)) + caplog.text
    assert not [secret for secret in secrets if secret in seen]

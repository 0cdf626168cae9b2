"""The address that other machines are given of the dashboard."""

from __future__ import annotations

import pytest

from pools import own_address
from pools.registration.web_address import WebAddress

LAN = ("10.0.0.5", "fd00::5")


@pytest.mark.parametrize(
    ("web", "url", "caveat"),
    [
        (WebAddress("https://dash.example", "127.0.0.1", 8000), "https://dash.example", ""),
        (WebAddress(None, "127.0.0.1", 8000, ("dash.example",), https=True), "https://dash.example", ""),
        (WebAddress(None, "0.0.0.0", 8000), "http://10.0.0.5:8000", ""),  # noqa: S104 - not listened on
        (WebAddress(None, "::", 8000), "http://10.0.0.5:8000", ""),
        (WebAddress(None, "fd00::7", 9000), "http://[fd00::7]:9000", ""),
        (WebAddress(None, "10.0.0.9", 8000, ("dash",)), "http://dash:8000", ""),
        (WebAddress(None, "127.0.0.1", 8000, ("dash",)), "http://127.0.0.1:8000", "GREENSERVE_WEB_HOST=0.0.0.0"),
        (WebAddress(None, "localhost", 8000), "http://localhost:8000", "works on this machine only"),
    ],
)
def test_address_is_one_that_others_reach_or_says_why_not(web: WebAddress, url: str, caveat: str) -> None:
    found, why = web.for_others(LAN)
    assert found == url
    assert caveat in why
    assert bool(caveat) == bool(why)


@pytest.mark.parametrize(
    ("web", "url", "caveat"),
    [
        (WebAddress(None, "10.0.0.9", 8000), "http://10.0.0.9:8000", ""),
        (WebAddress(None, "127.0.0.1", 8000, join_port=8443, nodes_host="0.0.0.0"), "https://10.0.0.5:8443", ""),  # noqa: S104
        (WebAddress(None, "127.0.0.1", 8000, ("dash",), True, 8443, "10.0.0.9"), "https://dash:8443", ""),
        (WebAddress("https://dash.example", "127.0.0.1", 8000, (), True, 8443, "::"), "https://dash.example:8443", ""),
        (WebAddress(None, "127.0.0.1", 8000, join_port=8443, nodes_host="fd00::9"), "https://[fd00::9]:8443", ""),
        (WebAddress(None, "0.0.0.0", 8000, join_port=8443), "https://127.0.0.1:8443", "GREENSERVE_NODES_HOST=0.0.0.0"),  # noqa: S104
    ],
)
def test_machines_join_by_tls_where_there_is_a_port_for_it(web: WebAddress, url: str, caveat: str) -> None:
    found, why = web.for_joining(LAN)
    assert found == url
    assert caveat in why
    assert bool(caveat) == bool(why)


def test_loopback_is_given_with_its_remedy_when_no_route_leads_away() -> None:
    for outward in ((), ("fd00::5",)):  # what listens on 0.0.0.0 has no IPv6
        url, why = WebAddress(None, "0.0.0.0", 8000).for_others(outward)  # noqa: S104 - not listened on
        assert url == "http://127.0.0.1:8000"
        assert "GREENSERVE_PUBLIC_URL" in why


def test_requests_may_name_each_address_that_is_given_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_address, "outward", lambda: LAN)
    public = WebAddress("https://dash.example:8443", "::", 8000, ("dash",)).hosts()
    assert {"dash.example", "10.0.0.5", "[fd00::5]", "dash", "127.0.0.1"} <= set(public)
    assert "10.0.0.5" not in WebAddress(None, "127.0.0.1", 8000).hosts()
    assert "10.0.0.5" in WebAddress(None, "127.0.0.1", 8000, join_port=8443, nodes_host="::").hosts()


def test_own_address_is_that_of_the_interface_that_leads_to_the_host() -> None:
    assert own_address.towards("127.0.0.1") == "127.0.0.1"
    assert own_address.towards("localhost") in ("127.0.0.1", "::1")
    assert not any(map(own_address.is_loopback, own_address.outward()))

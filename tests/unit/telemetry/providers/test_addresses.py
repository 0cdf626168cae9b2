"""Where the server goes for a person: every way in which an address of its own network can be written is one."""

import pytest

from telemetry.alerts import webhook
from telemetry.providers.addresses import host_fault, is_private, is_public

PUBLIC, PRIVATE, NOWHERE = "public", "private", "nowhere"
ADDRESSES = [
    ("1.1.1.1", PUBLIC),
    ("2606:4700::1111", PUBLIC),
    ("64:ff9b::101:101", PUBLIC),
    ("::ffff:1.1.1.1", PUBLIC),
    ("10.1.2.3", PRIVATE),
    ("127.0.0.1", PRIVATE),
    ("::1", PRIVATE),
    ("fd00::1", PRIVATE),
    ("::ffff:10.0.0.1", PRIVATE),
    ("::ffff:127.0.0.1", PRIVATE),
    ("::127.0.0.1", PRIVATE),
    ("64:ff9b::a00:1", PRIVATE),
    ("2002:a00:1::", PRIVATE),
    ("169.254.169.254", NOWHERE),
    ("::ffff:169.254.169.254", NOWHERE),
    ("64:ff9b::a9fe:a9fe", NOWHERE),
    ("fe80::1%eth0", NOWHERE),
    ("0.0.0.0", NOWHERE),  # noqa: S104 - not listened on
    ("::", NOWHERE),
    ("224.0.0.1", NOWHERE),
    ("ff02::1", NOWHERE),
    ("255.255.255.255", NOWHERE),
    ("100.64.0.1", NOWHERE),
]


@pytest.mark.parametrize(("address", "kind"), ADDRESSES)
def test_address_is_of_one_kind_when_it_is_looked_at(address, kind):
    assert (is_public(address), is_private(address)) == (kind == PUBLIC, kind == PRIVATE)


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "127.1", "127.0.1", "0x7f.0.0.1", "0x7f000001", "0177.0.0.1", "017700000001", "2130706433"),
        *("127.0.0.1.", "10.0.0.1", "192.168.1.1", "172.16.0.1", "[::1]", "[fd00::1]", "[::ffff:10.0.0.1]"),
        *("[0:0:0:0:0:ffff:7f00:1]", "localhost", "LOCALHOST.", "a.localhost", "printer.local", "intranet", "db"),
        *("metadata.google.internal", "metadata.google.internal.", "router.lan", "nas.home.arpa"),
    ],
)
def test_url_of_ones_own_network_is_refused_unless_it_is_allowed(host):
    for url in (f"https://{host}/hook", f"https://{host}:8443/hook"):
        with pytest.raises(ValueError, match=r"its own network; name the host in GREENSERVE_WEBHOOK_HOSTS"):
            webhook.target(url, private=False)
        assert webhook.target(url, private=True).private


@pytest.mark.parametrize(
    "host",
    [
        *("169.254.169.254", "0xa9fea9fe", "2852039166", "169.254.43518", "[::ffff:169.254.169.254]", "[fe80::1]"),
        *("0.0.0.0", "0", "[::]", "224.0.0.1", "255.255.255.255", "1.2.3.4.5", "127.0.0.1.example.1", "a..b"),  # noqa: S104 - not listened on
        *("\uff11\uff12\uff17.0.0.1", "\u24db\u24de\u24d2alhost", "a b", "a%2eb", "-"),
    ],
)
def test_url_that_nobody_may_be_at_is_refused_even_where_private_ones_are_allowed(host):
    for private in (False, True):
        with pytest.raises(ValueError, match=r"no address that anybody may be at|no name|own network"):
            webhook.target(f"https://{host}/hook", private)


@pytest.mark.parametrize(
    "host", ["hooks.example.org", "xn--mnchen-3ya.example", "hooks.example.org.", "8.8.8.8", "a_b.example.org"]
)
def test_public_host_is_taken_as_it_stands(host):
    assert host_fault(host, private=False) == ""
    assert webhook.target(f"https://{host}/", private=False).host == host.rstrip(".")


def test_one_host_of_ones_own_network_is_allowed_when_it_is_named():
    hosts = frozenset({"hooks.lan", "10.0.0.7"})
    assert webhook.target("http://hooks.lan/", False, hosts).private
    assert webhook.target("https://10.0.0.7:8443/", False, hosts).private
    assert not webhook.target("https://hooks.example.org/", False, hosts).private
    for url in ("https://nas.lan/", "https://10.0.0.8/", "http://hooks.example.org/"):
        with pytest.raises(ValueError, match=r"own network|https"):
            webhook.target(url, False, hosts)


@pytest.mark.parametrize("url", ["https://example.org@127.0.0.1/", "https://u:p@example.org/", "https://@10.0.0.1/"])
def test_url_with_a_user_is_refused(url):
    with pytest.raises(ValueError, match=r"without user|own network"):
        webhook.target(url, private=False)

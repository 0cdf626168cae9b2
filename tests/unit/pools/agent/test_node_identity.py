"""The files of a node's identity: who may read them, and what its request for a certificate says."""

from __future__ import annotations

import ipaddress
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from cryptography import x509

from pools.agent.node_identity import NodeIdentity, names_of_machine
from pools.registration.authority import LIFETIME, Authority

NOW = datetime(2026, 11, 27, 12, tzinfo=UTC)


def kept(folder: Path, names: list[str] | None = None) -> NodeIdentity:
    identity, authority = NodeIdentity.of(folder, "n1"), Authority.open(folder / "secrets", "nodes", NOW)
    made = authority.sign_node(identity.request("n1", names or []), "n1", frozenset(), NOW)
    identity.keep(made.pem, authority.certificate_pem, authority.certificate_pem)
    return identity


def test_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    identity = kept(tmp_path)
    assert stat.S_IMODE(identity.folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in identity.folder.iterdir()} == {0o600}
    assert b"PRIVATE" in identity.key.read_bytes()


def test_key_goes_on_until_a_certificate_of_the_next_one_is_kept(tmp_path: Path) -> None:
    identity, other = kept(tmp_path), NodeIdentity.of(tmp_path, "n2")
    before = identity.key.read_bytes()
    request = identity.request("n1")
    assert identity.key.read_bytes() == before
    authority = Authority.open(tmp_path / "secrets", "nodes", NOW)
    wrong = authority.sign_node(other.request("n1"), "n1", frozenset(), NOW)
    with pytest.raises(ValueError, match="not of the key"):
        identity.keep(wrong.pem, "", "")
    assert identity.key.read_bytes() == before
    identity.keep(authority.sign_node(request, "n1", frozenset(), NOW).pem, "", "")
    assert identity.key.read_bytes() != before


def test_address_by_tls_names_the_identitys_files(tmp_path: Path) -> None:
    identity = kept(tmp_path)
    found = parse_qs(urlsplit(identity.through_tls("rediss://node-n1:pw@10.0.0.1:6380/0")).query)
    assert found == {
        "ssl_cert_reqs": ["required"],
        "ssl_ca_certs": [str(identity.redis_authority)],
        "ssl_certfile": [str(identity.certificate)],
        "ssl_keyfile": [str(identity.key)],
    }
    assert identity.through_tls("unix:///r.sock") == "unix:///r.sock"


def test_request_names_the_node_and_the_addresses_that_it_is_reached_at(tmp_path: Path) -> None:
    text = NodeIdentity.of(tmp_path, "n1").request("n1", ["10.0.0.7", "box.example", "n1"])
    asked = x509.load_pem_x509_csr(text.encode()).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert asked.get_values_for_type(x509.DNSName) == ["n1", "box.example"]
    assert asked.get_values_for_type(x509.IPAddress) == [ipaddress.ip_address("10.0.0.7")]


def test_renewal_is_due_when_a_third_of_the_time_is_left(tmp_path: Path) -> None:
    identity = kept(tmp_path)
    assert not identity.third_left(NOW + LIFETIME * 0.66)
    assert identity.third_left(NOW + LIFETIME * 0.67)
    assert identity.third_left(NOW + LIFETIME + timedelta(days=1))


def test_machine_names_itself_with_the_address_that_others_see() -> None:
    found = names_of_machine("127.0.0.1")
    assert found[0] == "127.0.0.1"
    assert len(found) == len(set(found))

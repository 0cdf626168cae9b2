"""The files of a node's identity: who may read them, and what its request for a certificate says."""

from __future__ import annotations

import ipaddress
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509

from pools.agent.node_identity import NodeIdentity, names_of_machine
from pools.registration.authority import LIFETIME, Authority

NOW = datetime(2026, 11, 27, 12, tzinfo=UTC)


def test_key_is_made_once_and_its_owner_alone_can_read_it(tmp_path: Path) -> None:
    identity = NodeIdentity.of(tmp_path, "n1")
    first, second = (x509.load_pem_x509_csr(identity.request("n1").encode()) for _ in range(2))
    assert first.public_key() == second.public_key()
    assert stat.S_IMODE(identity.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(identity.key.stat().st_mode) == 0o600
    assert b"PRIVATE" in identity.key.read_bytes()


def test_request_names_the_node_and_the_addresses_that_it_is_reached_at(tmp_path: Path) -> None:
    text = NodeIdentity.of(tmp_path, "n1").request("n1", ["10.0.0.7", "box.example", "n1"])
    asked = x509.load_pem_x509_csr(text.encode()).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert asked.get_values_for_type(x509.DNSName) == ["n1", "box.example"]
    assert asked.get_values_for_type(x509.IPAddress) == [ipaddress.ip_address("10.0.0.7")]


def test_renewal_is_due_when_a_third_of_the_time_is_left(tmp_path: Path) -> None:
    identity, authority = NodeIdentity.of(tmp_path, "n1"), Authority.open(tmp_path / "secrets", "nodes", NOW)
    made = authority.sign_node(identity.request("n1"), "n1", frozenset(), NOW)
    identity.keep(made.pem, authority.certificate_pem, "")
    assert not identity.third_left(NOW + LIFETIME * 0.66)
    assert identity.third_left(NOW + LIFETIME * 0.67)
    assert identity.third_left(NOW + LIFETIME + timedelta(days=1))
    assert stat.S_IMODE(identity.certificate.stat().st_mode) == 0o600


def test_machine_names_itself_with_the_address_that_others_see() -> None:
    found = names_of_machine("127.0.0.1")
    assert found[0] == "127.0.0.1"
    assert len(found) == len(set(found))

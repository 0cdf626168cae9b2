"""Who is signed for what: names of others, requests that nobody signs, and two authorities that do not mix."""

from __future__ import annotations

import stat
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.exceptions import InvalidSignature

from pools.agent.node_identity import NodeIdentity
from pools.registration.authority import CONTROL_PLANE, LIFETIME, NODES, Authority, BadRequest

NOW = datetime(2026, 11, 27, 12, tzinfo=UTC)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.open(tmp_path / "secrets", NODES, NOW)


def test_authority_is_made_once_and_its_owner_alone_can_read_it(tmp_path: Path, authority: Authority) -> None:
    again = Authority.open(tmp_path / "secrets", NODES, NOW)
    assert again.fingerprint == authority.fingerprint
    (file,) = (tmp_path / "secrets").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_certificate_is_the_nodes_whatever_name_its_request_has(tmp_path: Path, authority: Authority) -> None:
    request = NodeIdentity.of(tmp_path, "other").request("other", ["10.0.0.7"])
    made = authority.sign_node(request, "n1", frozenset(), NOW)
    found = x509.load_pem_x509_certificate(made.pem.encode())
    assert found.subject.rfc4514_string() == "CN=n1"
    assert found.not_valid_after_utc == made.expires_at == NOW + LIFETIME
    assert not found.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert f"{found.serial_number:x}" == made.serial


def test_names_that_others_have_are_left_out(tmp_path: Path, authority: Authority) -> None:
    request = NodeIdentity.of(tmp_path, "n1").request("n1", ["n2", "10.0.0.2", "10.0.0.1"])
    assert authority.sign_node(request, "n1", {"n2", "10.0.0.2"}, NOW).names == ["n1", "10.0.0.1"]


@pytest.mark.parametrize("request_", ["", "no request", "-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n"])
def test_request_is_refused_when_it_is_none(authority: Authority, request_: str) -> None:
    with pytest.raises(BadRequest, match="cannot be read"):
        authority.sign_node(request_, "n1", frozenset(), NOW)


def test_request_is_refused_when_it_asks_for_too_many_names(tmp_path: Path, authority: Authority) -> None:
    request = NodeIdentity.of(tmp_path, "n1").request("n1", [f"host-{n}" for n in range(30)])
    with pytest.raises(BadRequest, match="31 names; 20 are allowed"):
        authority.sign_node(request, "n1", frozenset(), NOW)


def test_authority_of_nodes_does_not_stand_for_the_control_plane(tmp_path: Path, authority: Authority) -> None:
    ours = Authority.open(tmp_path / "secrets", CONTROL_PLANE, NOW)
    assert ours.fingerprint != authority.fingerprint
    request = NodeIdentity.of(tmp_path, "n1").request("n1", ["control.example"])
    made = x509.load_pem_x509_certificate(authority.sign_node(request, "n1", frozenset(), NOW).pem.encode())
    made.verify_directly_issued_by(x509.load_pem_x509_certificate(authority.certificate_pem.encode()))
    with pytest.raises((InvalidSignature, ValueError)):
        made.verify_directly_issued_by(x509.load_pem_x509_certificate(ours.certificate_pem.encode()))
    server, key = ours.server("relay", ["control.example", "10.0.0.1"], NOW)
    assert b"PRIVATE" in key
    assert server.names == ["control.example", "10.0.0.1"]

"""The product's two certificate authorities: one signs the control plane's servers, the other signs nodes.

They are two so that no certificate of a node, whatever addresses it names, can stand for the control plane.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from pools.agent.node_identity import general_name, pem_of_key
from pools.wire.snapshot_signature import SnapshotSigner

LIFETIME = timedelta(days=30)  # of a node's certificate, and of a server's, which is made anew at each start
AUTHORITY_LIFETIME = timedelta(days=3650)
EARLY = timedelta(hours=1)  # a certificate is valid before it is made: clocks differ
MOST_NAMES = 20
CONTROL_PLANE, NODES = "control-plane", "nodes"
SNAPSHOT_KEY = "snapshot-key.pem"


class BadRequest(ValueError):
    """A request that is not signed; its text says why."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """A signed certificate. `names`: that it was signed for, beside the subject's."""

    pem: str
    serial: str  # hexadecimal
    fingerprint: str  # SHA-256 of it, hexadecimal
    names: list[str]
    expires_at: datetime


class Authority:
    """A key that signs, and its certificate."""

    def __init__(self, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
        self._key = key
        self._certificate = certificate

    @classmethod
    def open(cls, secrets_dir: Path, name: str, now: datetime) -> Authority:
        """Reads it from the folder of secrets; makes it where there is none. Raises OSError and ValueError.

        Key and certificate are one file that appears whole or not at all: several processes may come here at once.
        """
        path = secrets_dir / _file_of(name)
        if not path.exists():
            _put_once(path, _made(name, now))
        content = path.read_bytes()
        key = serialization.load_pem_private_key(content, None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        return cls(key, x509.load_pem_x509_certificate(content))

    @property
    def certificate_pem(self) -> str:
        return self._certificate.public_bytes(serialization.Encoding.PEM).decode()

    @property
    def fingerprint(self) -> str:
        """Returns the SHA-256 of its certificate, hexadecimal."""
        return self._certificate.fingerprint(hashes.SHA256()).hex()

    def sign_node(self, request: str, node: str, taken: Collection[str], now: datetime) -> Certificate:
        """Signs a node's request. Of the names that it asks for those are left out that others have (`taken`).

        The subject is `node`, whatever the request says. Raises BadRequest.
        """
        try:
            asked = x509.load_pem_x509_csr(request.encode())
            if not asked.is_signature_valid:
                raise BadRequest("the request for a certificate is not signed by its own key")
            names = _names(asked)
        except (ValueError, InvalidSignature, x509.ExtensionNotFound) as error:
            raise BadRequest(f"the request for a certificate cannot be read: {error}") from error
        if not isinstance(key := asked.public_key(), ec.EllipticCurvePublicKey):
            raise BadRequest("the request for a certificate has no key of an elliptic curve")
        if len(names) > MOST_NAMES:
            raise BadRequest(f"the request for a certificate has {len(names)} names; {MOST_NAMES} are allowed")
        own = [name for name in dict.fromkeys([node, *names]) if name == node or name not in taken]
        uses = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
        return self._sign(key, node, own, uses, now)

    def server(self, name: str, names: Iterable[str], now: datetime) -> tuple[Certificate, bytes]:
        """Returns a certificate of a server that is reached at `names`, and its new key (PEM)."""
        key = ec.generate_private_key(ec.SECP256R1())
        uses = [ExtendedKeyUsageOID.SERVER_AUTH]
        return self._sign(key.public_key(), name, list(dict.fromkeys(names)), uses, now), pem_of_key(key)

    def _sign(
        self,
        key: ec.EllipticCurvePublicKey,
        subject: str,
        names: list[str],
        uses: list[x509.ObjectIdentifier],
        now: datetime,
    ) -> Certificate:
        builder = (
            _builder(subject, self._certificate.subject, key, now, LIFETIME)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
            .add_extension(x509.SubjectAlternativeName([general_name(name) for name in names]), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
        )
        made = builder.sign(self._key, hashes.SHA256())
        return Certificate(
            made.public_bytes(serialization.Encoding.PEM).decode(),
            f"{made.serial_number:x}",
            made.fingerprint(hashes.SHA256()).hex(),
            names,
            made.not_valid_after_utc,
        )


def is_made(secrets_dir: Path) -> bool:
    """Says whether the folder has all keys of a control plane."""
    names = (SNAPSHOT_KEY, *(_file_of(name) for name in (CONTROL_PLANE, NODES)))
    return all((secrets_dir / name).exists() for name in names)


def snapshot_signer(secrets_dir: Path) -> SnapshotSigner:
    """Returns what signs the fleet's snapshots; its key is made where there is none. Raises OSError and ValueError."""
    path = secrets_dir / SNAPSHOT_KEY
    if not path.exists():
        _put_once(path, SnapshotSigner.made().private_pem)
    return SnapshotSigner.read(path)


def _file_of(authority: str) -> str:
    return f"{authority}-authority.pem"


def _made(name: str, now: datetime) -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = f"GreenServe {name} authority {secrets.token_hex(4)}"
    usage = dict.fromkeys(
        ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"), False
    )
    builder = (
        _builder(subject, _name(subject), key.public_key(), now, AUTHORITY_LIFETIME)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(
            x509.KeyUsage(**usage, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False),
            critical=True,
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    made = builder.sign(key, hashes.SHA256())
    return pem_of_key(key) + made.public_bytes(serialization.Encoding.PEM)


def _builder(
    subject: str, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime, lifetime: timedelta
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - EARLY)
        .not_valid_after(now + lifetime)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _names(asked: x509.CertificateSigningRequest) -> list[str]:
    found = asked.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    addresses = [str(address) for address in found.get_values_for_type(x509.IPAddress)]
    return [*found.get_values_for_type(x509.DNSName), *addresses]


def _put_once(path: Path, content: bytes) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
    with suppress(FileExistsError):
        os.link(draft, path)  # else another process was first
    draft.unlink()

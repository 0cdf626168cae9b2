"""Keeps what a node shows who it is: a key that never leaves it, and certificates that the control plane gave it."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from urllib.parse import urlencode

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from pools import own_address


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """The files of one node, in a folder that its agent's account alone can enter."""

    folder: Path

    @classmethod
    def of(cls, var_dir: Path, node: str) -> NodeIdentity:
        return cls(var_dir.absolute() / "identity" / node)

    @property
    def key(self) -> Path:
        return self.folder / "key.pem"

    @property
    def certificate(self) -> Path:
        return self.folder / "certificate.pem"

    @property
    def authority(self) -> Path:
        """Returns the certificate of who signs all nodes' certificates."""
        return self.folder / "nodes-authority.pem"

    @property
    def redis_authority(self) -> Path:
        """Returns the certificate of who signs that of the Redis address; empty: the machine's own trust says."""
        return self.folder / "redis-authority.pem"

    def request(self, node: str, names: Sequence[str] = ()) -> str:
        """Returns a request for a certificate of a new key; PEM. The key before goes on until `keep`.

        `names`: host names and addresses at which others reach the node's engines.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        self._write(self._next_key, pem_of_key(key))
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, node)])
        asked = x509.SubjectAlternativeName([general_name(name) for name in dict.fromkeys([node, *names])])
        made = x509.CertificateSigningRequestBuilder().subject_name(subject).add_extension(asked, critical=False)
        return made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()

    def keep(self, certificate: str, authority: str, redis_authority: str) -> None:
        """Takes over the answer to the last request: connections that are made from now on show it.

        Raises ValueError where the certificate is not of that request's key, and OSError.
        """
        key = serialization.load_pem_private_key(self._next_key.read_bytes(), None)
        if x509.load_pem_x509_certificate(certificate.encode()).public_key() != key.public_key():
            raise ValueError("the certificate is not of the key that it was asked for")
        self._next_key.replace(self.key)
        self._write(self.authority, authority.encode())
        self._write(self.redis_authority, redis_authority.encode())
        self._write(self.certificate, certificate.encode())

    def third_left(self, now: datetime) -> bool:
        """Says whether a third of the certificate's time is left, or less. Raises OSError and ValueError."""
        found = x509.load_pem_x509_certificate(self.certificate.read_bytes())
        begins, ends = found.not_valid_before_utc, found.not_valid_after_utc
        return (ends - now) * 3 <= ends - begins

    @property
    def _next_key(self) -> Path:
        return self.folder / "next-key.pem"

    def through_tls(self, url: str) -> str:
        """Returns an address of Redis by TLS with this identity in it, as redis-py and Celery read it."""
        if not url.startswith("rediss://"):
            return url
        files = {"ssl_certfile": self.certificate, "ssl_keyfile": self.key}
        if self.redis_authority.exists() and self.redis_authority.stat().st_size:
            files["ssl_ca_certs"] = self.redis_authority
        words = {"ssl_cert_reqs": "required", **{name: str(path) for name, path in files.items()}}
        return f"{url}{'&' if '?' in url else '?'}{urlencode(words)}"

    def _write(self, path: Path, content: bytes) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder.chmod(0o700)
        draft = path.with_suffix(".tmp")
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(content)
        draft.replace(path)


def pem_of_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def general_name(name: str) -> x509.GeneralName:
    """Returns the name as certificates write it: an address as one, anything else as a host's name."""
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def names_of_machine(towards: str = "") -> list[str]:
    """Returns the names and addresses of this machine: the address that it has towards the host `towards` first, those
    of its loopback interface, where it reaches itself, last.

    Blocks while the machine's resolver looks names up. Sends nothing to `towards`.
    """
    try:
        first = own_address.towards(towards) if towards else None
    except OSError:
        first = None  # it knows no address of it
    name = socket.gethostname()
    found = [*((first,) if first else ()), *own_address.outward(), name, socket.getfqdn(name), *own_address.OWN]
    return [one for one in dict.fromkeys(found) if one.isascii() and "%" not in one]

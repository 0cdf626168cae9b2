"""What a node shows who it is: a key that never leaves it, and certificates that the control plane gave it."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


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
        """Returns a request for a certificate of the node's key, which is made where there is none; PEM.

        `names`: host names and addresses at which others reach the node's engines.
        """
        key = self._key()
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, node)])
        asked = x509.SubjectAlternativeName([general_name(name) for name in dict.fromkeys([node, *names])])
        made = x509.CertificateSigningRequestBuilder().subject_name(subject).add_extension(asked, critical=False)
        return made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()

    def keep(self, certificate: str, authority: str, redis_authority: str) -> None:
        """Replaces the certificates, each whole. Connections that are made from now on show the new one."""
        self._write(self.authority, authority.encode())
        self._write(self.redis_authority, redis_authority.encode())
        self._write(self.certificate, certificate.encode())

    def third_left(self, now: datetime) -> bool:
        """Says whether a third of the certificate's time is left, or less. Raises OSError and ValueError."""
        found = x509.load_pem_x509_certificate(self.certificate.read_bytes())
        begins, ends = found.not_valid_before_utc, found.not_valid_after_utc
        return (ends - now) * 3 <= ends - begins

    def _key(self) -> ec.EllipticCurvePrivateKey:
        if not self.key.exists():
            made = ec.generate_private_key(ec.SECP256R1())
            self._write(self.key, pem_of_key(made))
        found = serialization.load_pem_private_key(self.key.read_bytes(), None)
        assert isinstance(found, ec.EllipticCurvePrivateKey)
        return found

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
    """Returns the names and addresses of this machine, of those that it has towards the host `towards` the first.

    Blocks while the machine's resolver looks its own name up. Sends nothing.
    """
    found: list[str] = []
    for family in (socket.AF_INET, socket.AF_INET6):
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect((towards or ("192.0.2.1" if family == socket.AF_INET else "2001:db8::1"), 9))
                found.append(probe.getsockname()[0])
            except OSError:
                continue  # the machine has no way there by this family
    name = socket.gethostname()
    found += [name, *({socket.getfqdn(name)} - {name})]
    return [one for one in dict.fromkeys(found) if one.isascii() and "%" not in one]

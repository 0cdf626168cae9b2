"""Certificates as a control plane signs them for its nodes: an authority, and what it signs."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from pools.agent.vllm.engine_access import EngineTls


class Authority:
    """Signs certificates of hosts. `path`: its own certificate."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        folder.mkdir(exist_ok=True)
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        made = _unsigned(self._name, self._name, self._key.public_key())
        made = made.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        self.path = folder / f"{name}.pem"
        self.path.write_bytes(_pem(made.sign(self._key, hashes.SHA256())))

    def node(self, *hosts: str, name: str = "node") -> EngineTls:
        """Makes a key and a certificate of the hosts, in place of those of an earlier call with this name."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        made = _unsigned(subject, self._name, key.public_key())
        made = made.add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
        files = EngineTls(self._folder / f"{name}.pem", self._folder / f"{name}.key", self.path)
        files.certificate.write_bytes(_pem(made.sign(self._key, hashes.SHA256())))
        plain = serialization.NoEncryption()
        kind = serialization.PrivateFormat.PKCS8
        files.key.write_bytes(key.private_bytes(serialization.Encoding.PEM, kind, plain))
        return files


def _unsigned(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now, hour = datetime.datetime.now(datetime.UTC), datetime.timedelta(hours=1)
    made = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    return made.serial_number(x509.random_serial_number()).not_valid_before(now - hour).not_valid_after(now + hour)


def _host(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def self_signed(folder: Path) -> ssl.SSLContext:
    """Returns the context of a server with a certificate that nobody trusts."""
    files = Authority(folder, "nobody").node("fake")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)
    return context

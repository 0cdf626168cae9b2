"""Signs the fleet's snapshot: gateways believe what the control plane signed, whoever else can write to Redis.

The index is signed; it has the digests of the services, of all keys and of the profiles. So one signature stands for
all, and a gateway hashes only what has changed.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

DIGEST_BYTES = 32


class NotSigned(Exception):
    """Says that something of the snapshot is not what the control plane signed, and names it."""


class SnapshotSigner:
    """Signs with the control plane's private key (Ed25519)."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key

    @classmethod
    def made(cls) -> SnapshotSigner:
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def read(cls, path: Path) -> SnapshotSigner:
        """Raises OSError, and ValueError where the file has no such key."""
        key = serialization.load_pem_private_key(path.read_bytes(), None)
        if not isinstance(key, Ed25519PrivateKey):
            raise ValueError(f"{path} has no Ed25519 key")
        return cls(key)

    @property
    def private_pem(self) -> bytes:
        raw = serialization.PrivateFormat.PKCS8
        return self._key.private_bytes(serialization.Encoding.PEM, raw, serialization.NoEncryption())

    @property
    def public_pem(self) -> bytes:
        form = serialization.PublicFormat.SubjectPublicKeyInfo
        return self._key.public_key().public_bytes(serialization.Encoding.PEM, form)

    def sign(self, data: bytes) -> bytes:
        return self._key.sign(data)


class SnapshotVerifier:
    """Checks by the control plane's public key, PEM. Raises ValueError where it is none."""

    def __init__(self, public_pem: bytes) -> None:
        key = serialization.load_pem_public_key(public_pem)
        if not isinstance(key, Ed25519PublicKey):
            raise ValueError("the key that snapshots are signed with is no Ed25519 key")
        self._key = key

    def check(self, what: str, data: bytes, signature: bytes | None) -> None:
        """Raises NotSigned."""
        if signature is None:
            raise NotSigned(f"{what} is not signed")
        try:
            self._key.verify(signature, data)
        except InvalidSignature:
            raise NotSigned(f"{what} is not signed by the control plane") from None


def digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=DIGEST_BYTES).digest()


def digest_of_all(digests: Iterable[bytes]) -> str:
    """Returns the digest of entries by theirs, in whatever order they come; hexadecimal."""
    return digest(b"".join(sorted(digests))).hex()

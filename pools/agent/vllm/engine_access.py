"""How an engine and its clients know each other: it has the node's certificate, and they a key that is its alone.

vLLM reads its certificate again when the file changes (`--enable-ssl-refresh`), but it watches the file itself: it sees
the first other file in its place, and no later one. So engines are given a file of their own, certificate and key in
one, which is written over in place.
"""

from __future__ import annotations

import os
import secrets
import ssl
import threading
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509

from core.ports import PermanentError
from pools.engine_trust import names_of, trust_in


@dataclass(frozen=True, slots=True)
class EngineAccess:
    """Says what an engine is sent, and which certificates are accepted. `trust` None: those that the system trusts."""

    key: str = field(default="", repr=False)
    trust: ssl.SSLContext | None = None

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"} if self.key else {}


OPEN = EngineAccess()  # of engines that ask for nothing


@dataclass(frozen=True, slots=True)
class EngineTls:
    """Files, PEM: the node's certificate and its key, and the certificate of who signed it."""

    certificate: Path
    key: Path
    authority: Path

    def read(self) -> bytes:
        """Returns certificate and key, one after the other. Raises PermanentError: they are not of each other."""
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.certificate, self.key)
            return self.certificate.read_bytes().rstrip() + b"\n" + self.key.read_bytes()
        except OSError as error:
            why = error.strerror or error
            raise PermanentError(f"--tls-certificate {self.certificate}, --tls-key {self.key}: {why}") from None

    def trust(self, host: str) -> ssl.SSLContext:
        """Returns a context that accepts them alone. Raises PermanentError: they do not fit engines at `host`."""
        names = names_of(x509.load_pem_x509_certificate(self.read()))
        if host not in names:
            raise PermanentError(
                f"--tls-certificate {self.certificate} is of {', '.join(names) or 'no host'}: gateways would refuse "
                f"engines at {host}; give an --engine-address of these, or join again"
            )
        try:
            return trust_in(self.authority)
        except ValueError as error:
            raise PermanentError(f"--tls-authority {error}") from None


class EngineCertificate:
    """The file that engines of a node have their certificate and its key from. Any thread may call `renew`."""

    def __init__(self, files: EngineTls, path: Path, host: str) -> None:
        """Writes the file. Raises PermanentError."""
        self.trust = files.trust(host)
        self._files = files
        self._path = path
        self._lock = threading.Lock()
        self.renew()

    def renew(self) -> None:
        """Takes the node's certificate over where it is another one by now; engines read it within seconds.

        Raises PermanentError: what is there now is no pair. Raises OSError: the disk takes nothing.
        """
        found = self._files.read()
        with self._lock:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with os.fdopen(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600), "r+b", buffering=0) as file:
                if file.read() != found:
                    file.seek(0)
                    file.write(found)  # at once: who reads it meanwhile gets the one or the other
                    file.truncate()


def new_key() -> str:
    """Returns a key for one engine. By how it begins, logs mask it (`pools.masking`)."""
    return f"gs-engine-{secrets.token_urlsafe(32)}"

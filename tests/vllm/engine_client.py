"""Asks a node's engine itself, as gateways do: by TLS, with its key."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509

from pools.agent.vllm.engine_records import EngineRecord
from pools.engine_trust import trust_in


@dataclass(frozen=True, slots=True)
class EngineClient:
    """`authority`: PEM of who signed the certificate of the engine's node."""

    record: EngineRecord
    authority: Path

    @property
    def page(self) -> str:
        """The address of its metrics."""
        return f"https://{self.record.host}:{self.record.port}/metrics"

    def ask(
        self, path: str, key: str = "", body: object = None, trust: ssl.SSLContext | None = None
    ) -> tuple[int, bytes]:
        """Returns the answer's status and body. `trust`: in place of the authority's."""
        context = trust or trust_in(self.authority)
        connection = http.client.HTTPSConnection(self.record.host, self.record.port, timeout=60, context=context)
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        try:
            connection.request("GET" if body is None else "POST", path, json.dumps(body), headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def shown(self) -> int:
        """Returns the serial number of the certificate that a new connection is shown."""
        plain = socket.create_connection((self.record.host, self.record.port), timeout=10)
        with trust_in(self.authority).wrap_socket(plain, server_hostname=self.record.host) as tls:
            found = tls.getpeercert(binary_form=True)
        assert found is not None
        return x509.load_der_x509_certificate(found).serial_number


def serial_of(certificate: Path) -> int:
    return x509.load_pem_x509_certificate(certificate.read_bytes()).serial_number

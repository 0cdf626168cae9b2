"""Decides which certificates of engines are accepted, for agents and gateways alike."""

from __future__ import annotations

import ssl
from pathlib import Path

from cryptography import x509


def trust_in(authority: Path) -> ssl.SSLContext:
    """Returns a context for connections to engines: certificates must be of the host or address that is connected to,
    and signed by one of those in the file (PEM). Raises ValueError, which names the file.
    """
    try:
        return ssl.create_default_context(cafile=str(authority))
    except OSError as error:
        raise ValueError(f"{authority}: it is to hold certificates in PEM ({error.strerror or error})") from None


def names_of(certificate: x509.Certificate) -> list[str]:
    """Returns the host names and addresses that a certificate is of."""
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [*found.get_values_for_type(x509.DNSName), *map(str, found.get_values_for_type(x509.IPAddress))]

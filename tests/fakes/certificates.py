"""Certificates that nobody trusts."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

OPENSSL = shutil.which("openssl")


def self_signed(folder: Path) -> ssl.SSLContext:
    """Returns the context of a server with a certificate of its own making."""
    if OPENSSL is None:
        pytest.skip("needs the program openssl to make a certificate")
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=fake")
    words = [OPENSSL, "req", "-x509", *curve, "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(words, check=True, capture_output=True, timeout=20)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context

"""Engines behind TLS: certificates are checked."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

from tests.fakes.engine import FakeEngine
from tests.unit.pools.gateway.conftest import Bench, completion

OPENSSL = shutil.which("openssl")


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A certificate of 127.0.0.1's own, and its key, in one file."""
    if OPENSSL is None:
        pytest.skip("needs the program openssl to make a certificate")
    key, found = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subprocess.run(
        [
            *(OPENSSL, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-days", "1", "-subj", "/CN=engine", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", str(key), "-out", str(found)),
        ],
        check=True,
        capture_output=True,
        timeout=20,
    )
    found.write_bytes(found.read_bytes() + key.read_bytes())
    return found


@pytest.mark.parametrize("trusted", [True, False])
async def test_engine_behind_tls_serves_when_its_certificate_is_trusted(
    bench: Bench, certificate: Path, trusted: bool
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    engine = await FakeEngine().start(tls=context)
    bench.fleet.urls = [engine.url]
    bench.publish()
    if trusted:
        bench.server.gateway.pool._tls = ssl.create_default_context(cafile=str(certificate))
    for stream in (True, False):
        async with bench.post(completion(stream=stream)) as response:
            assert response.status == (200 if trusted else 502)
            await response.read()
    assert engine.connections <= 1 if trusted else not engine.received
    bench.server.gateway.pool.close()
    await asyncio.sleep(0.05)
    await engine.stop()

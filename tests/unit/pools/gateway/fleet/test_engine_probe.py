"""Why an engine cannot be reached, in words."""

from __future__ import annotations

import errno
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from pools.gateway.fleet.engine_probe import EngineProbe
from tests.fakes.certificates import self_signed
from tests.fakes.engine import FakeEngine


@pytest.fixture
async def probe() -> AsyncIterator[EngineProbe]:
    made = EngineProbe(10.0)  # a TLS handshake takes longer than any gateway waits where the machine is busy
    yield made
    await made.close()


async def test_refusal_and_bad_status_are_distinguished(probe: EngineProbe) -> None:
    found = await probe.ask("http://127.0.0.1:1")
    assert (found.reached, "the connection is refused" in found.wrong) == (False, True)
    engine = await FakeEngine().start()
    engine.status = 503
    try:
        assert await probe.ask(engine.url) == ("/health answers 503", True)
    finally:
        await engine.stop()


@pytest.fixture
def untrusted(tmp_path: Path) -> ssl.SSLContext:
    return self_signed(tmp_path)


async def test_certificate_that_is_not_trusted_is_named(probe: EngineProbe, untrusted: ssl.SSLContext) -> None:
    engine = await FakeEngine().start(tls=untrusted)
    try:
        found = await probe.ask(engine.url.replace("http:", "https:"))
    finally:
        await engine.stop()
    assert (found.reached, "TLS: its certificate is not trusted here" in found.wrong) == (False, True)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.EHOSTUNREACH, "x"), "no route leads there (No route to host)"),
        (OSError(errno.ENETUNREACH, "x"), "no route leads there (Network is unreachable)"),
        (OSError("dns"), "its name is not known here"),
        (None, "the connection timed out after 9 s"),
    ],
)
async def test_way_that_leads_nowhere_is_named(
    probe: EngineProbe, monkeypatch: pytest.MonkeyPatch, error: OSError | None, words: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        if error is None:
            raise aiohttp.ConnectionTimeoutError
        key = aiohttp.client_reqrep.ConnectionKey("10.0.0.5", 18400, False, True, None, None, None)
        kind = aiohttp.ClientConnectorError if error.errno else aiohttp.ClientConnectorDNSError
        raise kind(key, error)

    monkeypatch.setattr(aiohttp.ClientSession, "get", fail)
    found = await probe.ask("http://10.0.0.5:18400")
    assert (found.reached, words in found.wrong) == (False, True)

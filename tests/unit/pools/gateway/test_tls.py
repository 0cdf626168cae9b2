"""Engines behind TLS: certificates are checked, and each engine gets its key."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from core.ports import AdapterError
from pools import wire
from pools.agent.vllm.engine_access import EngineTls, new_key
from pools.engine_trust import trust_in
from pools.gateway.__main__ import _config
from pools.gateway.fleet.engine_probe import EngineProbe
from telemetry.ingest.scraper import metrics_with
from tests.fakes.certificates import Authority
from tests.fakes.engine import FakeEngine
from tests.fakes.fleet import SECRET
from tests.unit.pools.gateway.conftest import Bench, Start, completion


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "pem")


@pytest.fixture
async def engine(authority: Authority) -> AsyncIterator[FakeEngine]:
    """Listens at 127.0.0.1 with a certificate of that."""
    found = await FakeEngine().start(tls=_server(authority.node("127.0.0.1")))
    yield found
    await asyncio.sleep(0.05)
    await found.stop()


def _server(files: EngineTls) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)
    return context


def _send_to(bench: Bench, engine: FakeEngine, key: str = "") -> None:
    bench.fleet.urls, bench.fleet.engine_key = [engine.url], key
    bench.publish()


@pytest.mark.parametrize("trusted", [True, False])
async def test_engine_behind_tls_serves_when_its_certificate_is_by_the_authority(
    start: Start, authority: Authority, engine: FakeEngine, tmp_path: Path, trusted: bool
) -> None:
    other = Authority(tmp_path / "pem", "other")
    bench = await start(engine_trust=trust_in((authority if trusted else other).path))
    _send_to(bench, engine)
    for stream in (True, False):
        async with bench.post(completion(stream=stream)) as response:
            assert response.status == (200 if trusted else 502)
            await response.read()
    assert engine.connections <= 1 if trusted else not engine.received
    bench.server.gateway.pool.close()


async def test_engine_gets_nothing_when_its_certificate_is_of_another_host(start: Start, authority: Authority) -> None:
    elsewhere = await FakeEngine().start(tls=_server(authority.node("10.0.0.7", "localhost")))
    bench = await start(engine_trust=trust_in(authority.path))
    _send_to(bench, elsewhere, new_key())
    async with bench.post(completion()) as response:
        assert response.status == 502
        assert "127.0.0.1" in await response.text()
    assert not elsewhere.received
    await elsewhere.stop()


async def test_engine_gets_its_own_key_and_never_the_clients(
    start: Start, authority: Authority, engine: FakeEngine
) -> None:
    bench = await start(engine_trust=trust_in(authority.path))
    key = new_key()
    _send_to(bench, engine, key)
    async with bench.post(completion()) as response:
        assert response.status == 200
    assert engine.received[-1].headers["authorization"] == f"Bearer {key}"
    _send_to(bench, engine)
    async with bench.post(completion()) as response:
        assert response.status == 200
    assert "authorization" not in engine.received[-1].headers
    assert not any(SECRET.encode() in one.raw for one in engine.received)
    bench.server.gateway.pool.close()


async def test_engine_gets_no_requests_when_its_key_would_end_the_header(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.fleet.engine_key = "key\r\nx-more: 1"
    bench.publish()
    async with bench.post(completion()) as response:
        assert response.status == 503
    assert "has no usable key" in caplog.text
    assert "x-more" not in caplog.text


async def test_health_is_asked_with_the_same_trust(authority: Authority, engine: FakeEngine, tmp_path: Path) -> None:
    answers = {}
    for name, trust in (("ours", authority), ("other", Authority(tmp_path / "pem", "other"))):
        probe = EngineProbe(1.0, trust_in(trust.path))
        answers[name] = (await probe.ask(engine.url)).wrong
        await probe.close()
    assert answers["ours"] == ""
    assert "certificate verify failed" in answers["other"]


def test_key_is_in_the_message_to_gateways_and_in_nothing_that_is_written_of_it() -> None:
    key = new_key()
    known = {"uid": "u", "pool_id": 1, "url": None, "state": "ready", "model": "m", "engine": "e", "gpu_type": "g"}
    instance = wire.InstanceState(**known, tp=1, sm_clock_mhz=None, min_mhz=0.0, max_mhz=1.0, engine_key=key)
    state = wire.AgentState("node", "boot", 1.0, None, [instance])
    assert key not in repr(state)
    assert "state='ready'" in repr(state)
    assert wire.decode(wire.encode(state), wire.AgentState).instances[0].engine_key == key
    old = {**known, "tp": 1, "sm_clock_mhz": None, "min_mhz": 0.0, "max_mhz": 1.0}
    assert msgspec.convert(old, wire.InstanceState).engine_key == ""


async def test_ingester_measures_registered_engines_with_the_same_key_and_trust(
    authority: Authority, engine: FakeEngine, tmp_path: Path
) -> None:
    (tmp_path / "key").write_text("sk-of-our-workers\n")
    metrics = metrics_with(authority.path, tmp_path / "key")()
    with pytest.raises(AdapterError, match="answered 404"):  # it has none, and took the connection
        await asyncio.to_thread(metrics.scrape, "worker", engine.url)
    assert engine.received[-1].headers["authorization"] == "Bearer sk-of-our-workers"
    metrics.close()
    with pytest.raises(AdapterError, match="CERTIFICATE_VERIFY_FAILED"):
        await asyncio.to_thread(metrics_with(None, None)().scrape, "worker", engine.url)


def test_gateway_takes_authority_and_key_of_workers_from_files(
    tmp_path: Path, authority: Authority, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "key").write_text("sk-of-our-workers\n")
    given = ["--redis-url", "unix:///run/redis", "--spool", str(tmp_path)]
    config = _config([*given, "--worker-key-file", str(tmp_path / "key"), "--engine-authority", str(authority.path)])
    assert config.worker_key == "sk-of-our-workers"
    assert "sk-of" not in repr(config)
    assert config.engine_trust is not None
    assert [found["subject"] for found in config.engine_trust.get_ca_certs()]
    with pytest.raises(SystemExit):
        _config([*given, "--engine-authority", str(tmp_path / "key")])
    assert "it is to hold certificates in PEM" in capsys.readouterr().err

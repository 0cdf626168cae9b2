"""The endpoint picker as a process of its own with a real Redis, and behind a real Envoy where there is one.

GREENSERVE_TEST_ENVOY names an Envoy to test with, 1.34 or newer.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import redis
from django.conf import settings

from pools import wire
from tests.e2e.product import ROOT
from tests.fakes.engine import FakeEngine
from tests.fakes.envoy import DUPLEX, FakeEnvoy, Sent
from tests.fakes.fleet import ENGINE_MODEL, MODEL, SECRET
from tests.integration.pools.gateway.test_gateway import ids, publish, shipped, until
from tests.ports import free_port
from tests.servers import redis_words

AUTH = {"Authorization": f"Bearer {SECRET}"}
BODY = {"model": MODEL, "prompt": [11] * 50, "max_tokens": 20}
ENVOY = os.environ.get("GREENSERVE_TEST_ENVOY")
needs_envoy = pytest.mark.skipif(not ENVOY, reason="GREENSERVE_TEST_ENVOY is not set: it names an Envoy to test with")


@asynccontextmanager
async def running(*command: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    assert process.stderr is not None
    try:
        yield process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        await asyncio.wait_for(process.communicate(), 15)


@asynccontextmanager
async def picker(spool: Path) -> AsyncIterator[tuple[asyncio.subprocess.Process, int]]:
    """A picker on a free port."""
    command = (
        "-m",
        "pools.gateway.picker",
        "--port",
        "0",
        *redis_words(spool.parent, settings.REDIS_URL),
        "--spool",
        str(spool),
    )
    async with running(sys.executable, *command) as process:
        line = (await asyncio.wait_for(process.stderr.readline(), 20)).decode()  # type: ignore[union-attr]
        assert "listening on" in line
        yield process, int(line.rsplit(":", 1)[1])


@pytest.fixture
async def engine() -> AsyncIterator[FakeEngine]:
    engine = await FakeEngine().start()
    yield engine
    await engine.stop()


async def test_fleet_comes_from_redis_and_rows_go_there(
    tmp_path: Path, redis_client: redis.Redis, engine: FakeEngine
) -> None:
    publish(redis_client, engine)
    async with picker(tmp_path) as (process, port):
        envoy = FakeEnvoy(port)
        await until("ready", envoy.serving)
        async with envoy.stream() as stream:
            sent = await stream.ask(BODY)
            assert isinstance(sent, Sent)
            assert sent.endpoint == engine.url.removeprefix("http://")
            await stream.answer([b"{}"], content_type="application/json")
        await until("shipped", lambda: len(ids(redis_client)) == 1)
        assert [batch.gateway for batch in shipped(redis_client)] == ["picker"]
        heartbeat = redis_client.get(wire.alive_key("picker"))
        assert heartbeat is not None
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 15) == 0


async def test_one_line_says_so_when_the_port_is_taken(tmp_path: Path, redis_client: redis.Redis) -> None:
    async with picker(tmp_path / "one") as (_, port):
        command = ("-m", "pools.gateway.picker", "--port", str(port), *redis_words(tmp_path, settings.REDIS_URL))
        async with running(sys.executable, *command, "--spool", str(tmp_path / "two")) as second:
            _, said = await asyncio.wait_for(second.communicate(), 15)
        assert second.returncode == 2
        (line,) = [line for line in said.decode().splitlines() if line.startswith("picker:")]
        assert str(port) in line


@asynccontextmanager
async def real_envoy(folder: Path, picker_port: int, request_mode: str, response_mode: str) -> AsyncIterator[str]:
    """Envoy with the documented configuration, on other ports and in other body modes; its address."""
    port = free_port()
    config = (ROOT / "docs" / "picker" / "envoy.yaml").read_text()
    for old, new in (
        ("port_value: 10000", f"port_value: {port}"),
        ("port_value: 9002", f"port_value: {picker_port}"),
        ("request_body_mode: FULL_DUPLEX_STREAMED", f"request_body_mode: {request_mode}"),
        ("response_body_mode: FULL_DUPLEX_STREAMED", f"response_body_mode: {response_mode}"),
    ):
        assert len(re.findall(rf"{old}\b", config)) == 1
        config = config.replace(old, new)
    (folder / "envoy.yaml").write_text(config)
    command = (str(ENVOY), "-c", str(folder / "envoy.yaml"), "--use-dynamic-base-id", "--concurrency", "1")
    async with running(*command, "-l", "error"):
        yield f"http://127.0.0.1:{port}"


@needs_envoy
@pytest.mark.parametrize(
    ("request_mode", "response_mode"), [(DUPLEX, DUPLEX), ("BUFFERED", "BUFFERED"), ("BUFFERED", "STREAMED")]
)
async def test_a_real_envoy_sends_where_the_picker_says_and_every_request_leaves_a_row(
    tmp_path: Path, redis_client: redis.Redis, engine: FakeEngine, request_mode: str, response_mode: str
) -> None:
    publish(redis_client, engine)
    async with (
        picker(tmp_path / "spool") as (_, port),
        real_envoy(tmp_path, port, request_mode, response_mode) as url,
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as http,
    ):

        async def post(headers: dict[str, str] = AUTH, **fields: Any) -> tuple[int, str]:
            async with http.post(f"{url}/v1/completions", json=BODY | fields, headers=headers) as response:
                return response.status, await response.text()

        async def answers() -> bool:
            try:
                async with http.get(f"{url}/v1/models", headers=AUTH) as response:
                    return response.status == 200
            except aiohttp.ClientError:
                return False

        await until("Envoy", answers)
        status, text = await post()
        assert (status, json.loads(text)["usage"]["completion_tokens"]) == (200, 5)
        assert engine.received[-1].body["model"] == ENGINE_MODEL
        assert "authorization" not in engine.received[-1].headers
        status, text = await post(stream=True)
        assert status == 200
        assert text.endswith("data: [DONE]\n\n")
        assert '"usage":' not in text
        assert json.loads((await post({}))[1])["error"]["code"] == "invalid_api_key"
        status, text = await post(max_tokens=0)
        assert (status, json.loads(text)["error"]["param"]) == (400, "max_tokens")
        await post(user="x" * 300_000)
        assert len(engine.received[-1].body["user"]) == 300_000
        engine.pace_s, engine.tokens = 0.1, 100
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await post(stream=True)
        await until("aborted", lambda: engine.aborted == 1)
        await engine.stop()
        assert (await post())[0] == 503
        await until("shipped", lambda: len(ids(redis_client)) == 6)
    rows = [row for batch in shipped(redis_client) for row in batch.rows]
    assert [row.status for row in rows] == ["ok", "ok", "client_error", "ok", "client_gone", "upstream_error"]
    assert [row.output_tokens for row in rows[:2]] == [5, 5]

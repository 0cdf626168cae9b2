"""Two adapters of one service on a simulated engine that has place for one: loaded on demand, evicted, accounted."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import pytest

from pools import wire
from pools.gateway.server import Config, GatewayServer
from tests.fakes.fleet import MODEL, SECRET, FakeFleet
from tests.integration.pools.test_simnode_abilities import MODEL as ENGINE_MODEL
from tests.integration.pools.test_simnode_abilities import Node


@pytest.fixture
async def loaded(tmp_path: Path) -> AsyncIterator[tuple[GatewayServer, str, aiohttp.ClientSession]]:
    async with AsyncExitStack() as stack:
        node = await stack.enter_async_context(Node("one", tmp_path, speedup=800.0))
        engine = await node.start("a", 0)
        server = GatewayServer(Config("127.0.0.1", 0, tmp_path / "spool", learns=False))
        await server.start()
        stack.push_async_callback(server.stop)
        http = await stack.enter_async_context(aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)))
        fleet = FakeFleet([engine], engine_model=ENGINE_MODEL, declared=["legal", "medical"])
        server.fleet.apply(fleet.fleet(), fleet.states(), time.monotonic())
        yield server, engine, http


async def test_adapters_are_loaded_evicted_and_accounted(
    loaded: tuple[GatewayServer, str, aiohttp.ClientSession], tmp_path: Path
) -> None:
    server, engine, http = loaded
    url, headers = f"http://127.0.0.1:{server.port}/v1", {"Authorization": f"Bearer {SECRET}"}
    for name in ("legal", "legal", "medical", MODEL):
        body = {"model": name, "prompt": [11] * 50, "max_tokens": 8, "ignore_eos": True}
        async with http.post(f"{url}/completions", json=body, headers=headers) as answer:
            assert answer.status == 200, await answer.text()
            assert (await answer.json())["model"] == name
        async with http.get(f"{engine}/v1/models") as answer:
            there = [card["id"] for card in (await answer.json())["data"]]
        assert there == [ENGINE_MODEL, "medical" if name == MODEL else name]
    lines = [line for path in sorted((tmp_path / "spool").glob("*.jsonl")) for line in path.read_bytes().splitlines()]
    rows = [wire.decode(line, wire.RequestRow) for line in lines]
    assert [(row.service, row.adapter, row.output_tokens) for row in rows] == [
        (MODEL, "legal", 8),
        (MODEL, "legal", 8),
        (MODEL, "medical", 8),
        (MODEL, None, 8),
    ]
    adapters = server.runtime.adapters
    assert (adapters.loads, adapters.evictions, adapters.failures) == (2, 1, 0)

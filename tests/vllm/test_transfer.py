"""Requests that engines of two nodes serve as one: between their network namespaces packets are late, and some lost."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest

from pools import wire
from pools.agent.vllm import vllm_control
from pools.gateway.placing.split_plans import Cut
from pools.gateway.server import Config, GatewayServer
from tests.fakes.certificates import Authority
from tests.fakes.fleet import MODEL, SECRET, FakeFleet
from tests.netns.namespaces import Namespaces, namespaces

from .server import VllmServer

AUTH = {"Authorization": f"Bearer {SECRET}"}
DELAY_MS, LOSS = 4.0, 0.002
HERE, ADDRESSES = "10.78.0.1", ["10.78.0.2", "10.78.0.3"]
KV_PORT, UCX_PORTS = 18600, "18610-18619"
BLOCK = 32
PROMPT_IDS = [random.Random(3).randrange(10, 2000) for _ in range(400)]
TEXT = "tell me all about the weather in the north " * 30
PROMPTS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"prompt": PROMPT_IDS}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": TEXT}]}),
]


@dataclass
class TwoNodes:
    spaces: Namespaces
    servers: list[VllmServer]


@pytest.fixture(scope="module")
def nodes(
    far_apart: None, vllm_server: Callable[..., VllmServer], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TwoNodes]:
    folder = tmp_path_factory.mktemp("transfer")
    authority = Authority(folder / "authority")
    root = vllm_control.import_root(folder)
    with namespaces(ADDRESSES, HERE, DELAY_MS, LOSS) as spaces:
        servers = []
        for address in ADDRESSES:
            files = authority.node(address, name=address)
            own = folder / f"{address}.both"
            own.write_bytes(files.read())
            network = vllm_control.kv_network(address, KV_PORT, 1, (own, files.authority), 32 << 20)
            paths = filter(None, (str(root), os.environ.get("GREENSERVE_VLLM_PATH")))
            environment = {
                "PYTHONPATH": os.pathsep.join(paths),
                "UCX_TCP_PORT_RANGE": UCX_PORTS,
                "UCX_TLS": "tcp",
                "VLLM_HOST_IP": address,
            }
            servers.append(
                vllm_server(
                    env=environment,
                    host=address,
                    within=spaces.within(address),
                    kv_transfer_config=network,
                    disable_hybrid_kv_cache_manager=True,
                    block_size=BLOCK,
                    max_num_batched_tokens=128,
                    no_enable_prefix_caching=True,
                ).begin()
            )
        for server in servers:
            server.start()
        yield TwoNodes(spaces, servers)
        for server in servers:
            server.stop()


@dataclass
class Front:
    """A gateway before them, which cuts requests where the test says: after so many tokens of prompt and output."""

    server: GatewayServer
    nodes: TwoNodes
    http: aiohttp.ClientSession
    spool: Path
    cut: int | None = None  # None: whole
    chunked: bool = True
    addresses: list[str] = field(default_factory=lambda: ADDRESSES)  # where engines take caches, as they say
    _inside: bool = False

    def follow(self, cut: int | None, inside_prompt: bool = False) -> None:
        """`cut`: in tokens of the output, or `inside_prompt`; None: nothing is cut."""
        self.cut, self._inside = cut, inside_prompt
        fleet = FakeFleet([s.url for s in self.nodes.servers], engine_model="tiny", kv_connector="nixl")
        fleet.kv_addresses = [f"{address}:{KV_PORT}" for address in self.addresses]
        tuning = wire.RequestTuning(split_chunked=self.chunked)
        fleet.policy = wire.RequestPolicy(split="none" if cut is None else "any", tuning=tuning)
        self.server.fleet.apply(fleet.fleet(), fleet.states(), time.monotonic())

    def best_cut(self, first: Any, second: Any, call: Any, *_: Any) -> Cut:
        assert self.cut is not None
        tokens = self.cut if self._inside else call.prompt_tokens + self.cut
        return Cut(first[0], second[0], tokens, call.prompt_tokens + call.max_tokens)

    async def events_of(self, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        asked = {"model": MODEL, "stream": True, "temperature": 0.0, "ignore_eos": True, **body}
        asked["stream_options"] = {"include_usage": True}
        async with self.http.post(f"http://127.0.0.1:{self.server.port}{path}", json=asked, headers=AUTH) as response:
            assert response.status == 200, await response.text()
            return [json.loads(line[6:]) async for line in response.content if line.startswith(b"data: {")]

    def row(self) -> wire.RequestRow:
        lines = [line for path in sorted(self.spool.glob("*.jsonl")) for line in path.read_bytes().splitlines()]
        return wire.decode(lines[-1], wire.RequestRow)


@pytest.fixture
async def front(nodes: TwoNodes, tmp_path: Path) -> AsyncIterator[Front]:
    async with AsyncExitStack() as stack:
        server = GatewayServer(Config("127.0.0.1", 0, tmp_path / "spool", learns=False))
        await server.start()
        stack.push_async_callback(server.stop)
        http = await stack.enter_async_context(aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=120)))
        front = Front(server, nodes, http, tmp_path / "spool")
        server.gateway.splitter._plans = SimpleNamespace(best_cut=front.best_cut)  # type: ignore[assignment]
        yield front


def written(events: list[dict[str, Any]]) -> str:
    choices = [event["choices"][0] for event in events if event["choices"]]
    return "".join(c.get("text") or (c.get("delta") or {}).get("content") or "" for c in choices)


def figures(server: VllmServer) -> dict[str, float]:
    """What it says of transfers, and of prompts by their source."""
    found = {}
    for line in server.metrics().splitlines():
        name, _, value = line.rpartition(" ")
        if line.startswith("greenserve_kv_") and "_bucket" not in name:
            found[name.partition("{")[0]] = float(value)
        elif line.startswith("vllm:prompt_tokens_by_source_total"):
            found[name.split('source="')[1].split('"')[0]] = float(value)
    return found


def since(before: dict[str, float], after: dict[str, float], name: str) -> float:
    return after[name] - before.get(name, 0.0)


@pytest.mark.parametrize(("cut", "inside_prompt"), [(1, False), (50, False), (200, True)])
@pytest.mark.parametrize(("path", "prompt"), PROMPTS)
async def test_request_that_two_nodes_serve_reads_as_one_engine_would_have_written_it(
    front: Front, cut: int, inside_prompt: bool, path: str, prompt: dict[str, Any]
) -> None:
    front.follow(None)
    body = prompt | {"max_tokens": 80}
    whole = await front.events_of(path, body)
    second = front.nodes.servers[1]
    before = figures(second)
    front.follow(cut, inside_prompt)
    parts = await front.events_of(path, body)
    after = figures(second)
    assert written(parts) == written(whole)
    assert parts[-1]["usage"] == whole[-1]["usage"]
    assert len({event["id"] for event in parts}) == 1
    row = front.row()
    assert (row.status, row.output_tokens, row.attempts) == ("ok", 80, 1)
    prompt_tokens = whole[-1]["usage"]["prompt_tokens"]
    there = cut if inside_prompt else prompt_tokens + cut - 1
    blocks = there // BLOCK
    assert since(before, after, "external_kv_transfer") == blocks * BLOCK, "all that the first one computed in whole"
    assert since(before, after, "greenserve_kv_missing_blocks_total") == 0
    assert since(before, after, "greenserve_kv_received_bytes_total") > 0
    assert since(before, after, "greenserve_kv_exposed_seconds_count") == 1
    exposed_s = since(before, after, "greenserve_kv_exposed_seconds_sum")
    print(f"{path}, cut after {cut}: {blocks} blocks came, the second engine waited {1000 * exposed_s:.1f} ms for them")


async def test_second_engine_computes_again_what_does_not_come(front: Front) -> None:
    """Nobody listens where the first one is to send it."""
    body = {"prompt": PROMPT_IDS, "max_tokens": 80}
    front.follow(None)
    whole = await front.events_of("/v1/completions", body)
    second = front.nodes.servers[1]
    before = figures(second)
    front.addresses = ["10.78.0.9"] * 2
    front.follow(30)
    parts = await front.events_of("/v1/completions", body)
    after = figures(second)
    assert written(parts) == written(whole)
    assert since(before, after, "greenserve_kv_incomplete_transfers_total") == 1
    assert since(before, after, "greenserve_kv_missing_blocks_total") == (len(PROMPT_IDS) + 29) // BLOCK
    assert since(before, after, "external_kv_transfer") == 0
    assert front.row().status == "ok"

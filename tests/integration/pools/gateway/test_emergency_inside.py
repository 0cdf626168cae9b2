"""DynamoLLM's ladder reaches a request that waits inside an engine: it is served before others, and answered once.

A client, the gateway and a simulated engine that schedules by priority, over sockets; the test stands for the agent.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest

from core.engine.step_tables import round_up
from pools import wire
from pools.gateway.server import Config, GatewayServer
from tests.fakes.fleet import MODEL, SECRET, FakeFleet
from tests.integration.pools.test_simnode_abilities import MODEL as ENGINE_MODEL
from tests.integration.pools.test_simnode_abilities import Node

# Long enough for the gateway, which looks once a second, to do so several times while the urgent one waits.
PROMPT_TOKENS, OUTPUT_TOKENS = 8000, 3
LAX = 7
POLICY = wire.RequestPolicy(engine_priority=True, emergencies=True, emergencies_up_to="reorder")


@dataclass
class Product:
    """A gateway before one simulated engine. `begun`: requests in the order of their first tokens."""

    server: GatewayServer
    fleet: FakeFleet
    node: Node
    url: str
    http: aiohttp.ClientSession
    spool: Path
    begun: list[str] = field(default_factory=list)

    async def report(self) -> int:
        """Tells the gateway what waits in the engine, as an agent does; returns it."""
        metrics = await self.node.metrics(self.url)
        self.fleet.waiting = int(sum(v for k, v in metrics.items() if k.startswith("vllm:num_requests_waiting{")))
        self.server.fleet.apply(self.fleet.fleet(), self.fleet.states(), time.monotonic())
        return self.fleet.waiting

    async def ask(self, name: str, first: int, **headers: str) -> int:
        """Streams an answer; returns its output tokens, as the engine's usage says."""
        body = {
            "model": MODEL,
            "stream": True,
            "stream_options": {"include_usage": True},
            "prompt": [first] + [7] * (PROMPT_TOKENS - 1),
            "max_tokens": OUTPUT_TOKENS,
            "ignore_eos": True,
        }
        headers |= {"Authorization": f"Bearer {SECRET}"}
        url = f"http://127.0.0.1:{self.server.port}/v1/completions"
        async with self.http.post(url, json=body, headers=headers) as response:
            assert response.status == 200, await response.text()
            text = b""
            async for data, _ in response.content.iter_chunks():
                if not text:
                    self.begun.append(name)
                text += data
        *events, last = [event.removeprefix("data: ") for event in text.decode().split("\n\n") if event]
        assert last == "[DONE]"
        return int(json.loads(events[-1])["usage"]["completion_tokens"])

    def rows(self) -> list[wire.RequestRow]:
        lines = [line for path in sorted(self.spool.glob("*.jsonl")) for line in path.read_bytes().splitlines()]
        return [wire.decode(line, wire.RequestRow) for line in lines]


@pytest.fixture
async def product(tmp_path: Path) -> AsyncIterator[Product]:
    async with AsyncExitStack() as stack:
        node = await stack.enter_async_context(Node("one", tmp_path, speedup=800.0))
        url = await node.start("a", 0, options={"scheduling_policy": "priority"})
        server = GatewayServer(Config("127.0.0.1", 0, tmp_path / "spool", learns=False))
        await server.start()
        stack.push_async_callback(server.stop)
        http = await stack.enter_async_context(aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)))
        fleet = FakeFleet([url], engine_model=ENGINE_MODEL, tp=1, policy=POLICY)
        fleet.objectives = wire.LatencyLimits(60.0, 0.5, 120.0)
        made = Product(server, fleet, node, url, http, tmp_path / "spool")
        await made.report()
        yield made


async def test_request_that_waits_in_an_engine_is_served_before_others_when_it_would_be_late(product: Product) -> None:
    (instance,) = product.server.fleet.instances()
    table = instance.candidate().table
    assert table is not None
    prompt_s = table.prefill(round_up(PROMPT_TOKENS), 0)[0]
    tasks = {f"lax {n}": asyncio.create_task(product.ask(f"lax {n}", n)) for n in range(LAX)}
    waiting = 0
    while waiting < LAX - 1:
        waiting = await product.report()
    limit_ms = str(round(4500 * prompt_s))
    tasks["urgent"] = asyncio.create_task(product.ask("urgent", LAX, **{"x-slo-ttft-ms": limit_ms}))
    ladder = product.server.runtime.emergencies
    while not ladder.sent_again and "urgent" not in product.begun:  # the gateway looks by itself
        await product.report()
    assert ladder.sent_again == 1, "it waited in the engine behind the others, and was to be ahead of them"
    assert await asyncio.gather(*tasks.values()) == [OUTPUT_TOKENS] * (LAX + 1)
    behind = product.begun[product.begun.index("urgent") + 1 :]
    assert len(behind) >= LAX - 4, product.begun
    await product.node.until(lambda: len(product.rows()) == LAX + 1)
    rows = product.rows()
    assert len({row.request_id for row in rows}) == LAX + 1, "once on record"
    assert {(row.status, row.attempts, row.prompt_tokens, row.output_tokens) for row in rows} == {
        ("ok", 1, PROMPT_TOKENS, OUTPUT_TOKENS)
    }
    metrics = await product.node.metrics(product.url)
    done = sum(v for k, v in metrics.items() if k.startswith("vllm:request_success_total") and "abort" not in k)
    computed = sum(v for k, v in metrics.items() if k.startswith("vllm:prompt_tokens_total"))
    assert (done, computed) == (LAX + 1, (LAX + 1) * PROMPT_TOKENS), "nothing was computed twice"

"""The order inside a real vLLM, without GreenServe's scheduler: by `priority` where it schedules so, else as they came.

A gateway sends its order so (`engine_priority`), as milliseconds: mu-Serve's shortest job first, with aging.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest

from core.algorithms.queue.fair_queue import Waiting, priority
from core.algorithms.queue.queueing import Order, OrderConfig

from .server import MODEL, VllmServer

SEATS = 1
TRIES = 3
CAME_S = 1.75e9  # Unix time
LENGTHS = (300, 20, 120, 5, 200, 60)  # tokens of the answers, in the order in which they come
SJF = OrderConfig(Order.SJF, 10.0)


@pytest.fixture(scope="module")
def servers(vllm_server: Callable[..., VllmServer]) -> dict[str, VllmServer]:
    made = {kind: vllm_server(scheduling_policy=kind, max_num_seqs=SEATS).begin() for kind in ("priority", "fcfs")}
    return {kind: server.start() for kind, server in made.items()}


@dataclass
class Clients:
    """Clients of one engine, and the lengths of their answers in the order in which these end."""

    server: VllmServer
    http: aiohttp.ClientSession
    ended: list[int] = field(default_factory=list)
    begun: asyncio.Event = field(default_factory=asyncio.Event)

    def send(self, tokens: int, number: int) -> asyncio.Task[None]:
        return asyncio.create_task(self._one(tokens, number))

    async def _one(self, tokens: int, number: int) -> None:
        body: dict[str, Any] = {"model": MODEL, "prompt": [5] * 8, "max_tokens": tokens, "ignore_eos": True}
        body |= {"stream": True, "priority": number}
        named = {"X-Request-Id": f"of-{tokens}"}
        async with self.http.post(f"{self.server.url}/v1/completions", json=body, headers=named) as response:
            assert response.status == 200, await response.text()
            async for _ in response.content:
                self.begun.set()
        self.ended.append(tokens)


@asynccontextmanager
async def clients(server: VllmServer) -> AsyncIterator[Clients]:
    """A long request holds the only place until others have come, and ends before them."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=300)) as http:
        made = Clients(server, http)
        holder = made.send(900, -(1 << 50))
        await made.begun.wait()
        yield made
        await holder


async def ended(server: VllmServer) -> list[int]:
    """Returns the lengths of requests that came one after the other, in the order in which they end."""
    async with clients(server) as made:
        rows = [Waiting(CAME_S + 0.1 * n, 8, tokens, 0.0, 0.0) for n, tokens in enumerate(LENGTHS)]
        await asyncio.gather(*(made.send(row.predicted_tokens, priority(row, SJF)) for row in rows))
    return made.ended[1:]


async def test_shortest_ends_first_when_the_engine_schedules_by_priority(servers: dict[str, VllmServer]) -> None:
    for _ in range(TRIES):  # on a machine that stalls some come late
        found = await ended(servers["priority"])
        if found == sorted(LENGTHS):
            break
    assert found == sorted(LENGTHS)


async def test_number_is_taken_and_ignored_when_the_engine_schedules_as_they_come(
    servers: dict[str, VllmServer],
) -> None:
    for _ in range(TRIES):
        found = await ended(servers["fcfs"])
        if found == list(LENGTHS):
            break
    assert found == list(LENGTHS)


async def test_request_that_is_taken_back_and_sent_again_has_its_new_place(servers: dict[str, VllmServer]) -> None:
    """As DynamoLLM's emergencies have the gateway do it, under the same id."""
    for _ in range(TRIES):
        async with clients(servers["priority"]) as made:
            tasks = {tokens: made.send(tokens, n) for n, tokens in enumerate(LENGTHS)}
            last = LENGTHS[-1]
            there = 0.0
            while there < len(LENGTHS) and not made.ended:
                there = await waiting(made)
            tasks[last].cancel()
            tasks[last] = made.send(last, -1)
            await asyncio.gather(*tasks.values())
        if made.ended[1:] == [last, *LENGTHS[:-1]]:
            break
    assert made.ended[1:] == [last, *LENGTHS[:-1]]


async def waiting(made: Clients) -> float:
    async with made.http.get(f"{made.server.url}/metrics") as response:
        lines = (await response.text()).splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith("vllm:num_requests_waiting{"))

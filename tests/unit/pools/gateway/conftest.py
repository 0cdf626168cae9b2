"""A gateway in the test's own event loop, in front of fake engines, with a fleet put in force by hand."""

from __future__ import annotations

import asyncio
import json
import math
import random
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import uvloop

from pools import wire
from pools.gateway.http.request import HttpLimits
from pools.gateway.relay.exchange import Timeouts
from pools.gateway.server import Config, GatewayServer
from tests.fakes.engine import FakeEngine
from tests.fakes.fleet import MODEL, SECRET, FakeFleet


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> dict[str, Callable[[], Any]]:
    """The loop that the gateway runs on in production; its transports differ in what they raise."""
    return {"uvloop": uvloop.new_event_loop}


class FirstOfEquals(random.Random):
    """No luck: of equal instances the first is chosen."""

    def random(self) -> float:
        return 0.0


LIMITS = HttpLimits(max_body_bytes=1 << 20, max_head_bytes=16 << 10, linger_s=0.2)


@dataclass
class Bench:
    """Everything a test of the gateway needs."""

    server: GatewayServer
    engines: list[FakeEngine]
    fleet: FakeFleet
    http: aiohttp.ClientSession
    spool: Path
    auth: dict[str, str] = field(default_factory=lambda: {"Authorization": f"Bearer {SECRET}"})

    @property
    def engine(self) -> FakeEngine:
        return self.engines[0]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.port}"

    def publish(self) -> None:
        """Puts the fleet in force. Its agents count as heard from then on, since nobody reports again here."""
        fleet, states = self.fleet.fleet(), self.fleet.states()
        self.server.fleet.apply(fleet, states, time.monotonic(), heard_at_s=dict.fromkeys(states, math.inf))

    def rows(self) -> list[wire.RequestRow]:
        lines = [line for path in sorted(self.spool.glob("*.jsonl")) for line in path.read_bytes().splitlines()]
        return [wire.decode(line, wire.RequestRow) for line in lines]

    async def row(self) -> wire.RequestRow:
        """The one row, once it is there."""
        await until(lambda: bool(self.rows()))
        (row,) = self.rows()
        return row

    def post(self, body: Any = None, path: str = "/v1/completions", **kwargs: Any) -> Any:
        kwargs.setdefault("headers", self.auth)
        if "data" not in kwargs:
            kwargs["json"] = body
        return self.http.post(self.url + path, **kwargs)

    async def events(self, body: dict[str, Any], path: str = "/v1/completions") -> list[str]:
        async with self.post({"stream": True} | body, path) as response:
            assert response.status == 200, await response.text()
            text = await response.text()
        return [event.removeprefix("data: ") for event in text.split("\n\n") if event]


def completion(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": [11] * 300, "max_tokens": 20} | fields


def raw_post(body: Any, path: str = "/v1/completions", version: str = "1.1") -> bytes:
    """A request as bytes, for tests that mind how they go out."""
    raw = json.dumps(body).encode()
    head = f"POST {path} HTTP/{version}\r\nAuthorization: Bearer {SECRET}\r\nContent-Length: {len(raw)}\r\n\r\n"
    return head.encode() + raw


async def until(probe: Callable[[], bool], timeout_s: float = 5.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not probe():
        assert time.monotonic() < deadline_s, "it did not come true in time"
        await asyncio.sleep(0.005)


Start = Callable[..., Awaitable[Bench]]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    """Starts a bench with `engines` fake engines; cleans up after the test."""
    benches: list[Bench] = []

    async def begin(
        engines: int = 1,
        timeouts: Timeouts | None = None,
        limits: HttpLimits = LIMITS,
        grace_s: float = 0.5,
        state: Path | None = None,
        engine_trust: ssl.SSLContext | None = None,
        lengths: Path | None = None,
    ) -> Bench:
        running = [await FakeEngine().start() for _ in range(engines)]
        spool = tmp_path / "spool"
        config = Config(
            *("127.0.0.1", 0, spool),
            limits=limits,
            timeouts=timeouts or Timeouts(),
            grace_s=grace_s,
            rng=FirstOfEquals(),
            state=state,
            engine_trust=engine_trust,
            lengths=lengths,
            length_budget_s=0.5,
            check_s=0.05,
        )
        server = GatewayServer(config)
        await server.start()
        bench = Bench(server, running, FakeFleet([e.url for e in running]), aiohttp.ClientSession(), spool)
        bench.publish()
        benches.append(bench)
        return bench

    yield begin
    for bench in benches:
        await bench.http.close()
        await bench.server.stop()
        for engine in bench.engines:
            await engine.stop()


@pytest.fixture
async def bench(start: Start) -> Bench:
    return await start()

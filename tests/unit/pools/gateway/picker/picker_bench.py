"""A picker in the test's own event loop, before a fleet put in force by hand."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from pools import wire
from tests.fakes.envoy import DUPLEX, FakeEnvoy
from tests.fakes.fleet import FakeFleet
from tests.unit.pools.gateway.conftest import FirstOfEquals, until

# Only now: `tests.fakes.envoy` skips the module that wants this where the extra is missing.
from pools.gateway.runtime import GatewayRuntimeConfig  # isort: skip
from pools.gateway.picker.picker_server import PickerConfig, PickerServer  # isort: skip

HERE, THERE = "127.0.0.1:8001", "127.0.0.1:8002"


@dataclass
class Picker:
    """Everything that a test of the picker needs."""

    server: PickerServer
    spool: Path
    fleet: FakeFleet

    def publish(self) -> None:
        self.server.runtime.fleet.apply(self.fleet.fleet(), self.fleet.states(), time.monotonic())

    def envoy(self, mode: str = DUPLEX, back: str = DUPLEX, tells_modes: bool = True) -> FakeEnvoy:
        return FakeEnvoy(self.server.port, mode, back, tells_modes)

    async def row(self) -> wire.RequestRow:
        """The one row, once it is there; by then no place is taken any more."""
        await until(lambda: bool(self.rows()))
        (row,) = self.rows()
        assert self.in_flight == 0
        return row

    def rows(self) -> list[wire.RequestRow]:
        lines = [line for path in sorted(self.spool.glob("*.jsonl")) for line in path.read_bytes().splitlines()]
        return [wire.decode(line, wire.RequestRow) for line in lines]

    @property
    def in_flight(self) -> int:
        return sum(instance.in_flight for instance in self.server.runtime.fleet.instances())


@asynccontextmanager
async def running(spool: Path, urls: list[str]) -> AsyncIterator[Picker]:
    runtime = GatewayRuntimeConfig(spool, "picker", FirstOfEquals(), learns=False)
    server = PickerServer(PickerConfig("127.0.0.1", 0, runtime, max_body_bytes=1 << 20, metrics_port=0, grace_s=0.2))
    await server.start()
    bench = Picker(server, spool, FakeFleet(urls))
    bench.publish()
    try:
        yield bench
    finally:
        await server.stop()

"""What benchmark clients send, byte by byte, and what vLLM answers them: both come through the gateway unharmed.

clients.json holds exchanges with vLLM 0.32.0 (a model of 2 layers with random weights, on a CPU), recorded on
2026-11-21: the requests as guidellm 0.8.1 and `vllm bench serve` 0.32.0 sent them to the gateway, and vLLM's own bytes
for a request with the same options. Both tools ran through their whole course against the gateway: completions, chats
and responses, streamed and whole, without a failed request.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.fakes.fleet import SECRET
from tests.unit.pools.gateway.conftest import Bench, Start

EXCHANGES = json.loads(Path(__file__).with_name("clients.json").read_text())
NAMES = [f"{exchange['tool']}, {exchange['what']}" for exchange in EXCHANGES]
SERVED = "tiny"
HUGGING_FACE_ID = "example/tiny"


@dataclass
class RecordedEngine:
    """Answers each request with the same recorded bytes."""

    answer: bytes
    bodies: list[dict[str, Any]] = field(default_factory=list)
    heads: list[bytes] = field(default_factory=list)

    async def start(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                self.heads.append(head)
                self.bodies.append(json.loads(await reader.readexactly(_length(head))))
                writer.write(self.answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def stop(self) -> None:
        self._server.close()


@dataclass
class Relayed:
    """The gateway before a recorded engine."""

    bench: Bench
    engine: RecordedEngine


@pytest.fixture(params=range(len(EXCHANGES)), ids=NAMES)
def exchange(request: pytest.FixtureRequest) -> dict[str, str]:
    found: dict[str, str] = EXCHANGES[request.param]
    return found


@pytest.fixture
async def relayed(exchange: dict[str, str], start: Start) -> AsyncIterator[Relayed]:
    engine = RecordedEngine(exchange["response"].encode("latin-1"))
    bench = await start()
    bench.fleet.urls = [await engine.start()]
    serve_tiny(bench)
    yield Relayed(bench, engine)
    await engine.stop()


def serve_tiny(bench: Bench) -> None:
    fleet = bench.fleet.fleet()
    service = msgspec.structs.replace(
        fleet.services[0], name=SERVED, model=SERVED, max_model_len=2048, hugging_face_id=HUGGING_FACE_ID
    )
    keys = [msgspec.structs.replace(key, services=[]) for key in fleet.keys]
    fleet = msgspec.structs.replace(fleet, services=[service], keys=keys)
    bench.server.fleet.apply(fleet, bench.fleet.states(), time.monotonic())


def _length(head: bytes) -> int:
    found = re.search(rb"\r\ncontent-length: *(\d+)", head, re.IGNORECASE)
    return int(found[1]) if found else 0


def split(raw: bytes) -> tuple[bytes, bytes]:
    """Head and body of a response, whose chunks are joined."""
    head, _, body = raw.partition(b"\r\n\r\n")
    if b"chunked" not in head.lower():
        return head, body
    joined, at = b"", 0
    while True:
        line = body.index(b"\r\n", at)
        size = int(body[at:line], 16)
        if size == 0:
            return head, joined
        joined += body[line + 2 : line + 2 + size]
        at = line + 2 + size + 2


async def sent(port: int, request: bytes) -> bytes:
    """The raw response to raw bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    got = b""
    async with asyncio.timeout(10):
        while not (got.endswith(b"0\r\n\r\n") or (_length(got) and len(split(got)[1]) == _length(got))):
            data = await reader.read(1 << 16)
            assert data, got
            got += data
    writer.close()
    return got


async def test_answer_is_the_engines_own_when_a_benchmark_client_asks(
    exchange: dict[str, str], relayed: Relayed
) -> None:
    got_head, got = split(await sent(relayed.bench.server.port, exchange["request"].encode("latin-1")))
    head, original = split(relayed.engine.answer)
    assert got == original, "every byte of every event, and so every field"
    assert got_head.startswith(b"HTTP/1.1 200 OK\r\n")
    kind = re.compile(rb"content-type: ([^\r]+)")
    assert kind.search(got_head)[1] == kind.search(head)[1]  # type: ignore[index]
    row = await relayed.bench.row()
    assert (row.status, row.tokens_source, row.output_tokens) == ("ok", "usage", 20)


async def test_engine_gets_every_field_when_a_benchmark_client_asks(exchange: dict[str, str], relayed: Relayed) -> None:
    request = exchange["request"].encode("latin-1")
    await sent(relayed.bench.server.port, request)
    asked, (got,) = json.loads(request.partition(b"\r\n\r\n")[2]), relayed.engine.bodies
    assert got == asked, "these clients ask for usage themselves, so nothing is to be added"
    assert SECRET.encode() not in relayed.engine.heads[0], "the key is the gateway's alone"


async def test_usage_is_kept_from_clients_that_do_not_ask_for_it_when_vllm_tells(start: Start) -> None:
    exchange = next(e for e in EXCHANGES if e["what"].startswith("openai, "))
    engine = RecordedEngine(exchange["response"].encode("latin-1"))
    bench = await start()
    bench.fleet.urls = [await engine.start()]
    serve_tiny(bench)
    events = await bench.events({"model": SERVED, "prompt": "hello", "max_tokens": 20})
    whole = [event for event in split(engine.answer)[1].decode().split("\n\n") if event]
    assert [f"data: {event}" for event in events] == [event for event in whole if '"usage":{' not in event]
    assert len(events) == len(whole) - 1
    await engine.stop()


async def test_models_are_listed_as_vllm_does_when_a_benchmark_client_looks(start: Start) -> None:
    """`vllm bench serve` without `--model` takes the first model's `id` and, for its tokenizer, `root`."""
    bench = await start()
    serve_tiny(bench)
    async with bench.http.get(bench.url + "/v1/models", headers=bench.auth) as response:
        (model,) = (await response.json())["data"]
    assert (model["id"], model["root"], model["max_model_len"]) == (SERVED, HUGGING_FACE_ID, 2048)
    assert {"object", "created", "owned_by", "parent", "permission"} <= set(model)


async def test_health_is_answered_when_guidellm_looks_whether_there_is_a_server(start: Start) -> None:
    """Before anything else, and with `raise_for_status`."""
    bench = await start()
    async with bench.http.get(bench.url + "/health", headers=bench.auth) as response:
        assert response.status == 200
    bench.fleet.urls = []
    bench.publish()
    async with bench.http.get(bench.url + "/health") as response:
        assert response.status == 503


async def test_refusal_has_vllms_shape_when_a_client_asks_for_what_is_not_there(start: Start) -> None:
    """Of both tools the status decides; the body is shown."""
    bench = await start()
    for headers, status in (({}, 401), (bench.auth, 404)):
        body = {"model": "nobody", "prompt": "x"}
        async with bench.http.post(bench.url + "/v1/completions", json=body, headers=headers) as response:
            assert response.status == status
            assert set((await response.json())["error"]) == {"message", "type", "param", "code"}

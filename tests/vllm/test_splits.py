"""Requests that two real engines serve as one, through the gateway."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import msgspec
import pytest

from core.ports import EngineLimits
from pools import wire
from pools.agent.vllm import vllm_control
from pools.gateway.placing import hung_engines
from pools.gateway.placing.split_plans import Cut
from pools.gateway.relay.continuation import Continuation
from pools.gateway.server import Config, GatewayServer
from tests.fakes.fleet import MODEL, SECRET, FakeFleet

from .server import VllmServer

AUTH = {"Authorization": f"Bearer {SECRET}"}
BLOCK = 32
PROMPT_IDS = [random.Random(3).randrange(10, 2000) for _ in range(200)]
LONG_IDS = [random.Random(5).randrange(10, 2000) for _ in range(1024)]
TEXT = "tell me all about the weather in the north " * 20
PROMPTS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"prompt": PROMPT_IDS}),
    ("/v1/completions", {"prompt": TEXT}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": TEXT}]}),
]


@dataclass
class Engines:
    """Two engines with one store of blocks."""

    make: Callable[..., VllmServer]
    folder: Path
    servers: list[VllmServer]

    def begin(self) -> VllmServer:
        return self.make(
            env={"PYTHONPATH": str(vllm_control.import_root(self.folder))},
            kv_transfer_config=vllm_control.kv_store(self.folder / "blocks"),
            disable_hybrid_kv_cache_manager=True,
            block_size=BLOCK,
            no_enable_prefix_caching=True,
        ).begin()

    def renew(self) -> None:
        """Others in the place of those that have died."""
        for n, server in enumerate(self.servers):
            if server.process is None or server.process.poll() is not None:
                self.servers[n] = self.begin().start()


@pytest.fixture(scope="module")
def engines(vllm_server: Callable[..., VllmServer], tmp_path_factory: pytest.TempPathFactory) -> Engines:
    engines = Engines(vllm_server, tmp_path_factory.mktemp("splits"), [])
    engines.servers = [engines.begin(), engines.begin()]
    for server in engines.servers:
        server.start()
    return engines


@dataclass
class Front:
    """A gateway before them, which cuts requests where the test says."""

    server: GatewayServer
    engines: Engines
    http: aiohttp.ClientSession
    spool: Path
    asked: list[dict[str, Any]]  # of the engines that went on, in turn
    cut: int | None = None  # in output tokens; None: whole

    def follow(self, cut: int | None) -> None:
        self.cut = cut
        fleet = FakeFleet([s.url for s in self.engines.servers], engine_model="tiny", kv_connector="blocks")
        fleet.policy = wire.RequestPolicy(split="none" if cut is None else "any")
        self.server.fleet.apply(fleet.fleet(), fleet.states(), time.monotonic())

    async def search(self, itl_limit_s: float, body: dict[str, Any]) -> list[dict[str, Any]]:
        """Has the gateway's own search cut requests from now on; a first one is served whole, while it is loaded.

        It takes the engines for Qwen2.5-14B's on an A100 each, and no agent reports their steps: nothing that it goes
        by is measured here.
        """
        fleet = FakeFleet(
            [s.url for s in self.engines.servers],
            engine_model="tiny",
            kv_connector="blocks",
            tp=1,
            engine_limits=EngineLimits(itl_limit_s=itl_limit_s),
        )
        fleet.policy = wire.RequestPolicy(route="predicted", split="any")
        states = {
            node: msgspec.structs.replace(
                state, instances=[msgspec.structs.replace(own, shape="Qwen2.5-14B") for own in state.instances]
            )
            for node, state in fleet.states().items()
        }
        self.server.fleet.apply(fleet.fleet(), states, time.monotonic())
        splitter = self.server.gateway.splitter
        splitter._plans = None
        whole = await self.events_of("/v1/completions", body)
        assert splitter._loader is not None
        await asyncio.wrap_future(splitter._loader.submit(int))  # after what loads the search
        return whole

    def best_cut(self, first: Any, second: Any, call: Any, split: str, tuning: Any, mix: Any) -> Cut:
        assert self.cut is not None
        return Cut(first[0], second[0], call.prompt_tokens + self.cut, call.prompt_tokens + call.max_tokens)

    async def events_of(self, path: str, body: dict[str, Any], seen: list[str] | None = None) -> list[dict[str, Any]]:
        """The events of a stream; `seen` gets the text so far."""
        whole = {
            "model": MODEL,
            "stream": True,
            "temperature": 0.0,
            "ignore_eos": True,
            "stream_options": {"include_usage": True},
            **body,
        }
        events = []
        async with self.http.post(f"http://127.0.0.1:{self.server.port}{path}", json=whole, headers=AUTH) as response:
            assert response.status == 200, await response.text()
            async for line in response.content:
                if line.startswith(b"data: {"):
                    events.append(json.loads(line[6:]))
                    if seen is not None:
                        seen.append(written(events[-1:]))
                        await asyncio.sleep(0)  # lines that have come already would be read in one go
        return events

    def row(self) -> wire.RequestRow:
        lines = [line for path in sorted(self.spool.glob("*.jsonl")) for line in path.read_bytes().splitlines()]
        return wire.decode(lines[-1], wire.RequestRow)


@pytest.fixture
async def front(engines: Engines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Front]:
    engines.renew()
    asked: list[dict[str, Any]] = []
    next_body = Continuation.next

    def noted(continuation: Continuation, params: dict[str, Any] | None) -> bytes:
        body = next_body(continuation, params)
        asked.append(json.loads(body))
        return body

    monkeypatch.setattr(Continuation, "next", noted)
    monkeypatch.setattr(hung_engines, "LEAST_S", 100.0)  # an engine beside busy processes is slow, and does not hang
    async with AsyncExitStack() as stack:
        server = GatewayServer(Config("127.0.0.1", 0, tmp_path / "spool", learns=False))
        await server.start()
        stack.push_async_callback(server.stop)
        http = await stack.enter_async_context(aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=120)))
        front = Front(server, engines, http, tmp_path / "spool", asked)
        server.gateway.splitter._plans = SimpleNamespace(best_cut=front.best_cut)  # type: ignore[assignment]
        yield front


def written(events: list[dict[str, Any]]) -> str:
    choices = [event["choices"][0] for event in events if event["choices"]]
    return "".join(c.get("text") or (c.get("delta") or {}).get("content") or "" for c in choices)


def check(events: list[dict[str, Any]], tokens: int) -> None:
    """One stream by one engine could not look otherwise."""
    assert len({event["id"] for event in events}) == 1
    assert not any("token_ids" in json.dumps(event) or "kv_transfer" in json.dumps(event) for event in events)
    ends = [event["choices"][0]["finish_reason"] for event in events if event["choices"]]
    assert ends[-1] == "length"
    assert set(ends[:-1]) <= {None}
    assert events[-1]["usage"]["completion_tokens"] == tokens


def by_source(server: VllmServer) -> dict[str, float]:
    """What it says of prompts by their source, and as "generated" of answers, in tokens."""
    found = {}
    for line in server.metrics().splitlines():
        if line.startswith("vllm:prompt_tokens_by_source_total"):
            found[line.split('source="')[1].split('"')[0]] = float(line.rpartition(" ")[2])
        elif line.startswith("vllm:generation_tokens_total"):
            found["generated"] = float(line.rpartition(" ")[2])
    return found


@pytest.mark.parametrize("cut", [1, 50])
@pytest.mark.parametrize(("path", "prompt"), PROMPTS)
async def test_split_request_reads_as_one_engine_would_have_written_it(
    front: Front, cut: int, path: str, prompt: dict[str, Any]
) -> None:
    front.follow(None)
    body = prompt | {"max_tokens": 120}
    whole = await front.events_of(path, body)
    before = [by_source(server) for server in front.engines.servers]
    front.follow(cut)
    parts = await front.events_of(path, body)
    after = [by_source(server) for server in front.engines.servers]
    assert written(parts) == written(whole)
    check(parts, 120)
    assert parts[-1]["usage"] == whole[-1]["usage"]
    row = front.row()
    assert (row.status, row.output_tokens, row.attempts) == ("ok", 120, 1)
    assert row.route_reason.startswith("split at token")
    prompt_tokens = whole[-1]["usage"]["prompt_tokens"]
    handed = after[1]["external_kv_transfer"] - before[1]["external_kv_transfer"]
    computed = after[1]["local_compute"] - before[1]["local_compute"]
    print(f"{path}, {prompt_tokens} tokens, cut after {cut}: {handed:.0f} handed over, {computed:.0f} computed again")
    assert handed >= prompt_tokens + cut - 2 * BLOCK
    assert computed <= 2 * BLOCK


# By the rates of core/algorithms/split/sustained_rates.py, for answers of so many tokens: an instance that prefills
# alone sustains 9.1 of these prompts a second. One that decodes alone sustains 60 of the short answers within 30 ms,
# so it takes a part of the prompt as well; but 2.4 of the long ones within 21.5 ms, so the first one begins the
# answer. These cuts gain 34 % and 41 %. Within 100 ms no cut sustains more than whole requests.
@pytest.mark.parametrize(
    ("output_tokens", "itl_limit_s", "where"), [(32, 0.03, "prompt"), (128, 0.0215, "answer"), (128, 0.1, "nowhere")]
)
async def test_search_decides_whether_and_where_two_engines_split_a_request(
    front: Front, output_tokens: int, itl_limit_s: float, where: str
) -> None:
    prompt_tokens = len(LONG_IDS)
    body = {"prompt": LONG_IDS, "max_tokens": output_tokens}
    whole = await front.search(itl_limit_s, body)
    before = [by_source(server) for server in front.engines.servers]
    parts = await front.events_of("/v1/completions", body)
    after = [by_source(server) for server in front.engines.servers]
    assert written(parts) == written(whole)
    check(parts, output_tokens)
    assert parts[-1]["usage"] == whole[-1]["usage"]
    row = front.row()
    assert (row.status, row.output_tokens, row.attempts) == ("ok", output_tokens, 1)
    first, second = (
        {source: there[source] - then[source] for source in there} for then, there in zip(before, after, strict=True)
    )
    print(f"within {itl_limit_s} s: {row.route_reason}; {first}, {second}")
    if where == "nowhere":
        assert row.route_reason.startswith("whole: best for it")
        assert sorted((first["generated"], second["generated"])) == [0, output_tokens]
        return
    assert row.route_reason.startswith("split at token ")
    cut, total = (int(word) for word in row.route_reason.removeprefix("split at token ").split(" of "))
    assert total == prompt_tokens + output_tokens
    assert cut < prompt_tokens if where == "prompt" else prompt_tokens < cut < total
    assert first["local_compute"] == min(cut, prompt_tokens)
    assert first["generated"] == max(1, cut - prompt_tokens)
    assert second["external_kv_transfer"] >= cut - 2 * BLOCK
    assert second["local_compute"] <= max(0, prompt_tokens - cut) + 2 * BLOCK


async def test_response_goes_on_when_the_second_engine_dies(front: Front) -> None:
    await goes_on(front, dies=1)


async def test_response_goes_on_when_the_first_engine_dies(front: Front) -> None:
    await goes_on(front, dies=0)


@contextmanager
def held_back(group: int) -> Iterator[None]:
    """An engine that runs for about a tenth of the time: else it may be through before anybody reads what it says."""
    enough = threading.Event()

    def beat() -> None:
        while not enough.wait(0.002):
            os.killpg(group, signal.SIGSTOP)
            enough.wait(0.02)
            os.killpg(group, signal.SIGCONT)

    beating = threading.Thread(target=beat)
    beating.start()
    try:
        yield
    finally:
        enough.set()
        beating.join()


async def goes_on(front: Front, dies: int) -> None:
    """An engine is killed while it tells its part; the client gets what it wrote, and what the other adds.

    That is the whole answer but for arithmetic: a long prompt's numbers may be rounded otherwise than a token's alone.
    """
    path, body = "/v1/completions", {"prompt": PROMPT_IDS, "max_tokens": 1800}
    front.follow(None)
    whole = await front.events_of(path, body)
    cut = 5 if dies else 1700
    front.follow(cut)
    seen: list[str] = []
    process = front.engines.servers[dies].process
    assert process is not None
    with held_back(process.pid):
        telling = asyncio.create_task(front.events_of(path, body, seen))
        while len(seen) < 20:
            assert not telling.done(), telling
            await asyncio.sleep(0.002)
    os.killpg(process.pid, signal.SIGKILL)
    after = len(seen)
    process.wait(10)
    events = await telling
    other, asked = front.engines.servers[1 - dies], front.asked[-1]
    written_ids = asked["prompt"][len(PROMPT_IDS) :]
    whole_ids = other.complete(PROMPT_IDS, max_tokens=len(written_ids), return_token_ids=True)["choices"][0][
        "token_ids"
    ]
    assert asked["prompt"] == PROMPT_IDS + whole_ids
    assert asked["max_tokens"] == 1800 - len(written_ids)
    rest = other.post(path, {**asked, "stream": False, "stream_options": None})
    before, _, gone_on = written(events).rpartition(rest["choices"][0]["text"])
    print(f"engine {dies} died after {after} of {len(events)} events, {len(before)} characters")
    assert gone_on == ""
    assert 0 < len(before) < len(written(whole))
    assert written(whole).startswith(before)
    check(events, 1800)
    assert events[-1]["usage"] == whole[-1]["usage"]
    assert front.row().status == "ok"
    assert front.row().attempts == 2

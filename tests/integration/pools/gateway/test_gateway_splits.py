"""Requests that two engines serve as one, through the gateway, with simulated engines."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest

from pools import wire
from pools.gateway.placing.split_plans import Cut
from pools.gateway.server import Config, GatewayServer
from tests.fakes.fleet import MODEL, SECRET, FakeFleet
from tests.integration.pools.test_simnode_abilities import MODEL as ENGINE_MODEL
from tests.integration.pools.test_simnode_abilities import Node
from tests.representatives import first

AUTH = {"Authorization": f"Bearer {SECRET}"}


def best_cut(first: Any, second: Any, call: Any, split: str, tuning: wire.RequestTuning, mix: Any) -> Cut:
    """Cuts at the end of the prompt, or else in the middle of the answer: either engine generates."""
    total = call.prompt_tokens + call.max_tokens
    return Cut(first[0], second[0], call.prompt_tokens if split == "prompt" else total - call.max_tokens // 2, total)


@dataclass
class Pair:
    """A gateway before two simulated engines."""

    server: GatewayServer
    fleet: FakeFleet
    node: Node
    urls: list[str]
    http: aiohttp.ClientSession
    spool: Path

    def follow(self, **policy: Any) -> None:
        self.fleet.policy = wire.RequestPolicy(**policy)
        self.server.fleet.apply(self.fleet.fleet(), self.fleet.states(), time.monotonic())

    async def events_of(
        self, body: dict[str, Any], path: str = "/v1/completions", **headers: str
    ) -> list[dict[str, Any]]:
        """The events of a stream; each whole line must be JSON or the end marker, which comes last."""
        body = {"model": MODEL, "stream": True, "ignore_eos": True, "stream_options": {"include_usage": True}} | body
        url = f"http://127.0.0.1:{self.server.port}{path}"
        async with self.http.post(url, json=body, headers=AUTH | headers) as response:
            assert response.status == 200, await response.text()
            text = await response.text()
        *events, last = [event.removeprefix("data: ") for event in text.split("\n\n") if event]
        assert last == "[DONE]", text[-300:]
        return [json.loads(event) for event in events]

    def row(self) -> wire.RequestRow:
        lines = [line for path in sorted(self.spool.glob("*.jsonl")) for line in path.read_bytes().splitlines()]
        return wire.decode(lines[-1], wire.RequestRow)

    async def served(self) -> list[float]:
        """Requests that each engine has finished."""
        found = []
        for url in self.urls:
            metrics = await self.node.metrics(url)
            found.append(sum(v for k, v in metrics.items() if k.startswith("vllm:request_success_total")))
        return found


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    async with AsyncExitStack() as stack:
        node = await stack.enter_async_context(Node("one", tmp_path, speedup=800.0))
        urls = [await node.start(uid, n) for n, uid in enumerate("ab")]
        spool = tmp_path / "spool"
        server = GatewayServer(Config("127.0.0.1", 0, spool, learns=False))
        await server.start()
        stack.push_async_callback(server.stop)
        server.gateway.splitter._plans = SimpleNamespace(best_cut=best_cut)  # type: ignore[assignment]
        http = await stack.enter_async_context(aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)))
        pair = Pair(server, FakeFleet(urls, engine_model=ENGINE_MODEL), node, urls, http, spool)
        pair.follow()
        yield pair


def written(events: list[dict[str, Any]]) -> str:
    choices = [event["choices"][0] for event in events if event["choices"]]
    return "".join(c.get("text") or (c.get("delta") or {}).get("content") or "" for c in choices)


def check(events: list[dict[str, Any]], tokens: int) -> None:
    """One stream by one engine could not look otherwise."""
    assert len({event["id"] for event in events}) == 1
    assert len({event["created"] for event in events}) == 1
    assert all("kv_transfer_params" not in event for event in events)
    ends = [event["choices"][0]["finish_reason"] for event in events if event["choices"]]
    assert ends[-1] == "length"
    assert set(ends[:-1]) <= {None}
    assert events[-1]["choices"] == []
    assert events[-1]["usage"]["completion_tokens"] == tokens
    roles = [e["choices"][0]["delta"].get("role") for e in events if e["choices"] and "delta" in e["choices"][0]]
    assert roles.count("assistant") <= 1


LONG_ANSWER_TOKENS = 120  # a second and more, in which an engine can die
LONG_TEXT = "tell me all about the weather in the north " * 40
PROMPTS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"prompt": LONG_TEXT}),
    ("/v1/completions", {"prompt": list(range(5, 605))}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": LONG_TEXT}]}),
]


@pytest.mark.parametrize("split", first(1, ["any", "prompt"], "as at any token"))
@pytest.mark.parametrize(
    ("path", "prompt"), [*PROMPTS[1:], pytest.param(*PROMPTS[0], marks=pytest.mark.slow("as others"))]
)
async def test_split_request_reads_as_one_engine_would_have_written_it(
    pair: Pair, split: str, path: str, prompt: dict[str, Any]
) -> None:
    body = prompt | {"max_tokens": 60}
    whole = await pair.events_of(body, path)
    before = await pair.served()
    pair.follow(split=split)
    parts = await pair.events_of(body, path)
    assert written(parts) == written(whole)
    check(parts, 60)
    assert parts[-1]["usage"] == whole[-1]["usage"]
    assert [now - then for now, then in zip(await pair.served(), before, strict=True)] == [1.0, 1.0]
    row = pair.row()
    assert (row.status, row.output_tokens, row.attempts) == ("ok", 60, 1)
    assert row.route_reason.startswith("split at token")
    assert all((i.in_flight, i.unstarted, len(i.slots)) == (0, 0, 0) for i in pair.server.fleet.instances())


async def test_cache_is_handed_over_and_not_computed_again(pair: Pair) -> None:
    pair.follow(split="prompt")
    await pair.events_of({"prompt": LONG_TEXT, "max_tokens": 30})
    computed = []
    for url in pair.urls:
        metrics = await pair.node.metrics(url)
        computed.append(
            {k.split('source="')[1].split('"')[0]: v for k, v in metrics.items() if "prompt_tokens_by_source" in k}
        )
    first, second = computed
    assert first["local_compute"] > 300
    assert second["external_kv_transfer"] > 300
    assert second["local_compute"] < 5


async def test_client_is_served_whole_when_there_is_only_one_engine(pair: Pair) -> None:
    pair.fleet.urls = pair.urls[:1]
    pair.follow(split="any")
    check(await pair.events_of({"prompt": LONG_TEXT, "max_tokens": 20}), 20)
    assert pair.row().route_reason != ""
    assert not pair.row().route_reason.startswith("split")


async def test_record_says_why_a_request_is_whole_when_no_engine_hands_its_cache_on(pair: Pair) -> None:
    pair.fleet.kv_connector = ""
    pair.follow(split="any")
    check(await pair.events_of({"prompt": LONG_TEXT, "max_tokens": 20}), 20)
    assert pair.row().route_reason.endswith("; not split: no engine can hand its KV cache to another")
    pair.fleet.kv_connector = "simulated"
    pair.follow(split="any")
    check(await pair.events_of({"prompt": LONG_TEXT, "max_tokens": 20}), 20)
    assert pair.row().route_reason.startswith("split at token")
    pair.fleet.kv_connector = ""
    pair.follow(split="none")
    check(await pair.events_of({"prompt": LONG_TEXT, "max_tokens": 20}), 20)
    assert "not split" not in pair.row().route_reason


@pytest.mark.parametrize("dies", ["a", "b"])
async def test_response_goes_on_when_either_engine_of_a_split_dies(pair: Pair, dies: str) -> None:
    whole = await pair.events_of({"prompt": LONG_TEXT, "max_tokens": LONG_ANSWER_TOKENS})
    pair.follow(split="any")
    task = asyncio.create_task(pair.events_of({"prompt": LONG_TEXT, "max_tokens": LONG_ANSWER_TOKENS}))
    number = str("ab".index(dies))
    await pair.node.until(
        lambda: any(s.begun for i in pair.server.fleet.instances() if i.uid.endswith(number) for s in i.slots)
    )
    await pair.node.call("DELETE", f"/instances/{dies}")
    events = await task
    assert written(events) == written(whole)
    check(events, LONG_ANSWER_TOKENS)
    assert pair.row().status == "ok"


async def test_deterministic_request_goes_on_elsewhere_when_its_engine_dies_and_it_asked_for_that(pair: Pair) -> None:
    body = {"prompt": LONG_TEXT, "max_tokens": LONG_ANSWER_TOKENS, "temperature": 0}
    whole = await pair.events_of(body)
    task = asyncio.create_task(pair.events_of(body, **{"x-greenserve-continue": "true"}))

    def begun() -> str | None:
        return next(
            (i.uid for i in pair.server.fleet.instances() for s in i.slots if s.meter and s.meter.events > 20), None
        )

    await pair.node.until(lambda: begun() is not None)
    await pair.node.call("DELETE", f"/instances/{'ab'[int(str(begun())[-1])]}")
    events = await task
    assert written(events) == written(whole)
    check(events, LONG_ANSWER_TOKENS)
    row = pair.row()
    assert (row.status, row.attempts, row.output_tokens) == ("ok", 2, LONG_ANSWER_TOKENS)


async def test_continuation_is_refused_when_another_engine_would_write_something_else(pair: Pair) -> None:
    url = f"http://127.0.0.1:{pair.server.port}/v1/completions"
    body = {"model": MODEL, "prompt": "x", "temperature": 0.7}
    async with pair.http.post(url, json=body, headers=AUTH | {"x-greenserve-continue": "true"}) as response:
        assert response.status == 400
        assert (await response.json())["error"]["param"] == "x-greenserve-continue"

"""What policies need of a live engine, over HTTP and in this process: splits, sleep, drain, shadows, limits."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import TestServer

from core.accounting.counters import EnergyKind
from core.engine.engine_model import engine_model, gpu
from core.engine.overheads import Overheads, cold_start_s, wake_s
from core.ports import EngineReading
from pools.agent.reports import View, gpu_rows
from pools.simnode.control_api import Control
from pools.simnode.engine.hand_over import KvLink
from pools.simnode.engine.side_channel import KvLinks
from pools.simnode.gpus import GpuBank
from pools.simnode.node import SimNode
from tests.fakes.meter_points import MeterPoint, split_intervals
from tests.representatives import first

MODEL = "Llama3-8B"
A100 = gpu("A100-80GB")
SPEEDUP = 40.0
LINKS = KvLinks(KvLink(300e9, 0.0), KvLink(2e9, 0.001))


class Node:
    """A simulated node behind its control API."""

    def __init__(self, name: str, folder: Path, speedup: float = SPEEDUP) -> None:
        self.name = name
        bank = GpuBank(name, [("A100-80GB", 3)], folder / f"{name}.json", time.monotonic())
        self.node = SimNode(bank, speedup, LINKS)
        self._server = TestServer(Control(self.node).app())

    async def __aenter__(self) -> Node:
        await self._server.start_server()
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()
        await self.node.close()
        await self._server.close()

    async def call(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        url = path if path.startswith("http") else str(self._server.make_url(path))
        async with self._session.request(method, url, json=body) as response:
            data = await response.read()
            return response.status, json.loads(data) if data[:1] in (b"{", b"[") else data.decode()

    async def start(self, uid: str, index: int, **more: Any) -> str:
        """Starts an engine on one GPU and waits for it; returns its URL."""
        spec = {"uid": uid, "model": MODEL, "engine": "vllm-v1", "max_model_len": 8192, **more}
        status, answer = await self.call("POST", "/instances", {**spec, "gpu_uuids": [f"SIM-{self.name}-{index}"]})
        assert status == 201, answer
        await self.until(lambda: self.state(uid) == "ready")
        return str(answer["url"])

    def state(self, uid: str) -> str | None:
        return next((status.state for status in self.node.list() if status.uid == uid), None)

    async def until(self, condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
        deadline_s = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline_s, self.node.list()
            await asyncio.sleep(0.01)

    async def complete(self, url: str, **fields: Any) -> dict[str, Any]:
        status, answer = await self.call("POST", f"{url}/v1/completions", body(**fields))
        assert status == 200, answer
        return dict(answer)

    async def metrics(self, url: str) -> dict[str, float]:
        _, text = await self.call("GET", f"{url}/metrics")
        pairs = (line.rpartition(" ") for line in text.splitlines() if line.startswith("vllm:"))
        return {name.replace(f'model_name="{MODEL}",engine="0"', ""): float(value) for name, _, value in pairs}


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with Node("one", tmp_path) as opened:
        yield opened


@pytest.fixture
async def other(tmp_path: Path) -> AsyncIterator[Node]:
    async with Node("two", tmp_path) as opened:
        yield opened


def body(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": "hello there", "max_tokens": 20, "ignore_eos": True, **fields}


# -- splits ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("split", first(1, [7, 1, 19], "split elsewhere"))
async def test_two_engines_write_what_one_would_when_a_request_is_split(node: Node, split: int) -> None:
    first, second = await node.start("a", 0), await node.start("b", 1)
    whole = await node.complete(second)
    decode = {"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None}
    begun = await node.complete(first, max_tokens=split, return_token_ids=True, kv_transfer_params=decode)
    params, choice = begun["kv_transfer_params"], begun["choices"][0]
    assert choice["finish_reason"] == "length"
    assert (params["do_remote_prefill"], params["do_remote_decode"]) == (True, False)
    assert params["remote_engine_id"] == "a"
    assert params["remote_num_tokens"] == begun["usage"]["prompt_tokens"] + split - 1
    assert (await node.metrics(first))["vllm:kv_cache_usage_perc{}"] > 0.0
    prompt = [*choice["prompt_token_ids"], *choice["token_ids"]]
    rest = await node.complete(second, prompt=prompt, max_tokens=20 - split, kv_transfer_params=params)
    assert choice["text"] + rest["choices"][0]["text"] == whole["choices"][0]["text"]
    assert rest["usage"]["prompt_tokens"] == begun["usage"]["prompt_tokens"] + split
    await node.until(lambda: not node.node._instances["a"]._batcher.cache.kept)  # type: ignore[union-attr]
    seen = await node.metrics(second)
    assert seen['vllm:prompt_tokens_by_source_total{,source="external_kv_transfer"}'] == params["remote_num_tokens"]
    assert seen["vllm:nixl_xfer_time_seconds_count{}"] == 1
    assert (await node.metrics(first))["vllm:kv_cache_usage_perc{}"] == 0.0


async def test_stream_carries_the_parameters_in_its_last_token_when_it_is_to_go_on(node: Node) -> None:
    first, second = await node.start("a", 0), await node.start("b", 1)
    fields = body(prompt="hi", max_tokens=5, stream=True, kv_transfer_params={"do_remote_decode": True})
    async with node._session.post(f"{first}/v1/completions", json=fields) as response:
        events = [json.loads(line[6:]) async for line in response.content if line.startswith(b"data: {")]
    assert ["kv_transfer_params" in event for event in events] == [False] * 4 + [True]
    text = "".join(event["choices"][0]["text"] for event in events)
    params = events[-1]["kv_transfer_params"]
    rest = await node.complete(second, prompt="hi" + text, max_tokens=5, kv_transfer_params=params)
    assert (
        text + rest["choices"][0]["text"]
        == (await node.complete(first, prompt="hi", max_tokens=10))["choices"][0]["text"]
    )


async def test_prompt_is_computed_on_two_engines_when_it_is_split_inside(node: Node) -> None:
    first, second = await node.start("a", 0), await node.start("b", 1)
    prompt = list(range(1, 3001))
    part = {"do_remote_decode": True, "prefill_tokens": 1800}
    begun = await node.complete(first, prompt=prompt, kv_transfer_params=part)
    assert (begun["usage"]["completion_tokens"], begun["choices"][0]["text"]) == (0, "")
    assert begun["choices"][0]["finish_reason"] == "length"
    rest = await node.complete(second, prompt=prompt, kv_transfer_params=begun["kv_transfer_params"])
    assert rest["choices"] == (await node.complete(first, prompt=prompt))["choices"]
    seen = await node.metrics(second)
    assert seen['vllm:prompt_tokens_by_source_total{,source="local_compute"}'] == 1200


async def test_transfer_takes_the_links_time_and_chunks_hide_it_when_the_engines_are_on_two_nodes(
    node: Node, other: Node
) -> None:
    """500 MB over 2 GB/s take a quarter of a second; chunks are sent while the second half is computed."""
    first, second = await node.start("a", 0), await other.start("b", 0)
    kv_bytes = engine_model(MODEL, "A100-80GB", 1).constants.kv_bytes
    prompts = ([n] * int(500e6 / kv_bytes) for n in itertools.count(1))  # none has another one's cache

    async def go_on(**asked: Any) -> float:
        """Seconds from the first engine's end to the second one's only token."""
        asked, prompt = {"do_remote_decode": True, **asked}, next(prompts)
        begun = await node.complete(first, prompt=prompt, max_tokens=1, return_token_ids=True, kv_transfer_params=asked)
        ended_s = time.monotonic()
        again = [*prompt, *begun["choices"][0]["token_ids"]]
        await other.complete(second, prompt=again, max_tokens=1, kv_transfer_params=begun["kv_transfer_params"])
        return time.monotonic() - ended_s

    # A busy machine makes all of them longer, and the least of some by the least.
    pulled_s, pushed_s = [min([await go_on(**asked) for _ in range(4)]) for asked in ({}, {"chunk_tokens": 512})]
    assert pulled_s > 0.25
    assert pushed_s < pulled_s - 0.05


async def test_request_fails_when_its_cache_cannot_be_had(node: Node) -> None:
    first, second = await node.start("a", 0), await node.start("b", 1)
    begun = await node.complete(first, max_tokens=3, kv_transfer_params={"do_remote_decode": True})
    params = begun["kv_transfer_params"]
    gone = {**params, "remote_request_id": "nobody"}
    status, answer = await node.call("POST", f"{second}/v1/completions", body(kv_transfer_params=gone))
    assert (status, answer["error"]["type"]) == (500, "InternalServerError")
    await node.call("DELETE", "/instances/a")
    status, answer = await node.call("POST", f"{second}/v1/completions", body(kv_transfer_params=params))
    assert status == 500
    assert "KV load failed" in answer["error"]["message"]
    assert (await node.complete(second))["usage"]["completion_tokens"] == 20  # without it


async def test_drained_engine_waits_until_what_it_keeps_is_fetched(node: Node) -> None:
    first, second = await node.start("a", 0), await node.start("b", 1)
    asked = {"do_remote_decode": True}
    begun = await node.complete(first, max_tokens=3, return_token_ids=True, kv_transfer_params=asked)
    await node.call("POST", "/instances/a/drain")
    assert "kept for others: 1" in next(s.detail for s in node.node.list() if s.uid == "a")
    choice = begun["choices"][0]
    prompt = [*choice["prompt_token_ids"], *choice["token_ids"]]
    await node.complete(second, prompt=prompt, kv_transfer_params=begun["kv_transfer_params"])
    await node.until(lambda: node.state("a") is None)


# -- priorities and limits -------------------------------------------------------------------------


async def test_priority_is_refused_by_an_engine_that_does_not_heed_it(node: Node) -> None:
    url = await node.start("a", 0)
    status, answer = await node.call("POST", f"{url}/v1/completions", body(priority=3))
    assert (status, answer["error"]["param"]) == (400, "priority")
    assert (await node.complete(url, priority=0))["usage"]["completion_tokens"] == 20


async def test_urgent_request_preempts_when_the_engine_is_full(node: Node) -> None:
    options = {"scheduling_policy": "priority", "preempt_for_waiting": True}
    url = await node.start("a", 0, options=options, limits={"max_num_seqs": 1, "preempts_s": 0.01, "margin_s": 0})
    slow = asyncio.create_task(node.complete(url, max_tokens=120, priority=5))
    await asyncio.sleep(0.2)
    await node.complete(url, max_tokens=5, priority=1)
    assert not slow.done()
    assert (await slow)["usage"]["completion_tokens"] == 120
    assert (await node.metrics(url))["vllm:num_preemptions_total{}"] == 1


async def test_limits_are_in_force_at_once_and_reported_when_they_are_set(node: Node) -> None:
    url = await node.start("a", 0)
    status, limits = await node.call("POST", "/instances/a/limits", {"max_num_batched_tokens": 100})
    unchanged = {"chunk_tokens": 0, "preempts_s": 0.0, "margin_s": 1.0, "window_factor": 1.4}
    expected = {"max_num_batched_tokens": 100, "max_num_seqs": 256, "itl_limit_s": None, **unchanged}
    assert (status, limits) == (200, expected)
    await node.complete(url, prompt=[1] * 1000, max_tokens=1)
    seen = await node.metrics(url)
    assert seen["vllm:iteration_tokens_total_count{}"] == 10
    status, limits = await node.call("POST", "/instances/a/limits", {"itl_limit_s": 0.05, "max_num_seqs": 8})
    assert (status, limits) == (200, expected | {"max_num_seqs": 8, "itl_limit_s": 0.05})
    assert (await node.call("GET", "/instances/a/limits"))[1] == limits
    assert (await node.call("GET", "/instances"))[1][0]["limits"] == limits
    for bad in ({"max_num_seqs": 0}, {"max_num_batched_tokens": "many"}, {"itl_limit_s": -1}):
        assert (await node.call("POST", "/instances/a/limits", bad))[0] == 400
    assert (await node.call("POST", "/instances/nobody/limits", {}))[0] == 404


# -- sleep -----------------------------------------------------------------------------------------


async def test_engine_sleeps_and_wakes_with_vllms_calls(node: Node) -> None:
    url = await node.start("a", 0)
    for level in (1, 2):
        assert (await node.call("GET", f"{url}/is_sleeping"))[1] == {"is_sleeping": False}
        assert (await node.call("POST", f"{url}/sleep?level={level}"))[0] == 200
        assert (await node.call("POST", f"{url}/sleep?level={level}"))[0] == 200  # twice does no harm
        assert (await node.call("GET", f"{url}/is_sleeping"))[1] == {"is_sleeping": True}
        assert (await node.call("GET", f"{url}/health"))[0] == 200
        seen = await node.metrics(url)
        states = ("awake", "weights_offloaded", "discard_all")
        assert [seen[f'vllm:engine_sleep_state{{,sleep_state="{state}"}}'] for state in states] == [
            float(n == level) for n in range(3)
        ]
        reading = (await node.call("GET", "/gpus"))[1][0]
        assert (reading["power_w"], reading["memory_used_bytes"]) == (A100.idle_w, 0)
        started_s = time.monotonic()
        assert (await node.call("POST", f"{url}/wake_up"))[0] == 200
        assert time.monotonic() - started_s >= wake_s(Overheads(), level, MODEL, 1) / SPEEDUP
        assert (await node.complete(url))["usage"]["completion_tokens"] == 20
    assert (await node.call("POST", f"{url}/wake_up"))[0] == 200  # awake already
    for bad in ("level=0", "level=x", "level=1&mode=none"):
        assert (await node.call("POST", f"{url}/sleep?{bad}"))[0] == 400


async def test_engine_wakes_in_parts_when_tags_say_which(node: Node) -> None:
    url = await node.start("a", 0)
    await node.call("POST", f"{url}/sleep")
    await node.call("POST", f"{url}/wake_up?tags=weights")
    assert (await node.call("GET", f"{url}/is_sleeping"))[1] == {"is_sleeping": True}
    assert (await node.call("GET", "/gpus"))[1][0]["memory_used_bytes"] > 0
    await node.call("POST", f"{url}/wake_up?tags=kv_cache")
    assert (await node.call("GET", f"{url}/is_sleeping"))[1] == {"is_sleeping": False}
    assert node.state("a") == "ready"
    assert (await node.call("POST", f"{url}/wake_up?tags=all"))[0] == 400


async def test_running_request_is_aborted_and_a_later_one_waits_when_the_engine_sleeps(node: Node) -> None:
    url = await node.start("a", 0)
    running = asyncio.create_task(node.complete(url, max_tokens=2000))
    await asyncio.sleep(0.2)
    assert (await node.call("POST", "/instances/a/sleep", {}))[0] == 202
    answer = await running
    assert answer["choices"][0]["finish_reason"] == "abort"
    assert 0 < answer["usage"]["completion_tokens"] < 2000
    parked = asyncio.create_task(node.complete(url))
    await node.until(lambda: node.state("a") == "sleeping")
    await asyncio.sleep(0.2)
    assert (await node.metrics(url))["vllm:num_requests_waiting{}"] == 1
    assert (await node.call("POST", "/instances/a/wake"))[0] == 202
    assert (await parked)["usage"]["completion_tokens"] == 20


async def test_running_request_ends_first_when_sleep_is_to_wait_for_it(node: Node) -> None:
    url = await node.start("a", 0)
    running = asyncio.create_task(node.complete(url, max_tokens=60))
    await asyncio.sleep(0.1)
    assert (await node.call("POST", f"{url}/sleep?mode=wait"))[0] == 200
    assert running.done()
    assert (await running)["usage"]["completion_tokens"] == 60


async def test_engines_take_turns_on_a_gpu_when_all_but_one_sleep(node: Node) -> None:
    for uid in ("a", "b"):
        await node.start(uid, 0)
        assert (await node.call("POST", f"/instances/{uid}/sleep", {}))[0] == 202
        await node.until(lambda uid=uid: node.state(uid) == "sleeping")
    assert (await node.call("POST", "/instances/a/wake"))[0] == 202
    await node.until(lambda: node.state("a") == "ready")
    status, answer = await node.call("POST", "/instances/b/wake")
    assert status == 409
    assert "SIM-one-0 is allocated to instance a" in str(answer)
    assert (await node.call("POST", "/instances/a/sleep", {}))[0] == 202
    await node.until(lambda: node.state("a") == "sleeping")
    assert (await node.call("POST", "/instances/b/wake"))[0] == 202
    await node.until(lambda: node.state("b") == "ready")


async def test_change_is_refused_for_now_when_another_is_under_way(node: Node) -> None:
    spec = {"uid": "a", "model": MODEL, "engine": "vllm-v1", "max_model_len": 8192, "gpu_uuids": ["SIM-one-0"]}
    await node.call("POST", "/instances", spec)
    assert (await node.call("POST", "/instances/a/sleep", {}))[0] == 409
    assert (await node.call("POST", "/instances/a/sleep", {"level": 3}))[0] == 400
    assert (await node.call("POST", "/instances/nobody/wake"))[0] == 404


@pytest.mark.parametrize("waking", [False, True])
async def test_sleeping_engine_ends_and_its_parked_requests_too_when_it_is_drained(node: Node, waking: bool) -> None:
    url = await node.start("a", 0)
    await node.call("POST", f"{url}/sleep?level=2")
    parked = asyncio.create_task(node.call("POST", f"{url}/v1/completions", body()))
    await asyncio.sleep(0.05)
    if waking:
        await node.call("POST", "/instances/a/wake")
    await node.call("POST", "/instances/a/drain")
    status, answer = await parked
    assert (status, answer["choices"][0]["finish_reason"]) == (200, "abort")
    await node.until(lambda: node.state("a") is None)
    assert (await node.call("GET", "/gpus"))[1][0]["power_w"] == A100.idle_w


# -- drain and shadows -----------------------------------------------------------------------------


async def test_client_learns_when_to_come_back_when_an_engine_drains(node: Node) -> None:
    url = await node.start("a", 0)
    running = asyncio.create_task(node.complete(url, max_tokens=60))
    await asyncio.sleep(0.1)
    for _ in range(2):  # twice does no harm
        await node.call("POST", "/instances/a/drain")
    async with node._session.post(f"{url}/v1/completions", json=body()) as response:
        assert (response.status, response.headers["Retry-After"]) == (503, "1")
    assert "requests left: 1" in next(s.detail for s in node.node.list() if s.uid == "a")
    assert (await running)["choices"][0]["finish_reason"] == "length"
    await node.until(lambda: node.state("a") is None)


async def test_shadow_comes_up_on_free_gpus_and_takes_over_when_the_old_one_drains(node: Node) -> None:
    url = await node.start("a", 0, options={"scheduling_policy": "priority"})
    started_s = time.monotonic()
    status, shadow = await node.call("POST", "/instances/a/shadow", {"uid": "b", "tp": 2})
    assert (status, shadow["state"], shadow["shadow_of"]) == (201, "starting", "a")
    assert shadow["gpu_uuids"] == ["SIM-one-1", "SIM-one-2"]
    progress = []
    while node.state("b") == "starting":
        progress.append(next(s.progress for s in node.node.list() if s.uid == "b"))
        status, text = await node.call("GET", f"{shadow['url']}/health")
        assert status in (200, 503)
        assert status == 200 or "ready in" in text
        assert (await node.complete(url, max_tokens=1))["usage"]["completion_tokens"] == 1  # the old one serves on
    assert time.monotonic() - started_s >= cold_start_s(Overheads(), model_name=MODEL) / SPEEDUP
    assert len(progress) > 3
    steps = pairwise(p for p in progress if p is not None)
    assert all(before < after or before == after == 1.0 for before, after in steps)  # 1.0: due, and not yet done
    await node.call("POST", "/instances/a/drain")
    await node.until(lambda: node.state("a") is None)
    assert (await node.complete(str(shadow["url"]), priority=4))["usage"]["completion_tokens"] == 20
    status, answer = await node.call("POST", "/instances/b/shadow", {"uid": "c", "tp": 2})
    assert (status, "1 A100-80GB are free" in answer["error"]) == (409, True)
    assert (await node.call("POST", "/instances/a/shadow", {"uid": "c", "tp": 1}))[0] == 404


# -- energy ----------------------------------------------------------------------------------------


async def test_energy_adds_up_and_has_a_cause_when_an_engine_works_sleeps_wakes_and_ends(node: Node) -> None:
    points: list[MeterPoint] = []

    def look() -> None:
        gpus, statuses = tuple(node.node.read_gpus()), node.node.list()
        batcher = node.node._instances["a"]._batcher if "a" in node.node._instances else None
        view = View(gpus[0].at_s, gpus, statuses)
        if batcher is not None:
            view.engines["a"] = EngineReading(view.now_s, batcher.running, *[None] * 7)  # type: ignore[arg-type]
        row = gpu_rows(view)[0]
        assert row.energy_j is not None
        held = None if row.instance_uid is None else 1
        points.append(MeterPoint(row.at_s, row.energy_j, held, held, row.instance_state, row.running))

    async def look_on() -> None:
        while True:
            look()
            await asyncio.sleep(0.01)

    watching = asyncio.create_task(look_on())
    there_s = time.monotonic()
    url = await node.start("a", 0)
    await node.complete(url, max_tokens=60)
    await node.call("POST", f"{url}/sleep?level=2")
    slept_s = time.monotonic()
    await asyncio.sleep(0.5)
    slept_s = time.monotonic() - slept_s
    await node.call("POST", f"{url}/wake_up")
    await node.call("POST", "/instances/a/drain")
    await node.until(lambda: node.state("a") is None)
    there_s = time.monotonic() - there_s
    await asyncio.sleep(0.05)
    watching.cancel()
    look()
    slices = split_intervals(points)
    by_kind = {kind: sum(s.energy_j for s in slices if s.kind is kind) for kind in EnergyKind}
    assert sum(by_kind.values()) == pytest.approx(points[-1].energy_j - points[0].energy_j)
    assert by_kind[EnergyKind.UNATTRIBUTED] == 0.0
    assert by_kind[EnergyKind.TRANSITION] > 0.0
    model = engine_model(MODEL, "A100-80GB", 1)
    assert by_kind[EnergyKind.SERVING] > 0.3 * model.iteration(A100.f_max, decodes=1, context_tokens=30).energy_j * 60
    idle_j = sum(s.energy_j for s in slices if s.kind is EnergyKind.IDLE and s.instance_id == 1)
    # A busy machine also leaves it idle before it sleeps and after it woke.
    assert 0.75 * A100.idle_w * slept_s < idle_j < 1.25 * A100.idle_w * there_s
    assert all(before.energy_j <= after.energy_j for before, after in pairwise(points))


# -- truth -----------------------------------------------------------------------------------------


async def test_engines_differ_from_the_model_when_the_truth_is_changed(node: Node) -> None:
    await node.start("a", 0)
    assert await node.call("GET", "/truth") == (200, {"time": 1.0, "power": 1.0})
    idle_w = node.node.read_gpus()[0].power_w
    assert (await node.call("POST", "/truth", {"time": 1.3, "power": 1.2}))[0] == 200
    assert node.node.read_gpus()[0].power_w == pytest.approx(1.2 * idle_w)
    url = await node.start("b", 1)
    began_s, answer = time.monotonic(), await node.complete(url, max_tokens=60)
    least_s = 60 * engine_model(MODEL, "A100-80GB", 1).iteration(A100.f_max, decodes=1, context_tokens=1).t_s
    assert time.monotonic() - began_s > 1.25 * least_s
    assert answer["usage"]["completion_tokens"] == 60
    assert (await node.call("POST", "/truth", {"power": 2.0, "model": "another"}))[0] == 200
    assert await node.call("GET", f"/truth?model={MODEL}") == (200, {"time": 1.3, "power": 1.2})
    status, refusal = await node.call("POST", "/truth", {"time": 7.0})
    assert (status, refusal["error"]) == (400, "time must be from 0.4 to 2.5, got 7")

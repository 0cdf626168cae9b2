"""A simulated node as a process: vLLM's surface over HTTP, energy, and how it ends."""

from __future__ import annotations

import asyncio
import http.client
import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest

from core.engine.engine_model import engine_model, gpu
from core.engine.gpu_type_fields import values_of
from core.engine.gpu_types import SHIPPED
from core.engine.overheads import Overheads, cold_start_s
from tests.fakes.simnode import ROOT, SimnodeProcess, eventually

MODEL = "Llama3-8B"
A100 = gpu("A100-80GB")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimnodeProcess]:
    """A node whose cold starts take 0.11 s."""
    process = SimnodeProcess(tmp_path_factory.mktemp("simnode"), "surface", ("A100-80GB:4",)).start()
    yield process
    assert process.stop() == 0, process.log()


@pytest.fixture
def engine(node: SimnodeProcess) -> Iterator[str]:
    """The URL of a fresh, ready engine on GPU 0."""
    yield node.run_instance("e", [0], MODEL, max_model_len=4096)
    node.send("DELETE", "/instances/e")


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as opened:
        yield opened


def body(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": [1, 2, 3], "max_tokens": 10, "ignore_eos": True, **fields}


async def stream_events(response: aiohttp.ClientResponse) -> list[tuple[float, str]]:
    """Each server-sent event with the time it came."""
    return [
        (time.monotonic(), line[6:].decode().strip()) async for line in response.content if line.startswith(b"data: ")
    ]


async def metrics(session: aiohttp.ClientSession, url: str) -> dict[str, float]:
    async with session.get(f"{url}/metrics") as response:
        lines = (await response.text()).splitlines()
    pairs = (line.rpartition(" ") for line in lines if line.startswith("vllm:"))
    return {name.partition("{")[0]: float(value) for name, _, value in pairs}


async def test_openai_client_is_served_when_it_uses_each_call(engine: str) -> None:
    async with openai.AsyncOpenAI(base_url=f"{engine}/v1", api_key="none", max_retries=0, timeout=20) as client:
        extra = {"vllm_xargs": {"sim_output_tokens": 7}}
        whole = await client.completions.create(model=MODEL, prompt="hello", max_tokens=50, extra_body=extra)
        assert whole.choices[0].finish_reason == "stop"
        assert whole.usage is not None
        assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (2, 7)
        stream = await client.completions.create(
            model=MODEL,
            prompt="hello",
            max_tokens=5,
            stream=True,
            stream_options={"include_usage": True},
            extra_body=extra,
        )
        chunks = [chunk async for chunk in stream]
        assert [c.choices[0].finish_reason for c in chunks[:-1]] == [None] * 4 + ["length"]
        assert chunks[-1].choices == []
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.completion_tokens == 5
        messages: Any = [{"role": "user", "content": "hello"}]
        chat = await client.chat.completions.create(model=MODEL, messages=messages, max_tokens=5, extra_body=extra)
        assert len((chat.choices[0].message.content or "").split()) == 5
        chat_stream = await client.chat.completions.create(
            model=MODEL, messages=messages, max_tokens=50, stream=True, extra_body=extra
        )
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in chat_stream])
        assert len(text.split()) == 7
        models = await client.models.list()
        assert [card.id for card in models.data] == [MODEL]


async def test_tokens_come_one_by_one_at_the_modelled_pace_when_streamed(
    session: aiohttp.ClientSession, engine: str
) -> None:
    started_s = time.monotonic()
    async with session.post(f"{engine}/v1/completions", json=body(max_tokens=60, stream=True)) as response:
        assert response.status == 200
        assert response.headers["Content-Type"].startswith("text/event-stream")
        events = await stream_events(response)
    assert len(events) == 61
    assert events[-1][1] == "[DONE]"
    times = [at_s - started_s for at_s, _ in events[:60]]
    model = engine_model(MODEL, "A100-80GB", 1)
    prefill_s = model.iteration(A100.f_max, prefills=[(3, 0)]).t_s
    step_s = model.iteration(A100.f_max, decodes=1, context_tokens=30).t_s
    for index, at_s in enumerate(times):
        assert at_s > 0.98 * (prefill_s + index * step_s)  # never ahead of real time
    assert times[-1] < prefill_s + 59 * step_s + 0.5


async def test_adapter_is_served_from_its_loading_to_its_unloading(
    session: aiohttp.ClientSession, node: SimnodeProcess, engine: str
) -> None:
    async def post(path: str, given: dict[str, Any]) -> int:
        async with session.post(engine + path, json=given) as answer:
            await answer.read()
            return answer.status

    load, unload = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
    order = {"lora_name": "legal", "lora_path": "/adapters/legal"}
    assert await post("/v1/completions", body(model="legal")) == 404
    assert await post(load, {"lora_name": "legal"}) == 400
    assert [await post(load, order), await post(load, order)] == [200, 400]
    async with session.get(f"{engine}/v1/models") as answer:
        models = (await answer.json())["data"]
    assert [(card["id"], card["parent"]) for card in models] == [(MODEL, None), ("legal", MODEL)]
    _, statuses = node.send("GET", "/instances")
    assert {one["uid"]: one["adapters"] for one in statuses}["e"] == ["legal"]
    async with session.post(f"{engine}/v1/completions", json=body(model="legal")) as answer:
        assert (await answer.json())["model"] == "legal"
    assert [await post(unload, order), await post(unload, order)] == [200, 404]
    assert await post("/v1/completions", body(model="legal")) == 404


async def test_request_id_is_echoed_when_the_client_gives_one(session: aiohttp.ClientSession, engine: str) -> None:
    headers = {"X-Request-Id": "trace-7"}
    async with session.post(f"{engine}/v1/completions", json=body(max_tokens=1), headers=headers) as response:
        assert response.headers["X-Request-Id"] == "trace-7"
        assert (await response.json())["id"] == "cmpl-trace-7"
    async with session.post(f"{engine}/v1/completions", json=body(max_tokens=1)) as response:
        assert response.headers["X-Request-Id"]


@pytest.mark.parametrize(
    ("data", "status", "param"),
    [
        (b"{", 400, None),
        (json.dumps(body(model="gpt-4")).encode(), 404, "model"),
        (json.dumps(body(max_tokens=-1)).encode(), 400, "max_tokens"),
        (json.dumps(body(prompt=[1] * 4096)).encode(), 400, "prompt"),
    ],
)
async def test_error_has_the_shape_of_the_api_when_a_request_is_refused(
    session: aiohttp.ClientSession, engine: str, data: bytes, status: int, param: str | None
) -> None:
    async with session.post(f"{engine}/v1/completions", data=data) as response:
        assert response.status == status
        error = (await response.json())["error"]
    assert (error["code"], error["param"]) == (status, param)
    assert error["message"]
    assert error["type"] in ("BadRequestError", "NotFoundError")


async def test_engine_says_503_until_it_is_ready_when_it_starts_cold(
    tmp_path: Path, session: aiohttp.ClientSession
) -> None:
    node = SimnodeProcess(tmp_path, "cold", ("A100-80GB:1",), speedup=13.0).start()
    cold_s = cold_start_s(Overheads(), model_name=MODEL) / 13.0  # 1.5 s
    spec = {"uid": "e", "model": MODEL, "engine": "vllm-v1", "gpu_uuids": ["SIM-cold-0"], "max_model_len": 4096}
    started_s = time.monotonic()
    status, answer = node.send("POST", "/instances", spec)
    assert (status, answer["state"]) == (201, "starting")
    async with session.get(f"{answer['url']}/health") as response:
        assert response.status == 503
        assert "setting up the engine, ready in 1." in await response.text()
    async with session.post(f"{answer['url']}/v1/completions", json=body()) as response:
        assert response.status == 503
        assert response.headers["Retry-After"] == "2"
    power_w = node.get("/gpus")[0]["power_w"]
    assert power_w == pytest.approx(engine_model(MODEL, "A100-80GB", 1).idle_gpu_watts(A100.f_max))
    await asyncio.to_thread(eventually, lambda: node.ready_url("e"))
    assert time.monotonic() - started_s >= cold_s
    async with session.get(f"{answer['url']}/health") as response:
        assert response.status == 200
    assert node.stop() == 0


async def test_engine_is_free_again_when_the_client_disconnects(session: aiohttp.ClientSession, engine: str) -> None:
    response = await session.post(f"{engine}/v1/completions", json=body(max_tokens=3000, stream=True))
    await response.content.readline()
    assert (await metrics(session, engine))["vllm:num_requests_running"] == 1
    response.close()
    task = asyncio.create_task(session.post(f"{engine}/v1/completions", json=body(max_tokens=3000)))
    await asyncio.sleep(0.2)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await asyncio.sleep(0.2)
    now = await metrics(session, engine)
    assert now["vllm:num_requests_running"] == 0
    assert now["vllm:kv_cache_usage_perc"] == 0
    assert now["vllm:generation_tokens_total"] < 100


async def test_requests_share_iterations_when_many_run_at_once(session: aiohttp.ClientSession, engine: str) -> None:
    async def one() -> int:
        async with session.post(f"{engine}/v1/completions", json=body(max_tokens=50)) as response:
            return int((await response.json())["usage"]["completion_tokens"])

    started_s = time.monotonic()
    assert await asyncio.gather(*(one() for _ in range(40))) == [50] * 40
    alone_s = 50 * engine_model(MODEL, "A100-80GB", 1).iteration(A100.f_max, decodes=1, context_tokens=30).t_s
    assert time.monotonic() - started_s < 20 * alone_s, "one after the other would take 40 times as long"
    assert (await metrics(session, engine))["vllm:generation_tokens_total"] == 2000


async def test_tokens_are_slower_and_power_lower_when_the_clock_is_locked(
    node: SimnodeProcess, session: aiohttp.ClientSession, engine: str
) -> None:
    async def run() -> tuple[float, float]:
        started_s, before = time.monotonic(), node.get("/gpus")[0]
        async with session.post(f"{engine}/v1/completions", json=body(max_tokens=40)) as response:
            await response.read()
        after = node.get("/gpus")[0]
        energy_j = after["energy_j"] - before["energy_j"]
        return time.monotonic() - started_s, energy_j / (after["at_s"] - before["at_s"])

    top = await run()
    order = {"uuids": [node.uuid(0)], "mhz": 600.0, "lease_s": 20.0}
    assert node.send("POST", "/gpus/clock", order)[0] == 200
    low = await run()
    model = engine_model(MODEL, "A100-80GB", 1)
    ratio = model.iteration(600.0, decodes=1, context_tokens=20).t_s / model.iteration(1410.0, decodes=1).t_s
    assert low[0] / top[0] == pytest.approx(ratio, rel=0.15)
    assert low[1] < 0.9 * top[1]
    node.send("POST", "/gpus/clock/reset", {"uuids": [node.uuid(0)]})


async def test_stream_is_cut_without_a_made_up_end_when_the_engine_is_stopped(
    node: SimnodeProcess, session: aiohttp.ClientSession, engine: str
) -> None:
    response = await session.post(f"{engine}/v1/completions", json=body(max_tokens=3000, stream=True))
    await response.content.readline()
    await asyncio.to_thread(node.send, "DELETE", "/instances/e")
    with pytest.raises(aiohttp.ClientError):
        await stream_events(response)
    response.close()
    assert node.get("/gpus")[0]["power_w"] == A100.idle_w
    assert node.get("/instances") == []


async def test_http_1_0_client_is_served_when_it_streams(engine: str) -> None:
    host, port = engine.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    data = json.dumps(body(max_tokens=3, stream=True)).encode()
    writer.write(b"POST /v1/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n%b" % (len(data), data))
    answer = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    assert b"Transfer-Encoding" not in answer
    assert answer.count(b"data: {") == 3
    assert answer.endswith(b"data: [DONE]\n\n")


def test_idle_node_counts_idle_power_when_nothing_runs(node: SimnodeProcess) -> None:
    before = node.get("/gpus")
    time.sleep(1.0)
    for first, last in zip(before, node.get("/gpus"), strict=True):
        watts = (last["energy_j"] - first["energy_j"]) / (last["at_s"] - first["at_s"])
        assert watts == pytest.approx(A100.idle_w, rel=0.02)


@pytest.mark.parametrize(
    ("changes", "status", "words"),
    [
        ({"gpu_uuids": ["SIM-surface-9"]}, 400, "no GPU SIM-surface-9"),
        ({"gpu_uuids": []}, 400, "no GPUs"),
        ({"gpu_uuids": ["SIM-surface-1", "SIM-surface-1"]}, 400, "twice"),
        ({"model": "GPT-9"}, 400, "unknown model"),
        ({"engine": "abacus"}, 400, "unknown engine"),
        ({"max_model_len": 0}, 400, "max_model_len"),
        ({"max_model_len": "long"}, 400, "max_model_len"),
        ({"uid": ""}, 400, "uid"),
    ],
)
def test_order_is_refused_in_words_when_it_makes_no_sense(
    node: SimnodeProcess, changes: dict[str, object], status: int, words: str
) -> None:
    spec = {"uid": "x", "model": MODEL, "engine": "vllm-v1", "gpu_uuids": ["SIM-surface-1"], "max_model_len": 4096}
    answer = node.send("POST", "/instances", {**spec, **changes})
    assert answer[0] == status
    assert words in answer[1]["error"]
    assert node.get("/instances") == []


@pytest.mark.parametrize(
    ("model", "max_model_len", "words"), [("Llama3-70B", 1024, "does not fit"), (MODEL, 10**6, "KV cache")]
)
def test_instance_fails_in_words_when_it_does_not_fit(
    node: SimnodeProcess, model: str, max_model_len: int, words: str
) -> None:
    spec = {"uid": "big", "model": model, "engine": "vllm-v1", "gpu_uuids": ["SIM-surface-1"]}
    status, answer = node.send("POST", "/instances", {**spec, "max_model_len": max_model_len})
    assert (status, answer["state"], answer["url"]) == (201, "failed", None)
    assert words in answer["detail"]
    node.run_instance("small", [1], MODEL, 4096)  # it holds no GPU
    node.send("DELETE", "/instances/big")
    node.send("DELETE", "/instances/small")
    assert node.get("/instances") == []


def test_counters_do_not_go_back_when_the_node_is_killed(tmp_path: Path) -> None:
    node = SimnodeProcess(tmp_path, "killed", ("A100-80GB:2",)).start()
    node.run_instance("e", [0, 1], MODEL, 4096)
    last: dict[str, float] = {}
    for _ in range(2):
        deadline_s = time.monotonic() + 0.2
        while time.monotonic() < deadline_s:
            for reading in node.get("/gpus"):
                assert reading["energy_j"] >= last.get(reading["uuid"], 0.0)
                last[reading["uuid"]] = reading["energy_j"]
        node.kill()
        node.start()
        assert node.get("/instances") == []  # the engines died with their machine
    assert all(reading["energy_j"] >= last[reading["uuid"]] for reading in node.get("/gpus"))
    assert node.stop() == 0


def test_node_ends_within_five_seconds_when_a_client_is_streaming(tmp_path: Path) -> None:
    node = SimnodeProcess(tmp_path, "ending", ("A100-80GB:1",)).start()
    url = node.run_instance("e", [0], MODEL, 4096)
    data = json.dumps(body(max_tokens=4000, stream=True)).encode()
    request = urllib.request.Request(f"{url}/v1/completions", data, method="POST")
    with urllib.request.urlopen(request, timeout=10) as response:
        assert response.readline().startswith(b"data: ")
        assert node.stop() == 0
        with pytest.raises((http.client.IncompleteRead, ConnectionResetError)):
            response.read()


def refused(*arguments: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "pools.simnode", "--gpu", "A100-80GB:1", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=20, check=False)
    return done.returncode, done.stderr


def test_start_is_refused_in_one_line_when_the_port_is_taken(node: SimnodeProcess, tmp_path: Path) -> None:
    code, errors = refused("--node", "other", "--port", str(node.port), "--var", str(tmp_path))
    assert code == 2
    assert errors.splitlines()[-1].endswith(f"127.0.0.1:{node.port}: Address already in use; choose another --port")
    assert "Traceback" not in errors


def test_start_is_refused_in_one_line_when_the_node_is_already_simulated(tmp_path: Path) -> None:
    node = SimnodeProcess(tmp_path, "twice", ("A100-80GB:1",)).start()
    code, errors = refused("--node", "twice", "--port", "0", "--var", str(tmp_path))
    assert code == 2
    assert "another process already simulates node twice" in errors.splitlines()[-1]
    assert node.stop() == 0


def test_start_is_refused_when_the_counters_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "simnode").mkdir()
    (tmp_path / "simnode" / "n.json").write_text("{")
    code, errors = refused("--node", "n", "--port", "0", "--var", str(tmp_path))
    assert code == 2
    assert "does not hold energy counters" in errors
    assert "Traceback" not in errors


def test_gpus_are_of_a_type_of_ones_own_when_the_start_defines_it(tmp_path: Path) -> None:
    own = {"name": "Lab-A100", **values_of(SHIPPED["A100-80GB"]), "tdp_w": 300.0, "max_mhz": 1200.0}
    node = SimnodeProcess(tmp_path, "lab", ("Lab-A100:2",), more=("--gpu-type", json.dumps(own))).start()
    readings = node.get("/gpus")
    assert {(one["gpu_type"], one["max_mhz"]) for one in readings} == {("Lab-A100", 1200.0)}
    node.run_instance("own", [0], MODEL, 4096)
    assert node.stop() == 0


def test_start_is_refused_when_a_definition_is_wrong(tmp_path: Path) -> None:
    own = {"name": "Lab-A100", **values_of(SHIPPED["A100-80GB"]), "like": "nothing"}
    where = ("--node", "n", "--port", "0", "--var", str(tmp_path))
    code, errors = refused(*where, "--gpu-type", json.dumps(own))
    assert code == 2
    assert "like: 'nothing' is none of" in errors.splitlines()[-1]

"""Requests that go well: what the engine gets, what the client gets, and the record they leave."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import msgspec
import openai
import pytest

from core.predictors.output_length import WARM_UP
from tests.fakes.fleet import ENGINE_MODEL, MODEL, OTHER_SECRET, SECRET
from tests.unit.pools.gateway.conftest import Bench, Start, completion, until

LINE = re.compile(r"# (HELP|TYPE) greenserve_gateway_\w+ .+|greenserve_gateway_\w+(\{.*\})? [-+.\de]+")
PROMPT_TEXT = "The quick brown fox jumps over the lazy dog. " * 4


@pytest.fixture
async def client(bench: Bench) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=bench.url + "/v1", api_key=SECRET, max_retries=0)


async def test_record_is_complete_when_a_completion_ends(bench: Bench) -> None:
    async with bench.post(completion()) as response:
        answer = await response.json()
        assert response.status == 200
    assert answer["usage"]["completion_tokens"] == 5
    row = await bench.row()
    assert (row.status, row.http_status, row.endpoint, row.stream) == ("ok", 200, "completions", False)
    assert (row.prompt_tokens, row.output_tokens, row.tokens_source) == (300, 5, "usage")
    assert (row.tenant_id, row.key_id, row.service, row.max_tokens) == (1, 1, MODEL, 20)
    assert row.predicted_output_tokens == 20
    assert (row.request_class, row.actual_class) == ("LS", "LS")
    assert (row.pool_id, row.instance_uid) == (4, "00000000-0000-4000-8000-000000000000")
    assert row.predicted_energy_j is not None
    assert row.window_s is not None
    assert row.timely_tokens == 5
    assert row.ttft_s is None, "a response in one piece has no time of its first token"
    assert row.e2e_s is not None
    assert row.attempts == 1
    assert re.fullmatch("[0-9a-f]{32}", row.request_id)


async def test_stream_is_timed_when_it_ends(bench: Bench) -> None:
    bench.engine.pace_s = 0.02
    await bench.events(completion(max_tokens=500))  # with a fairness window of seconds, also for a busy machine
    row = await bench.row()
    assert (row.status, row.stream, row.output_tokens, row.tokens_source) == ("ok", True, 5, "usage")
    assert row.window_s is not None
    assert row.window_s > 2.0
    assert row.timely_tokens == 5
    assert row.ttft_s is not None
    assert row.tpot_s is not None
    assert row.itl_max_s is not None
    assert row.e2e_s is not None
    assert 0.015 < row.tpot_s <= row.itl_max_s < 5
    assert row.ttft_s < row.e2e_s


@pytest.mark.parametrize("pieces", ["events", "bytes", "joined"])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_usage_is_taken_out_when_the_client_did_not_ask(bench: Bench, pieces: str, path: str) -> None:
    bench.engine.pieces = pieces
    body = completion() if "chat" not in path else {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]}
    events = await bench.events(body, path)
    assert events[-1] == "[DONE]"
    assert len(events) == 6
    assert not any("usage" in event for event in events)
    assert bench.engine.received[0].body["stream_options"] == {"include_usage": True}
    row = await bench.row()
    assert (row.output_tokens, row.tokens_source, row.timely_tokens) == (5, "usage", 5)


@pytest.mark.parametrize("pieces", ["events", "bytes", "joined"])
async def test_usage_is_passed_on_when_the_client_asked(bench: Bench, pieces: str) -> None:
    bench.engine.pieces = pieces
    events = await bench.events(completion(stream_options={"include_usage": True}))
    assert json.loads(events[-2])["usage"]["completion_tokens"] == 5
    assert events[-1] == "[DONE]"
    assert (await bench.row()).output_tokens == 5


@pytest.mark.parametrize("options", [None, {"include_usage": False}, {"continuous_usage_stats": True}])
async def test_usage_is_added_when_stream_options_do_not_ask_for_it(bench: Bench, options: object) -> None:
    events = await bench.events(completion(stream_options=options))
    assert len(events) == 6
    assert bench.engine.received[0].body["stream_options"] == {"include_usage": True}


async def test_body_is_relayed_byte_for_byte_when_nothing_must_change(bench: Bench) -> None:
    bench.fleet.engine_model = MODEL
    bench.publish()
    raw = b'{"model" : "%b",  "prompt":[1, 2,3], "max_tokens":4, "vllm_xargs":{"sim_output_tokens": 3},"min_p":1.50}'
    raw %= MODEL.encode()
    async with bench.post(data=raw) as response:
        assert response.status == 200
    assert bench.engine.received[0].raw == raw


async def test_fields_for_the_engine_survive_when_the_body_must_change(bench: Bench) -> None:
    extra = {"vllm_xargs": {"sim_output_tokens": 3}, "logit_bias": {"7": -1.5}, "bad_words": ["é", None, 1e100]}
    async with bench.post(completion(**extra)) as response:
        assert response.status == 200
    body = bench.engine.received[0].body
    assert body["model"] == ENGINE_MODEL
    assert {name: body[name] for name in extra} == extra


@pytest.mark.parametrize(
    "xargs", [{"sim_output_tokens": 3}, {"sim_output_tokens": 900}, {"sim_output_tokens": [[1]]}, {}, None]
)
async def test_nothing_is_decided_by_vllm_xargs_when_they_differ(start: Start, xargs: object) -> None:
    bench = await start()
    bench.engine.status = 400  # the fake cannot read all of these either
    async with bench.post(completion(vllm_xargs=xargs, max_tokens=1000)) as response:
        await response.read()
    row = await bench.row()
    assert (row.predicted_output_tokens, row.request_class, row.prompt_tokens) == (129, "LL", 300)
    assert bench.engine.received[0].body["vllm_xargs"] == xargs


async def test_output_is_predicted_from_history_when_there_is_some(bench: Bench) -> None:
    for _ in range(WARM_UP + 1):
        async with bench.post(completion(max_tokens=1000, vllm_xargs={"sim_output_tokens": 40})) as response:
            await response.read()
    assert bench.rows()[-1].predicted_output_tokens == 40


async def test_text_tokens_are_learned_when_the_engine_tells(bench: Bench) -> None:
    for _ in range(30):
        async with bench.post(completion(prompt=PROMPT_TEXT)) as response:
            await response.read()
    estimates = bench.server.gateway.classifier.estimator
    before, after = round(len(PROMPT_TEXT) / 4), estimates.estimate(MODEL, False, len(PROMPT_TEXT), 1).tokens
    assert before == 45
    assert after < 20, "the engine counts 7"


async def test_openai_client_completes_when_not_streamed(bench: Bench, client: openai.AsyncOpenAI) -> None:
    answer = await client.completions.create(model=MODEL, prompt="Hello", max_tokens=5)
    assert answer.choices[0].text.startswith("tok")
    chat = await client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "Hello"}])
    assert chat.choices[0].message.content
    assert chat.usage is not None
    assert chat.usage.completion_tokens == 5
    assert {row.endpoint for row in bench.rows()} == {"completions", "chat"}
    await client.close()


async def test_openai_client_streams_with_usage_when_asked(client: openai.AsyncOpenAI) -> None:
    stream = await client.completions.create(
        model=MODEL, prompt=[1, 2, 3], stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert chunks[-1].usage is not None
    assert (chunks[-1].usage.prompt_tokens, chunks[-1].usage.completion_tokens) == (3, 5)
    chat = await client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": [{"type": "text", "text": "Hello"}]}],
        stream=True,
        stream_options={"include_usage": True},
    )
    pieces = [chunk async for chunk in chat]
    assert "".join(p.choices[0].delta.content or "" for p in pieces if p.choices).startswith("tok0 ")
    assert pieces[-1].usage is not None
    await client.close()


@pytest.mark.parametrize("stream", [True, False])
async def test_usage_tells_energy_and_carbon_when_asked(bench: Bench, client: openai.AsyncOpenAI, stream: bool) -> None:
    answers: list[Any] = []
    create: Any = client.completions.create
    for tokens in (5, 10):
        bench.engine.tokens = tokens
        headers = {"x-greenserve-energy": "true"}
        answer = await create(model=MODEL, prompt=[1, 2, 3], stream=stream, extra_headers=headers)
        usage = [chunk async for chunk in answer][-1].usage if stream else answer.usage
        assert usage.completion_tokens == tokens
        answers.append(usage)
    few, many = answers
    assert few.energy_method.startswith("modelled increment")
    assert 0 < few.energy_j < many.energy_j
    assert few.carbon_gco2e == pytest.approx(few.energy_j / 3.6e6 * 300.0)
    # The row has what was predicted for 16 tokens, the default of max_tokens.
    per_token_j = (many.energy_j - few.energy_j) / 5
    assert bench.rows()[0].predicted_energy_j == pytest.approx(few.energy_j + 11 * per_token_j)
    await client.close()


async def test_carbon_is_null_when_no_intensity_is_known(bench: Bench) -> None:
    for instance in bench.server.fleet.instances():
        instance.pool = msgspec.structs.replace(instance.pool, intensity_g_per_kwh=None)
    async with bench.post(completion(), headers=bench.auth | {"x-greenserve-energy": "1"}) as response:
        usage = (await response.json())["usage"]
    assert usage["carbon_gco2e"] is None
    assert usage["energy_j"] > 0


async def test_curl_sees_tokens_as_they_come_when_run_with_n(bench: Bench) -> None:
    bench.engine.pace_s = 0.05
    body = json.dumps(completion(stream=True))
    process = await asyncio.create_subprocess_exec(
        *("curl", "-sN", "--max-time", "10", bench.url + "/v1/completions", "-d", body),
        *("-H", f"Authorization: Bearer {SECRET}", "-H", "Content-Type: application/json"),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    first = await process.stdout.readline()
    assert b"tok0" in first
    assert not bench.rows(), "the first token is here before the request has ended"
    rest, _ = await process.communicate()
    assert rest.endswith(b"data: [DONE]\n\n")
    assert process.returncode == 0


async def test_request_id_is_echoed_when_sane_and_ours_goes_upstream(bench: Bench) -> None:
    async with bench.post(completion(), headers=bench.auth | {"X-Request-Id": "my-id.1"}) as response:
        assert response.headers["X-Request-Id"] == "my-id.1"
    async with bench.post(completion(), headers=bench.auth | {"X-Request-Id": "no spaces please"}) as response:
        echoed = response.headers["X-Request-Id"]
    rows = bench.rows()
    assert echoed == rows[1].request_id
    assert [r.headers["x-request-id"] for r in bench.engine.received] == [row.request_id for row in rows]
    assert "authorization" not in bench.engine.received[0].headers


async def test_connections_to_the_engine_are_reused_when_requests_follow_each_other(bench: Bench) -> None:
    for _ in range(5):
        await bench.events(completion())
    assert bench.engine.connections == 1


async def test_adapters_are_models_of_their_service(start: Start) -> None:
    bench = await start(engines=2)
    bench.fleet.adapters = {1: ["legal", "other-model"]}  # a service's name is the service's
    bench.publish()
    async with bench.http.get(bench.url + "/v1/models", headers=bench.auth) as response:
        models = (await response.json())["data"]
    assert [(m["id"], m["parent"], m["root"]) for m in models] == [
        (MODEL, None, models[0]["root"]),
        ("legal", MODEL, models[0]["root"]),
    ]
    async with bench.http.get(f"{bench.url}/v1/models/legal", headers=bench.auth) as response:
        assert (await response.json()) == models[1]
    async with bench.post(completion(model="other-model")) as response:
        assert response.status == 404


async def test_requests_by_an_adapters_name_go_to_engines_that_have_it(start: Start) -> None:
    bench = await start(engines=3)
    bench.fleet.adapters = {2: ["legal"]}
    bench.publish()
    for _ in range(3):
        async with bench.post(completion(model="legal")) as response:
            assert response.status == 200
            assert (await response.json())["model"] == "legal"
    await bench.events(completion(model="legal"))
    async with bench.post(completion()) as response:
        assert response.status == 200
    assert [r.body["model"] for r in bench.engines[2].received] == ["legal"] * 4
    assert [r.body["model"] for r in bench.engines[0].received] == [ENGINE_MODEL]
    rows = bench.rows()
    assert [(row.service, row.adapter) for row in rows] == [(MODEL, "legal")] * 4 + [(MODEL, None)]


async def test_adapter_is_not_there_when_its_engines_are_gone_or_its_service_is_not_the_keys(bench: Bench) -> None:
    bench.fleet.adapters = {0: ["legal"]}
    bench.publish()
    bench.engine.die = "before"
    async with bench.post(completion(model="legal")) as response:
        assert response.status == 502
    bench.fleet.adapters = {}
    bench.publish()
    async with bench.post(completion(model="legal")) as response:
        assert response.status == 404
        assert (await response.json())["error"]["code"] == "model_not_found"


async def test_models_are_those_of_the_key_when_listed(bench: Bench) -> None:
    async with bench.http.get(bench.url + "/v1/models", headers=bench.auth) as response:
        assert [m["id"] for m in (await response.json())["data"]] == [MODEL]
    all_keys = {"Authorization": f"Bearer {OTHER_SECRET}"}
    async with bench.http.get(bench.url + "/v1/models", headers=all_keys) as response:
        models = (await response.json())["data"]
        assert [m["id"] for m in models] == [MODEL, "other-model"]
    async with bench.http.get(f"{bench.url}/v1/models/{MODEL}", headers=bench.auth) as response:
        assert (await response.json()) == models[0]


@pytest.mark.parametrize("name", ["other-model", "none", "", "a%2Fb/c"])
async def test_model_is_not_found_when_it_is_not_the_keys(bench: Bench, name: str) -> None:
    async with bench.http.get(f"{bench.url}/v1/models/{name}", headers=bench.auth) as response:
        assert response.status == 404
        assert (await response.json())["error"]["code"] == "model_not_found"
    async with bench.http.delete(f"{bench.url}/v1/models/{name}", headers=bench.auth) as response:
        assert response.status == 405


async def test_metrics_count_requests_when_they_ended(bench: Bench) -> None:
    await bench.events(completion())
    async with bench.post(completion(), headers={}) as response:
        assert response.status == 401
    async with bench.http.get(bench.url + "/metrics") as response:
        text = await response.text()
    labels = f'service="{MODEL}",endpoint="completions",status="ok"'
    assert f"greenserve_gateway_requests_total{{{labels}}} 1" in text
    assert 'greenserve_gateway_refusals_total{code="401"} 1' in text
    assert f'greenserve_gateway_tokens_total{{service="{MODEL}",kind="prompt"}} 300' in text
    assert "greenserve_gateway_instances_ready 1" in text
    for line in text.splitlines():
        assert re.fullmatch(
            r"# (HELP|TYPE) greenserve_gateway_\w+ .+|greenserve_gateway_\w+(\{.*\})? [-+.\dinfa e]+", line
        )


async def test_request_is_open_until_it_leaves_its_record(bench: Bench) -> None:
    bench.engine.pace_s = 0.05
    task = asyncio.create_task(bench.events(completion()))
    intake = bench.server.runtime.intake
    await until(lambda: bool(intake.open))
    found = intake.open_requests()
    assert (found.services, found.service, found.prompt_tokens, found.predicted_output_tokens) == (
        [MODEL],
        [0],
        [300],
        [20],
    )
    await task
    row = await bench.row()
    assert found.request_id == [row.request_id]
    assert found.started_at_s == [row.started_at_s]
    async with bench.post(completion(max_tokens=-1)) as refused:
        assert refused.status == 400
    assert not intake.open

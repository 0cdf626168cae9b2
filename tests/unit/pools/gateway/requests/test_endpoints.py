"""Embeddings and responses: relayed, limited, retried and recorded as completions are."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import aiohttp
import openai
import pytest

from pools.agent.vllm.probe import SERVING_PATHS
from pools.gateway.errors import ApiError
from pools.gateway.requests.endpoint import ALL, EMBEDDINGS, RERANK, RESPONSES, SCORE
from pools.gateway.requests.responses import ResponsesMeter, usage_of
from pools.gateway.requests.sse import UNREADABLE, Usage
from pools.gateway.requests.validation import Prompt, measure_prompt
from tests.fakes.fleet import ENGINE_MODEL, MODEL, SECRET
from tests.unit.pools.gateway.conftest import Bench, Start, until

EMBED, RESPOND = "/v1/embeddings", "/v1/responses"


@pytest.fixture
async def client(bench: Bench) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=bench.url + "/v1", api_key=SECRET, max_retries=0)


def embedding(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "input": "What is near to what?"} | fields


def response(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "input": "Say something.", "max_output_tokens": 20} | fields


async def test_openai_client_embeds(bench: Bench, client: openai.AsyncOpenAI) -> None:
    answer = await client.embeddings.create(model=MODEL, input=["One.", "Two."])
    assert [item.embedding for item in answer.data] == [[0.5, -0.25]] * 2
    assert answer.usage.prompt_tokens == 14
    (sent,) = bench.engine.received
    assert (sent.path, sent.body["model"], sent.body["input"]) == (EMBED, ENGINE_MODEL, ["One.", "Two."])
    row = await bench.row()
    assert (row.endpoint, row.status, row.prompt_tokens, row.output_tokens) == ("embeddings", "ok", 14, 0)
    assert (row.tokens_source, row.predicted_output_tokens, row.max_tokens) == ("usage", 0, 0)
    assert (row.request_class, row.actual_class) == ("SS", "SS")
    assert row.predicted_energy_j is not None
    assert row.predicted_energy_j > 0
    await client.close()


async def test_embedding_costs_its_prefill_only(bench: Bench) -> None:
    ids = list(range(1, 301))
    async with bench.post(embedding(input=ids), EMBED) as answer:
        assert answer.status == 200
    async with bench.post({"model": MODEL, "prompt": ids, "max_tokens": 20}) as answer:
        assert answer.status == 200
    embedded, completed = bench.rows()
    assert embedded.predicted_energy_j is not None
    assert completed.predicted_energy_j is not None
    assert 0 < embedded.predicted_energy_j < completed.predicted_energy_j


async def test_energy_is_reported_of_embeddings_and_responses_when_asked(bench: Bench) -> None:
    headers = bench.auth | {"x-greenserve-energy": "true"}
    for path, body in ((EMBED, embedding()), (RESPOND, response())):
        async with bench.post(body, path, headers=headers) as answer:
            assert (await answer.json())["usage"]["energy_j"] > 0
    async with bench.post(response(stream=True), RESPOND, headers=headers) as answer:
        last = (await answer.text()).strip().rpartition("data: ")[2]
    assert json.loads(last)["response"]["usage"]["energy_j"] > 0
    assert json.loads(last)["response"]["status"] == "completed"


async def test_openai_client_responds(bench: Bench, client: openai.AsyncOpenAI) -> None:
    answer = await client.responses.create(
        model=MODEL, instructions="Be short.", input=[{"role": "user", "content": "Hello"}], max_output_tokens=20
    )
    assert answer.output_text.startswith("tok")
    assert answer.usage is not None
    assert answer.usage.output_tokens == 5
    row = await bench.row()
    assert (row.endpoint, row.status, row.prompt_tokens, row.output_tokens) == ("responses", "ok", 7, 5)
    assert (row.tokens_source, row.max_tokens) == ("usage", 20)
    await client.close()


@pytest.mark.parametrize("pieces", ["events", "bytes", "joined"])
async def test_openai_client_streams_a_response(bench: Bench, client: openai.AsyncOpenAI, pieces: str) -> None:
    bench.engine.pieces = pieces
    stream = await client.responses.create(model=MODEL, input="Hello", stream=True)
    events = [event async for event in stream]
    assert [event.type for event in events] == [
        "response.created",
        *["response.output_text.delta"] * 5,
        "response.completed",
    ]
    assert "stream_options" not in bench.engine.received[0].body
    row = await bench.row()
    assert (row.endpoint, row.stream, row.output_tokens, row.tokens_source) == ("responses", True, 5, "usage")
    assert row.ttft_s is not None
    assert row.timely_tokens == 5
    await client.close()


async def test_response_ends_with_an_error_event_when_the_engine_dies_midway(bench: Bench) -> None:
    bench.engine.die, bench.engine.die_after = "midway", 2
    seen = b""
    async with bench.post(response(stream=True), RESPOND) as answer:
        with contextlib.suppress(aiohttp.ClientPayloadError):
            async for data in answer.content.iter_any():
                seen += data
    name, data = seen.decode().strip().split("\n\n")[-1].split("\n")
    assert name == "event: error"
    assert json.loads(data.removeprefix("data: "))["code"] == "upstream_error"
    row = await bench.row()
    assert (row.status, row.output_tokens, row.tokens_source) == ("upstream_error", 2, "chunks")


@pytest.mark.parametrize(("path", "body"), [(EMBED, embedding()), (RESPOND, response(stream=True))])
async def test_another_instance_serves_when_one_dies_before_the_first_byte(
    start: Start, path: str, body: dict[str, Any]
) -> None:
    bench = await start(engines=2)
    bench.engines[0].die = "before"
    async with bench.post(body, path) as answer:
        assert answer.status == 200
        await answer.read()
    row = await bench.row()
    assert (row.status, row.attempts) == ("ok", 2)


@pytest.mark.parametrize("status", [404, 405, 501])
async def test_engine_is_none_the_worse_when_it_was_started_without_the_endpoint(bench: Bench, status: int) -> None:
    bench.engine.status = status
    for _ in range(5):
        async with bench.post(response(), RESPOND) as answer:
            assert answer.status == status
            assert (await answer.json())["error"]["message"] == "engine says no"
    assert {row.status for row in bench.rows()} == {"client_error"}
    (instance,) = bench.server.fleet.instances()
    assert instance.health.ejections == 0


async def test_completion_stays_an_upstream_error_when_the_engine_does_not_know_its_model(bench: Bench) -> None:
    bench.engine.status = 404
    async with bench.post({"model": MODEL, "prompt": "Hi"}) as answer:
        assert answer.status == 404
    assert (await bench.row()).status == "upstream_error"


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (EMBED, {"model": MODEL}, "input"),
        (EMBED, embedding(input=[]), "input"),
        (EMBED, embedding(input=["a", [1]]), "input"),
        (EMBED, embedding(input=[1, -1]), "input"),
        (EMBED, embedding(input={"a": 1}), "input"),
        (EMBED, embedding(input=[1] * 20_000), "input"),
        (RESPOND, {"model": MODEL}, "input"),
        (RESPOND, response(input=""), "input"),
        (RESPOND, response(input="word " * 50_000), "input"),
        (RESPOND, response(max_output_tokens=0), "max_output_tokens"),
        (RESPOND, response(max_output_tokens=20_000), "max_output_tokens"),
        (RESPOND, response(previous_response_id="resp-1"), "previous_response_id"),
        (RESPOND, response(conversation={"id": "c"}), "conversation"),
        (RESPOND, response(background=True), "background"),
    ],
)
async def test_body_is_refused_and_the_field_named(bench: Bench, path: str, body: dict[str, Any], param: str) -> None:
    async with bench.post(body, path) as answer:
        assert answer.status == 400
        assert (await answer.json())["error"]["param"] == param
    assert not bench.engine.received
    row = await bench.row()
    assert (row.status, row.endpoint) == ("client_error", path.rpartition("/")[2])


async def test_many_texts_are_embedded_when_each_fits_the_context(bench: Bench) -> None:
    async with bench.post(embedding(input=["word " * 1000] * 100), EMBED) as answer:
        assert answer.status == 200
    async with bench.post(embedding(input="word " * 50_000, truncate_prompt_tokens=-1), EMBED) as answer:
        assert answer.status == 200, "the engine was asked to cut it"


async def test_key_and_model_are_minded(bench: Bench) -> None:
    for path, body in ((EMBED, embedding()), (RESPOND, response())):
        async with bench.http.post(bench.url + path, json=body) as answer:
            assert answer.status == 401
        async with bench.post(body | {"model": "nobody"}, path) as answer:
            assert answer.status == 404
        async with bench.http.get(bench.url + path, headers=bench.auth) as answer:
            assert answer.status == 405


async def test_hints_are_kept_from_the_engine_and_on_record(bench: Bench) -> None:
    headers = bench.auth | {"x-slo-ttft-ms": "150", "x-request-id": "mine"}
    async with bench.post(response(priority=-1, service_tier="flex"), RESPOND, headers=headers) as answer:
        assert answer.headers["x-request-id"] == "mine"
    assert not {"priority", "service_tier"} & set(bench.engine.received[0].body)
    row = await bench.row()
    assert (row.own_ttft_s, row.own_tpot_s) == (0.15, None), "what it did not ask for is not its own"


async def test_prompt_ratio_is_learned_from_embeddings(bench: Bench) -> None:
    text = "The quick brown fox jumps over the lazy dog. " * 4
    for _ in range(30):
        async with bench.post(embedding(input=text), EMBED) as answer:
            await answer.read()
    await until(lambda: len(bench.rows()) == 30)
    found = bench.server.gateway.classifier.estimator.estimate(MODEL, False, len(text), 1).tokens
    assert found < 20, "the engine counts 7"


def test_items_of_a_response_are_measured_as_messages() -> None:
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "How warm is it?"}]},
        {"type": "function_call", "name": "warmth", "call_id": "1", "arguments": '{"where":"here"}'},
        {"type": "function_call_output", "call_id": "1", "output": "21 degrees"},
        {"type": "item_reference", "id": "x"},
    ]
    body = RESPONSES.read(json.dumps({"input": items, "instructions": "Be short."}).encode())
    assert body.stream_options is not None
    assert [m.role for m in body.messages or []] == ["system", "user", "tool", "tool", "tool"]  # type: ignore[union-attr]
    assert '\\"where\\"' in str((body.messages or [])[2].content)  # type: ignore[union-attr]


def test_chat_is_embedded_when_the_body_has_messages() -> None:
    body = EMBEDDINGS.read(b'{"model":"m","messages":[{"role":"user","content":"Hi"}]}')
    assert type(body).__name__ == "ChatBody"
    assert body.model == "m"


@pytest.mark.parametrize(
    ("raw", "found"),
    [
        (b"{", None),
        (b"[]", None),
        (b'{"usage":{"input_tokens":"many","prompt_tokens":"many"}}', UNREADABLE),
        (b"\xff", None),
    ],
)
def test_usage_is_unknown_when_a_body_is_garbage(raw: bytes, found: Usage | None) -> None:
    assert usage_of(raw) is found
    assert EMBEDDINGS.usage_of(raw) is found


def event(name: str, **fields: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), json.dumps({"type": name, **fields}).encode())


def test_meter_counts_all_kinds_of_deltas_and_keeps_the_last_event_back() -> None:
    meter = ResponsesMeter(10.0, False)
    names = ("created", "reasoning_text.delta", "output_text.delta", "refusal.delta")
    passed = b"".join(meter.feed(event(f"response.{name}", delta="x"), at_s) for at_s, name in enumerate(names))
    last = event("response.incomplete", response={"usage": {"input_tokens": 3, "output_tokens": 9}})
    assert meter.feed(last, 5.0) == b""
    assert passed.count(b"event: ") == 4
    assert (meter.events, meter.first_s, meter.last_s, meter.failed) == (3, 1, 3, False)
    assert meter.usage() == Usage(3, 9)
    assert meter.ending() == last


@pytest.mark.parametrize(
    ("raw", "failed"),
    [
        (event("response.failed", response={"error": {"code": "server_error"}}), True),
        (event("error", message="no"), True),
        (b'data: {"error":{"message":"no"}}\n\n', True),
        (event("response.output_item.added", item={"type": "error"}), False),
        (b": a comment\n\n", False),
        (b"data: [DONE]\n\n", False),
    ],
)
def test_meter_knows_failure_by_the_events_name(raw: bytes, failed: bool) -> None:
    meter = ResponsesMeter(10.0, False)
    meter.feed(raw, 1.0)
    assert meter.failed is failed
    assert meter.usage() is None


def test_error_event_has_openais_shape() -> None:
    name, data = RESPONSES.error_event(ApiError(502, "gone", code="upstream_error")).decode().strip().split("\n")
    assert name == "event: error"
    assert json.loads(data.removeprefix("data: ")) == {
        "type": "error",
        "code": "upstream_error",
        "message": "gone",
        "param": None,
    }


# -- what engines offer ----------------------------------------------------------------------------

RERANKED = {"model": MODEL, "query": "What is near?", "documents": ["This.", "That, farther away."]}
SCORED = {"model": MODEL, "text_1": "What is near?", "text_2": ["This.", "That."]}


@pytest.mark.parametrize(
    ("path", "body", "engine_path", "tokens"),
    [
        ("/rerank", RERANKED, "/rerank", 21),
        ("/v1/rerank", RERANKED, "/rerank", 21),
        ("/v2/rerank", RERANKED, "/rerank", 21),
        ("/score", SCORED, "/score", 9),
        ("/v1/score", SCORED, "/score", 9),
    ],
)
async def test_pairs_of_texts_are_metered_as_prompts_without_an_answer(
    bench: Bench, path: str, body: dict[str, Any], engine_path: str, tokens: int
) -> None:
    async with bench.post(body, path) as answer:
        assert answer.status == 200
        assert (await answer.json())["model"] == MODEL
    (sent,) = bench.engine.received
    assert (sent.path, sent.body) == (engine_path, body | {"model": ENGINE_MODEL})
    row = await bench.row()
    assert (row.endpoint, row.status, row.tokens_source) == (engine_path[1:], "ok", "usage")
    assert (row.prompt_tokens, row.output_tokens, row.max_tokens) == (tokens, 0, 0)
    assert row.predicted_energy_j is not None
    assert row.predicted_energy_j > 0


def test_query_counts_before_each_document_that_it_is_read_with() -> None:
    (query, documents), body = ("ab" * 50, ["c" * 30, "d" * 70]), {"model": "m"}
    ranked = RERANK.read(json.dumps(body | {"query": query, "documents": documents}).encode())
    scored = SCORE.read(json.dumps(body | {"text_1": query, "text_2": documents}).encode())
    paired = SCORE.read(json.dumps(body | {"text_1": [query, query], "text_2": documents}).encode())
    assert measure_prompt(ranked) == measure_prompt(scored) == measure_prompt(paired) == Prompt(0, 300, 0, 170)


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/rerank", {"model": MODEL, "documents": ["a"]}, "query"),
        ("/rerank", RERANKED | {"documents": []}, "documents"),
        ("/rerank", RERANKED | {"documents": {"content": [{"image_url": {"url": "http://10.0.0.1"}}]}}, "documents"),
        ("/score", SCORED | {"text_1": ["a", "b", "c"]}, "text_1"),
        ("/score", SCORED | {"text_2": None}, "text_2"),
    ],
)
async def test_pairs_are_refused_by_the_field_that_is_wrong(
    bench: Bench, path: str, body: dict[str, Any], field: str
) -> None:
    async with bench.post(body, path) as answer:
        assert answer.status == 400
        assert (await answer.json())["error"]["param"] == field
    assert not bench.engine.received


async def test_requests_go_where_the_engine_has_their_path(start: Start) -> None:
    bench = await start(engines=3)
    bench.fleet.paths = {0: ["/v1/completions"], 1: ["/v1/embeddings"]}  # of the third nothing is known
    bench.publish()
    for _ in range(4):
        async with bench.post(embedding(), EMBED) as answer:
            assert answer.status == 200
    assert not bench.engines[0].received
    bench.engines[1].die = bench.engines[2].die = "before"
    async with bench.post(embedding(), EMBED) as answer:
        assert answer.status == 502
    assert not bench.engines[0].received, "not even where all others fail"


@pytest.mark.parametrize(
    ("path", "body", "there"),
    [
        (EMBED, embedding(), "/v1/completions"),
        ("/v1/rerank", RERANKED, "/v1/completions"),
        ("/v1/completions", {"model": MODEL, "prompt": "Hi"}, "/v1/embeddings"),
    ],
)
async def test_request_is_not_offered_when_no_engine_of_the_model_has_its_path(
    bench: Bench, path: str, body: dict[str, Any], there: str
) -> None:
    bench.fleet.paths = {0: [there]}
    bench.publish()
    async with bench.post(body, path) as answer:
        assert answer.status == 404
        error = (await answer.json())["error"]
    assert (error["code"], error["param"]) == ("not_offered", "model")
    assert MODEL in error["message"]
    assert path.removeprefix("/v1/") in error["message"]
    row = await bench.row()
    assert (row.status, row.http_status, row.attempts) == ("client_error", 404, 0)
    assert not bench.engine.received


def test_agents_tell_of_each_path_that_gateways_send_to() -> None:
    assert {endpoint.engine_path for endpoint in ALL} <= set(SERVING_PATHS)

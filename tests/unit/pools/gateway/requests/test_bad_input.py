"""Input that is refused: the right status, OpenAI's shape, nothing sent to an engine, and a record where one is due."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pools.gateway.errors import ApiError
from pools.gateway.requests import validation
from pools.gateway.requests.endpoint import BY_PATH, Endpoint
from tests.fakes.fleet import EXPIRED_SECRET, MAX_MODEL_LEN, MODEL, SECRET
from tests.unit.laws import examples
from tests.unit.pools.gateway.conftest import Bench, completion, raw_post, until

CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]}


async def refused(bench: Bench, body: Any, status: int, path: str = "/v1/completions", **kwargs: Any) -> dict[str, Any]:
    async with bench.post(body, path, **kwargs) as response:
        answer = await response.json()
        assert response.status == status, answer
    assert set(answer) == {"error"}
    assert set(answer["error"]) == {"message", "type", "param", "code"}
    assert answer["error"]["message"]
    assert not bench.engine.received, "nothing may reach an engine"
    error: dict[str, Any] = answer["error"]
    return error


@pytest.mark.parametrize(
    "raw", [b"", b"{", b'{"model":', b"\xff\xfe", b'{"model":"x"} trailing', b"[" * 100_000, b'{"a":' * 50_000, b"NaN"]
)
async def test_malformed_json_is_refused(bench: Bench, raw: bytes) -> None:
    error = await refused(bench, None, 400, data=raw)
    assert error["type"] == "invalid_request_error"
    assert not bench.rows(), "no service is known"


@pytest.mark.parametrize("body", [[], "text", 3, None, True])
async def test_body_is_refused_when_it_is_no_object(bench: Bench, body: object) -> None:
    await refused(bench, None, 400, data=json.dumps(body).encode())


@pytest.mark.parametrize("model", ["nobody", "", "other-model"])
async def test_model_is_refused_when_unknown_or_not_the_keys(bench: Bench, model: str) -> None:
    error = await refused(bench, completion(model=model), 404)
    assert (error["code"], error["param"]) == ("model_not_found", "model")


async def test_model_is_asked_for_when_missing(bench: Bench) -> None:
    missing = completion()
    del missing["model"]
    for body in (missing, completion(model=None), completion(model=7)):
        error = await refused(bench, body, 400)
        assert (error["code"], error["param"]) == ("invalid_value", "model")


@pytest.mark.parametrize(
    "header", [None, "Bearer wrong", "Bearer ", f"Basic {SECRET}", SECRET, f"Bearer {EXPIRED_SECRET}", "Bearer é"]
)
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_key_is_refused_when_missing_wrong_or_expired(bench: Bench, header: str | None, path: str) -> None:
    headers = {} if header is None else {"Authorization": header}
    error = await refused(bench, completion(), 401, path, headers=headers)
    assert error["code"] == "invalid_api_key"
    assert not bench.rows(), "whose it was is not known"


async def test_models_are_refused_when_the_key_is_missing(bench: Bench) -> None:
    async with bench.http.get(bench.url + "/v1/models") as response:
        assert response.status == 401


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        (completion(prompt=[11] * MAX_MODEL_LEN), "prompt", "context_length_exceeded"),
        (completion(prompt="word " * 40_000), "prompt", "context_length_exceeded"),
        (completion(prompt=[[1], [11] * MAX_MODEL_LEN]), "prompt", "context_length_exceeded"),
        (completion(max_tokens=MAX_MODEL_LEN), "max_tokens", "context_length_exceeded"),
        (completion(max_tokens=10**30), "max_tokens", "context_length_exceeded"),
        (completion(prompt="short", max_tokens=MAX_MODEL_LEN + 1), "max_tokens", "context_length_exceeded"),
        (completion(max_tokens=-1), "max_tokens", "invalid_value"),
        (completion(max_tokens=0), "max_tokens", "invalid_value"),
        (completion(max_tokens=1.5), "max_tokens", "invalid_value"),
        (completion(max_tokens="10"), "max_tokens", "invalid_value"),
        (completion(max_tokens=True), "max_tokens", "invalid_value"),
        (completion(prompt=""), "prompt", "invalid_value"),
        (completion(prompt=[]), "prompt", "invalid_value"),
        (completion(prompt=[[]]), "prompt", "invalid_value"),
        (completion(prompt=["a", ""]), "prompt", "invalid_value"),
        (completion(prompt=None), "prompt", "invalid_value"),
        (completion(prompt=7), "prompt", "invalid_value"),
        (completion(prompt=[1, "a"]), "prompt", "invalid_value"),
        (completion(prompt=[1, -2]), "prompt", "invalid_value"),
        (completion(prompt=[1, 2.5]), "prompt", "invalid_value"),
        (completion(prompt={"a": 1}), "prompt", "invalid_value"),
        (completion(stream="yes"), "stream", "invalid_value"),
        (completion(stream=True, stream_options="usage"), "stream_options", "invalid_value"),
        (CHAT | {"max_completion_tokens": -5}, "max_completion_tokens", "invalid_value"),
        (CHAT | {"max_completion_tokens": 10**6}, "max_tokens", "context_length_exceeded"),
        (CHAT | {"max_tokens": 0}, "max_tokens", "invalid_value"),
        (CHAT | {"messages": []}, "messages", "invalid_value"),
        (CHAT | {"messages": None}, "messages", "invalid_value"),
        (CHAT | {"messages": "Hi"}, "messages", "invalid_value"),
        (CHAT | {"messages": ["Hi"]}, "messages", "invalid_value"),
        (CHAT | {"messages": [{"content": "no role"}]}, "messages", "invalid_value"),
    ],
)
async def test_bad_field_is_named_and_recorded(bench: Bench, body: dict[str, Any], param: str, code: str) -> None:
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    error = await refused(bench, body, 400, path)
    assert (error["param"], error["code"]) == (param, code)
    row = await bench.row()
    assert (row.status, row.http_status, row.service, row.tenant_id) == ("client_error", 400, MODEL, 1)
    assert row.error == error["message"]
    assert (row.output_tokens, row.instance_uid, row.attempts) == (None, None, 0)


async def test_engine_decides_when_a_texts_length_is_only_estimated(bench: Bench) -> None:
    """A text estimated at a fifth over the limit may still fit: the gateway has no tokenizer."""
    async with bench.post(completion(prompt="x" * int(MAX_MODEL_LEN * 4 * 1.2))) as response:
        assert response.status == 200


async def raw_exchange(bench: Bench, data: bytes, then: bytes = b"") -> bytes:
    """Sends bytes as they are and reads until the gateway closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", bench.server.port)
    writer.write(data)
    if then:
        await asyncio.sleep(0.02)
        writer.write(then)
    answer = await asyncio.wait_for(reader.read(), 3)
    writer.close()
    return answer


async def test_body_of_10_mb_is_refused_without_being_read(bench: Bench) -> None:
    head = (
        f"POST /v1/completions HTTP/1.1\r\nAuthorization: Bearer {SECRET}\r\nContent-Length: 10000000\r\n\r\n".encode()
    )
    answer = await raw_exchange(bench, head + b"x" * 1000)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"connection: close" in answer
    assert json.loads(answer.split(b"\r\n\r\n", 1)[1])["error"]["code"] == "body_too_large"


async def test_client_sees_413_when_it_sends_the_whole_10_mb_first(bench: Bench) -> None:
    client = openai.AsyncOpenAI(base_url=bench.url + "/v1", api_key=SECRET, max_retries=0)
    with pytest.raises(openai.APIStatusError) as refusal:
        await client.completions.create(model=MODEL, prompt="x" * 10_000_000)
    assert (refusal.value.status_code, refusal.value.code) == (413, "body_too_large")
    await client.close()
    async with bench.post(completion()) as response:
        assert response.status == 200, "the next request is served"


async def test_chunked_body_is_refused_when_it_grows_too_large(bench: Bench) -> None:
    head = f"POST /v1/completions HTTP/1.1\r\nAuthorization: Bearer {SECRET}\r\n".encode()
    head += b"Transfer-Encoding: chunked\r\n\r\n"
    chunk = b"80000\r\n" + b"x" * 0x80000 + b"\r\n"
    assert (await raw_exchange(bench, head + chunk * 3)).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize("shape", ["one header", "many headers", "url", "no end"])
async def test_head_is_refused_when_too_large(bench: Bench, shape: str) -> None:
    big = b"a" * 20_000
    head = {
        "one header": b"GET /live HTTP/1.1\r\nX-Big: %b\r\n\r\n" % big,
        "many headers": b"GET /live HTTP/1.1\r\n" + b"X-A: %b\r\n" % big[:100] * 300 + b"\r\n",
        "url": b"GET /live?%b HTTP/1.1\r\nHost: x\r\n\r\n" % big,
        "no end": b"GET /live HTTP/1.1\r\nX-Big: ",
    }[shape]
    answer = await raw_exchange(bench, head, then=big if shape == "no end" else b"")
    assert answer.startswith(b"HTTP/1.1 431 "), answer
    assert b'"error"' in answer


@pytest.mark.parametrize(
    "data",
    [
        b"nonsense\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nContent-Length: abc\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET /live HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 50,
    ],
)
async def test_malformed_http_is_refused(bench: Bench, data: bytes) -> None:
    answer = await raw_exchange(bench, data)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b'"error"' in answer
    assert b'"code":"invalid_request"' in answer


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/completions", 405),
        ("DELETE", "/v1/chat/completions", 405),
        ("POST", "/v1/models", 405),
        ("GET", "/nothing", 404),
        ("POST", "/v1/pooling", 404),
    ],
)
async def test_path_and_method_are_refused_when_unknown(bench: Bench, method: str, path: str, status: int) -> None:
    async with bench.http.request(method, bench.url + path, headers=bench.auth) as response:
        assert response.status == status
        error = (await response.json())["error"]
        assert error["type"] == "invalid_request_error"
        assert error["code"] == {404: "not_found", 405: "method_not_allowed"}[status]


async def test_head_has_no_body(bench: Bench) -> None:
    for path, status in (("/live", 200), ("/v1/completions", 405), ("/nothing", 404)):
        async with bench.http.head(bench.url + path, headers=bench.auth) as response:
            assert response.status == status
            assert await response.read() == b""


async def test_request_is_rejected_and_recorded_when_no_instance_is_ready(bench: Bench) -> None:
    bench.fleet.urls = []
    bench.publish()
    async with bench.post(completion()) as response:
        assert response.status == 503
        assert response.headers["Retry-After"] == "5"
        assert (await response.json())["error"]["type"] == "server_error"
    row = await bench.row()
    assert (row.status, row.http_status, row.instance_uid, row.prompt_tokens) == ("rejected", 503, None, 300)


async def test_refusal_is_recorded_when_the_client_left_nothing_to_do(bench: Bench) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", bench.server.port)
    writer.write(raw_post(completion(max_tokens=0)))
    writer.close()
    await until(lambda: len(bench.rows()) == 1)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(max_size=6), children, max_size=4),
    max_leaves=8,
)
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        name: JSON | good
        for name, good in {
            "model": st.just(MODEL),
            "prompt": st.lists(st.integers(0, 9), max_size=4) | st.text(max_size=9),
            "input": st.lists(st.integers(0, 9) | st.fixed_dictionaries({"content": JSON})) | st.text(max_size=9),
            "max_output_tokens": st.integers(-2, 30),
            "messages": st.lists(st.fixed_dictionaries({"role": st.just("user"), "content": JSON}), max_size=2),
            "max_tokens": st.integers(-2, 30),
            "max_completion_tokens": st.integers(-2, 30),
            "stream": st.booleans(),
            "stream_options": st.fixed_dictionaries({"include_usage": st.booleans()}) | st.just({}),
            "vllm_xargs": JSON,
        }.items()
    },
)


@given(body=FIELDS, endpoint=st.sampled_from(list(BY_PATH.values())))
@settings(max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_validation_only_ever_raises_api_errors_when_fuzzed(body: dict[str, Any], endpoint: Endpoint) -> None:
    raw = json.dumps(body).encode()
    try:
        parsed = validation.decode(raw, endpoint)
        prompt = validation.measure_prompt(parsed)
        limit = validation.max_tokens(parsed)
        validation.check_length(prompt, prompt.tokens or prompt.text_bytes, limit, MAX_MODEL_LEN, endpoint)
        relayed, added = validation.relayed_body(raw, parsed, "Engine")
    except ApiError as error:
        refusal = error
    else:
        refusal = None
    if refusal is not None:
        assert refusal.status == 400
        assert json.loads(refusal.body())["error"]["message"]
        return
    sent = json.loads(relayed)
    assert sent["model"] == "Engine"
    untouched = set(body) - {"model", "stream_options"}
    assert {name: sent[name] for name in untouched} == {name: body[name] for name in untouched}
    if endpoint.optional:  # nothing need be asked for
        assert not added
        assert sent.get("stream_options") == body.get("stream_options")
        return
    assert added == (bool(body.get("stream")) and not (body.get("stream_options") or {}).get("include_usage"))
    if body.get("stream"):
        assert sent["stream_options"]["include_usage"] is True

"""What of a client's body reaches an engine: what is known, and what the operator lets through."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pools.gateway.errors import ApiError
from pools.gateway.requests import validation
from pools.gateway.requests.client_fields import ClientFields
from pools.gateway.requests.endpoint import ALL, CHAT, COMPLETIONS, EMBEDDINGS, RESPONSES, Endpoint
from pools.registration.worker_hosts import WorkerHosts
from tests.unit.pools.gateway.conftest import Bench, completion

WHOLE: dict[str, dict[str, Any]] = {
    "chat": {"model": "m", "messages": [{"role": "user", "content": "Hi"}]},
    "completions": {"model": "m", "prompt": "Hi"},
    "embeddings": {"model": "m", "input": "Hi"},
    "responses": {"model": "m", "input": "Hi"},
    "rerank": {"model": "m", "query": "Hi", "documents": ["Ho"]},
    "score": {"model": "m", "text_1": "Hi", "text_2": "Ho"},
}
DANGEROUS = [
    *("kv_transfer_params", "ec_transfer_params", "prompt_embeds", "chat_template", "mm_processor_kwargs"),
    *("logits_processors", "media_io_kwargs", "request_id", "guided_decoding_backend", "never_heard_of"),
]


def read(endpoint: Endpoint, allowed: ClientFields | None = None, **fields: Any) -> Any:
    raw = json.dumps(WHOLE[endpoint.name] | fields).encode()
    return validation.decode(raw, endpoint, allowed or ClientFields())


def refusal(endpoint: Endpoint, allowed: ClientFields | None = None, **fields: Any) -> ApiError:
    with pytest.raises(ApiError) as refused:
        read(endpoint, allowed, **fields)
    assert refused.value.status == 400
    return refused.value


@pytest.mark.parametrize("endpoint", ALL, ids=lambda endpoint: endpoint.name)
@pytest.mark.parametrize("name", DANGEROUS)
def test_field_is_refused_by_its_name_when_no_endpoint_knows_it(endpoint: Endpoint, name: str) -> None:
    error = refusal(endpoint, **{name: {"a": 1}})
    assert (error.param, error.code) == (name, "unknown_field")
    assert f"'{name}'" in error.message


async def test_engine_sees_nothing_of_a_request_with_a_field_that_is_not_passed_on(bench: Bench) -> None:
    async with bench.post(completion(kv_transfer_params={"do_remote_prefill": True})) as response:
        assert response.status == 400
        assert (await response.json())["error"]["param"] == "kv_transfer_params"
    assert not bench.engine.received
    assert (await bench.row()).status == "client_error"


def test_field_is_refused_however_its_name_is_written() -> None:
    raw = b'{"model":"m","prompt":"Hi","kv\\u005ftransfer_params":{}}'
    with pytest.raises(ApiError) as refused:
        validation.decode(raw, COMPLETIONS)
    assert refused.value.param == "kv_transfer_params"


def test_operator_lets_fields_through_and_the_rest_is_checked_as_before() -> None:
    allowed = ClientFields(frozenset({"reuse", "vllm_xargs.mode"}))
    assert read(COMPLETIONS, allowed, reuse="a", vllm_xargs={"mode": 1}).prompt == "Hi"
    assert refusal(COMPLETIONS, allowed, reuse="a", temperature=3).param == "temperature"
    assert refusal(COMPLETIONS, allowed, reuse="a", chat_template="b").param == "chat_template"
    assert refusal(COMPLETIONS, allowed, vllm_xargs={"mode": 1, "other": 1}).param == "vllm_xargs"


async def test_field_that_the_operator_lets_through_reaches_the_engine(bench: Bench) -> None:
    bench.server.runtime.intake.fields = ClientFields(frozenset({"reuse"}))
    async with bench.post(completion(reuse="a")) as response:
        assert response.status == 200
    assert bench.engine.received[0].body["reuse"] == "a"


@pytest.mark.parametrize(
    "xargs", [{"kv_transfer_params": "x"}, {"slo_s": 0.1}, {"sim_output_tokens": 3, "predicted_tokens": 1}, [1], "x"]
)
@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS, RESPONSES], ids=lambda endpoint: endpoint.name)
def test_arguments_of_the_engines_extensions_are_refused(endpoint: Endpoint, xargs: object) -> None:
    assert refusal(endpoint, vllm_xargs=xargs).param == "vllm_xargs"


@pytest.mark.parametrize("kwargs", [{"chat_template": "{{ x }}"}, {"tokenize": True}, [1]])
def test_template_stays_the_models_own(kwargs: object) -> None:
    assert refusal(CHAT, chat_template_kwargs=kwargs).param == "chat_template_kwargs"
    chat = {"input": None, "messages": WHOLE["chat"]["messages"], "chat_template_kwargs": kwargs}
    assert refusal(EMBEDDINGS, **chat).param == "chat_template_kwargs"
    assert read(CHAT, chat_template_kwargs={"enable_thinking": False}).messages


# -- media -----------------------------------------------------------------------------------------

HOSTS = ClientFields(media_hosts=WorkerHosts("images.example.org,10.0.0.0/8"))
FOREIGN = [
    *("http://169.254.169.254/latest/meta-data", "https://example.org/a.png", "file:///etc/passwd", "ftp://x/y"),
    *("//images.example.org/a", " data:image/png;base64,AA", "http://images.example.org@evil.example/a"),
    *("http://evil.example\\@images.example.org/", "http://images.example.org\n.evil.example/", "http://[::1", ""),
]


def picture(url: object, kind: str = "image_url") -> list[dict[str, Any]]:
    return [{"role": "user", "content": [{"type": "text", "text": "?"}, {"type": kind, kind: url}]}]


@pytest.mark.parametrize("url", FOREIGN)
@pytest.mark.parametrize("kind", ["image_url", "audio_url", "video_url"])
def test_media_of_a_foreign_host_is_refused(url: str, kind: str) -> None:
    for given in (url, {"url": url}):
        for allowed in (ClientFields(), HOSTS):
            error = refusal(CHAT, allowed, messages=picture(given, kind))
            assert error.code == "media_not_allowed"
            assert f"messages[0].content[1].{kind}" in error.message


def test_media_of_a_data_url_or_of_an_allowed_host_passes() -> None:
    assert read(CHAT, messages=picture({"url": "data:image/png;base64,AA"}))
    for url in ("https://images.example.org/a.png?b=c", "http://10.1.2.3:80/a"):
        assert read(CHAT, HOSTS, messages=picture({"url": url}))
        assert refusal(CHAT, messages=picture({"url": url})).code == "media_not_allowed"


def test_part_is_looked_at_whatever_kind_it_says_it_is() -> None:
    part = {"type": "text", "text": "?", "image_url": {"url": "http://x/y"}}
    assert refusal(CHAT, messages=[{"role": "user", "content": [part]}]).code == "media_not_allowed"
    assert refusal(CHAT, messages=picture([1])).param == "messages"
    embeds = {"type": "image_embeds", "image_embeds": "AA"}
    assert refusal(CHAT, messages=[{"role": "user", "content": [embeds]}]).param == "messages"


@pytest.mark.parametrize(
    "fields",
    [
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "http://x/y"}]}]},
        {"input": [{"role": "user", "content": [{"type": "input_file", "file_url": "http://x/y"}]}]},
        {"input": [{"type": "function_call_output", "output": [{"type": "input_image", "image_url": "http://x/y"}]}]},
        {"tools": [{"type": "mcp", "server_label": "a", "server_url": "http://x/y"}]},
    ],
)
def test_responses_name_no_hosts_either(fields: dict[str, Any]) -> None:
    assert refusal(RESPONSES, **fields).code in ("media_not_allowed", "unknown_field")

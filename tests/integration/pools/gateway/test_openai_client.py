"""The official client against the gateway: the service's name in every answer, and refusals that it can read."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
import redis

from tests.fakes.engine import FakeEngine
from tests.fakes.fleet import ENGINE_MODEL, MODEL, SECRET
from tests.integration.pools.gateway.test_gateway import (  # noqa: F401
    Process,
    engine,
    gateway,
    http,
    publish,
    ready,
    store,
    until,
)
from tests.representatives import first

SAY: Any = {"model": MODEL, "messages": [{"role": "user", "content": 'What is "model":"engine"?'}], "max_tokens": 4}


@pytest.fixture
async def client(
    gateway: Process,  # noqa: F811
    store: redis.Redis,  # noqa: F811
    engine: FakeEngine,  # noqa: F811
    http: Any,  # noqa: F811
) -> AsyncIterator[openai.AsyncOpenAI]:
    publish(store, engine)
    await until("ready", lambda: ready(http, gateway))
    async with openai.AsyncOpenAI(base_url=gateway.url + "/v1", api_key=SECRET, max_retries=0) as made:
        yield made


@pytest.mark.parametrize("pieces", first(2, ["events", "bytes", "joined"], "as in single bytes"))
async def test_answers_say_the_services_name_when_the_engine_has_another(
    client: openai.AsyncOpenAI,
    engine: FakeEngine,  # noqa: F811
    pieces: str,
) -> None:
    engine.pieces = pieces
    chat = await client.chat.completions.create(**SAY)
    text = await client.completions.create(model=MODEL, prompt="Hi", max_tokens=4)
    assert (chat.model, text.model) == (MODEL, MODEL)
    assert text.choices[0].text
    chats = [
        chunk
        async for chunk in await client.chat.completions.create(
            **SAY, stream=True, stream_options={"include_usage": True}
        )
    ]
    texts = [chunk async for chunk in await client.completions.create(model=MODEL, prompt="Hi", stream=True)]
    assert {chunk.model for chunk in (*chats, *texts)} == {MODEL}
    assert len(chats) > len(texts) > 1, "the chunk of usage came too"
    assert chats[-1].usage is not None
    asked = {request.body["model"] for request in engine.received if request.path.startswith("/v1/")}
    assert asked == {ENGINE_MODEL}, "the engine is asked by its own name"


@pytest.mark.parametrize(
    ("fields", "param"),
    first(
        2,
        [
            ({"messages": [{"role": "human", "content": "Hi"}]}, "messages"),
            ({"stream": True, "seed": 1.5}, "seed"),
            ({"temperature": 2.5}, "temperature"),
            ({"n": 0}, "n"),
            ({"top_logprobs": 3}, "top_logprobs"),
            ({"stop": ["a"] * 5}, "stop"),
            ({"response_format": {"type": "xml"}}, "response_format"),
        ],
        "refused as others are",
    ),
)
async def test_client_reads_which_field_is_wrong(
    client: openai.AsyncOpenAI,
    engine: FakeEngine,  # noqa: F811
    fields: dict[str, Any],
    param: str,
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await client.chat.completions.create(**SAY | fields)
    error = refused.value
    assert (error.param, error.code, error.type) == (param, "invalid_value", "invalid_request_error")
    assert f"'{param}" in error.message
    assert not [request for request in engine.received if request.path.startswith("/v1/")]


async def test_client_reads_what_an_engine_refuses(
    client: openai.AsyncOpenAI,
    engine: FakeEngine,  # noqa: F811
) -> None:
    engine.status = 400
    with pytest.raises(openai.BadRequestError) as refused:
        await client.chat.completions.create(**SAY)
    error = refused.value
    assert (error.code, error.type) == ("invalid_request", "invalid_request_error")
    assert "engine says no" in error.message

"""The differences of the endpoints that are relayed to engines: path, body, names of their usage, ends of streams.

Routing, limits, queues, retries and records are the same for all. They know two kinds of bodies, a chat's and a text's;
the other endpoints' bodies are read as one of these.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import msgspec
from msgspec import UNSET, UnsetType

from ..errors import ApiError
from . import sse
from .bodies import (
    NOTHING,
    CacheSalt,
    ChatBody,
    ChatMessage,
    ChatPart,
    CompletionBody,
    ContentPart,
    Probability,
    ResponseFormat,
    Role,
    StreamOptions,
    Temperature,
    Tokens,
    TopLogprobs,
)
from .completion_bodies import read_chat, read_completion
from .pooling_bodies import (
    EmbeddingBody,
    RerankBody,
    ScoreBody,
    pooling_usage,
    read_embedding,
    read_rerank,
    read_score,
)
from .responses import ResponsesMeter, error_event, usage_of
from .sse import SseMeter, Usage

Body = CompletionBody | ChatBody

# An engine that was started without an endpoint says so in one of these ways: no fault of the engine's.
NOT_OFFERED = frozenset({404, 405, 501})


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One of OpenAI's endpoints, or of vLLM's beside them.

    Attributes:
        name: In records and metrics.
        path: Of engines; `also`: further ones at which clients find it here.
        shape: What its bodies are decoded as.
        read: Parses a body. Raises msgspec's errors, and ApiError 400 naming the field.
        prompt_field: What the body calls its prompt.
        limit_field: What it calls the most tokens to generate; None: nothing is generated.
        output_field: What usage calls the tokens that were generated.
        usage_of: The usage of a whole response.
        meter: Reads its streams.
        error_event: An error in the midst of a stream.
        optional: Not all engines have it.
    """

    name: str
    path: bytes
    shape: type[msgspec.Struct]
    read: Callable[[bytes], Body]
    prompt_field: str
    limit_field: str | None
    chat: bool = False
    continues: bool = False  # elsewhere, should its engine die: see `relay.continuation`
    output_field: str = "completion_tokens"
    usage_of: Callable[[bytes], Usage | None] = sse.usage_of
    meter: type[SseMeter] = SseMeter
    error_event: Callable[[ApiError], bytes] = lambda error: b"data: %b\n\n" % error.body()
    optional: bool = False
    also: tuple[bytes, ...] = ()
    engine_path: str = field(init=False)  # `path` as agents report it

    def __post_init__(self) -> None:
        object.__setattr__(self, "engine_path", self.path.decode())

    @property
    def generates(self) -> bool:
        return self.limit_field is not None

    @property
    def prompt_key(self) -> bytes:
        """The name before a body's prompt, in its quotes."""
        return b'"%b"' % self.prompt_field.encode()


# -- responses -------------------------------------------------------------------------------------


class InputItem(msgspec.Struct):
    """A message, or what a tool was asked and said, or a thought."""

    role: str | None = None
    content: str | list[ContentPart | str] | None = None
    arguments: msgspec.Raw = NOTHING
    output: msgspec.Raw = NOTHING


class ResponsesBody(msgspec.Struct, forbid_unknown_fields=True):
    model: str | None = None
    input: str | list[InputItem] | None = None
    instructions: str | None = None
    stream: bool | None = None
    max_output_tokens: Tokens | None = None
    background: bool | None = None
    previous_response_id: str | None = None
    conversation: msgspec.Raw = NOTHING
    priority: int | UnsetType | None = UNSET
    service_tier: str | UnsetType | None = UNSET
    cache_salt: CacheSalt | UnsetType | None = UNSET
    temperature: Temperature | None = None
    top_p: Probability | None = None
    top_logprobs: TopLogprobs | None = None
    text: msgspec.Raw = NOTHING
    tools: msgspec.Raw = NOTHING
    truncate_prompt_tokens: msgspec.Raw = NOTHING
    vllm_xargs: msgspec.Raw = NOTHING
    # The engine's to judge: OpenAI's, then vLLM's.
    include: msgspec.Raw = NOTHING
    max_tool_calls: msgspec.Raw = NOTHING
    metadata: msgspec.Raw = NOTHING
    parallel_tool_calls: msgspec.Raw = NOTHING
    prompt: msgspec.Raw = NOTHING
    prompt_cache_key: msgspec.Raw = NOTHING
    prompt_cache_retention: msgspec.Raw = NOTHING
    reasoning: msgspec.Raw = NOTHING
    safety_identifier: msgspec.Raw = NOTHING
    store: msgspec.Raw = NOTHING
    stream_options: msgspec.Raw = NOTHING
    tool_choice: msgspec.Raw = NOTHING
    truncation: msgspec.Raw = NOTHING
    user: msgspec.Raw = NOTHING
    frequency_penalty: msgspec.Raw = NOTHING
    ignore_eos: msgspec.Raw = NOTHING
    include_stop_str_in_output: msgspec.Raw = NOTHING
    logit_bias: msgspec.Raw = NOTHING
    min_p: msgspec.Raw = NOTHING
    presence_penalty: msgspec.Raw = NOTHING
    repetition_penalty: msgspec.Raw = NOTHING
    seed: msgspec.Raw = NOTHING
    skip_special_tokens: msgspec.Raw = NOTHING
    stop: msgspec.Raw = NOTHING
    stop_token_ids: msgspec.Raw = NOTHING
    structured_outputs: msgspec.Raw = NOTHING
    top_k: msgspec.Raw = NOTHING


class _ResponsesTool(msgspec.Struct):
    server_url: msgspec.Raw = NOTHING


_RESPONSES = msgspec.json.Decoder(ResponsesBody)
_RESPONSES_TOOLS = msgspec.json.Decoder(list[_ResponsesTool] | None)
_PARTS = msgspec.json.Decoder(list[ContentPart])


def _read_responses(body: bytes) -> Body:
    """Reads it as a chat whose stream reports its usage unasked."""
    given = _RESPONSES.decode(body)
    _check_stateless(given)
    if len(given.tools):
        _check_servers(given.tools)
    if not given.input:
        raise ApiError(400, "'input' is missing or empty.", param="input")
    messages = [_said("system", given.instructions)] if given.instructions else []
    if isinstance(given.input, str):
        messages.append(_said("user", given.input))
    else:
        messages += [_message(item) for item in given.input]
    return ChatBody(
        model=given.model,
        stream=given.stream,
        stream_options=StreamOptions(include_usage=True),
        priority=given.priority,
        service_tier=given.service_tier,
        cache_salt=given.cache_salt,
        temperature=given.temperature,
        response_format=ResponseFormat("json_object") if b"json" in bytes(given.text) else None,
        truncate_prompt_tokens=given.truncate_prompt_tokens,
        messages=messages,
        max_completion_tokens=given.max_output_tokens,
        tools=given.tools,
        vllm_xargs=given.vllm_xargs,
    )


def _message(item: InputItem) -> ChatMessage:
    if item.content is not None:
        return _said(item.role or "assistant", item.content)
    said = bytes(item.arguments) or bytes(item.output)
    if said.startswith(b"["):
        try:
            return _said(item.role or "tool", cast(list[ContentPart | str], _PARTS.decode(said)))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise ApiError(400, "'input': an output must be a text or an array of parts.", param="input") from None
    return _said(item.role or "tool", said.decode(errors="replace"))


def _said(role: str, content: str | list[ContentPart | str]) -> ChatMessage:
    """Returns a message to be measured; roles and kinds of parts, which are not a chat's, are the engine's to judge."""
    return ChatMessage(cast(Role, role), cast(list[ChatPart | str], content))


def _check_servers(tools: msgspec.Raw) -> None:
    """Raises ApiError 400 on a tool at an address of the client's choice."""
    try:
        found = _RESPONSES_TOOLS.decode(tools) or ()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise ApiError(400, "'tools' must be an array of objects.", param="tools") from None
    for place, tool in enumerate(found):
        if len(tool.server_url):
            raise ApiError(
                400,
                f"'tools[{place}].server_url' is not passed on: engines call no servers that clients name.",
                param="tools",
                code="unknown_field",
            )


def _check_stateless(given: ResponsesBody) -> None:
    """Raises ApiError 400 on what only the engine that gave an earlier response could serve, and only while it runs."""
    if given.previous_response_id is not None or bytes(given.conversation) not in (b"", b"null"):
        field = "conversation" if given.previous_response_id is None else "previous_response_id"
        raise ApiError(
            400, f"'{field}' is not kept here: send the conversation so far in 'input'.", param=field, code="not_kept"
        )
    if given.background:
        raise ApiError(
            400, "'background' responses are not kept here: leave it out, or use /v1/batches.", param="background"
        )


# -- all -------------------------------------------------------------------------------------------

COMPLETIONS = Endpoint(
    "completions",
    b"/v1/completions",
    CompletionBody,
    read_completion,
    "prompt",
    "max_tokens",
    continues=True,
)
CHAT = Endpoint(
    "chat",
    b"/v1/chat/completions",
    ChatBody,
    read_chat,
    "messages",
    "max_tokens",
    chat=True,
    continues=True,
)
EMBEDDINGS = Endpoint(
    "embeddings",
    b"/v1/embeddings",
    EmbeddingBody,
    read_embedding,
    "input",
    None,
    usage_of=pooling_usage,
    optional=True,
)
RESPONSES = Endpoint(
    "responses",
    b"/v1/responses",
    ResponsesBody,
    _read_responses,
    "input",
    "max_output_tokens",
    chat=True,
    output_field="output_tokens",
    usage_of=usage_of,
    meter=ResponsesMeter,
    error_event=error_event,
    optional=True,
)
RERANK = Endpoint(
    "rerank",
    b"/rerank",
    RerankBody,
    read_rerank,
    "documents",
    None,
    usage_of=pooling_usage,
    optional=True,
    also=(b"/v1/rerank", b"/v2/rerank"),
)
SCORE = Endpoint(
    "score",
    b"/score",
    ScoreBody,
    read_score,
    "text_2",
    None,
    usage_of=pooling_usage,
    optional=True,
    also=(b"/v1/score",),
)
ALL = (COMPLETIONS, CHAT, EMBEDDINGS, RESPONSES, RERANK, SCORE)
BY_PATH = {path: endpoint for endpoint in ALL for path in (endpoint.path, *endpoint.also)}

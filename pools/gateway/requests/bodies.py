"""The fields of a completion's body that are looked at: all others pass unread to the engine.

Types and bounds are those of OpenAI's API reference, so that a client hears of a mistake here as it would there, at the
price of the decoder's own comparisons. What vLLM adds to the API (`top_k`, `min_tokens`, `ignore_eos` ...) has no field
here and is the engine's to judge. In particular `vllm_xargs` (engine-specific arguments, among them a simulated
engine's true output length) has none, so nothing in the gateway can look at it.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

NOTHING = msgspec.Raw(b"")

MAX_ANSWERS = 128
MAX_BIASES = 1024
MAX_TOOLS = 128

Tokens = Annotated[int, Meta(ge=1)]
Temperature = Annotated[float, Meta(ge=0, le=2)]
Probability = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
TopLogprobs = Annotated[int, Meta(ge=0, le=20)]
TokenId = Annotated[str, Meta(pattern="^[0-9]+$")]
Bias = Annotated[float, Meta(ge=-100, le=100)]
Biases = Annotated[
    dict[TokenId, Bias],
    Meta(
        max_length=MAX_BIASES,
        description=f"an object of at most {MAX_BIASES} token ids, each with a number from -100 to 100",
    ),
]
Stops = Annotated[list[str], Meta(max_length=4, description="an array of at most 4 texts")]

Role = Literal["developer", "system", "user", "assistant", "tool", "function"]
# OpenAI's parts of a chat's message, and those that vLLM knows beside them.
_OwnPart = Literal["text", "image_url", "input_audio", "file", "refusal"]
_VllmPart = Literal[
    "image_embeds", "image_pil", "audio_url", "audio_embeds", "video_url", "thinking", "input_text", "output_text",
    "input_image",
]  # fmt: skip
PartType = Literal[_OwnPart, _VllmPart]
FormatType = Literal["text", "json_object", "json_schema", "structural_tag"]  # the last is vLLM's
ToolChoice = Literal["none", "auto", "required"]


Prompt = Annotated[str | list[int | str | list[int]] | None, Meta(description="a text, token ids, or a list of either")]


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class JsonSchema(msgspec.Struct):
    name: Annotated[str, Meta(pattern="^[a-zA-Z0-9_-]{1,64}$", description="1 to 64 of A-Z a-z 0-9 _ -")]
    schema: dict[str, msgspec.Raw] | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct):
    type: FormatType
    json_schema: JsonSchema | None = None


class _Body(msgspec.Struct):
    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | UnsetType | None = UNSET
    max_tokens: Tokens | UnsetType | None = UNSET
    priority: int | UnsetType | None = UNSET  # vLLM's, lower first: a hint for the queue at the gateway
    service_tier: str | UnsetType | None = UNSET
    n: Annotated[int, Meta(ge=1, le=MAX_ANSWERS)] | None = None
    stop: str | Stops | None = None
    temperature: Temperature | None = None
    top_p: Probability | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: Biases | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    user: str | None = None
    response_format: ResponseFormat | None = None
    truncate_prompt_tokens: msgspec.Raw = NOTHING  # vLLM's: what is too long is cut


class CompletionBody(_Body):
    prompt: Prompt = None
    logprobs: Annotated[int, Meta(ge=0, le=5)] | None = None
    best_of: Annotated[int, Meta(ge=0, le=20)] | None = None
    echo: bool | None = None
    suffix: str | None = None


class ContentPart(msgspec.Struct):
    type: str | None = None
    text: str | None = None


class ChatPart(msgspec.Struct):
    type: PartType
    text: str | None = None


class ChatMessage(msgspec.Struct):
    """`content` None: the message is only what the assistant asked of tools. vLLM takes texts in place of parts."""

    role: Role
    content: str | list[ChatPart | str] | None = None
    name: str | None = None


class ChatBody(_Body):
    messages: list[ChatMessage] | None = None
    max_completion_tokens: Tokens | None = None
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None
    parallel_tool_calls: bool | None = None
    tool_choice: ToolChoice | dict[str, msgspec.Raw] | None = None
    reasoning_effort: str | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None
    tools: msgspec.Raw = NOTHING

"""The fields of a completion's body that may reach an engine, each by its type where the gateway looks at it.

Types and bounds are those of OpenAI's API reference, so that a client hears of a mistake here as it would there, at the
price of the decoder's own comparisons. `Raw` is what is the engine's to judge: OpenAI's fields without a bound, and
what vLLM adds to the API and does no more than shape the answer. A field that stands in no list is refused; so are
those of vLLM's that read addresses or tensors, run templates, name code or take over KV caches. What `vllm_xargs` holds
(among it a simulated engine's true output length) is for the engine: the gateway looks at its members' names alone.
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
CacheSalt = Annotated[str, Meta(min_length=1, max_length=1024, description="a text of 1 to 1024 characters")]
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
    "audio_url", "video_url", "thinking", "input_text", "output_text", "input_image",
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


class _Body(msgspec.Struct, forbid_unknown_fields=True):
    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | UnsetType | None = UNSET
    max_tokens: Tokens | UnsetType | None = UNSET
    priority: int | UnsetType | None = UNSET  # vLLM's, lower first: a hint for the queue at the gateway
    service_tier: str | UnsetType | None = UNSET
    cache_salt: CacheSalt | UnsetType | None = UNSET  # vLLM's: who sends another shares no prefix with it
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
    vllm_xargs: msgspec.Raw = NOTHING
    # vLLM's sampling, and what it tells of an answer.
    add_special_tokens: msgspec.Raw = NOTHING
    allowed_token_ids: msgspec.Raw = NOTHING
    bad_words: msgspec.Raw = NOTHING
    guided_choice: msgspec.Raw = NOTHING
    guided_grammar: msgspec.Raw = NOTHING
    guided_json: msgspec.Raw = NOTHING
    guided_regex: msgspec.Raw = NOTHING
    guided_whitespace_pattern: msgspec.Raw = NOTHING
    ignore_eos: msgspec.Raw = NOTHING
    include_stop_str_in_output: msgspec.Raw = NOTHING
    length_penalty: msgspec.Raw = NOTHING
    min_p: msgspec.Raw = NOTHING
    min_tokens: msgspec.Raw = NOTHING
    prompt_logprobs: msgspec.Raw = NOTHING
    repetition_penalty: msgspec.Raw = NOTHING
    return_token_ids: msgspec.Raw = NOTHING
    return_tokens_as_token_ids: msgspec.Raw = NOTHING
    skip_special_tokens: msgspec.Raw = NOTHING
    spaces_between_special_tokens: msgspec.Raw = NOTHING
    stop_token_ids: msgspec.Raw = NOTHING
    structured_outputs: msgspec.Raw = NOTHING
    top_k: msgspec.Raw = NOTHING
    use_beam_search: msgspec.Raw = NOTHING


class CompletionBody(_Body):
    prompt: Prompt = None
    logprobs: Annotated[int, Meta(ge=0, le=5)] | None = None
    best_of: Annotated[int, Meta(ge=0, le=20)] | None = None
    echo: bool | None = None
    suffix: str | None = None


class ContentPart(msgspec.Struct):
    type: str | None = None
    text: str | None = None
    image_url: msgspec.Raw = NOTHING
    audio_url: msgspec.Raw = NOTHING
    video_url: msgspec.Raw = NOTHING
    file_url: msgspec.Raw = NOTHING


class ChatPart(msgspec.Struct):
    type: PartType
    text: str | None = None
    image_url: msgspec.Raw = NOTHING
    audio_url: msgspec.Raw = NOTHING
    video_url: msgspec.Raw = NOTHING
    file_url: msgspec.Raw = NOTHING


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
    chat_template_kwargs: msgspec.Raw = NOTHING  # vLLM's
    # OpenAI's.
    audio: msgspec.Raw = NOTHING
    function_call: msgspec.Raw = NOTHING
    functions: msgspec.Raw = NOTHING
    modalities: msgspec.Raw = NOTHING
    prediction: msgspec.Raw = NOTHING
    prompt_cache_key: msgspec.Raw = NOTHING
    prompt_cache_retention: msgspec.Raw = NOTHING
    safety_identifier: msgspec.Raw = NOTHING
    verbosity: msgspec.Raw = NOTHING
    web_search_options: msgspec.Raw = NOTHING
    # vLLM's.
    add_generation_prompt: msgspec.Raw = NOTHING
    continue_final_message: msgspec.Raw = NOTHING
    documents: msgspec.Raw = NOTHING
    echo: msgspec.Raw = NOTHING
    include_reasoning: msgspec.Raw = NOTHING
    thinking_token_budget: msgspec.Raw = NOTHING

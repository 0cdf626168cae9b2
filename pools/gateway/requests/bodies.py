"""The fields of a completion's body that the gateway needs: all others pass unread to the engine.

In particular `vllm_xargs` (engine-specific arguments, among them a simulated engine's true output length) has no
field here, so nothing in the gateway can look at it.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

NOTHING = msgspec.Raw(b"")


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class _Body(msgspec.Struct):
    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | UnsetType | None = UNSET
    max_tokens: int | UnsetType | None = UNSET
    priority: int | UnsetType | None = UNSET  # vLLM's, lower first: a hint for the queue at the gateway
    service_tier: str | UnsetType | None = UNSET
    # Hints for predicting lengths, read as they come: what is wrong with them the engine says. Empty: not given.
    n: msgspec.Raw = NOTHING
    stop: msgspec.Raw = NOTHING
    temperature: msgspec.Raw = NOTHING
    response_format: msgspec.Raw = NOTHING
    truncate_prompt_tokens: msgspec.Raw = NOTHING  # vLLM's: what is too long is cut


class CompletionBody(_Body):
    prompt: str | list[int | str | list[int]] | None = None


class ContentPart(msgspec.Struct):
    type: str | None = None
    text: str | None = None


class ChatMessage(msgspec.Struct):
    role: str
    content: str | list[ContentPart | str] | None = None


class ChatBody(_Body):
    messages: list[ChatMessage] | None = None
    max_completion_tokens: int | None = None
    tools: msgspec.Raw = NOTHING

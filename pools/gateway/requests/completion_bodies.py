"""Reads the bodies of completions and chats: each field by its type, and then those that depend on one another."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from ..errors import ApiError
from .bodies import MAX_TOOLS, ChatBody, ChatMessage, CompletionBody
from .field_errors import field_error

# Only these may have nothing to say: the assistant asks for tools, a function has answered nothing.
_MAY_BE_SILENT = frozenset({"assistant", "function"})


class _Function(msgspec.Struct):
    name: Annotated[str, Meta(pattern="^[a-zA-Z0-9_-]{1,64}$", description="1 to 64 of A-Z a-z 0-9 _ -")]


class _Tool(msgspec.Struct):
    type: Literal["function", "custom"]
    function: _Function | None = None


_Tools = Annotated[list[_Tool], Meta(max_length=MAX_TOOLS)]


class _WithTools(msgspec.Struct):
    tools: _Tools | None = None


_COMPLETION = msgspec.json.Decoder(CompletionBody)
_CHAT = msgspec.json.Decoder(ChatBody)
_TOOLS = msgspec.json.Decoder(_Tools | None)
_WITH_TOOLS = msgspec.json.Decoder(_WithTools)


def read_completion(body: bytes) -> CompletionBody:
    """Raises msgspec's errors, and ApiError 400."""
    given = _COMPLETION.decode(body)
    if (given.stream_options and not given.stream) or given.response_format is not None:
        _check_both(given)
    if given.best_of is not None and given.best_of < (given.n or 1):
        _refuse("best_of", f"must be at least 'n', {given.n or 1}, not {given.best_of}")
    return given


def read_chat(body: bytes) -> ChatBody:
    """Raises msgspec's errors, and ApiError 400."""
    given = _CHAT.decode(body)
    if (given.stream_options and not given.stream) or given.response_format is not None:
        _check_both(given)
    if given.top_logprobs is not None and not given.logprobs:
        _refuse("top_logprobs", "may only be given with 'logprobs': true")
    if len(given.tools):
        _check_tools(given.tools, body)
    return given


def _check_both(given: CompletionBody | ChatBody) -> None:
    if given.stream_options and not given.stream:
        _refuse("stream_options", "may only be given with 'stream': true")
    wanted = given.response_format
    if wanted is not None and wanted.type == "json_schema" and wanted.json_schema is None:
        _refuse("response_format", "of type 'json_schema' must have a 'json_schema', with a 'name'")


def check_silence(message: ChatMessage, place: int) -> None:
    """Raises ApiError 400 where a message without content may not be without it."""
    if message.content is None and message.role not in _MAY_BE_SILENT:
        _refuse("messages", "must be a text or an array of parts, not null", f"messages[{place}].content")
    if message.content == []:
        _refuse("messages", "must be a text or an array of at least one part", f"messages[{place}].content")


def _check_tools(tools: msgspec.Raw, body: bytes) -> None:
    try:
        found = _TOOLS.decode(tools)
    except msgspec.ValidationError:
        try:
            found = _WITH_TOOLS.decode(body).tools  # for the whole path of what is wrong
        except msgspec.ValidationError as error:
            raise field_error(error, body, _WithTools) from None
    for place, tool in enumerate(found or ()):
        if tool.type == "function" and tool.function is None:
            _refuse("tools", "is missing: it must be an object with a 'name'", f"tools[{place}].function")


def _refuse(field: str, why: str, path: str = "") -> None:
    raise ApiError(400, f"'{path or field}' {why}.", param=field)

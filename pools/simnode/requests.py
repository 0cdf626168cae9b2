"""Reads the bodies that vLLM's API takes and refuses bad ones as vLLM does."""

from __future__ import annotations

import zlib
from typing import Any

import msgspec

_UNSET_COMPLETION_TOKENS = 16  # the API's default of max_tokens for /v1/completions
_LONGEST_MADE_UP_OUTPUT = 512  # where the body does not say how long the output truly is


class RequestError(Exception):
    """A request that is refused: HTTP status, the API's error type, a message, and the field at fault if known."""

    def __init__(self, status: int, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.param = param

    @property
    def kind(self) -> str:
        return {404: "NotFoundError", 503: "ServiceUnavailableError"}.get(self.status, "BadRequestError")


class _StreamOptions(msgspec.Struct):
    include_usage: bool = False


class _Body(msgspec.Struct):
    model: str
    stream: bool = False
    stream_options: _StreamOptions | None = None
    n: int | None = 1
    ignore_eos: bool = False
    vllm_xargs: dict[str, Any] | None = None


class _CompletionBody(_Body, kw_only=True):
    prompt: str | list[int | str | list[int]]
    max_tokens: int | None = _UNSET_COMPLETION_TOKENS


class _ChatMessage(msgspec.Struct):
    role: str
    content: str | list[dict[str, Any]] | None = None


class _ChatBody(_Body, kw_only=True):
    messages: list[_ChatMessage]
    max_tokens: int | None = None
    max_completion_tokens: int | None = None


class Ask(msgspec.Struct, frozen=True):
    """A request, understood: what the engine needs of it. `finish`: length | stop."""

    chat: bool
    stream: bool
    include_usage: bool
    prompt_tokens: int
    output_tokens: int
    finish: str
    seed: int  # of the made-up text


_completion = msgspec.json.Decoder(_CompletionBody)
_chat = msgspec.json.Decoder(_ChatBody)


def read_completion(data: bytes, model: str, max_model_len: int) -> Ask:
    """Raises RequestError."""
    body = _decode(_completion, data)
    tokens = _prompt_tokens(body.prompt)
    return _ask(
        body, False, tokens, body.max_tokens, model, max_model_len, zlib.crc32(msgspec.json.encode(body.prompt))
    )


def read_chat(data: bytes, model: str, max_model_len: int) -> Ask:
    """Raises RequestError."""
    body = _decode(_chat, data)
    if not body.messages:
        raise RequestError(400, "messages must not be empty", "messages")
    texts = [_message_text(message) for message in body.messages]
    # A chat template adds a few tokens to each message: role and separators.
    tokens = sum(_text_tokens(text) + 4 for text in texts)
    limit = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
    return _ask(body, True, tokens, limit, model, max_model_len, zlib.crc32("\n".join(texts).encode()))


def _decode(decoder: msgspec.json.Decoder[Any], data: bytes) -> Any:
    try:
        return decoder.decode(data)
    except msgspec.ValidationError as error:
        path = str(error).rpartition("`$.")[2].partition("`")[0] if "`$." in str(error) else ""
        raise RequestError(400, str(error), path.partition("[")[0] or None) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestError(400, f"the body is not valid JSON: {error}") from None


def _text_tokens(text: str) -> int:
    """No tokenizer of a gated model is to be had: four bytes of text count as a token, rounded up."""
    return max(1, -(-len(text.encode()) // 4))


def _prompt_tokens(prompt: str | list[int | str | list[int]]) -> int:
    if isinstance(prompt, str):
        return _text_tokens(prompt)
    if prompt and all(type(item) is int for item in prompt):
        return len(prompt)
    if len(prompt) == 1:
        only = prompt[0]
        if isinstance(only, str):
            return _text_tokens(only)
        if isinstance(only, list) and only:
            return len(only)
    raise RequestError(400, "prompt must be one text or one list of token ids, and not empty", "prompt")


def _message_text(message: _ChatMessage) -> str:
    if isinstance(message.content, str):
        return message.content
    parts = message.content or []
    if any(not isinstance(part.get("text"), str) for part in parts):
        raise RequestError(400, "only text content is served", "messages")
    return "".join(part["text"] for part in parts)


def _ask(
    body: _Body, chat: bool, prompt_tokens: int, limit: int | None, model: str, max_model_len: int, seed: int
) -> Ask:
    if body.model != model:
        raise RequestError(404, f"The model `{body.model}` does not exist.", "model")
    if body.n not in (None, 1):
        raise RequestError(400, "n must be 1", "n")
    if body.stream_options is not None and not body.stream:
        raise RequestError(400, "stream_options is only allowed with stream", "stream_options")
    room = max_model_len - prompt_tokens
    if room < 1:
        raise RequestError(
            400,
            f"The maximum context length is {max_model_len} tokens; the prompt has {prompt_tokens} and leaves no room "
            "for output.",
            "prompt" if not chat else "messages",
        )
    if limit is not None and limit < 1:
        raise RequestError(400, f"max_tokens must be at least 1, got {limit}", "max_tokens")
    if limit is not None and limit > room:
        raise RequestError(
            400,
            f"max_tokens is too large: the maximum context length is {max_model_len} tokens, the prompt has "
            f"{prompt_tokens} and max_tokens asks for {limit}.",
            "max_tokens",
        )
    limit = room if limit is None else limit
    true_tokens = limit if body.ignore_eos else _true_output_tokens(body, limit, seed)
    stops = true_tokens <= limit and not body.ignore_eos
    return Ask(
        chat=chat,
        stream=body.stream,
        include_usage=body.stream_options is not None and body.stream_options.include_usage,
        prompt_tokens=prompt_tokens,
        output_tokens=min(true_tokens, limit),
        finish="stop" if stops else "length",
        seed=seed,
    )


def _true_output_tokens(body: _Body, limit: int, seed: int) -> int:
    """Where the model would stop by itself: told by a replayed trace, else made up from the prompt."""
    told = (body.vllm_xargs or {}).get("sim_output_tokens")
    if told is None:
        return 1 + seed % min(limit, _LONGEST_MADE_UP_OUTPUT)
    if type(told) is not int or told < 1:
        raise RequestError(400, "vllm_xargs.sim_output_tokens must be a whole number of at least 1", "vllm_xargs")
    return told

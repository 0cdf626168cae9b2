"""Reads the bodies that vLLM's API takes and refuses bad ones as vLLM does."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from typing import Any

import msgspec

from . import generated_text

_UNSET_COMPLETION_TOKENS = 16  # the API's default of max_tokens for /v1/completions
_LONGEST_MADE_UP_OUTPUT = 512  # where the body does not say how long the output truly is


class RequestError(Exception):
    """A request that is refused: HTTP status, the API's error type, a message, and the field at fault if known.

    `retry_after_s`: when it may be tried again, for the Retry-After header.
    """

    def __init__(self, status: int, message: str, param: str | None = None, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.retry_after_s = retry_after_s

    @property
    def kind(self) -> str:
        named = {404: "NotFoundError", 500: "InternalServerError", 503: "ServiceUnavailableError"}
        return named.get(self.status, "BadRequestError")


class _StreamOptions(msgspec.Struct):
    include_usage: bool = False


class TransferParams(msgspec.Struct, frozen=True):
    """`kv_transfer_params`, as vLLM's NIXL connector has them; the last two are ours.

    With `do_remote_decode` the engine keeps the cache of a request that ends by its length, and answers with the
    parameters for the engine that goes on; with `do_remote_prefill` (and those parameters) it goes on. Ours:
    `prefill_tokens` stops after so many tokens of the prompt, before any output; `chunk_tokens` sends the cache in
    chunks of so many tokens while the next ones are computed, instead of all of it at the end.
    """

    do_remote_decode: bool = False
    do_remote_prefill: bool = False
    remote_engine_id: str | None = None
    remote_request_id: str | None = None
    remote_block_ids: list[Any] | None = None
    remote_host: str | None = None
    remote_port: int | None = None
    remote_num_tokens: int | None = None
    tp_size: int | None = None
    prefill_tokens: int | None = None
    chunk_tokens: int | None = None

    @property
    def fetches(self) -> bool:
        """Whether there is a cache to fetch: it is so unless a prefill left no block."""
        return self.do_remote_prefill and bool(self.remote_block_ids)


class _Body(msgspec.Struct):
    model: str
    stream: bool = False
    stream_options: _StreamOptions | None = None
    n: int | None = 1
    ignore_eos: bool = False
    priority: int = 0
    return_token_ids: bool | None = False
    kv_transfer_params: TransferParams | None = None
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
    add_generation_prompt: bool = True
    continue_final_message: bool = False


class Ask(msgspec.Struct, frozen=True):
    """A request, understood: what the engine needs of it. `finish`: length | stop. `model`: as it was asked for."""

    chat: bool
    stream: bool
    include_usage: bool
    prompt: generated_text.Prompt
    output_tokens: int
    finish: str
    model: str
    priority: int = 0
    return_token_ids: bool = False
    transfer: TransferParams = TransferParams()

    @property
    def prompt_tokens(self) -> int:
        return self.prompt.tokens

    @property
    def prefill_tokens(self) -> int:
        """The number of prompt tokens that are to be computed here."""
        return self.transfer.prefill_tokens or self.prompt.tokens


_completion = msgspec.json.Decoder(_CompletionBody)
_chat = msgspec.json.Decoder(_ChatBody)


def read_completion(data: bytes, models: Collection[str], max_model_len: int) -> Ask:
    """Reads a request by one of the names that are served. Raises RequestError."""
    body = _decode(_completion, data)
    return _ask(body, False, _prompt(body.prompt), body.max_tokens, models, max_model_len)


def read_chat(data: bytes, models: Collection[str], max_model_len: int) -> Ask:
    """Reads a request by one of the names that are served. Raises RequestError."""
    body = _decode(_chat, data)
    if not body.messages:
        raise RequestError(400, "messages must not be empty", "messages")
    if body.continue_final_message and body.add_generation_prompt:
        message = "Cannot set both `continue_final_message` and `add_generation_prompt` to True."
        raise RequestError(400, message, "continue_final_message")
    prompt = generated_text.of_chat([(m.role, _message_text(m)) for m in body.messages], body.continue_final_message)
    limit = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
    return _ask(body, True, prompt, limit, models, max_model_len)


def _decode(decoder: msgspec.json.Decoder[Any], data: bytes) -> Any:
    try:
        return decoder.decode(data)
    except msgspec.ValidationError as error:
        path = str(error).rpartition("`$.")[2].partition("`")[0] if "`$." in str(error) else ""
        raise RequestError(400, str(error), path.partition("[")[0] or None) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestError(400, f"the body is not valid JSON: {error}") from None


def _prompt(prompt: str | list[int | str | list[int]]) -> generated_text.Prompt:
    only = prompt[0] if isinstance(prompt, list) and len(prompt) == 1 else prompt
    if isinstance(only, str):
        return generated_text.of_text(only)
    ids = only if isinstance(only, list) else prompt
    if not ids or any(type(item) is not int for item in ids):
        raise RequestError(400, "prompt must be one text or one list of token ids, and not empty", "prompt")
    if not 0 <= min(ids) <= max(ids) <= generated_text.LAST_ID:  # type: ignore[operator]  # whole numbers all
        raise RequestError(400, f"a token id of the prompt is not within 0 and {generated_text.LAST_ID}", "prompt")
    return generated_text.of_ids(ids)  # type: ignore[arg-type]


def _message_text(message: _ChatMessage) -> str:
    if isinstance(message.content, str):
        return message.content
    parts = message.content or []
    if any(not isinstance(part.get("text"), str) for part in parts):
        raise RequestError(400, "only text content is served", "messages")
    return "".join(part["text"] for part in parts)


def _ask(
    body: _Body,
    chat: bool,
    prompt: generated_text.Prompt,
    limit: int | None,
    models: Collection[str],
    max_model_len: int,
) -> Ask:
    if body.model not in models:
        raise RequestError(404, f"The model `{body.model}` does not exist.", "model")
    if body.n not in (None, 1):
        raise RequestError(400, "n must be 1", "n")
    if body.stream_options is not None and not body.stream:
        raise RequestError(400, "stream_options is only allowed with stream", "stream_options")
    limit = _limit(limit, prompt.tokens, max_model_len, "messages" if chat else "prompt")
    transfer = body.kv_transfer_params or TransferParams()
    _check_transfer(transfer, prompt.tokens)
    # Where the model would stop by itself, from here on. At least one token: the end of the answer is one too.
    left = limit if body.ignore_eos else max(1, _true_output_tokens(body, prompt.origin) - prompt.written)
    stops = left <= limit and not body.ignore_eos
    partial = transfer.prefill_tokens is not None
    return Ask(
        chat=chat,
        stream=body.stream,
        include_usage=body.stream_options is not None and body.stream_options.include_usage,
        prompt=prompt,
        output_tokens=0 if partial else min(left, limit),
        finish="stop" if stops and not partial else "length",
        model=body.model,
        priority=body.priority,
        return_token_ids=bool(body.return_token_ids),
        transfer=transfer,
    )


def _limit(limit: int | None, prompt_tokens: int, max_model_len: int, prompt_field: str) -> int:
    """Returns the most tokens that may come out."""
    room = max_model_len - prompt_tokens
    if room < 1:
        raise RequestError(
            400,
            f"The maximum context length is {max_model_len} tokens; the prompt has {prompt_tokens} and leaves no room "
            "for output.",
            prompt_field,
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
    return room if limit is None else limit


def _check_transfer(transfer: TransferParams, prompt_tokens: int) -> None:
    field = "kv_transfer_params"
    only = (transfer.prefill_tokens, transfer.chunk_tokens)
    if only != (None, None) and not transfer.do_remote_decode:
        raise RequestError(400, "prefill_tokens and chunk_tokens need do_remote_decode", field)
    if transfer.prefill_tokens is not None and not 1 <= transfer.prefill_tokens < prompt_tokens:
        raise RequestError(400, f"prefill_tokens is from 1 to less than the prompt's {prompt_tokens} tokens", field)
    if transfer.chunk_tokens is not None and transfer.chunk_tokens < 1:
        raise RequestError(400, "chunk_tokens is at least 1", field)
    if not transfer.fetches:
        return
    if None in (transfer.remote_engine_id, transfer.remote_request_id, transfer.remote_host, transfer.remote_port):
        raise RequestError(
            400, "do_remote_prefill needs remote_engine_id, remote_request_id, remote_host and remote_port", field
        )
    if not _is_loopback(transfer.remote_host or "") or not 1 <= (transfer.remote_port or 0) <= 65535:
        # Whoever may send requests must not make this process call hosts of their choice.
        raise RequestError(400, "simulated engines fetch from other simulated engines only, on loopback", field)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _true_output_tokens(body: _Body, origin: int) -> int:
    """How long the whole answer is, what the prompt has of it included: given by a replayed trace, else made up."""
    wanted = (body.vllm_xargs or {}).get("sim_output_tokens")
    if wanted is None:
        return 1 + origin % _LONGEST_MADE_UP_OUTPUT
    if type(wanted) is not int or wanted < 1:
        raise RequestError(400, "vllm_xargs.sim_output_tokens must be a whole number of at least 1", "vllm_xargs")
    return wanted

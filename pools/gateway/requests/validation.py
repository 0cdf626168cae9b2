"""What a body must hold, and what it asks for: read once, checked, and made into what the engine gets."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import NamedTuple

import msgspec
from msgspec import UNSET

from core.types import Limits

from ..errors import ApiError, bad_body
from .bodies import ChatBody, CompletionBody, StreamOptions
from .client_fields import ClientFields
from .completion_bodies import check_silence
from .endpoint import Endpoint
from .field_errors import field_error, unknown_field
from .pooling_bodies import PairsBody

# What engines generate when a completion names no limit (OpenAI's default, vLLM's too); chat has none.
DEFAULT_COMPLETION_TOKENS = 16
# A text's tokens are estimated; only what would be too long at half the estimate is refused here. The engine,
# which has the tokenizer, decides the rest.
ESTIMATE_MARGIN = 2.0
LIMIT_HEADERS = b"x-slo-ttft-ms", b"x-slo-tpot-ms"
CONTINUE_HEADER = b"x-greenserve-continue"
TIERS = ("auto", "default", "flex", "scale", "priority")

_INCLUDE_USAGE = b'"stream_options":{"include_usage":true},'


class _ModelOnly(msgspec.Struct):
    model: str | None = None


_MODEL_ONLY = msgspec.json.Decoder(_ModelOnly)


class Prompt(NamedTuple):
    """The length of a prompt. `tokens` counts token ids; `text_bytes` is UTF-8 text whose tokens must be estimated.

    `longest_ids` is the longest single prompt of token ids, `longest_bytes` of text: a body may carry several prompts.
    """

    tokens: int
    text_bytes: int
    longest_ids: int
    longest_bytes: int = 0


_STRICT = ClientFields()


def decode(body: bytes, endpoint: Endpoint, allowed: ClientFields = _STRICT) -> CompletionBody | ChatBody:
    """Parses a body. Raises ApiError 400 naming the field where one is at fault."""
    try:
        if not body.isascii():
            body.decode()  # the decoder does not look into members that it has no type for
        try:
            found = endpoint.read(body)
        except msgspec.ValidationError as error:
            if unknown_field(error) not in allowed.more:
                raise
            found = endpoint.read(allowed.without(body, endpoint.shape))  # one that the operator lets through
        allowed.check(found)
        return found
    except msgspec.ValidationError as error:
        raise field_error(error, body, endpoint.shape) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise bad_body(error) from None


def model_of(body: bytes) -> str | None:
    """Returns the model that a body which failed `decode` names, so that the refusal is recorded with its service."""
    try:
        return _MODEL_ONLY.decode(body).model
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def measure_prompt(body: CompletionBody | ChatBody, field: str = "prompt") -> Prompt:
    """Counts what there is to read. Raises ApiError 400 when there is nothing, or not what a prompt may be.

    Args:
        field: What the client calls a prompt that is no chat.
    """
    if isinstance(body, ChatBody):
        return _measure_messages(body)
    prompt = _measure_prompt(body.prompt, field)
    return _with_shared(prompt, body) if isinstance(body, PairsBody) else prompt


def _with_shared(prompt: Prompt, body: PairsBody) -> Prompt:
    """Counts the text that a model reads anew before each of its prompts."""
    shared = _utf8_bytes(body.shared)
    count = len(body.prompt or ())
    return Prompt(0, prompt.text_bytes + count * shared, 0, prompt.longest_bytes + shared)


def _measure_messages(body: ChatBody) -> Prompt:
    if not body.messages:
        raise ApiError(400, "'messages' must hold at least one message.", param="messages")
    text = 0
    for message in body.messages:
        content = message.content
        if isinstance(content, str):
            text += _utf8_bytes(content)
        elif not content:
            check_silence(message, body.messages.index(message))
        else:
            text += sum(_utf8_bytes(part if isinstance(part, str) else part.text or "") for part in content)
    return Prompt(0, max(1, text), 0, max(1, text))


def _measure_prompt(prompt: str | list[int | str | list[int]] | None, field: str) -> Prompt:
    if not prompt:
        raise ApiError(400, f"'{field}' is missing or empty.", param=field)
    if isinstance(prompt, str):
        size = _utf8_bytes(prompt)
        return Prompt(0, size, 0, size)
    kind = type(prompt[0])
    if any(type(item) is not kind for item in prompt):
        raise ApiError(400, f"'{field}' must be a text, token ids, or a list of either.", param=field)
    if kind is int:
        return _token_prompts([prompt], field)  # type: ignore[list-item]
    if not all(prompt):
        raise ApiError(400, f"'{field}' holds an empty text or list.", param=field)
    if kind is list:
        return _token_prompts(prompt, field)  # type: ignore[arg-type]
    sizes = [_utf8_bytes(text) for text in prompt if isinstance(text, str)]
    return Prompt(0, sum(sizes), 0, max(sizes))


def _token_prompts(prompts: list[list[int]], field: str) -> Prompt:
    if any(min(ids) < 0 for ids in prompts):
        raise ApiError(400, "Token ids must not be negative.", param=field)
    lengths = [len(ids) for ids in prompts]
    return Prompt(sum(lengths), 0, max(lengths))


def _utf8_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def max_tokens(body: CompletionBody | ChatBody) -> int | None:
    """Returns the limit that the client set, if any."""
    limit = None if body.max_tokens is UNSET else body.max_tokens
    newer = body.max_completion_tokens if isinstance(body, ChatBody) else None
    return limit if newer is None else newer


def output_bound(body: CompletionBody | ChatBody, limit: int | None) -> int | None:
    """Returns the most tokens that the engine will generate; None when only the context length bounds it."""
    if limit is None and isinstance(body, CompletionBody) and body.max_tokens is UNSET:
        return DEFAULT_COMPLETION_TOKENS
    return limit


def check_length(
    prompt: Prompt, estimated_tokens: int, limit: int | None, max_model_len: int, endpoint: Endpoint
) -> None:
    """Refuses what surely cannot fit into the context. Raises ApiError 400 with what was asked and what there is.

    Args:
        estimated_tokens: Of all prompts of the body together.
    """
    shown = prompt.longest_ids
    if not shown:  # the longest text's share
        shown = round(estimated_tokens * prompt.longest_bytes / max(1, prompt.text_bytes))
    floor = prompt.longest_ids or int(shown / ESTIMATE_MARGIN)
    about = "" if prompt.longest_ids else "about "
    if floor >= max_model_len:
        raise ApiError(
            400,
            f"This model's context holds {max_model_len} tokens; the prompt alone has {about}{shown}.",
            param=endpoint.prompt_field,
            code="context_length_exceeded",
        )
    if limit is not None and floor + limit > max_model_len:
        raise ApiError(
            400,
            f"This model's context holds {max_model_len} tokens; the prompt has {about}{shown} and {limit} more were "
            "asked for.",
            param=endpoint.limit_field,
            code="context_length_exceeded",
        )


def cuts_prompt(body: CompletionBody | ChatBody) -> bool:
    """Says whether the engine is to cut a prompt that is too long."""
    return bytes(body.truncate_prompt_tokens) not in (b"", b"null")


def own_limits(headers: Mapping[bytes, bytes]) -> Limits | None:
    """Returns the limits that the request asks for; None: it asks for none.

    Raises ApiError 400 naming the header.
    """
    ttft_s, tpot_s = (_seconds(header, headers.get(header)) for header in LIMIT_HEADERS)
    return None if ttft_s is None and tpot_s is None else Limits(ttft_s, tpot_s)


def _seconds(header: bytes, value: bytes | None) -> float | None:
    if value is None:
        return None
    try:
        found = float(value)
    except ValueError:
        found = 0.0
    if not 0.0 < found < math.inf:
        name = header.decode()
        raise ApiError(400, f"'{name}' must be a number of milliseconds above 0, like 500.", param=name)
    return found / 1000.0


def own_priority(body: CompletionBody | ChatBody) -> int:
    return body.priority if isinstance(body.priority, int) else 0


def own_continuation(headers: Mapping[bytes, bytes], body: CompletionBody | ChatBody) -> bool:
    """Says whether the request is to go on with another engine when its own dies.

    Raises ApiError 400 when another engine would not write the same.
    """
    if headers.get(CONTINUE_HEADER, b"").lower() not in (b"true", b"1"):
        return False
    if body.temperature != 0.0:
        raise ApiError(
            400,
            "'x-greenserve-continue' is for deterministic requests: set 'temperature' to 0.",
            param="x-greenserve-continue",
        )
    return True


def own_tier(body: CompletionBody | ChatBody) -> str | None:
    """Returns OpenAI's service tier. Raises ApiError 400 on one that it does not have."""
    tier = body.service_tier
    if tier is None or tier is UNSET:
        return None
    if tier not in TIERS:
        raise ApiError(400, f"'service_tier' must be one of {', '.join(TIERS)}.", param="service_tier")
    return str(tier)


def cache_salt(parsed: CompletionBody | ChatBody, tenant_salt: str) -> str:
    """Returns what the engine keeps the prompt's prefixes apart by; empty: nothing.

    A client's own parts its prefixes from others of its tenant. It is hashed with the tenant's, so that no client can
    send another tenant's.
    """
    own = parsed.cache_salt if isinstance(parsed.cache_salt, str) else ""
    if not own or not tenant_salt:
        return own or tenant_salt
    key = bytes.fromhex(tenant_salt)
    return hashlib.blake2b(own.encode("utf-8", "surrogatepass"), key=key, digest_size=32).hexdigest()


def relayed_body(
    body: bytes, parsed: CompletionBody | ChatBody, engine_model: str, salt: str = ""
) -> tuple[bytes, bool]:
    """The body for the engine, and whether usage was added to a stream whose client did not ask for it.

    A stream always asks the engine for usage, since records need token counts. The engine's own name of the model
    replaces the service's, and `salt`, which `cache_salt` gives, the client's. Fields that the gateway does not look at
    are copied as they are.
    """
    options = parsed.stream_options
    wants_usage = isinstance(options, StreamOptions) and bool(options.include_usage)
    add_usage = bool(parsed.stream) and not wants_usage
    ours = parsed.priority is not UNSET or parsed.service_tier is not UNSET or parsed.cache_salt is not UNSET
    if parsed.model == engine_model and not ours and not (add_usage and options is not UNSET):
        more = b'"cache_salt":"%b",' % salt.encode() if salt else b""
        if add_usage:
            more += _INCLUDE_USAGE
        if not more:
            return body, False
        brace = body.index(b"{") + 1
        return body[:brace] + more + body[brace:], add_usage
    fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    fields["model"] = msgspec.Raw(msgspec.json.encode(engine_model))
    # Who goes first is decided here: an engine that does not schedule by priority would refuse the request for it.
    fields.pop("priority", None)
    fields.pop("service_tier", None)
    fields.pop("cache_salt", None)
    if salt:
        fields["cache_salt"] = msgspec.Raw(msgspec.json.encode(salt))
    if add_usage:
        kept = msgspec.json.decode(fields.get("stream_options", b"null"), type=dict[str, msgspec.Raw] | None) or {}
        kept.pop("continuous_usage_stats", None)  # counts only together with include_usage, which was off
        fields["stream_options"] = msgspec.Raw(msgspec.json.encode(kept | {"include_usage": True}))
    return msgspec.json.encode(fields), add_usage

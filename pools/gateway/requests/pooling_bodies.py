"""Bodies that are read and not answered by generation: embeddings, and pairs of texts that are ranked or scored.

They are measured as prompts without an answer.
"""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from ..errors import ApiError
from .bodies import NOTHING, CacheSalt, ChatBody, ChatMessage, CompletionBody, Prompt
from .sse import Usage, unreadable

Texts = Annotated[list[str], Meta(min_length=1)]
B = TypeVar("B", CompletionBody, ChatBody)


class _PoolingBody(msgspec.Struct, forbid_unknown_fields=True):
    """Has the fields that are common to all of them."""

    model: str | None = None
    priority: int | UnsetType | None = UNSET
    service_tier: str | UnsetType | None = UNSET
    cache_salt: CacheSalt | UnsetType | None = UNSET
    truncate_prompt_tokens: msgspec.Raw = NOTHING
    # The engine's to judge.
    user: msgspec.Raw = NOTHING
    use_activation: msgspec.Raw = NOTHING


class EmbeddingBody(_PoolingBody):
    """`messages` is vLLM's own: a chat to embed."""

    input: Prompt = None
    messages: list[ChatMessage] | None = None
    chat_template_kwargs: msgspec.Raw = NOTHING
    # The engine's to judge: OpenAI's, then vLLM's.
    dimensions: msgspec.Raw = NOTHING
    encoding_format: msgspec.Raw = NOTHING
    add_generation_prompt: msgspec.Raw = NOTHING
    add_special_tokens: msgspec.Raw = NOTHING
    continue_final_message: msgspec.Raw = NOTHING
    embed_dtype: msgspec.Raw = NOTHING
    endianness: msgspec.Raw = NOTHING
    normalize: msgspec.Raw = NOTHING


class PairsBody(CompletionBody):
    """Pairs of texts, which the model reads together: `prompt` holds the second ones, `shared` the first of all."""

    shared: str = ""


class RerankBody(_PoolingBody, kw_only=True):
    """Of texts alone: media would be at addresses of the client's choice."""

    query: Annotated[str, Meta(min_length=1)]
    documents: Texts
    # The engine's to judge.
    top_n: msgspec.Raw = NOTHING
    activation: msgspec.Raw = NOTHING
    softmax: msgspec.Raw = NOTHING
    return_documents: msgspec.Raw = NOTHING  # Cohere's and Jina's, which vLLM leaves aside
    max_tokens_per_doc: msgspec.Raw = NOTHING
    max_chunks_per_doc: msgspec.Raw = NOTHING


class ScoreBody(_PoolingBody, kw_only=True):
    """One text with each of others, or texts pair by pair. Of texts alone, as above."""

    text_1: str | Texts
    text_2: str | Texts
    # The engine's to judge.
    activation: msgspec.Raw = NOTHING
    softmax: msgspec.Raw = NOTHING


class _Usage(msgspec.Struct):
    """Of reranking, vLLM may count all tokens alone; all are the prompts'."""

    prompt_tokens: int | None = None
    total_tokens: int | None = None


class _Answer(msgspec.Struct):
    usage: _Usage | None = None


_EMBEDDING = msgspec.json.Decoder(EmbeddingBody)
_RERANK = msgspec.json.Decoder(RerankBody)
_SCORE = msgspec.json.Decoder(ScoreBody)
_ANSWER = msgspec.json.Decoder(_Answer)


def read_embedding(body: bytes) -> CompletionBody | ChatBody:
    """Reads it as a text, or a chat, that is not answered."""
    given = _EMBEDDING.decode(body)
    if given.messages is not None and given.input is None:
        return _of(given, ChatBody(messages=given.messages, chat_template_kwargs=given.chat_template_kwargs))
    return _of(given, CompletionBody(prompt=given.input))


def read_rerank(body: bytes) -> CompletionBody:
    given = _RERANK.decode(body)
    return _of(given, PairsBody(prompt=[*given.documents], shared=given.query))


def read_score(body: bytes) -> CompletionBody:
    """Raises msgspec's errors, and ApiError 400 for lists that make no pairs."""
    given = _SCORE.decode(body)
    first = [given.text_1] if isinstance(given.text_1, str) else given.text_1
    second = [given.text_2] if isinstance(given.text_2, str) else given.text_2
    if len(first) == 1:
        return _of(given, PairsBody(prompt=[*second], shared=first[0]))
    if len(first) != len(second):
        raise ApiError(
            400,
            f"'text_1' must be one text, or as many as 'text_2' has ({len(second)}), not {len(first)}.",
            param="text_1",
        )
    return _of(given, PairsBody(prompt=[a + b for a, b in zip(first, second, strict=True)]))


def _of(given: _PoolingBody, found: B) -> B:
    """Returns `found` with what all bodies have in common."""
    found.model, found.priority, found.service_tier = given.model, given.priority, given.service_tier
    found.cache_salt, found.truncate_prompt_tokens = given.cache_salt, given.truncate_prompt_tokens
    return found


def pooling_usage(body: bytes) -> Usage | None:
    try:
        usage = _ANSWER.decode(body).usage
    except msgspec.ValidationError:
        return unreadable(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if usage is None:
        return None
    return Usage(usage.total_tokens if usage.prompt_tokens is None else usage.prompt_tokens, 0)

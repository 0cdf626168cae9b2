"""Takes from a request's parsed body what predicting its lengths may look at, in microseconds.

Flags come from the end of the last message, where the question is, so that a long prompt costs no more than a short
one. They are free of language: marks, fences, digits and lines. `vllm_xargs` and what else the engine alone
understands has no field in `validation`, so nothing here can look at it.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Hashable

import msgspec

from core.ports import RequestFeatures

from .bodies import ChatBody, ChatMessage, CompletionBody
from .pooling_bodies import PairsBody
from .validation import Prompt

MAX_DIGEST_BYTES = 32 << 10  # longer prompts are not remembered: hashing goes at a microsecond a kilobyte
_MAX_DIGEST_IDS = 4096
_TAIL = 512  # characters
_QUESTION_MARKS = "?\uff1f\u061f\u037e"  # Latin, full width, Arabic, Greek
_FENCES = ("```", "~~~")
_DIGITS = "0123456789"
_MAX_SEQUENCES = 1024
_JSON = ("json_object", "json_schema")
_EMPTY = (b"", b"null", b"[]", b'""')


def features_of(
    body: CompletionBody | ChatBody,
    prompt: Prompt,
    service: str,
    at_s: float,
    tenant_id: int | None,
    output_bound: int | None,
    detailed: bool = True,
    image_tokens: int = 0,
) -> RequestFeatures:
    """Returns features of a body that `validation` has measured as `prompt`.

    Args:
        at_s: When it arrived, Unix time.
        output_bound: `validation.output_bound`.
        detailed: Look at all that a prediction may use, and not only at what every request needs.
        image_tokens: Of its images. A prompt with some is not remembered: its digest knows of texts alone.
    """
    sequences = body.n or 1
    chat = isinstance(body, ChatBody)
    if isinstance(body, ChatBody):
        count = len(body.messages or ())
        tools = len(body.tools) if _given(body.tools) else 0
    else:
        count = _number_of_prompts(body.prompt)
        sequences *= count
        tools = 0
    found = RequestFeatures(
        chat=chat,
        at_s=at_s,
        tenant_id=tenant_id,
        text_bytes=prompt.text_bytes + tools if prompt.text_bytes else 0,
        messages=count,
        sequences=min(_MAX_SEQUENCES, sequences),
        max_tokens=output_bound,
        digest=None if image_tokens else _digest(body, prompt, f"{tenant_id}/{service}", output_bound),
        detailed=detailed,
        image_tokens=image_tokens,
    )
    if detailed:
        _look_closely(found, body, tools)
    return found


def _look_closely(found: RequestFeatures, body: CompletionBody | ChatBody, tools: int) -> None:
    if isinstance(body, ChatBody):
        messages = body.messages or []
        last = _last_text(messages[-1]) if messages else ""
        found.last_role = messages[-1].role if messages else None
        found.has_system = any(message.role in ("system", "developer") for message in messages)
    else:
        last = _last_prompt(body.prompt)
    found.has_stop = bool(body.stop)
    found.temperature = body.temperature
    found.wants_json = body.response_format is not None and body.response_format.type in _JSON
    found.tools_bytes = tools
    if last:  # of token ids no text is known
        tail = last[-_TAIL:]
        found.last_bytes = len(last)
        found.has_question = _contains_any(tail, _QUESTION_MARKS)
        found.has_code = any(fence in tail for fence in _FENCES)
        found.digit_share = sum(map(tail.count, _DIGITS)) / len(tail)
        found.lines = tail.count("\n")


def texts_of(body: CompletionBody | ChatBody) -> list[str]:
    """Returns the texts of a prompt, for a tokenizer. Empty for token ids, and for pairs: their bytes must do."""
    if isinstance(body, PairsBody):
        return []
    if isinstance(body, ChatBody):
        return [text for message in body.messages or () for text in _texts(message)]
    if isinstance(body.prompt, str):
        return [body.prompt]
    return [item for item in body.prompt or () if isinstance(item, str)]


def _texts(message: ChatMessage) -> list[str]:
    content = message.content
    if isinstance(content, str):
        return [content]
    return [part if isinstance(part, str) else part.text or "" for part in content or ()]


def _last_text(message: ChatMessage) -> str:
    content = message.content
    if isinstance(content, str):
        return content
    texts = _texts(message)
    return texts[-1] if texts else ""


def _last_prompt(prompt: str | list[int | str | list[int]] | None) -> str:
    if isinstance(prompt, str):
        return prompt
    return prompt[-1] if prompt and isinstance(prompt[-1], str) else ""


def _number_of_prompts(prompt: str | list[int | str | list[int]] | None) -> int:
    return len(prompt) if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int) else 1


def _given(raw: msgspec.Raw) -> bool:
    return len(raw) > 4 or bytes(raw) not in _EMPTY


def _contains_any(text: str, marks: str) -> bool:
    return any(mark in text for mark in (marks if not text.isascii() else "?"))


def _digest(body: CompletionBody | ChatBody, prompt: Prompt, whose: str, output_bound: int | None) -> Hashable:
    """Names tenant, service, endpoint, prompt and limits, in 64 bits for texts and 128 for ids.

    None: it is too long for it, or has no answer to be remembered.

    The tenant, since no prediction may show whether another has sent the same prompt.
    """
    if isinstance(body, PairsBody):  # they have no answer whose length could be remembered
        return None
    if prompt.text_bytes > MAX_DIGEST_BYTES or prompt.tokens > _MAX_DIGEST_IDS:
        return None
    if isinstance(body, ChatBody):
        messages = body.messages or ()
        said = [(m.role, m.content) if isinstance(m.content, str) else (m.role, *_texts(m)) for m in messages]
        return hash((whose, output_bound, body.n, *said, bytes(body.tools)))
    if prompt.text_bytes == 0:
        return _digest_of_ids(body.prompt, f"{whose}\0{output_bound}\0{body.n}\0")
    return hash((whose, output_bound, body.n, tuple(texts_of(body))))


def _digest_of_ids(prompt: str | list[int | str | list[int]] | None, limits: str) -> bytes | None:
    hashed = hashlib.blake2b(f"{limits}ids".encode("utf-8", "surrogatepass"), digest_size=16)
    prompts = prompt if isinstance(prompt, list) and prompt and isinstance(prompt[0], list) else [prompt]
    try:
        for ids in prompts:
            hashed.update(array("q", [len(ids), *ids]).tobytes())  # type: ignore[arg-type, misc]
    except OverflowError:
        return None  # no vocabulary is that large: the engine will say so
    return hashed.digest()

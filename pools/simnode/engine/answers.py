"""The texts and JSON that a simulated engine answers with, in vLLM's shapes.

Streams are made from templates: what is the same in every chunk of a request is encoded once, so that a token costs a
format and a write, no JSON encoding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from . import generated_text

_TOKENS = tuple(token.encode() for token in generated_text.TOKENS)

DONE = b"data: [DONE]\n\n"


def usage(prompt_tokens: int, completion_tokens: int) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
        "prompt_tokens_details": None,
    }


class StreamFrames:
    """Server-sent events of one streamed request. `prompt_ids` given: with token ids, the prompt's in the first."""

    def __init__(
        self,
        chat: bool,
        request_id: str,
        created: int,
        model: str,
        seed: int,
        prompt_ids: Sequence[int] | None = None,
    ) -> None:
        self._head: dict[str, Any] = {
            "id": request_id,
            "object": "chat.completion.chunk" if chat else "text_completion",
            "created": created,
            "model": model,
        }
        self._chat = chat
        self._seed = seed
        self._prompt_ids = prompt_ids
        self._begun = False
        start = b"data: " + msgspec.json.encode(self._head)[:-1]
        inner = b'"delta":{"content":"' if chat else b'"text":"'
        self._before = start + b',"choices":[{"index":0,' + inner
        self._after = self._tail(None)

    def _tail(self, finish: str | None, ids: bytes = b"", transfer: Mapping[str, Any] | None = None) -> bytes:
        reason = b"null" if finish is None else b'"%b"' % finish.encode()
        tail = b',"logprobs":null,"finish_reason":%b,"stop_reason":null%b}]' % (reason, ids)
        if transfer is not None:
            tail += b',"kv_transfer_params":' + msgspec.json.encode(transfer)
        if self._chat:
            return b'"}' + tail + b"}\n\n"
        return b'"' + tail + b',"usage":null}\n\n'

    def token(self, index: int | None, finish: str | None, transfer: Mapping[str, Any] | None = None) -> bytes:
        """Returns the event of a token, or with index None of an end. The last may carry `kv_transfer_params`."""
        word = b"" if index is None else _TOKENS[generated_text.word_index(self._seed, index)]
        if self._begun and finish is None and self._prompt_ids is None:
            return self._before + word + self._after
        first, self._begun = not self._begun, True
        event = self._before + word + self._tail(finish, self._ids(index, first), transfer)
        return self._role() + event if self._chat and first else event

    def _ids(self, index: int | None, first: bool) -> bytes:
        if self._prompt_ids is None:
            return b""
        own = [] if index is None else [generated_text.FIRST_ID + generated_text.word_index(self._seed, index)]
        ids: dict[str, Any] = {"token_ids": own}
        if first and not self._chat:
            ids["prompt_token_ids"] = self._prompt_ids
        return b"," + msgspec.json.encode(ids)[1:-1]

    def _role(self) -> bytes:
        choice = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
        more = {} if self._prompt_ids is None else {"prompt_token_ids": self._prompt_ids}
        return b"data: " + msgspec.json.encode({**self._head, "choices": [choice], **more}) + b"\n\n"

    def usage(self, prompt_tokens: int, completion_tokens: int) -> bytes:
        body = {**self._head, "choices": [], "usage": usage(prompt_tokens, completion_tokens)}
        return b"data: " + msgspec.json.encode(body) + b"\n\n"


@dataclass(frozen=True, slots=True)
class CompleteAnswer:
    """A whole answer. `ids`: (prompt's, output's) token ids, if they were asked for."""

    request_id: str
    created: int
    model: str
    text: str
    finish: str
    usage: dict[str, Any]
    ids: tuple[Sequence[int], Sequence[int]] | None = None
    transfer: Mapping[str, Any] | None = None


def completion(answer: CompleteAnswer) -> bytes:
    choice: dict[str, Any] = {"index": 0, "text": answer.text}
    if answer.ids is not None:
        choice["prompt_token_ids"] = answer.ids[0]
    return _whole("text_completion", answer, choice, {})


def chat_completion(answer: CompleteAnswer) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", "content": answer.text}}
    more = {} if answer.ids is None else {"prompt_token_ids": answer.ids[0]}
    return _whole("chat.completion", answer, choice, more)


def _whole(kind: str, answer: CompleteAnswer, choice: dict[str, Any], more: dict[str, Any]) -> bytes:
    choice |= {"logprobs": None, "finish_reason": answer.finish, "stop_reason": None}
    if answer.ids is not None:
        choice["token_ids"] = answer.ids[1]
    body = {"id": answer.request_id, "object": kind, "created": answer.created, "model": answer.model}
    body |= {"choices": [choice], "usage": answer.usage, **more}
    if answer.transfer is not None:
        body["kv_transfer_params"] = answer.transfer
    return msgspec.json.encode(body)


def models(model: str, adapters: Mapping[str, str], max_model_len: int, created: int) -> bytes:
    """Lists the model, and after it adapters (where they came from, by name), as vLLM does."""
    common = {"object": "model", "created": created, "owned_by": "greenserve"}
    card = {"id": model, **common, "root": model, "parent": None, "max_model_len": max_model_len}
    loaded = [{"id": name, **common, "root": path, "parent": model} for name, path in adapters.items()]
    return msgspec.json.encode({"object": "list", "data": [card, *loaded]})


def error(status: int, kind: str, message: str, param: str | None) -> bytes:
    return msgspec.json.encode({"error": {"message": message, "type": kind, "param": param, "code": status}})

"""The texts and JSON that a simulated engine answers with, in vLLM's shapes.

Streams are made from templates: what is the same in every chunk of a request is encoded once, so that a token costs a
format and a write, no JSON encoding.
"""

from __future__ import annotations

from typing import Any

import msgspec

# Words without a character that JSON must escape: they go into the templates as they are.
_WORDS = (
    *("the", "river", "follows", "a", "slow", "bend", "past", "old", "mills", "and", "open", "fields", "where"),
    *("morning", "light", "settles", "on", "grass", "while", "birds", "turn", "above", "quiet", "water", "then"),
    *("people", "walk", "home", "with", "bread", "talk", "of", "rain", "winter", "harvest", "roads", "that", "lead"),
    *("over", "green", "hills", "to", "towns", "by", "sea"),
)
TOKENS = tuple(f" {word}" for word in _WORDS)
_TOKENS = tuple(token.encode() for token in TOKENS)
_STRIDE = 7  # coprime to the number of words: a text runs through all of them

DONE = b"data: [DONE]\n\n"


def text_of(seed: int, tokens: int) -> str:
    """The made-up text of `tokens` tokens; the same as a stream of the same seed gives."""
    return "".join(TOKENS[(seed + _STRIDE * index) % len(TOKENS)] for index in range(tokens))


def usage(prompt_tokens: int, completion_tokens: int) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
        "prompt_tokens_details": None,
    }


class StreamFrames:
    """Server-sent events of one streamed request."""

    def __init__(self, chat: bool, request_id: str, created: int, model: str, seed: int) -> None:
        self._head: dict[str, Any] = {
            "id": request_id,
            "object": "chat.completion.chunk" if chat else "text_completion",
            "created": created,
            "model": model,
        }
        self._chat = chat
        self._seed = seed
        start = b"data: " + msgspec.json.encode(self._head)[:-1]
        inner = b'"delta":{"content":"' if chat else b'"text":"'
        self._before = start + b',"choices":[{"index":0,' + inner
        self._after = self._tail(None)

    def _tail(self, finish: str | None) -> bytes:
        reason = b"null" if finish is None else b'"%b"' % finish.encode()
        tail = b',"logprobs":null,"finish_reason":%b,"stop_reason":null}]' % reason
        if self._chat:
            return b'"}' + tail + b"}\n\n"
        return b'"' + tail + b',"usage":null}\n\n'

    def token(self, index: int, finish: str | None) -> bytes:
        word = _TOKENS[(self._seed + _STRIDE * index) % len(_TOKENS)]
        event = self._before + word + (self._after if finish is None else self._tail(finish))
        return self._role() + event if index == 0 and self._chat else event

    def _role(self) -> bytes:
        choice = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
        return b"data: " + msgspec.json.encode({**self._head, "choices": [choice]}) + b"\n\n"

    def usage(self, prompt_tokens: int, completion_tokens: int) -> bytes:
        body = {**self._head, "choices": [], "usage": usage(prompt_tokens, completion_tokens)}
        return b"data: " + msgspec.json.encode(body) + b"\n\n"


def completion(request_id: str, created: int, model: str, text: str, finish: str, used: dict[str, Any]) -> bytes:
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish, "stop_reason": None}
    return _whole("text_completion", request_id, created, model, choice, used)


def chat_completion(request_id: str, created: int, model: str, text: str, finish: str, used: dict[str, Any]) -> bytes:
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish, "stop_reason": None}
    return _whole("chat.completion", request_id, created, model, choice, used)


def _whole(kind: str, request_id: str, created: int, model: str, choice: object, used: dict[str, Any]) -> bytes:
    return msgspec.json.encode(
        {"id": request_id, "object": kind, "created": created, "model": model, "choices": [choice], "usage": used}
    )


def models(model: str, max_model_len: int, created: int) -> bytes:
    card = {
        "id": model,
        "object": "model",
        "created": created,
        "owned_by": "greenserve",
        "root": model,
        "parent": None,
        "max_model_len": max_model_len,
    }
    return msgspec.json.encode({"object": "list", "data": [card]})


def error(status: int, kind: str, message: str, param: str | None) -> bytes:
    return msgspec.json.encode({"error": {"message": message, "type": kind, "param": param, "code": status}})

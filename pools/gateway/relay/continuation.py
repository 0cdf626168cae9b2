"""One response that several engines generate: what each is asked, and how their events become one stream.

For requests that are split over two instances (DynaServe), and for those that go on elsewhere when their engine dies.
An engine that goes on gets the prompt and what was written so far; with the `kv_transfer_params` of the engine before
(vLLM's) it need not compute it again. Streams of a single answer only: see `can_continue`.

Simulated engines stop anywhere and send their parameters with the stream. A vLLM sends none there, so real engines hand
over by connectors of ours (docs/plugin.md) that need none; what one generates after a part of the prompt is dropped.
They are asked for token ids, so that the one that goes on gets the same tokens, and not the text cut into others. But a
character may be several tokens, and vLLM sends no text until it has all of one; begun with half a character, it would
send the whole prompt with the rest. So the engine that goes on generates tokens at the end that have given no text yet
once more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from ..requests.sse import Usage

SIMULATED, BLOCKS, NIXL = "simulated", "blocks", "nixl"  # kv_connector of instances
_FIELDS = dict[str, msgspec.Raw]
_ONE_ANSWER = (b"", b"null", b"1")
# What a second engine cannot send as the first one would have.
_WHOLE_ONLY = frozenset(
    {
        *("logprobs", "top_logprobs", "prompt_logprobs", "return_token_ids"),
        *("echo", "best_of", "suffix", "tools", "response_format"),
    }
)
_WELL_BEFORE_THE_END = 0.8  # of the prompt
_NOTHING = (b"null", b"false", b"0", b"[]", b'""')
_LONG_TOKEN = 16  # characters; with more to a token, text is not an engine's own alone


def can_continue(body: bytes, chat: bool) -> bool:
    """Says whether another engine can go on with what a first one has written: a stream of one plain text."""
    fields = msgspec.json.decode(body, type=_FIELDS)
    if bytes(fields.get("n", b"null")) not in _ONE_ANSWER or bytes(fields.get("stream", b"null")) != b"true":
        return False
    if any(bytes(fields[name]) not in _NOTHING for name in _WHOLE_ONLY if name in fields):
        return False
    if chat:
        return True
    prompt = bytes(fields.get("prompt", b"null"))
    return prompt[:1] == b'"' or _is_ids(prompt)


def _is_ids(prompt: bytes) -> bool:
    return prompt[:1] == b"[" and prompt[1:].lstrip()[:1].isdigit()


class Continuation:
    """A request, and what engines have written of its response so far."""

    def __init__(self, body: bytes, chat: bool, max_tokens: int | None) -> None:
        """Begins with nothing written. `body`: as a single engine would get it."""
        self._fields: _FIELDS = msgspec.json.decode(body, type=_FIELDS)
        self._chat = chat
        self._ids_prompt = not chat and _is_ids(bytes(self._fields["prompt"]))
        self._max_tokens = max_tokens
        self._exact = self._ids_prompt  # token ids are asked for
        self.prompt_ids: list[int] = []  # as an engine reported them
        self.text = ""
        self.ids: list[int] = []
        self.tokens = 0
        self._silent = 0  # of the ids, those at the end that have given no text yet
        self._transfer: dict[str, Any] = {}  # names the cache on its way from the first engine
        self.inside_prompt: int | None = None  # after so many tokens of the prompt the first part ends, and writes none

    def write(self, text: str, ids: list[int], silent: bool) -> None:
        """Adds what an engine wrote; `text` without `ids` counts as one token.

        `silent`: no text of any kind came yet.
        """
        self.text += text
        self.ids += ids
        self.tokens += len(ids) if ids else int(bool(text))
        self._silent = self._silent + len(ids) if silent else 0

    def unechoed(self, text: str, tokens: int) -> str:
        """Returns an engine's first text without what was sent before.

        Several tokens sent at once may end with half a character, unseen beside the text of the others.
        """
        if self.text and len(text) > len(self.text) + _LONG_TOKEN * tokens and self.text in text:
            return text.rpartition(self.text)[2]
        return text

    def first(self, cut_tokens: int, prompt_tokens: int, chunk_tokens: int | None, connector: str) -> bytes:
        """Returns the body for the engine that does the first `cut_tokens` tokens of prompt and output.

        A cut near the prompt's end is one at its end, since the prompt's tokens may be only an estimate; the engine
        then writes the first token.
        """
        params: dict[str, Any] = {"do_remote_decode": True}
        if connector == NIXL:
            params |= self._transfer
        if connector != BLOCKS and chunk_tokens is not None:
            params["chunk_tokens"] = chunk_tokens
        if cut_tokens < _WELL_BEFORE_THE_END * prompt_tokens:
            params["prefill_tokens"] = self.inside_prompt = cut_tokens
        self._exact = self._exact or connector != SIMULATED
        limit = max(1, cut_tokens - prompt_tokens)
        return self._body({"kv_transfer_params": params, "max_tokens": limit})

    def sent_to(self, transfer: str, address: str) -> None:
        """Names the cache that goes to the engine at `address`, HOST:PORT; empty: to none by the network."""
        if address:
            host, _, port = address.rpartition(":")
            self._transfer = {"transfer_id": transfer, "remote_host": host.strip("[]"), "remote_port": int(port)}

    def rest(self) -> dict[str, Any]:
        """Returns the parameters for a real engine that goes on."""
        params: dict[str, Any] = {"do_remote_prefill": True}
        if self._transfer:
            params["transfer_id"] = self._transfer["transfer_id"]
        if self.inside_prompt is not None and not self.tokens:
            params["remote_num_tokens"] = self.inside_prompt
        return params

    def next(self, params: dict[str, Any] | None) -> bytes:
        """Returns the body for the engine that goes on. `params`: of the one before; None: it computes all again."""
        if self._silent:
            del self.ids[-self._silent :]
            self.tokens -= self._silent
            self._silent = 0
        changed: dict[str, Any] = {}
        if self._max_tokens is not None:
            changed["max_tokens"] = max(1, self._max_tokens - self.tokens)
        if self.tokens:
            changed |= self._continued()
            if self._chat and self.prompt_ids:
                params = {**(params or {}), "prompt_token_ids": self.prompt_ids + self.ids}
        if params is not None:
            changed["kv_transfer_params"] = params
        return self._body(changed)

    @property
    def complete(self) -> bool:
        """All that was asked for is written."""
        return self._max_tokens is not None and self.tokens >= self._max_tokens

    def _continued(self) -> dict[str, Any]:
        if self._chat and self.prompt_ids:  # vLLM takes them, with what was written, in place of the messages
            return {}
        if self._chat:
            messages = msgspec.json.decode(self._fields["messages"], type=list[msgspec.Raw])
            written = msgspec.Raw(msgspec.json.encode({"role": "assistant", "content": self.text}))
            return {
                "messages": [*messages, written],
                "add_generation_prompt": False,
                "continue_final_message": True,
            }
        if self.prompt_ids:
            return {"prompt": self.prompt_ids + self.ids}
        if self._ids_prompt:
            return {"prompt": msgspec.json.decode(self._fields["prompt"], type=list[int]) + self.ids}
        return {"prompt": msgspec.json.decode(self._fields["prompt"], type=str) + self.text}

    def _body(self, changed: dict[str, Any]) -> bytes:
        fields: dict[str, Any] = {**self._fields, **changed}
        if "max_tokens" in changed:
            fields.pop("max_completion_tokens", None)
        if self._exact:
            fields["return_token_ids"] = True
        fields["stream_options"] = {"include_usage": True}
        return msgspec.json.encode(fields)


class ContinuationMeter:
    """Reads the streams of a continuation's engines as one. It has what `SseMeter` has for those who look at a stream.

    The last event of an engine that was only to do a part is not its end for the client: its text is passed on, and who
    goes on is asked with its `kv_transfer_params`. Chunks of later engines carry the first one's id.
    """

    def __init__(
        self,
        continuation: Continuation,
        window_end_s: float,
        strip_usage: bool,
        rewrite_usage: Callable[[bytes], bytes] | None = None,
        model: str | None = None,
    ) -> None:
        self._continuation = continuation
        self._model = model  # as the client calls it; None: as the engine does
        self.window_end_s = window_end_s
        self._strip_usage = strip_usage
        self._rewrite_usage = rewrite_usage
        self._partial = b""
        self._id: Any = None
        self._created: Any = None
        self._parts = 0
        self._part_only = False
        self._mute = False  # the engine's first token comes of half a prompt
        self._opening = False  # an engine goes on, and has sent no text yet
        self._written_before = 0  # tokens, before the engine that generates now
        self._usage: dict[str, Any] | None = None  # the first engine's
        self._ended: dict[str, Any] | None = None  # the event that ends the continuation, and its usage after it
        self.params: dict[str, Any] | None = None
        self.finished = False  # an engine has come to the continuation's end
        self.events = 0
        self.timely_events = 0
        self.first_s: float | None = None
        self.last_s: float | None = None
        self.gap_max_s: float | None = None
        self.done = False
        self.failed = False

    def begin(self, part_only: bool) -> None:
        """Another engine generates from here on."""
        self._parts += 1
        self._part_only = part_only
        self._mute = part_only and self._continuation.inside_prompt is not None
        self._opening = self._parts > 1
        self._written_before = self._continuation.tokens
        self._partial = b""
        self.params = None
        self.failed = False

    def feed(self, data: bytes, now_s: float) -> bytes:
        """Takes bytes as they came; returns those to relay now."""
        *events, self._partial = (self._partial + data).replace(b"\r\n", b"\n").split(b"\n\n")
        return b"".join(self._event(event[5:].strip(), now_s) for event in events if event.startswith(b"data:"))

    def ending(self) -> bytes:
        """Returns the usage of the whole response, when the client asked for it, and the end marker."""
        if not self.finished:
            return b""
        usage = self._total()
        last = b""
        if not self._strip_usage and usage is not None and self._ended is not None:
            json = msgspec.json.encode({**self._ended, "choices": [], "usage": usage})
            last = b"data: %b\n\n" % (json if self._rewrite_usage is None else self._rewrite_usage(json))
        return last + b"data: [DONE]\n\n"

    def usage(self) -> Usage | None:
        total = self._total()
        return None if total is None else Usage(total["prompt_tokens"], total["completion_tokens"])

    def _total(self) -> dict[str, Any] | None:
        """Returns the first engine's usage, with the tokens that all have written."""
        if self._usage is None:
            return None
        prompt, written = self._usage["prompt_tokens"], self._continuation.tokens
        return {**self._usage, "total_tokens": prompt + written, "completion_tokens": written}

    def _event(self, json: bytes, now_s: float) -> bytes:
        if json == b"[DONE]":
            return b""
        try:
            event = msgspec.json.decode(json, type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeDecodeError):
            return b""
        if "error" in event:
            self.failed = True
            return b""
        self._note_usage(event.pop("usage", None))
        params = event.pop("kv_transfer_params", None)
        if isinstance(params, dict):
            self.params = params
        if self._id is None:
            self._id, self._created = event.get("id"), event.get("created")
        event["id"], event["created"] = self._id, self._created
        if self._model is not None and "model" in event:
            event["model"] = self._model
        if not event.get("choices"):
            return b""
        return self._choice(event, event["choices"][0], now_s)

    def _note_usage(self, usage: object) -> None:
        if self._usage is None and isinstance(usage, dict) and isinstance(usage.get("prompt_tokens"), int):
            # To an engine that went on, what was written before was part of its prompt.
            self._usage = {**usage, "prompt_tokens": usage["prompt_tokens"] - self._written_before}

    def _choice(self, event: dict[str, Any], choice: dict[str, Any], now_s: float) -> bytes:
        continuation = self._continuation
        delta = choice.get("delta")
        delta_fields: dict[str, Any] = delta if isinstance(delta, dict) else choice
        place = "text" if delta_fields is choice else "content"
        text = delta_fields.get(place) or ""
        ids = choice.pop("token_ids", None) or []
        for place_of_ids in (event, choice):  # chats' and completions'
            prompt_ids = place_of_ids.pop("prompt_token_ids", None)
            if not continuation.prompt_ids and isinstance(prompt_ids, list):
                continuation.prompt_ids = prompt_ids
        if self._mute:
            return b"data: %b\n\n" % msgspec.json.encode(event) if "role" in delta_fields and not text else b""
        if self._opening and text:
            self._opening = False
            if ids:
                delta_fields[place] = text = continuation.unechoed(text, len(ids))
        tokens = continuation.tokens
        continuation.write(
            text, ids, silent=not (text or delta_fields.get("reasoning") or delta_fields.get("reasoning_content"))
        )
        if continuation.tokens > tokens:
            self._count(now_s)
        finish = choice.get("finish_reason")
        if finish is not None:
            # A part that was cut off is not the end; nor is what a first engine says when it was to write nothing.
            if self._part_only and finish in ("length", "remote_decode") and not continuation.complete:
                choice["finish_reason"] = None
                if not text:
                    return b""
            else:
                self.finished = True
                self._ended = {key: value for key, value in event.items() if key != "choices"}
        elif not text and self._parts > 1:  # the opening of another engine: the client has had one
            return b""
        return b"data: %b\n\n" % msgspec.json.encode(event)

    def _count(self, now_s: float) -> None:
        self.events += 1
        if now_s <= self.window_end_s:
            self.timely_events += 1
        if self.last_s is None:
            self.first_s = now_s
        else:
            self.gap_max_s = max(self.gap_max_s or 0.0, now_s - self.last_s)
        self.last_s = now_s

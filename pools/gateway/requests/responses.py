"""Reads a stream of /v1/responses while it passes. Its events have names, and its usage stands within the last.

An event is `event: response.output_text.delta`, and `data: {"type": "response.output_text.delta", ...}` below it. The
last one is `response.completed`, `.incomplete` or `.failed`, with the whole response in it; no `[DONE]` need follow.
"""

from __future__ import annotations

import re

import msgspec

from ..errors import ApiError
from .answer_model import AnswerModel
from .sse import SseMeter, Usage, unreadable

_DELTA = b".delta"
_FAILED = b"response.failed"
_LAST = frozenset({b"response.completed", b"response.incomplete", _FAILED})
_WITH_RESPONSE = _LAST | {b"response.created", b"response.queued", b"response.in_progress"}
_NAME = re.compile(rb"^event:[ \t]*([^\r\n]*)", re.MULTILINE)
_DATA = re.compile(rb"^data:[ \t]*([^\r\n]*)", re.MULTILINE)


class _Usage(msgspec.Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None


class _Response(msgspec.Struct):
    usage: _Usage | None = None


class _Event(msgspec.Struct):
    type: str = ""
    response: _Response | None = None


class _Name(msgspec.Struct):
    type: str = ""


_RESPONSE = msgspec.json.Decoder(_Response)
_EVENT = msgspec.json.Decoder(_Event)
_NAME_ONLY = msgspec.json.Decoder(_Name)
_BAD_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def usage_of(body: bytes) -> Usage | None:
    """Returns the usage of a whole response; None: it has none, or is no response."""
    try:
        return _usage(_RESPONSE.decode(body))
    except msgspec.ValidationError:
        return unreadable(body)
    except _BAD_JSON:
        return None


def error_event(error: ApiError) -> bytes:
    fields = {"type": "error", "code": error.code, "message": error.message, "param": error.param}
    return b"event: error\ndata: %b\n\n" % msgspec.json.encode(fields)


class ResponsesMeter(SseMeter):
    """Each delta, of text, of a thought or of a tool's arguments, counts as a token."""

    __slots__ = ()

    def feed(self, data: bytes, now_s: float) -> bytes:
        """Takes bytes as they came; returns those to relay now."""
        return self._scan(data, now_s)

    def usage(self) -> Usage | None:
        """Returns the engine's last word on token counts, or None."""
        try:
            return _usage(_EVENT.decode(self._last_usage_event).response) if self._last_usage_event else None
        except msgspec.ValidationError:
            return unreadable(self._last_usage_event)
        except _BAD_JSON:
            return None

    def _is_last(self, event: bytes) -> bool:
        name, json = _parts(event)
        if name not in _LAST:
            return json == b"[DONE]"
        self.failed = name == _FAILED
        self._last_usage_event = json
        return True

    def _passes(self, event: bytes, now_s: float) -> bool:
        name, json = _parts(event)
        if name.endswith(_DELTA):
            self._count(now_s)
        elif name == b"error" or json.startswith(b'{"error"'):
            self.failed = True
        return True

    def _renamed(self, event: bytes, model: AnswerModel) -> bytes:
        """Returns an event with the right name in its response, which those of its course carry."""
        name, json = _parts(event)
        if name not in _WITH_RESPONSE:
            return event
        renamed = model.in_response(json)
        return event if renamed is json else b"event: %b\ndata: %b\n\n" % (name, renamed)

    def _rewritten(self, event: bytes) -> bytes:
        """Returns the last event with its response's usage rewritten, and others as they are: they carry none."""
        name, json = _parts(event)
        if self._rewrite_usage is None or name not in _LAST:
            return event
        try:
            fields = msgspec.json.decode(json, type=dict[str, msgspec.Raw])
            response = self._rewrite_usage(bytes(fields["response"]))
        except (*_BAD_JSON, KeyError):
            return event
        fields["response"] = msgspec.Raw(response)
        return b"event: %b\ndata: %b\n\n" % (name, msgspec.json.encode(fields))


def _usage(response: _Response | None) -> Usage | None:
    usage = None if response is None else response.usage
    return None if usage is None else Usage(usage.input_tokens, usage.output_tokens)


def _parts(event: bytes) -> tuple[bytes, bytes]:
    """Returns an event's name and its JSON."""
    named, data = _NAME.search(event), _DATA.search(event)
    json = b"" if data is None else data.group(1).strip()
    if named is not None:
        return named.group(1).strip(), json
    try:
        return _NAME_ONLY.decode(json).type.encode(), json
    except _BAD_JSON:
        return b"", json

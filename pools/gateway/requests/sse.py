"""Reads a stream of server-sent events while it passes: when tokens came, how many, and the engine's usage.

Events may be split over TCP reads or share one; a piece of an event is buffered until its rest comes. Events are
looked at as bytes; only one that carries usage is parsed. Inside a JSON string every quote is escaped, so the bytes
`"usage":{` cannot come from generated text.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Protocol

import msgspec

from .answer_model import AnswerModel
from .engine_errors import openai_event

_TOKEN_START = b'data: {"id":'  # how engines begin a chunk of tokens
_USAGE = re.compile(rb'"usage":\s*\{')
_USAGE_KEY = b'"usage":'
_USAGE_NULL = b'"usage":null'
_ERROR = re.compile(rb'data:\s*\{\s*"error"')
_END_OF_EVENT = re.compile(rb"\r?\n\r?\n")
_MAX_BUFFERED_BYTES = 1 << 20
_NONE_YET = b"\0"  # how no event begins


class Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


UNREADABLE = Usage()  # one that is not of these types


class _UsageHolder(msgspec.Struct):
    usage: Usage | None = None
    choices: list[msgspec.Raw] = []


class _RoughHolder(msgspec.Struct):
    choices: list[msgspec.Raw] = []


_HOLDER = msgspec.json.Decoder(_UsageHolder)
_ROUGH = msgspec.json.Decoder(_RoughHolder)


def unreadable(json: bytes) -> Usage | None:
    """Returns the usage of JSON that is of other types than it should be; None: there is none."""
    return UNREADABLE if _USAGE.search(json) else None


def parse_usage(json: bytes) -> tuple[Usage | None, bool]:
    """Returns the usage that a response or event carries, and whether it carries choices. Garbage counts as a token."""
    try:
        try:
            holder = _HOLDER.decode(json)
        except msgspec.ValidationError:
            return unreadable(json), bool(_ROUGH.decode(json).choices)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None, True
    return holder.usage, bool(holder.choices)


def usage_of(json: bytes) -> Usage | None:
    """Returns the usage that a whole response carries."""
    return parse_usage(json)[0]


class Meter(Protocol):
    """Reads a stream while it passes. Times are monotonic; `events` have choices: tokens, nearly."""

    events: int
    timely_events: int  # of these, within the fairness window
    first_s: float | None
    last_s: float | None
    gap_max_s: float | None
    failed: bool  # the engine sent an error event
    done: bool  # the end marker was seen

    def feed(self, data: bytes, now_s: float) -> bytes:
        """Takes bytes as they came; returns those to relay now."""
        ...

    def ending(self) -> bytes:
        """Returns what was buffered until the record is written."""
        ...

    def usage(self) -> Usage | None: ...


class SseMeter:
    """Reads one stream. All times are seconds of the same monotonic clock.

    `feed` gives what may go to the client at once; the end marker is kept for `ending`, so that the client sees it
    only after the record is on disk. With `strip_usage` the chunk that carries nothing but usage is taken out. `model`
    renames the model in each event; None: events keep what the engine calls it. An engine's error becomes OpenAI's.
    """

    __slots__ = (
        "_begins",
        "_buffered",
        "_last_usage_event",
        "_model",
        "_partial",
        "_rewrite_usage",
        "_strip_usage",
        "_window_end_s",
        "becomes",
        "done",
        "events",
        "failed",
        "first_s",
        "gap_max_s",
        "last_s",
        "timely_events",
    )

    def __init__(
        self,
        window_end_s: float,
        strip_usage: bool,
        rewrite_usage: Callable[[bytes], bytes] | None = None,
        model: AnswerModel | None = None,
    ) -> None:
        self._window_end_s = window_end_s
        self._strip_usage = strip_usage
        self._rewrite_usage = rewrite_usage  # of an event that carries usage: its JSON
        self._model = model
        self._begins = _TOKEN_START if model is None else _NONE_YET  # an event that may pass without a closer look
        self.becomes: bytes | None = None  # what goes in place of that beginning; None: the same
        self._partial = b""
        self._buffered = b""
        self._last_usage_event = b""
        self.events = 0  # events with choices: tokens, nearly
        self.timely_events = 0  # of these, within the fairness window
        self.first_s: float | None = None
        self.last_s: float | None = None
        self.gap_max_s: float | None = None
        self.done = False  # the end marker was seen
        self.failed = False  # the engine sent an error event

    def feed(self, data: bytes, now_s: float) -> bytes:
        """Takes bytes as they came; returns those to relay now."""
        if not self.takes(data, 0, len(data), now_s):
            return self._scan(data, now_s)
        return data if self.becomes is None else self.becomes + data[len(self._begins) :]

    def reframed(self, data: bytes, start: int) -> bytes:
        """Returns a chunk with its frame, whose event at data[start:-2] was taken, with what it becomes."""
        rest, becomes = data[start + len(self._begins) :], self.becomes or b""
        return b"%x\r\n%b%b" % (len(becomes) + len(rest) - 2, becomes, rest)

    def takes(self, data: bytes, start: int, end: int, now_s: float) -> bool:
        """Whether data[start:end] is a token's event and nothing else. It is then counted.

        It may pass as it is, but for its beginning where `becomes` is not None.
        """
        if (
            not data.startswith(self._begins, start)
            or data.find(b"\n\n", start) != end - 2
            or self._partial
            or self.done
            or (_USAGE_KEY in data and _USAGE_NULL not in data)
        ):
            return False
        gap_max_s, last_s = self.gap_max_s, self.last_s
        if gap_max_s is None or last_s is None:  # of the first two
            self._count(now_s)
            return True
        if now_s - last_s > gap_max_s:
            self.gap_max_s = now_s - last_s
        self.last_s = now_s
        self.events += 1
        if now_s <= self._window_end_s:
            self.timely_events += 1
        return True

    def ending(self) -> bytes:
        """Returns what was buffered: the end marker, and anything behind it."""
        return self._buffered + self._partial

    def usage(self) -> Usage | None:
        """Returns the engine's last word on token counts, or None."""
        return parse_usage(self._last_usage_event)[0] if self._last_usage_event else None

    def _scan(self, data: bytes, now_s: float) -> bytes:
        buffer = self._partial + data
        start = 0
        out: list[bytes] = []
        for match in _END_OF_EVENT.finditer(buffer):
            event = buffer[start : match.end()]
            start = match.end()
            if self.done or self._is_last(event):
                self.done = True
                self._buffered += self._shown(event)
            elif self._passes(event, now_s):
                out.append(self._shown(event))
        self._partial = buffer[start:]
        if len(self._partial) > _MAX_BUFFERED_BYTES:  # no event: not to be buffered for ever
            out.append(self._partial)
            self._partial = b""
        if self._model is not None and self._model.begins:
            self._begins, self.becomes = self._model.begins, self._model.becomes
        return b"".join(out)

    def _shown(self, event: bytes) -> bytes:
        """Returns an event as the client is to see it."""
        if _ERROR.match(event):
            return openai_event(event)
        if self._model is not None:
            event = self._renamed(event, self._model)
        return event if self._rewrite_usage is None else self._rewritten(event)

    def _renamed(self, event: bytes, model: AnswerModel) -> bytes:
        return model.in_event(event)

    def _is_last(self, event: bytes) -> bool:
        return event[5:].strip() == b"[DONE]"

    def _rewritten(self, event: bytes) -> bytes:
        if self._rewrite_usage is None or not event.startswith(b"data:") or not _USAGE.search(event):
            return event
        return b"data: %b\n\n" % self._rewrite_usage(event[5:].strip())

    def _passes(self, event: bytes, now_s: float) -> bool:
        if not event.startswith(b"data:"):
            return True  # a comment or another field: relayed, no token
        if _ERROR.match(event):
            self.failed = True
            return True
        if _USAGE.search(event):
            json = event[5:].strip()
            usage, has_choices = parse_usage(json)
            if usage is not None:
                self._last_usage_event = json
            if not has_choices:
                return not self._strip_usage
        self._count(now_s)
        return True

    def _count(self, now_s: float) -> None:
        self.events += 1
        if now_s <= self._window_end_s:
            self.timely_events += 1
        last_s = self.last_s
        if last_s is None:
            self.first_s = now_s
        else:
            gap_s = now_s - last_s
            if self.gap_max_s is None or gap_s > self.gap_max_s:
                self.gap_max_s = gap_s
        self.last_s = now_s

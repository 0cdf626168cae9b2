"""Puts the name that a client asked for in place of the engine's own, in the answer's `model`.

An engine serves its model under the model card's name, or one that its operator gave it, and says that name in every
event. JSON is read from its start: when a stream's first event begins with members of plain values, of which one is its
`model`, then any event that begins with the same bytes has the same member there, whatever follows. So an event costs a
comparison of its first 150 bytes, and nothing that a model writes is mistaken for the member. Other events, and answers
that say their model behind something nested, are taken apart.
"""

from __future__ import annotations

import re

import msgspec

_STRING = rb'"[^"\\]*+"'
_PLAIN = rb"(?:%b|-?\d++|null|true|false)" % _STRING
# An object's members of plain values up to the first of the name `model`; before it, of an event, the field's name.
_HEAD = re.compile(
    rb'(?:data:[ \t]*)?\{\s*+(?:%b\s*+:\s*+%b\s*+,\s*+)*?"model"\s*+:\s*+(%b)' % (_STRING, _PLAIN, _STRING)
)
_DATA = re.compile(rb"^data:[ \t]*([^\r\n]*)", re.MULTILINE)
_BAD_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

Fields = dict[str, msgspec.Raw]


class AnswerModel:
    """Renames the model in the answer to one request.

    Attributes:
        begins: How the events seen so far begin, up to the end of their model's name; empty: none is known.
        becomes: What is to stand in place of it; None: the engine says the right name.
    """

    __slots__ = ("_json", "_name", "becomes", "begins")

    def __init__(self, name: str) -> None:
        self._name = name
        self._json = msgspec.json.encode(name)
        self.begins = b""
        self.becomes: bytes | None = None

    def in_event(self, event: bytes) -> bytes:
        """Returns an event of a stream with the right name; one without a model as it is."""
        begins = self.begins
        if begins and event.startswith(begins):
            return event if self.becomes is None else self.becomes + event[len(begins) :]
        found = _HEAD.match(event)
        if found is None or not event.startswith(b"data:"):
            return self._in_other_event(event)
        self.begins = event[: found.end()]
        self.becomes = None if found.group(1) == self._json else event[: found.start(1)] + self._json
        return event if self.becomes is None else self.becomes + event[found.end() :]

    def in_answer(self, body: bytes) -> bytes:
        """Returns a whole answer with the right name; one without a model, or of something else, as it is."""
        found = _HEAD.match(body)
        return self._in_object(body) if found is None else self._in_place(found, body)

    def in_beginning(self, data: bytes) -> bytes:
        """Returns the beginning of an answer with the right name, where it stands before anything nested."""
        found = _HEAD.match(data)
        return data if found is None else self._in_place(found, data)

    def _in_place(self, found: re.Match[bytes], data: bytes) -> bytes:
        start, end = found.span(1)
        return data if found.group(1) == self._json else b"%b%b%b" % (data[:start], self._json, data[end:])

    def in_fields(self, fields: Fields) -> bool:
        """Puts the right name into an object that was taken apart. Returns whether another one stood there."""
        if "model" not in fields:
            return False
        try:
            same = msgspec.json.decode(fields["model"]) == self._name
        except _BAD_JSON:
            same = False
        fields["model"] = msgspec.Raw(self._json)
        return not same

    def in_response(self, json: bytes) -> bytes:
        """Returns an event's JSON of which `response` is an object with a model: those of /v1/responses."""
        try:
            fields = msgspec.json.decode(json, type=Fields)
            response = self._in_object(bytes(fields["response"]))
        except (*_BAD_JSON, KeyError):
            return json
        if response == bytes(fields["response"]):
            return json
        fields["response"] = msgspec.Raw(response)
        return msgspec.json.encode(fields)

    def _in_other_event(self, event: bytes) -> bytes:
        found = _DATA.findall(event)
        if len(found) != 1:  # a comment, or an object over several lines: no engine's
            return event
        json = found[0]
        renamed = self._in_object(json)
        return event if renamed is json else event.replace(json, renamed, 1)

    def _in_object(self, json: bytes) -> bytes:
        try:
            fields = msgspec.json.decode(json, type=Fields)
        except _BAD_JSON:
            return json
        return msgspec.json.encode(fields) if self.in_fields(fields) else json

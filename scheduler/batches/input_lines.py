"""An input file's lines, checked. Pure: bytes in, requests or faults out."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

ENDPOINTS = ("/v1/chat/completions", "/v1/completions")
MAX_LINE_BYTES = 8 << 20  # what the gateway takes as a body
MAX_FAULTS = 100  # in one answer to a client
MAX_CUSTOM_ID = 512
TIER = b'"flex"'
NOT_JSON = ("invalid_json_line", "This line is not parseable as valid JSON.", None)


class _Line(msgspec.Struct):
    custom_id: str | None = None
    method: str | None = None
    url: str | None = None
    body: dict[str, msgspec.Raw] | None = None


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of a line; `line` None: of the whole file."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None

    def shape(self) -> dict[str, Any]:
        return {"code": self.code, "message": self.message, "line": self.line, "param": self.param}


class _Bad(Exception):
    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        self.fault = (code, message, param)


@dataclass(frozen=True, slots=True)
class Checked:
    """A request as it will be sent: to go last, whatever it said of its own urgency."""

    number: int
    custom_id: str
    body: bytes


@dataclass
class Checker:
    """Reads lines one by one; `faults` and `model` are complete when they have all been read."""

    endpoint: str
    models: Collection[str]
    max_lines: int
    faults: list[Fault] = field(default_factory=list)
    model: str | None = None
    _ids: set[str] = field(default_factory=set)

    def read(self, pieces: Iterable[bytes]) -> Iterator[Checked]:
        """Yields the lines that are well. Blank lines are skipped, and counted: numbers are those of the file."""
        for number, raw in enumerate(split(pieces), start=1):
            if not raw.strip():
                continue
            if len(self._ids) >= self.max_lines:
                self.faults.append(Fault("too_many_requests", f"A batch holds at most {self.max_lines} requests."))
                return
            try:
                yield self._line(number, raw)
            except (_Bad, RecursionError) as bad:
                code, message, param = bad.fault if isinstance(bad, _Bad) else NOT_JSON
                self.faults.append(Fault(code, message, number, param))
                if len(self.faults) >= MAX_FAULTS:
                    return
        if not self._ids and not self.faults:
            self.faults.append(Fault("empty_file", "The input file holds no request."))

    def _line(self, number: int, raw: bytes) -> Checked:
        if len(raw) > MAX_LINE_BYTES:
            raise _Bad("line_too_long", f"A line holds at most {MAX_LINE_BYTES} bytes.")
        try:
            line = msgspec.json.decode(raw, type=_Line)
        except msgspec.ValidationError as error:
            raise _Bad("invalid_request", f"This line is not a request: {error}") from None
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise _Bad(*NOT_JSON) from None
        custom_id = self._custom_id(line.custom_id)
        if line.method != "POST":
            raise _Bad("invalid_method", "The method must be 'POST'.", "method")
        if line.url != self.endpoint:
            raise _Bad("invalid_url", f"The URL must be the batch's endpoint, '{self.endpoint}'.", "url")
        if line.body is None:
            raise _Bad("missing_required_parameter", "The body is missing.", "body")
        self._check_body(line.body)
        self._ids.add(custom_id)
        line.body.pop("priority", None)
        line.body["service_tier"] = msgspec.Raw(TIER)
        return Checked(number, custom_id, msgspec.json.format(msgspec.json.encode(line.body), indent=-1))

    def _custom_id(self, custom_id: str | None) -> str:
        if not custom_id:
            raise _Bad("missing_required_parameter", "The custom_id is missing.", "custom_id")
        if len(custom_id) > MAX_CUSTOM_ID or "\0" in custom_id:
            raise _Bad("invalid_custom_id", f"A custom_id has at most {MAX_CUSTOM_ID} characters, no NUL.", "custom_id")
        if custom_id in self._ids:
            raise _Bad("duplicate_custom_id", f"The custom_id '{custom_id[:100]}' is used before.", "custom_id")
        return custom_id

    def _check_body(self, body: dict[str, msgspec.Raw]) -> None:
        model = _value(body, "model")
        if not isinstance(model, str) or not model:
            raise _Bad("missing_required_parameter", "The body names no model.", "body.model")
        if model not in self.models:
            raise _Bad("model_not_found", f"The model '{model[:100]}' does not exist.", "body.model")
        if self.model not in (None, model):
            raise _Bad(
                "mismatched_model", f"All requests of a batch name one model, here '{self.model}'.", "body.model"
            )
        if _value(body, "stream"):
            raise _Bad("invalid_parameter", "A batch's responses cannot be streamed.", "body.stream")
        self.model = model


def _value(body: dict[str, msgspec.Raw], name: str) -> Any:
    return msgspec.json.decode(body[name]) if name in body else None


def split(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yields lines without their ends.

    One that is too long is cut, so that it is just long enough to be seen to be too long.
    """
    rest = bytearray()
    for piece in pieces:
        *whole, last = piece.split(b"\n")
        for part in whole:
            _extend(rest, part)
            yield bytes(rest)
            rest.clear()
        _extend(rest, last)
    if rest:
        yield bytes(rest)


def _extend(line: bytearray, part: bytes) -> None:
    line += part[: max(0, MAX_LINE_BYTES + 1 - len(line))]

"""Makes what engines say of a request that they refuse an error of OpenAI's, with a code that is a text.

vLLM's errors have a number for a code and names of Python's for a type; other servers answer with `detail`, or with no
JSON at all. Clients read all of them the same way.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from ..errors import INVALID_REQUEST, SERVER_ERROR, ApiError

_CODES = {405: "method_not_allowed", 422: "invalid_value", 429: "rate_limit_exceeded"}
_TYPE = re.compile(r"[a-z]+(_[a-z]+)*_error")  # as OpenAI's
_TOO_LONG = "maximum context length"  # vLLM's and OpenAI's words
_MOST_TEXT = 300
_BAD_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def openai_error(status: int, body: bytes) -> bytes:
    """Returns an engine's refusal in OpenAI's shape: as it came where it has it."""
    said, error = _read(body)
    if isinstance(error, dict) and _is_right(error) and error is not said:
        return body
    return _made_of(error, status).body()


def refusal(status: int, body: bytes) -> ApiError:
    """Returns the same as an error of ours, for an answer that has begun."""
    return _made_of(_read(body)[1], status)


def _read(body: bytes) -> tuple[object, object]:
    """Returns what an engine said, and what of it is the error."""
    try:
        said = msgspec.json.decode(body)
    except _BAD_JSON:
        said = body[:_MOST_TEXT].decode(errors="replace").strip()
    return said, said.get("error", said) if isinstance(said, dict) else said


def openai_event(event: bytes) -> bytes:
    """Returns an event that carries an engine's error in OpenAI's shape; its code is the HTTP status, as vLLM's."""
    json = event[5:].strip()
    try:
        status = msgspec.json.decode(json)["error"]["code"]
    except (*_BAD_JSON, LookupError, TypeError):
        status = None
    known = isinstance(status, int) and 400 <= status < 600
    made = openai_error(status if known else 500, json)
    return event if made == json else b"data: %b\n\n" % made


def _is_right(error: dict[str, Any]) -> bool:
    code, kind, message = error.get("code"), error.get("type"), error.get("message")
    names = isinstance(code, str) and bool(code) and not code.isdigit()
    return names and isinstance(message, str) and isinstance(kind, str) and _TYPE.fullmatch(kind) is not None


def _made_of(error: object, status: int) -> ApiError:
    fields = error if isinstance(error, dict) else {}
    message = _text(fields.get("message", fields.get("detail"))) if fields else _text(error)
    param, code, kind = (fields.get(name) for name in ("param", "code", "type"))
    if not isinstance(kind, str) or not _TYPE.fullmatch(kind):
        kind = INVALID_REQUEST if status < 500 else SERVER_ERROR
    if not isinstance(code, str) or not code or code.isdigit():
        code = _code(status, message)
    return ApiError(
        status,
        message or f"The engine answered with {status}.",
        kind=kind,
        param=param if isinstance(param, str) else None,
        code=code,
    )


def _code(status: int, message: str) -> str | None:
    """Returns a code; None: ApiError has a name for it."""
    if status < 500 and _TOO_LONG in message:
        return "context_length_exceeded"
    return _CODES.get(status) or ("upstream_error" if status >= 500 and status != 503 else None)


def _text(said: object) -> str:
    if said is None or isinstance(said, str):
        return said or ""
    return msgspec.json.encode(said)[:_MOST_TEXT].decode(errors="replace")

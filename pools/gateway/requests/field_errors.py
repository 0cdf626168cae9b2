"""Says of a body that its decoder refused which field is wrong, what it may be, and what it is.

The decoder's own words name types of Python's and not what was given. What a field may be is read from the types that
the decoder goes by, so the two cannot differ. All this happens only for a request that is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec
import msgspec.inspect as shapes

from ..errors import ApiError
from .client_fields import not_passed_on

_PATH = re.compile(r"`\$([^`]*)`")
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+|\.\.\.)\]")
_MISSING = re.compile(r"missing required field `([^`]+)`")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_KINDS = {'"': "a text", "[": "an array", "{": "an object"}
# What a client's users wrote is not repeated: errors are kept in records.
_PRIVATE = frozenset({"prompt", "content", "text", "input", "instructions", "suffix", "user", "metadata"})
_MOST_SHOWN = 40

Step = str | int | None  # a member's name, an item's place; None: some member


def field_error(error: msgspec.ValidationError, body: bytes, shape: type[msgspec.Struct]) -> ApiError:
    """Makes a decoder's refusal one for the client. `param` is the field of the body; the message has the path."""
    said = str(error)
    unknown = unknown_field(error)
    if unknown is not None:
        return not_passed_on(unknown, unknown)
    path = list(_steps(said))
    missing = _MISSING.search(said)
    if missing is not None:
        path.append(missing.group(1))
    if not path:
        return ApiError(400, f"Invalid body: {said}")
    param = str(path[0])
    found, depth = _type_at(shapes.type_info(shape), path)
    path, allowed = path[:depth], _described(found)
    name = _spelled(path)
    if missing is not None:
        message = f"'{name}' is missing: it must be {allowed}."
    else:
        given = _given(body, path)
        message = f"'{name}' must be {allowed}{f', not {given}' if given else ''}."
    return ApiError(400, message, param=param)


def unknown_field(error: msgspec.ValidationError) -> str | None:
    """Returns the name of a member that the body may not have; None: that is not what is wrong."""
    found = _UNKNOWN.match(str(error))
    return None if found is None else found.group(1)


def _steps(said: str) -> Iterator[Step]:
    found = _PATH.search(said)
    for name, place in _STEP.findall(found.group(1) if found is not None else ""):
        yield name or (None if place == "..." else int(place))


def _spelled(path: list[Step]) -> str:
    spelled = str(path[0])
    for step in path[1:]:
        spelled += f".{step}" if isinstance(step, str) else f"[{'...' if step is None else step}]"
    return spelled


# -- what it may be --------------------------------------------------------------------------------


def _type_at(found: shapes.Type, path: list[Step]) -> tuple[shapes.Type, int]:
    """Returns the type at a path, or the last one above it that says more; and how many steps down it stands."""
    for depth, step in enumerate(path):
        inner = _inner(found, step)
        if inner is None:
            return found, depth
        found = inner
    return found, len(path)


def _inner(found: shapes.Type, step: Step) -> shapes.Type | None:
    if isinstance(found, shapes.Metadata):
        described = (found.extra_json_schema or {}).get("description")
        return None if described else _inner(found.type, step)
    if isinstance(found, shapes.UnionType):
        return next((inner for one in found.types if (inner := _inner(one, step)) is not None), None)
    if isinstance(found, shapes.StructType) and isinstance(step, str):
        return next((field.type for field in found.fields if field.encode_name == step), None)
    if isinstance(found, shapes.ListType) and isinstance(step, int):
        return found.item_type
    return None


def _described(found: shapes.Type) -> str:
    if isinstance(found, shapes.Metadata):
        described = (found.extra_json_schema or {}).get("description")
        return str(described) if described else _described(found.type)
    if isinstance(found, shapes.UnionType):
        kinds = [_described(one) for one in found.types if not isinstance(one, shapes.NoneType)]
        return " or ".join(kinds)
    if isinstance(found, shapes.LiteralType):
        return "one of " + ", ".join(repr(value) for value in sorted(found.values, key=str))
    if isinstance(found, shapes.IntType | shapes.FloatType):
        kind = "a whole number" if isinstance(found, shapes.IntType) else "a number"
        return kind + _range(found.ge, found.le)
    if isinstance(found, shapes.BoolType):
        return "true or false"
    if isinstance(found, shapes.StrType):
        return "a text"
    if isinstance(found, shapes.ListType):
        most = "" if found.max_length is None else f" of at most {found.max_length} items"
        return f"an array{most}, each {_described(found.item_type)}"
    return "an object"


def _range(least: float | None, most: float | None) -> str:
    if least is None:
        return "" if most is None else f" of at most {most}"
    return f" of at least {least}" if most is None else f" from {least} to {most}"


# -- what it is ------------------------------------------------------------------------------------


def _given(body: bytes, path: list[Step]) -> str:
    """Returns a short value as it stands in the body, and of a long or private one its kind; empty: not to be had."""
    raw = body
    try:
        for step in path:
            inside: Any = msgspec.json.decode(raw, type=dict[str, msgspec.Raw] | list[msgspec.Raw])
            raw = bytes(inside[step])
        shown = raw.decode()
        kind = _KINDS.get(shown[0])
        if kind is None or (_PRIVATE.isdisjoint(path) and path != ["messages"]):
            if len(shown) <= _MOST_SHOWN:
                return shown
            if kind is None:
                return f"{shown[:_MOST_SHOWN]}..."
        if kind == "a text":
            return f"{kind} of length {len(shown) - 2}"
        return f"{kind} of length {len(msgspec.json.decode(raw, type=dict[str, msgspec.Raw] | list[msgspec.Raw]))}"
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, LookupError, TypeError):
        return ""

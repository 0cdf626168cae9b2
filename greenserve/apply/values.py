"""A field's value: from a file or from REST to one form that can be compared, back to REST, and into words."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

from .kinds import KINDS, FieldSpec, FieldType, leaves

Key = tuple[Any, ...]
_VARIABLE = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*\}")
_LONGEST = 60  # letters of a value in a sentence
_MOST_DIGITS = 28
_EXACT = 2**53  # below it a float has each whole number


class WrongValueError(ValueError):
    """A value that the field does not take; the text says what it takes."""


def given(field: FieldSpec, value: object) -> Any:
    """Returns a file's value in the canonical form. Raises WrongValueError, also for texts that REST does not know."""
    if variable := _variable(value):
        raise WrongValueError(
            f"{variable} is not replaced: no field of a fleet is a secret. Write the value itself; providers' keys are "
            "set in the environment of GreenServe (docs/carbon.md)"
        )
    found = canonical(field, value)
    if field.choices and found not in field.choices:
        raise WrongValueError(f"'{str(found)[:_LONGEST]}' is none of: {', '.join(field.choices)}")
    return found


def canonical(field: FieldSpec, value: object) -> Any:
    """Returns the value in the form in which equal values are equal. Raises WrongValueError."""
    if value is None:
        if field.nullable:
            return None
        empty = "; write '' for an empty text" if field.type is FieldType.TEXT and not field.required else ""
        raise WrongValueError(f"null is not possible here: give {field.type.value}{empty}")
    return _READERS[field.type](field, value)


def same(field: FieldSpec, one: Any, other: Any) -> bool:
    """Says whether two canonical values are equal: names of several rows in any order, and 1 is not true."""
    if field.type is FieldType.NAMES:
        return set(one) == set(other)
    if field.type in (FieldType.OBJECT, FieldType.LIST):
        return alike(one, other)
    return bool(one == other)


def sent(field: FieldSpec, value: Any) -> Any:
    """Returns a canonical value as REST takes it."""
    if value is None:
        return None
    match field.type:
        case FieldType.DECIMAL:
            return f"{value:f}"
        case FieldType.TIME:
            return time_text(value)
        case FieldType.NAME:
            return key_text(value)
        case FieldType.NAMES:
            return [key_text(key) for key in value]
    return value


def shown(field: FieldSpec, value: Any) -> str:
    """Returns a canonical value as a line of a plan has it."""
    return words(sent(field, value))


def words(value: object) -> str:
    """Returns JSON, short, with plain texts as they are; `none` for null."""
    if value is None:
        return "none"
    if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT:
        value = int(value)
    plain = isinstance(value, str) and value and value.isprintable() and value == value.strip() and '"' not in value
    text = str(value) if plain else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def key_text(key: Key) -> str:
    """Returns a key as REST and people write it: `ashburn/main`."""
    return "/".join(
        time_text(part) if isinstance(part, datetime) else "" if part is None else str(part) for part in key
    )


def time_text(at: datetime) -> str:
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")


def key_of(name: str, values: Mapping[str, Any]) -> Key:
    """Returns the key of a row of this kind, from its canonical values."""
    found: list[Any] = []
    for field in (KINDS[name].field(part) for part in KINDS[name].lookup):
        value = values[field.name]
        if not field.of:
            found.append(value)
        else:
            found += value if value is not None else [None] * len(leaves(KINDS[field.of]))
    return tuple(found)


def _variable(value: object) -> str | None:
    """Returns the first `${NAME}` that stands for a whole text in the value."""
    if isinstance(value, str):
        return value if _VARIABLE.fullmatch(value.strip()) else None
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return next((found for one in inner if (found := _variable(one))), None)


def _wrong(field: FieldSpec, value: object, more: str = "") -> WrongValueError:
    given = json.dumps(value, ensure_ascii=False)[:_LONGEST] if isinstance(value, str) else words(value)
    return WrongValueError(f"give {field.type.value}, not {given}{more}")


def _text(field: FieldSpec, value: object) -> str:
    if not isinstance(value, str):
        simple = isinstance(value, (bool, int, float))
        raise _wrong(field, value, f'; in quotes it is one: "{words(value)}"' if simple else "")
    return value


def _number(field: FieldSpec, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not _finite(value):
        raise _wrong(field, value)
    return float(value)


def _finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number that no float holds
        return False


def _whole(field: FieldSpec, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise _wrong(field, value)
    return value


def _decimal(field: FieldSpec, value: object) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise _wrong(field, value)
    try:
        found = Decimal(str(value))
    except InvalidOperation:
        raise _wrong(field, value) from None
    if not found.is_finite() or abs(found.adjusted()) >= _MOST_DIGITS or len(found.as_tuple().digits) > _MOST_DIGITS:
        raise _wrong(field, value)
    return found


def _flag(field: FieldSpec, value: object) -> bool:
    if not isinstance(value, bool):
        raise _wrong(field, value)
    return value


def _time(field: FieldSpec, value: object) -> datetime:
    if not isinstance(value, str):
        raise _wrong(field, value)
    try:
        found = datetime.fromisoformat(value)
    except ValueError:
        raise _wrong(field, value) from None
    if found.tzinfo is None:
        raise _wrong(field, value)
    return found.astimezone(UTC)


def _object(field: FieldSpec, value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _wrong(field, value)
    return value


def _list(field: FieldSpec, value: object) -> list[Any]:
    if not isinstance(value, list):
        raise _wrong(field, value)
    return value


def _name(field: FieldSpec, value: object) -> Key:
    parts = leaves(KINDS[field.of])
    shape = f"{KINDS[field.of].one} by its key, {'/'.join(KINDS[field.of].lookup)}"
    if not isinstance(value, str):
        raise WrongValueError(f"give the {shape}, not {words(value)}")
    texts = value.split("/", len(parts) - 1)
    if len(texts) != len(parts) or not all(texts):
        raise WrongValueError(f"'{value[:_LONGEST]}' is no key: give the {shape}")
    return tuple(_part(part, text, shape) for part, text in zip(parts, texts, strict=True))


def _part(field: FieldSpec, text: str, shape: str) -> Any:
    """Reads one part of a key, which is text whatever its field's type."""
    try:
        if field.type is FieldType.WHOLE:
            return int(text)
        return _time(field, text) if field.type is FieldType.TIME else text
    except ValueError as error:
        raise WrongValueError(f"{field.name} in a key: {error}; give the {shape}") from None


def _names(field: FieldSpec, value: object) -> tuple[Key, ...]:
    if not isinstance(value, list):
        raise _wrong(field, value)
    return tuple(dict.fromkeys(_name(field, one) for one in value))


def alike(one: object, other: object) -> bool:
    """Says whether two values of JSON are equal; 1 is not true."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(alike(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(alike(*pair) for pair in zip(one, other, strict=True))
    return isinstance(one, bool) == isinstance(other, bool) and one == other


_READERS = {
    FieldType.TEXT: _text,
    FieldType.NUMBER: _number,
    FieldType.WHOLE: _whole,
    FieldType.DECIMAL: _decimal,
    FieldType.FLAG: _flag,
    FieldType.TIME: _time,
    FieldType.OBJECT: _object,
    FieldType.LIST: _list,
    FieldType.NAME: _name,
    FieldType.NAMES: _names,
}

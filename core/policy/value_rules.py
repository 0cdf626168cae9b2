"""What the value of a setting may be, kept as metadata of its dataclass field: words, choices and range."""

from __future__ import annotations

import operator
import types
import typing
from collections.abc import Mapping
from dataclasses import Field, dataclass, field
from functools import cache
from typing import Any, Literal

from core import bounds

_WORDS = {str: "a text", bool: "true or false", int: "a whole number", float: "a number", dict: "an object"}
_FLAGS = {"true": True, "on": True, "yes": True, "false": False, "off": False, "no": False}


@dataclass(frozen=True, slots=True)
class OneWorld:
    """The one world that reads a setting. `why`: the reason for which the other does not."""

    world: Literal["live", "simulator"]
    why: str


def setting(
    default: Any,
    doc: str,
    choices: tuple[str, ...] = (),
    *,
    unset: str = "",
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    below: float | None = None,
    only: OneWorld | None = None,
) -> Any:
    """Makes a field.

    Args:
        unset: What None, or an empty value, stands for.
        least, above, most, below: Where nothing is said of an end, `core.bounds` says it by the setting's name.
        only: The one world that reads it. None: both do.
    """
    ranges = {"least": least, "above": above, "most": most, "below": below}
    return field(default=default, metadata={"doc": doc, "unset": unset, "choices": choices, "only": only, **ranges})


@cache
def kinds(owner: type) -> Mapping[str, tuple[type, ...]]:
    """Returns the types that each field of a dataclass may be of."""
    return {name: _kinds_of(hint) for name, hint in typing.get_type_hints(owner).items()}


def _kinds_of(hint: Any) -> tuple[type, ...]:
    parts = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    origins = (typing.get_origin(part) or part for part in parts)
    return tuple(dict if origin is Mapping else origin for origin in origins)


def checked(owner: type, item: Field[Any], value: Any) -> Any:
    """Returns the value as the field has it: a whole number where a fraction may stand, a list as a tuple.

    Raises:
        ValueError: It is of another kind or out of range; the text is `NAME: what is wrong`.
    """
    key, rules, kind = item.name, item.metadata, kinds(owner)[item.name]
    if value is None and types.NoneType in kind:
        return None
    if tuple in kind:
        return _checked_list(owner, item, value)
    if value is False and "off" in rules["choices"]:
        value = "off"  # as YAML reads the word
    if float in kind and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if type(value) not in kind:
        words = " or ".join([_WORDS[one] for one in kind if one in _WORDS] + ["null"] * (types.NoneType in kind))
        raise ValueError(f"{key}: must be {words}, not {value!r}")
    if rules["choices"] and value not in rules["choices"]:
        raise ValueError(f"{key}: unknown '{value}'; known: {', '.join(rules['choices'])}")
    if isinstance(value, dict):
        for name, part in value.items():
            if isinstance(part, bool) or not isinstance(part, (int, float)):
                raise ValueError(f"{key}.{name}: must be a number, not {part!r}")
            _check_range(f"{key}.{name}", float(part), limits_of(item))
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        _check_range(key, value, limits_of(item))
    return value


@cache
def limits_of(item: Field[Any]) -> Mapping[str, float | None]:
    """Returns `least`, `above`, `most` and `below` of a setting: its own, and of an end without one its quantity's."""
    found = {name: item.metadata[name] for name in ("least", "above", "most", "below")}
    bound = bounds.of(item.name)
    if bound is not None and found["least"] is None and found["above"] is None:
        found["least"] = bound.least
    if bound is not None and found["most"] is None and found["below"] is None:
        found["most"] = bound.most
    return found


def _checked_list(owner: type, item: Field[Any], value: Any) -> tuple[Any, ...]:
    kind = typing.get_args(typing.get_type_hints(owner)[item.name])[0]
    parts = (value,) if isinstance(value, str) else value
    if not isinstance(parts, (list, tuple)) or any(type(part) is not kind for part in parts):
        what = "a list of names" if kind is str else "whole numbers"
        raise ValueError(f"{item.name}: must be {what}, not {value!r}")
    known = item.metadata["choices"]
    for part in parts:
        if known and part not in known:
            raise ValueError(f"{item.name}: unknown '{part}'; known: {', '.join(known)}")
        if kind is int:
            _check_range(item.name, part, limits_of(item))
    return tuple(part for part in known if part in parts) if known else tuple(parts)


def _check_range(key: str, value: float, limits: Mapping[str, float | None]) -> None:
    if value != value or value in (float("inf"), float("-inf")):
        raise ValueError(f"{key}: must be a finite number, not {value}")
    for name, words, wrong in (
        ("least", "at least", operator.lt),
        ("above", "above", operator.le),
        ("most", "at most", operator.gt),
        ("below", "below", operator.ge),
    ):
        limit = limits[name]
        if limit is not None and wrong(value, limit):
            raise ValueError(f"{key}: must be {words} {limit:g}, not {value:g}")


def parse(owner: type, key: str, text: str) -> Any:
    """Returns the value that a text means for a field, as on a command line; `none` where a field may be None.

    Raises:
        ValueError: The text is no value of the field's kind.
    """
    kind = kinds(owner)[key]
    if types.NoneType in kind and text.lower() in ("none", "null", ""):
        return None
    if str in kind:
        return text
    if bool in kind:
        return _FLAGS.get(text.lower(), text)
    if dict in kind:
        return _numbers(key, text)
    if tuple in kind:
        return _list(owner, key, [part.strip() for part in text.split(",") if part.strip()])
    try:
        return int(text) if int in kind else float(text)
    except ValueError:
        raise ValueError(f"{key}: must be a number, not '{text}'") from None


def _list(owner: type, key: str, parts: list[str]) -> tuple[str, ...] | tuple[int, ...]:
    if typing.get_args(typing.get_type_hints(owner)[key])[0] is str:
        return tuple(parts)
    try:
        return tuple(int(part) for part in parts)
    except ValueError:
        raise ValueError(f"{key}: must be whole numbers, not '{','.join(parts)}'") from None


def _numbers(key: str, text: str) -> dict[str, float]:
    """Reads numbers by name, such as `acme:2,birch:1`."""
    try:
        return {name.strip(): float(number) for name, number in (part.rsplit(":", 1) for part in text.split(","))}
    except ValueError:
        raise ValueError(f"{key}: is written like acme:2,birch:1, not '{text}'") from None

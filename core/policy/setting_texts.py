"""Every setting of a policy as people name, read and write it: a knob by its name, tuning as RECORD.FIELD."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import Field, fields
from typing import Any

from core.policy import value_rules
from core.policy.knobs import Knobs
from core.policy.presets import Policy
from core.policy.tuning import Tuning

_FIELDS: dict[str, tuple[type, Field[Any]]] = {item.name: (Knobs, item) for item in fields(Knobs)}
for _record in fields(Tuning):
    _owner = type(getattr(Tuning(), _record.name))
    _FIELDS |= {f"{_record.name}.{item.name}": (_owner, item) for item in fields(_owner)}
SETTINGS: Mapping[str, Field[Any]] = types.MappingProxyType({name: item for name, (_, item) in _FIELDS.items()})


def value_of(policy: Policy, name: str) -> Any:
    """Returns the value that a policy has of a setting."""
    record, _, key = name.rpartition(".")
    return getattr(getattr(policy.tuning, record) if record else policy.knobs, key)


def by_name(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values of overrides, as they are stored, each by the name of its setting."""
    found = {key: value for key, value in overrides.items() if key != "tuning"}
    for record, values in overrides.get("tuning", {}).items():
        found |= {f"{record}.{key}": value for key, value in values.items()}
    return found


def stored(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns values by the names of their settings as overrides, as they are stored."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        record, _, key = name.rpartition(".")
        if record:
            found.setdefault("tuning", {}).setdefault(record, {})[key] = value
        else:
            found[key] = value
    return found


def documented() -> dict[str, str]:
    """Returns the words for each setting: its choices, what it is for, what no value stands for, who reads it."""
    return {name: _words(item) for name, item in SETTINGS.items()}


def without_effect(overrides: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns a sentence for each override, as they are stored, that changes nothing live."""
    only = {name: SETTINGS[name].metadata["only"] for name in by_name(overrides)}
    return tuple(
        f"{name} has no effect live: {rules.why}."
        for name, rules in only.items()
        if rules and rules.world == "simulator"
    )


def _words(item: Field[Any]) -> str:
    rules = item.metadata
    found = rules["doc"] + (f"; none: {rules['unset']}" if rules["unset"] else "")
    if rules["only"]:
        found += f" (read {'live' if rules['only'].world == 'live' else 'in What-if'} alone: {rules['only'].why})"
    return f"{' | '.join(rules['choices'])}. {found}" if rules["choices"] else found


def parse(name: str, text: str) -> Any:
    """Returns the value that a text means for a setting, as on a command line; `none` where it may have no value.

    Raises:
        ValueError: An unknown setting, or no value of its kind; the text begins with its name.
    """
    if name not in _FIELDS:
        record = name.partition(".")[0] if "." in name else ""
        known = [one for one in _FIELDS if one.rpartition(".")[0] == record] or list(_FIELDS)
        raise ValueError(f"unknown {'setting' if record else 'knob'} '{name}'; known are {', '.join(known)}")
    owner, item = _FIELDS[name]
    try:
        return value_rules.checked(owner, item, value_rules.parse(owner, item.name, text))
    except ValueError as error:
        record = name.rpartition(".")[0]
        raise ValueError(f"{record}.{error}" if record else str(error)) from None


def text_of(value: object) -> str:
    """Writes a value as `parse` reads it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value))
    if isinstance(value, dict):
        return ",".join(f"{name}:{weight:g}" for name, weight in value.items())
    return str(value)

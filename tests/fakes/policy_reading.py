"""A policy that notes which of its settings are read."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from core.policy.presets import Policy


def watched(policy: Policy, seen: set[str]) -> Policy:
    """Returns the policy with knobs and tuning that add the name of each setting to `seen` as it is read."""
    records = {item.name: getattr(policy.tuning, item.name) for item in fields(policy.tuning)}
    tuning = replace(policy.tuning, **{name: _watched(record, f"{name}.", seen) for name, record in records.items()})
    return replace(policy, knobs=_watched(policy.knobs, "", seen), tuning=tuning)


def _watched(record: Any, prefix: str, seen: set[str]) -> Any:
    names = {item.name for item in fields(record)}

    def read(self: object, name: str) -> Any:
        if name in names:
            seen.add(prefix + name)
        return object.__getattribute__(self, name)

    # By identity: a comparison of two records reads all their fields, and makes nothing of them.
    own = {"__slots__": (), "__getattribute__": read, "__eq__": object.__eq__, "__hash__": object.__hash__}
    kind = type(type(record).__name__, (type(record),), own)
    return kind(**{name: getattr(record, name) for name in names})

"""The policies that a live service may run, and how far its loops are from what the presets say.

`DIFFERS`, `ABSENT`, `UNREAD` and the knobs with `live=False` shrink as live loops learn what simulated ones do; a test
holds that none of them grows. A service may be given such a setting all the same, and `without_effect` says so.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from core.policy import presets
from core.policy.knobs import Knobs, check_together
from core.policy.presets import Policy
from core.policy.setting_texts import SETTINGS, by_name, text_of, value_of

# Values that no live loop, gateway or engine knows yet.
ABSENT: Mapping[str, tuple[Any, ...]] = {}
# Tuning that no live loop, gateway or agent reads yet: records, or single fields as RECORD.FIELD.
UNREAD = ("throttle.engines", "split.calibrate_s", "split.gain")
# What a live service runs in place of a preset's own value.
DIFFERS: Mapping[str, Mapping[str, Any]] = {}


def _absent(found: Knobs) -> list[str]:
    return [key for key, values in ABSENT.items() if getattr(found, key) in values]


_ROWS = {name: replace(preset.knobs, **DIFFERS.get(name, {})) for name, preset in presets.PRESETS.items()}
LIVE: Mapping[str, Knobs] = types.MappingProxyType({name: own for name, own in _ROWS.items() if not _absent(own)})


def choices() -> list[tuple[str, str]]:
    """Returns the live policies as a form's choices. As a function, since a list in a model asks for a migration each
    time it grows."""
    return [(name, name) for name in LIVE]


def policy(name: str, overrides: Mapping[str, Any] | None = None) -> Policy:
    """Returns what a live service runs: a preset with some knobs and some tuning set otherwise.

    A value that no live loop knows is the preset's instead; `without_effect` names it.

    Raises:
        ValueError: An unknown name or setting, or a value that it cannot have; the text names it and what would do.
    """
    if name not in LIVE:
        raise ValueError(f"unknown policy '{name}'; known are {', '.join(LIVE)}")
    own = overrides or {}
    asked = presets.policy(name, own)
    differs = {key: value for key, value in DIFFERS.get(name, {}).items() if key not in own}
    knobs = replace(asked.knobs, **differs)
    knobs = replace(knobs, **{key: getattr(LIVE[name], key) for key in _absent(knobs)})
    check_together(knobs)
    return replace(asked, knobs=knobs)


def knobs(name: str, overrides: Mapping[str, Any] | None = None) -> Knobs:
    """Returns the knobs of what a live service runs. Raises ValueError as `policy` does."""
    return policy(name, overrides).knobs


def is_unread(name: str) -> bool:
    """Says whether no live loop, gateway or agent reads a setting yet, though it is not for the simulator alone."""
    rules, record = SETTINGS[name].metadata, name.rpartition(".")[0]
    unread = record in UNREAD or (record and name in UNREAD)  # some records are called as knobs are
    return not rules["only"] and bool(not rules["live"] or unread)


def without_effect(name: str, overrides: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns a sentence for each override that changes nothing live. Raises ValueError as `policy` does."""
    asked, found = presets.policy(name, overrides), []
    runs = policy(name, overrides)
    for key in by_name(overrides):
        value, rules = value_of(asked, key), SETTINGS[key].metadata
        if rules["only"] and rules["only"].world == "simulator":
            found.append(f"{key} has no effect live: {rules['only'].why}.")
        elif key in ABSENT and value in ABSENT[key]:
            words = text_of(value_of(runs, key))
            found.append(f"{key}={text_of(value) or 'none'} has no effect live so far: {key}={words} runs.")
        elif is_unread(key):
            found.append(f"{key} has no effect live so far: What-if alone reads it.")
    return tuple(found)

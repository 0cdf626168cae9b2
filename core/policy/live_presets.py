"""The policies that a live service may run, and how far its loops are from what the presets say.

`DIFFERS`, `ABSENT` and the knobs with `live=False` shrink as live loops learn what simulated ones do; a test holds that
none of them grows.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from core.policy import presets, value_rules
from core.policy.knobs import Knobs

# Values that no live loop, gateway or engine knows yet.
ABSENT: Mapping[str, tuple[Any, ...]] = {
    "scale": ("threshold",),
    "shard": ("threshold",),
    "clock": ("threshold",),
    "itl_limit_s": (None,),
    "route": ("round_robin", "predicted"),
    "order": ("spf",),
}
# What a live service runs in place of a preset's own value.
DIFFERS: Mapping[str, Mapping[str, Any]] = {
    "greenserve": {"clock_period_s": 1.0, "order": "sjf", "aging_tokens_per_s": 20.0},
    "single_pool": {"route": "least_loaded"},
    "dynaserve": {"itl_limit_s": 0.1, "route": "least_loaded"},
    "pd_coloc": {"route": "least_loaded"},
    "pd_disagg": {"route": "least_loaded"},
}


def _absent(found: Knobs) -> list[str]:
    return [key for key, values in ABSENT.items() if getattr(found, key) in values]


KNOBS = {item.name: item for item in fields(Knobs) if item.metadata["live"]}
_ROWS = {name: replace(preset.knobs, **DIFFERS.get(name, {})) for name, preset in presets.PRESETS.items()}
LIVE: Mapping[str, Knobs] = types.MappingProxyType({name: own for name, own in _ROWS.items() if not _absent(own)})


def choices() -> list[tuple[str, str]]:
    """Returns the live policies as a form's choices. As a function, since a list in a model asks for a migration each
    time it grows."""
    return [(name, name) for name in LIVE]


def knobs(name: str, overrides: Mapping[str, Any] | None = None) -> Knobs:
    """Returns what a live service runs: a preset with some knobs set otherwise.

    Raises:
        ValueError: An unknown name or knob, or a value that it cannot have live; the text names it and what would do.
    """
    if name not in LIVE:
        raise ValueError(f"unknown policy '{name}'; known are {', '.join(LIVE)}")
    found = presets.with_knobs(LIVE[name], overrides or {})
    for key in overrides or {}:
        if key not in KNOBS:
            raise ValueError(f"{key}: only What-if can set it so far")
    for key in _absent(found):
        raise ValueError(f"{key}: only What-if knows {getattr(found, key) or 'none'} so far")
    return found


def documented() -> dict[str, str]:
    """Returns what each knob of a live service is for, with its choices."""
    found = {}
    for name, item in KNOBS.items():
        words = " | ".join(known(name))
        found[name] = f"{words}. {item.metadata['doc']}" if words else item.metadata["doc"]
    return found


def known(knob: str) -> tuple[str, ...]:
    """Returns the choices of a knob of a live service; none: any value of its kind."""
    return tuple(value for value in KNOBS[knob].metadata["choices"] if value not in ABSENT.get(knob, ()))


def parse(key: str, text: str) -> Any:
    """Returns the value that a text means for a knob, as on a command line; `none` for what settings have.

    Raises:
        ValueError: An unknown knob, or no value of its kind.
    """
    if key not in KNOBS:
        raise ValueError(f"unknown knob '{key}'; known are {', '.join(KNOBS)}")
    return value_rules.parse(Knobs, key, text)

"""Values other than the usual for every knob and every field of tuning, for tests that walk all of them."""

from __future__ import annotations

from typing import Any

from core.policy.setting_texts import SETTINGS

_OF_ITS_OWN: dict[str, Any] = {
    "slo_factor": 10.0,
    "partition": "whole",
    "tenant_weights": {"acme": 2.0},
    "max_rps": {"tp1": 1.0, "tp2": 3.0},
    "placement.group_gpus": (2, 4),
    "threshold.kv_low": 0.3,
    "threshold.busy_low": 0.3,
}


def values(name: str, usual: Any) -> list[Any]:
    """Returns all choices of a setting, or else one value that is not the usual one."""
    rules = SETTINGS[name].metadata
    if rules["choices"]:
        return [(choice,) if isinstance(usual, tuple) else choice for choice in rules["choices"]]
    if name in _OF_ITS_OWN:
        return [_OF_ITS_OWN[name]]
    if isinstance(usual, bool):
        return [not usual]
    if usual is None:
        return [10]
    most = rules["most"] or rules["below"]
    return [usual + 5 if most is None else 0.6 * usual + 0.1 * most]

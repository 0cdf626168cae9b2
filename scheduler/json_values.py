"""Core values as JSON and, for what is carried from epoch to epoch, back again."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from core.types import CarbonPlan, ChoosePartition, Command, Mode, PoolKey, ScaleTo, SetGpuBudget, SetTpDegrees


def to_json(value: object) -> Any:
    """Dataclasses become objects with their `type`, modes their name, pool keys `site/class`; nan and inf null."""
    if value is None or isinstance(value, (bool, int, str)):
        return value.value if isinstance(value, Enum) else value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, (Mode, PoolKey)):
        return _key(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {"type": type(value).__name__} | {f.name: to_json(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {_key(key): to_json(item) for key, item in value.items()}
    if isinstance(value, (tuple, list, set, frozenset)):
        return [to_json(item) for item in value]
    if hasattr(value, "item"):  # a NumPy scalar
        return to_json(value.item())
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def _key(key: object) -> str:
    if isinstance(key, Mode):
        return key.name
    if isinstance(key, PoolKey):
        return f"{key.site}/{key.request_class}"
    if isinstance(key, tuple):
        return " ".join(_key(part) for part in key)
    return str(key)


def pool_key(text: str) -> PoolKey:
    """Reads `site/class`, which a PoolKey becomes in JSON."""
    site, _, request_class = text.partition("/")
    return PoolKey(site, request_class)


def workers_to_json(workers: Mapping[Mode, int]) -> dict[str, int]:
    """Writes workers as `Pool.workers` has them: mode name -> instances, none of them zero."""
    return {mode.name: count for mode, count in sorted(workers.items()) if count}


def workers_from_json(value: Mapping[str, int]) -> dict[Mode, int]:
    return {Mode.parse(name): count for name, count in value.items() if count}


def plan_to_json(plan: CarbonPlan | None) -> dict[str, Any]:
    if plan is None:
        return {}
    workers = [
        {"site": site, "request_class": name, "mode": mode.name, "count": count}
        for (site, name, mode), count in sorted(plan.workers.items())
        if count
    ]
    return {"partition": plan.partition, "workers": workers}


def plan_from_json(value: Mapping[str, Any]) -> CarbonPlan | None:
    """Reads a plan; None when there is none yet."""
    if not value.get("partition"):
        return None
    workers = {(w["site"], w["request_class"], Mode.parse(w["mode"])): int(w["count"]) for w in value["workers"]}
    return CarbonPlan(partition=value["partition"], workers=workers)


def commands_from_json(rows: Iterable[Mapping[str, Any]]) -> tuple[Command, ...]:
    """Those that plans and placements are made of; others, which agents and gateways carry out, are left out."""
    found: list[Command] = []
    for row in rows:
        if row["type"] == "ChoosePartition":
            found.append(ChoosePartition(row["partition"]))
        elif row["type"] == "SetGpuBudget":
            found.append(SetGpuBudget(pool_key(row["pool"]), dict(row["gpus"])))
        elif row["type"] in ("ScaleTo", "SetTpDegrees"):
            kind = ScaleTo if row["type"] == "ScaleTo" else SetTpDegrees
            found.append(kind(pool_key(row["pool"]), workers_from_json(row["workers"])))
    return tuple(found)

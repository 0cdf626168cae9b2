"""Records what a controller was given and what it answered, as JSON that becomes the same values again.

`recall(record(x)) == x` for all that crosses a controller's border: dataclasses and enums of the core, mappings with
any keys, tuples, sets, NumPy arrays, and numbers that JSON does not have. Only types of `core` come back.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

import numpy as np

_HOME = "core."
_HOME_0_1_0 = "scheduler.core."
_FLEET = ("energy_mix", "fleet_patterns", "hand_down", "highs", "power_curve", "site_mix")
_STEPS = ("autoscale", "carbon", "pool_loop", "right_size", "scale", "scale_dynamo", "shard", "shard_dynamo")
_ENGINE = ("engine_model", "engine_params", "engine_vector", "iteration", "load_profile", "overhead_table")
# Where modules of release 0.1.0 are now, both from their home: its recordings are read after an upgrade.
_MOVED = {
    "types": "types",
    "steady_state": "engine.steady_state",
    "algorithms.fleet": "algorithms.fleet.fleet_problem",
    "algorithms.milp": "algorithms.fleet.fleet_milp",
    "algorithms.reshard": "algorithms.placement.reshard",
    "controllers.shared_out": "controllers.fleet.shared_out",
    **{f"algorithms.{name}": f"algorithms.fleet.{name}" for name in _FLEET},
    **{f"controllers.{name}": f"controllers.fleet.{name}" for name in _STEPS},
    **{name: f"engine.{name}" for name in _ENGINE},
}


class RecordingError(ValueError):
    """A recording that cannot be read: it names a type that is not there, or no longer has the fields it had."""


def record(value: Any) -> Any:
    """Raises TypeError on what is no value of a controller's."""
    if isinstance(value, Enum):
        return {"$enum": _name(type(value)), "value": value.value}
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$float": str(value)}
    if is_dataclass(value) and not isinstance(value, type):
        own = {f.name: record(getattr(value, f.name)) for f in fields(value) if f.init}
        return {"$type": _name(type(value)), "fields": own}
    if isinstance(value, Mapping):
        return {"$map": [[record(key), record(item)] for key, item in value.items()]}
    if isinstance(value, (tuple, list)):
        return {"$tuple" if isinstance(value, tuple) else "$list": [record(item) for item in value]}
    if isinstance(value, (set, frozenset)):
        return {"$set": [record(item) for item in sorted(value)]}
    if isinstance(value, np.ndarray):
        return {
            "$array": value.dtype.str,
            "shape": list(value.shape),
            "values": [record(v) for v in value.ravel().tolist()],
        }
    if isinstance(value, np.generic):
        return record(value.item())
    raise TypeError(f"{type(value).__name__} is no value that a controller is given")


def recall(stored: Any) -> Any:
    """Raises RecordingError."""
    if not isinstance(stored, dict):
        return stored
    if "$float" in stored:
        return float(stored["$float"])
    if "$map" in stored:
        return {recall(key): recall(item) for key, item in stored["$map"]}
    if "$tuple" in stored:
        return tuple(recall(item) for item in stored["$tuple"])
    if "$list" in stored:
        return [recall(item) for item in stored["$list"]]
    if "$set" in stored:
        return frozenset(recall(item) for item in stored["$set"])
    if "$array" in stored:
        values = [recall(item) for item in stored["values"]]
        return np.array(values, dtype=np.dtype(stored["$array"])).reshape(stored["shape"])
    if "$enum" in stored:
        return named(stored["$enum"])(stored["value"])
    if "$type" in stored:
        own = {name: recall(item) for name, item in stored["fields"].items()}
        try:
            return named(stored["$type"])(**own)
        except TypeError as error:
            raise RecordingError(f"{stored['$type']} is no longer what it was: {error}") from error
    raise RecordingError(f"no value: {sorted(stored)[:3]}")


def named(name: str) -> Any:
    """Returns what `module:qualified name` names in the core. Raises RecordingError."""
    module, _, path = name.partition(":")
    if module.startswith(_HOME_0_1_0):
        old = module.removeprefix(_HOME_0_1_0)
        module = _HOME + _MOVED.get(old, old)
    if not module.startswith(_HOME):
        raise RecordingError(f"{name} is not of the core")
    try:
        found: Any = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise RecordingError(f"{name} is not there any more") from error
    return found


def _name(kind: type) -> str:
    if not kind.__module__.startswith(_HOME):
        raise TypeError(f"{kind.__module__}.{kind.__qualname__} is not of the core")
    return f"{kind.__module__}:{kind.__qualname__}"

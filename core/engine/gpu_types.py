"""GPU types by their data sheets: those of data/gpu_types.json, and those that an operator declared.

A type whose coefficients were fitted to measurements has its parameters in data/engine_params.json. Any other takes the
coefficients of a fitted one of its kind (`like`), and from its own data sheet what is in it: FLOP/s, bandwidth, memory,
TDP and clocks. What grows with the clock keeps its place in the range of clocks, what is drawn whatever the work its
share of the TDP. Such parameters are a plan's first guess: their margins are wide until a node has been profiled.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any

from core.engine import parameter_caches

_TYPES = Path(__file__).parent / "data" / "gpu_types.json"
MOST_NAME = 40  # characters


class BadGpuType(ValueError):
    """Data-sheet values that no GPU has; says which field, and why."""

    def __init__(self, field_name: str, reason: str) -> None:
        super().__init__(f"{field_name}: {reason}")
        self.field_name = field_name


@dataclass(frozen=True, slots=True)
class GpuType:
    """A product's data sheet.

    `peak_flops` dense, at 16 bit; `fp8_flops` and `fp4_flops` likewise, 0 where it has no such units; `hbm_bw` and
    `link_bw` (to the other GPUs of its node, both directions together) in bytes/s. `mem_gb` are the billions of bytes
    that its driver tells. `idle_w` with nothing loaded; 0: the share of the TDP that the type in `like` draws. `nvml`:
    the names by which drivers know it. `assumed`: the fields that `source` does not have.
    """

    name: str
    peak_flops: float
    hbm_bw: float
    mem_gb: float
    tdp_w: float
    f_max: float
    f_min: float
    link_bw: float
    like: str
    source: str
    fp8_flops: float = 0.0
    fp4_flops: float = 0.0
    idle_w: float = 0.0
    nvml: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()

    def check(self, known: Iterable[str]) -> None:
        """Raises BadGpuType. `known`: the types that it can be `like`."""
        for name in ("peak_flops", "hbm_bw", "mem_gb", "tdp_w", "f_max", "f_min", "link_bw"):
            if not 0.0 < getattr(self, name) < float("inf"):
                raise BadGpuType(name, f"{getattr(self, name)} is not above 0")
        for name in ("fp8_flops", "fp4_flops"):
            if not 0.0 <= getattr(self, name) < float("inf"):
                raise BadGpuType(
                    name, f"{getattr(self, name)} is below 0; leave it empty where there are no such units"
                )
        if self.f_min > self.f_max:
            raise BadGpuType("f_min", f"{self.f_min:g} MHz is above the top clock, {self.f_max:g} MHz")
        if not 0.0 <= self.idle_w < self.tdp_w:
            raise BadGpuType("idle_w", f"{self.idle_w:g} W is not between 0 and the TDP, {self.tdp_w:g} W")
        if not self.name or len(self.name) > MOST_NAME or not set("/+:, ").isdisjoint(self.name):
            raise BadGpuType(
                "name", f"'{self.name}' is not 1 to {MOST_NAME} characters without spaces or any of / + : ,"
            )
        if self.like not in (names := sorted(known)):
            raise BadGpuType("like", f"'{self.like}' is none of {', '.join(names)}")
        if unknown := sorted(set(self.assumed) - {item.name for item in fields(self)}):
            raise BadGpuType("assumed", f"no such fields: {', '.join(unknown)}")


def gpu_type_of(name: str, row: Mapping[str, Any]) -> GpuType:
    """Makes a type of a row of a file, not checked yet. Raises BadGpuType: a field that no type has, or lacks."""
    known = {item.name for item in fields(GpuType)} - {"name"}
    if unknown := sorted(set(row) - known):
        raise BadGpuType(unknown[0], f"unknown; a GPU type has {', '.join(sorted(known))}")
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}
    for item in fields(GpuType):
        if item.type in ("float", float) and item.name in values:
            values[item.name] = _number(item.name, values[item.name])
    try:
        return GpuType(name=name, **values)
    except TypeError as error:
        raise BadGpuType("file", str(error).partition("__init__() ")[2]) from None


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadGpuType(name, f"{value!r} is not a number")
    return float(value)


def _shipped() -> Mapping[str, GpuType]:
    rows = json.loads(_TYPES.read_text(encoding="utf-8"))
    return MappingProxyType({name: gpu_type_of(name, row) for name, row in rows.items()})


SHIPPED: Mapping[str, GpuType] = _shipped()
_declared: dict[str, GpuType] = {}


def gpu_types() -> dict[str, GpuType]:
    """Returns all types by name, declared ones last. A shipped name keeps its shipped meaning."""
    return {**_declared, **SHIPPED}


def declared() -> tuple[GpuType, ...]:
    """Returns the operator's types of this process."""
    return tuple(_declared.values())


def declare(types: Iterable[GpuType]) -> bool:
    """Makes these the operator's types of this process, in place of those before; says whether anything changed.

    Whatever was computed with the parameters before is forgotten. Types are checked where they are entered.
    """
    new = {one.name: one for one in types if one.name not in SHIPPED}
    if new == _declared:
        return False
    _declared.clear()
    _declared.update(new)
    parameter_caches.clear()
    return True


def named_by_driver(name: str) -> GpuType | None:
    """Returns the type that a driver calls so (NVML's or amdsmi's product name); None: none that is known."""
    found = gpu_types()
    return found.get(name) or next((one for one in found.values() if name in one.nvml), None)

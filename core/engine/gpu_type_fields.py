"""A GPU type's fields as people write them: in forms, REST, files of a fleet and scenarios. TFLOP/s, GB and GB/s."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from core import bounds
from core.engine.gpu_types import BadGpuType, GpuType, gpu_type_of

# Of each figure its name in a GpuType, and the units of that in one of it.
FIGURES: Mapping[str, tuple[str, float]] = MappingProxyType(
    {
        "peak_tflops": ("peak_flops", 1e12),
        "fp8_tflops": ("fp8_flops", 1e12),
        "fp4_tflops": ("fp4_flops", 1e12),
        "memory_gb": ("mem_gb", 1.0),
        "memory_gb_per_s": ("hbm_bw", 1e9),
        "link_gb_per_s": ("link_bw", 1e9),
        "tdp_w": ("tdp_w", 1.0),
        "idle_w": ("idle_w", 1.0),
        "min_mhz": ("f_min", 1.0),
        "max_mhz": ("f_max", 1.0),
    }
)
UNKNOWN_MEANS_NONE = ("fp8_tflops", "fp4_tflops", "idle_w")  # null where a GpuType has 0
_OTHERS = {"like": "like", "source": "source", "driver_names": "nvml", "assumed": "assumed"}
_OWN = {theirs: own for own, (theirs, _) in FIGURES.items()} | {theirs: own for own, theirs in _OTHERS.items()}


def sheet_of(name: str, values: Mapping[str, Any]) -> GpuType:
    """Returns the data sheet, not checked yet. Raises BadGpuType, by the field's name here."""
    row: dict[str, Any] = {}
    for key, value in values.items():
        if value is None and key in UNKNOWN_MEANS_NONE:
            continue
        if key in FIGURES:
            field, unit = FIGURES[key]
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            row[field] = value * unit if is_number else value
        elif key == "assumed" and isinstance(value, list | tuple):
            row[key] = [FIGURES[item][0] if item in FIGURES else item for item in value]
        elif key in _OTHERS:
            row[_OTHERS[key]] = value
        else:
            raise BadGpuType(key, f"unknown; a GPU type has {', '.join((*FIGURES, *_OTHERS))}")
    if missing := [own for own in (*FIGURES, "like", "source") if _lacks(own, row)]:
        raise BadGpuType(missing[0], "missing; a GPU type needs it")
    try:
        return gpu_type_of(name, row)
    except BadGpuType as error:
        raise _by_own_name(error) from None


def _lacks(own: str, row: Mapping[str, Any]) -> bool:
    return own not in UNKNOWN_MEANS_NONE and (FIGURES[own][0] if own in FIGURES else own) not in row


def values_of(sheet: GpuType) -> dict[str, Any]:
    """Returns its fields but the name; `sheet_of` makes the same type of them."""
    found: dict[str, Any] = {}
    for own, (field, unit) in FIGURES.items():
        value = float(f"{getattr(sheet, field) / unit:.9g}")  # without what the conversion leaves behind
        found[own] = None if own in UNKNOWN_MEANS_NONE and not value else value
    assumed = [_OWN.get(field, field) for field in sheet.assumed]
    names = {"like": sheet.like, "source": sheet.source, "driver_names": list(sheet.nvml), "assumed": assumed}
    return found | names


def checked(sheet: GpuType, known: Iterable[str]) -> GpuType:
    """Returns a sheet that can be planned with, like one of `known`. Raises BadGpuType, by the field's name here."""
    for own, (field, unit) in FIGURES.items():
        bound = bounds.of(own)
        if bound is not None and getattr(sheet, field) / unit > bound.most:
            raise BadGpuType(own, f"must be at most {bound.most:,g}")
    try:
        sheet.check(known)
    except BadGpuType as error:
        raise _by_own_name(error) from None
    return sheet


def _by_own_name(error: BadGpuType) -> BadGpuType:
    return BadGpuType(_OWN.get(error.field_name, error.field_name), str(error).partition(": ")[2])

"""Corrections of the closed form by measurements: by how much time and power of a configuration differ, by clock.

A configuration is a model's shape on a GPU type at a TP degree under an engine. Its correction comes from its profile,
and from what its engines did while they served (`calibration`). The closed form applies it in all of its forms, so that
plans, clock rules, routers and the simulator follow measurements without asking for them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from core.engine import engine_params, parameter_caches
from core.engine.engine_params import GpuParams
from core.types import Source

KNOTS = 8  # at equal steps from a GPU's lowest clock to its top
BOUNDS = (0.4, 2.5)  # what lies beyond is no correction of a model but another engine, or a broken meter


class Configuration(NamedTuple):
    """Names what is corrected and profiled. Make it with `configuration`, which knows a model by its shape."""

    shape: str
    gpu: str
    tp: int
    engine: str


def configuration(model: str, gpu: str, tp: int, engine: str) -> Configuration:
    """Returns the configuration; fine-tunes of one base share it. A model that nobody knows goes by its name."""
    try:
        shape = engine_params.model(model).key
    except engine_params.UnknownConfiguration:
        shape = model
    return Configuration(shape, gpu, tp, engine)


@dataclass(frozen=True, slots=True)
class Correction:
    """Factors on the closed form's seconds and watts at `KNOTS` clocks. `at_s`: when it was last measured."""

    time: tuple[float, ...]
    power: tuple[float, ...]
    source: Source = Source.CALIBRATED
    at_s: float | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        low, high = BOUNDS
        if len(self.time) != KNOTS or len(self.power) != KNOTS:
            raise ValueError(f"a correction has {KNOTS} factors of time and of power")
        if not all(low <= factor <= high for factor in (*self.time, *self.power)):
            raise ValueError(f"the factors of a correction are from {low:g} to {high:g}")


def knots_mhz(gpu: GpuParams) -> list[float]:
    """Returns the clocks at which factors are kept."""
    return [gpu.f_min + (gpu.f_max - gpu.f_min) * n / (KNOTS - 1) for n in range(KNOTS)]


def place(gpu: GpuParams, mhz: float) -> tuple[int, float]:
    """Returns the knot below a clock of the GPU's range, and the way to the next one as a share."""
    if gpu.f_max <= gpu.f_min:
        return 0, 0.0
    at = (mhz - gpu.f_min) / (gpu.f_max - gpu.f_min) * (KNOTS - 1)
    below = min(int(at), KNOTS - 2)
    return below, at - below


def factor(factors: Sequence[float], gpu: GpuParams, mhz: float) -> float:
    """Returns the factor at a clock of the GPU's range, on the straight line between two knots."""
    below, share = place(gpu, mhz)
    return factors[below] * (1.0 - share) + factors[below + 1] * share


_corrections: dict[Configuration, Correction] = {}


def correct(corrections: Mapping[Configuration, Correction]) -> bool:
    """Makes these the corrections of this process, in place of those before; says whether anything changed."""
    if corrections == _corrections:
        return False
    _corrections.clear()
    _corrections.update(corrections)
    parameter_caches.clear()
    return True


def correction_of(key: Configuration) -> Correction | None:
    """Returns the correction in force; None: the closed form stands as it is."""
    return _corrections.get(key) if _corrections else None

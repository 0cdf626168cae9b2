"""Looks up the engine model's parameters by name: GPU types, models, engines.

GPU types that nobody measured take their parameters from their data sheets (`gpu_types`), models that are not listed
from their shapes (`model_shape`). Engines belong to parameter sets (`parameter_sets`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache

from core.engine import gpu_slices
from core.engine.model_shape import BadShape, ModelParams, is_key, shape_of_key
from core.engine.parameter_caches import cached
from core.engine.parameter_sets import FITTED, MODELS, SETS, EngineParams, GpuParams, Gpus, ParameterSet, set_of
from core.types import Source

__all__ = [
    "ENGINES",
    "FITTED",
    "GPUS",
    "GPU_BASES",
    "MODELS",
    "EngineParams",
    "GpuParams",
    "ModelParams",
    "UnknownConfiguration",
    "UnsplittableModel",
    "fitted_engines",
    "gpu",
    "gpu_basis",
    "knows_model",
    "model",
    "modelled_source",
    "parameters",
    "split_fault",
]

GPUS: Mapping[str, GpuParams] = Gpus()
# By name; of an engine that differs from GPU to GPU what it has on all others.
ENGINES: Mapping[str, EngineParams] = {
    name: of_gpus[""] for one in SETS.values() for name, of_gpus in one.engines.items()
}
GPU_BASES = ("measured", "measured in part", "data sheet")


class UnknownConfiguration(ValueError):
    """A model, GPU, engine or TP degree that the engine model has no parameters for."""

    def __init__(self, field_name: str, value: object, known: str) -> None:
        super().__init__(f"unknown {field_name} '{value}'; known: {known}")
        self.field_name = field_name
        self.value = value


class UnsplittableModel(UnknownConfiguration):
    """A TP degree that a model's heads cannot be shared out over; says which can."""

    def __init__(self, tp: int, fault: str) -> None:
        ValueError.__init__(self, fault)
        self.field_name = "tp"
        self.value = tp


def gpu(name: str) -> GpuParams:
    """Returns the parameters of a GPU type. Raises UnknownConfiguration."""
    if name not in GPUS:
        raise UnknownConfiguration("gpu", name, _listed(GPUS))
    return GPUS[name]


@cached(maxsize=256)
def model(name: str) -> ModelParams:
    """Returns the shape of a model by its name here, or by the shape's own key. Raises UnknownConfiguration."""
    if name in MODELS:
        return MODELS[name]
    if not is_key(name):
        raise UnknownConfiguration("model", name, _listed(MODELS))
    try:
        return shape_of_key(name)
    except BadShape as error:
        raise UnknownConfiguration("model", name, f"shapes that a transformer can have ({error})") from None


def knows_model(name: str) -> bool:
    """Says whether there is a shape of this name, or the name is a shape's key."""
    try:
        model(name)
    except UnknownConfiguration:
        return False
    return True


def modelled_source(engine: str, gpu_name: str) -> Source:
    """Says what the closed form rests on: parameters fitted to the GPU type in the engine's set, or its data sheet."""
    found = set_of(engine)
    by_sheet = found is not None and gpu_slices.whole(gpu_name)[0] not in found.fitted and gpu_name in GPUS
    return Source.DATA_SHEET if by_sheet else Source.MODELLED


@cache
def fitted_engines(gpu_name: str) -> tuple[str, ...]:
    """Returns the engines for which the GPU type's parameters were fitted to measurements, by name."""
    whole, _ = gpu_slices.whole(gpu_name)
    return tuple(sorted(name for one in SETS.values() if whole in one.fitted for name in one.engines))


def gpu_basis(gpu_name: str) -> str:
    """Says what a GPU type's parameters rest on, one of `GPU_BASES`."""
    measured, in_part, data_sheet = GPU_BASES
    engines = fitted_engines(gpu_name)
    return measured if len(engines) == len(ENGINES) else in_part if engines else data_sheet


def split_fault(model_name: str, gpu_name: str, tp: int) -> str:
    """Says why a model cannot be cut over `tp` GPUs, and what can be chosen; empty: it can, or nobody knows it."""
    if fault := gpu_slices.fault(gpu_name, tp):
        return fault
    return model(model_name).split_fault(tp) if knows_model(model_name) else ""


def parameters(engine: str, gpu_name: str) -> tuple[ParameterSet, EngineParams, GpuParams]:
    """Returns an engine's set, and what it says of the engine and the GPU type. Raises UnknownConfiguration."""
    if gpu_name not in GPUS:
        raise UnknownConfiguration("gpu", gpu_name, _listed(GPUS))
    found = set_of(engine)
    if found is None:
        raise UnknownConfiguration("engine", engine, _listed(ENGINES))
    params = found.gpu(gpu_name)
    assert params is not None
    return found, found.engine(engine, gpu_name), params


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))

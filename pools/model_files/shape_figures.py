"""A model's shape in figures: for people and for REST, and against the memory of GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from core.engine.engine_model import engine_model
from core.engine.engine_params import split_fault
from core.engine.model_shape import ModelParams

GB = 1e9


@dataclass(frozen=True, slots=True)
class ShapeFigures:
    """Decodes a shape's key. Bits are of one element, `weight_bits` the mean of all weights."""

    key: str
    parameters: float
    active_parameters: float
    weight_bytes: float
    kv_bytes_per_token: float
    layers: int
    experts: int
    experts_per_token: int
    window_tokens: int
    window_layers: int
    weight_bits: float
    kv_bits: float
    compute_bits: int


@dataclass(frozen=True, slots=True)
class Fit:
    """Says whether an instance has room for the model. `reason` says in figures why not; empty: it has."""

    gpu: str
    tp: int
    fits: bool
    kv_capacity_tokens: int
    weight_gb: float
    room_gb: float
    memory_gb: float
    reason: str


def figures(shape: ModelParams) -> ShapeFigures:
    return ShapeFigures(
        key=shape.key,
        parameters=shape.params,
        active_parameters=shape.active_params,
        weight_bytes=shape.weight_bytes,
        kv_bytes_per_token=shape.kv_bytes,
        layers=shape.layers,
        experts=shape.experts,
        experts_per_token=shape.top_k,
        window_tokens=shape.window,
        window_layers=shape.window_layers,
        weight_bits=round(8.0 * shape.weight_bytes / shape.params, 2),
        kv_bits=shape.kv_bits,
        compute_bits=shape.compute_bits,
    )


def words(shape: ModelParams) -> str:
    """Returns what the engine model goes by, in one sentence without its full stop."""
    return ", ".join(
        (
            parameters(shape, " parameters"),
            f"{_large(shape.weight_bytes / GB)} GB of weights ({quantization(shape)})",
            f"{shape.kv_bytes / 1e3:,.0f} kB of KV cache a token",
            window(shape),
        )
    )


def parameters(shape: ModelParams, what: str = "") -> str:
    whole = f"{_large(shape.params / 1e9)} billion{what}"
    return f"{whole}, {_large(shape.active_params / 1e9)} billion active" if shape.experts else whole


def _large(value: float) -> str:
    """Writes three digits, and all that stand before the point."""
    return f"{value:,.0f}" if value >= 1000.0 else f"{value:.3g}"


def weights(shape: ModelParams) -> str:
    return f"{_large(shape.weight_bytes / GB)} GB ({quantization(shape)})"


def quantization(shape: ModelParams) -> str:
    """Returns the bits of weights, and of what matrices are multiplied in where that differs."""
    found = f"{shape.dense_bits:.3g} bits"
    if shape.experts and abs(shape.expert_bits - shape.dense_bits) > 0.01:
        found = f"{found}, experts {shape.expert_bits:.3g}"
    if shape.compute_bits not in (shape.dense_bits, shape.expert_bits):
        found = f"{found}, multiplied in {shape.compute_bits}"
    return found


def window(shape: ModelParams) -> str:
    if not shape.window_layers:
        return "all layers attend to the whole context"
    which = "all" if shape.window_layers == shape.layers else f"{shape.window_layers} of {shape.layers}"
    return f"{which} layers attend to {shape.window:,} tokens"


def fit(model: str, gpu: str, tp: int, engine: str) -> Fit:
    """Says whether an instance has room for weights and any KV cache, and whether the model can be cut so.

    Raises UnknownConfiguration.
    """
    if fault := split_fault(model, gpu, tp):
        whole = engine_model(model, gpu, 1, engine)
        memory_gb = tp * whole.gpu_params.mem_gb
        return Fit(gpu, tp, False, 0, whole.weight_bytes / GB, tp * whole.memory_bytes / GB, memory_gb, fault)
    found = engine_model(model, gpu, tp, engine)
    weight_gb, room_gb, memory_gb = found.weight_bytes / GB, found.memory_bytes / GB, tp * found.gpu_params.mem_gb
    reason = ""
    if not found.fits:
        reason = (
            f"{weight_gb:.0f} GB of weights, and {tp} x {gpu} have {room_gb:.0f} of their {memory_gb:.0f} GB for "
            "weights and KV cache"
        )
    return Fit(gpu, tp, found.fits, int(found.kv_capacity_tokens), weight_gb, room_gb, memory_gb, reason)


def fits(model: str, gpus: Iterable[str], tps: Iterable[int], engine: str) -> Iterator[Fit]:
    """Yields every GPU type with every TP degree. Raises UnknownConfiguration."""
    degrees = tuple(tps)
    for gpu in gpus:
        for tp in degrees:
            yield fit(model, gpu, tp, engine)

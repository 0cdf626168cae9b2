"""Parameters of the engine model: GPU types, models, engines, read from data/engine_params.json.

Fitted by us to published measurements only (ML.ENERGY H100, Splitwise A100 and H100, FREESH, throttLL'eM, DynamoLLM).
Other GPU types take their parameters from their data sheets (`gpu_types`), other models from their shapes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from core.engine.gpu_types import GpuType, gpu_types
from core.engine.model_shape import BadShape, ModelParams, is_key, shape_of_key
from core.engine.parameter_caches import cached

_PARAMETERS = Path(__file__).parent / "data" / "engine_params.json"


class UnknownConfiguration(ValueError):
    """A model, GPU, engine or TP degree that the engine model has no parameters for."""

    def __init__(self, field_name: str, value: object, known: str) -> None:
        super().__init__(f"unknown {field_name} '{value}'; known: {known}")
        self.field_name = field_name
        self.value = value


@dataclass(frozen=True, slots=True)
class GpuParams:
    """A GPU type: data sheet, and coefficients fitted to published measurements."""

    name: str
    peak_flops: float  # dense, 16 bit
    hbm_bw: float  # bytes/s
    mem_gb: float
    tdp_w: float
    idle_w: float  # nothing loaded
    f_max: float
    f_min: float
    eff_c: float
    eff_m: float
    p_norm: float
    eff_attn: float
    eff_kv: float
    ar_us: float
    ar_bw: float  # bytes/s
    t_layer_us: float
    k_sm: float
    f_bw: float
    v_min: float
    f_v: float
    c_clk: float  # W
    e_flop_pj: float
    e_byte0_pj: float
    e_byte1_pj: float
    idle_clk_share: float = 0.5

    def clamp_mhz(self, mhz: float) -> float:
        """Returns the clock that the driver would set for `mhz`: the nearest one within the GPU's range."""
        return min(max(mhz, self.f_min), self.f_max)

    def voltage(self, mhz: float) -> float:
        """Returns v(f), relative to the voltage at the top clock: v_min up to f_v, then linear to 1 at f_max."""
        if mhz <= self.f_v:
            return self.v_min
        return self.v_min + (1.0 - self.v_min) * (mhz - self.f_v) / (self.f_max - self.f_v)

    def loaded_idle_w(self, mhz: float) -> float:
        """Power of one GPU with a model loaded and nothing to do."""
        f = self.clamp_mhz(mhz)
        return self.idle_w + self.idle_clk_share * self.c_clk * f / self.f_max * self.voltage(f) ** 2


@dataclass(frozen=True, slots=True)
class EngineParams:
    """A serving engine's host-side overheads and how well it uses the GPU."""

    name: str
    host_ms: float
    seq_us: float
    launch_us: float = 0.0
    comm_scale: float = 1.0
    c_scale: float = 1.0


P = TypeVar("P", GpuParams, ModelParams, EngineParams)


def _load(kind: type[P], rows: Mapping[str, Mapping[str, Any]]) -> Mapping[str, P]:
    known = {item.name for item in fields(kind)}
    for name, row in rows.items():
        if unknown := set(row) - known:
            raise ValueError(f"{_PARAMETERS.name}: {name}: unknown parameters {sorted(unknown)}")
    return MappingProxyType({name: kind(name=name, **row) for name, row in rows.items()})


_tables = json.loads(_PARAMETERS.read_text(encoding="utf-8"))
FITTED: Mapping[str, GpuParams] = _load(GpuParams, _tables["gpus"])
MODELS: Mapping[str, ModelParams] = _load(ModelParams, _tables["models"])
ENGINES: Mapping[str, EngineParams] = _load(EngineParams, _tables["engines"])


class _Gpus(Mapping[str, GpuParams]):
    """All GPU types that can be planned with: fitted ones, and those of which there is a data sheet."""

    def __getitem__(self, name: str) -> GpuParams:
        return FITTED[name] if name in FITTED else _by_data_sheet(gpu_types()[name])

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*FITTED, *gpu_types())))

    def __len__(self) -> int:
        return len(FITTED.keys() | gpu_types().keys())


GPUS: Mapping[str, GpuParams] = _Gpus()


@cached(maxsize=256)
def _by_data_sheet(own: GpuType) -> GpuParams:
    """Gives a type the coefficients of the one that it is like, in its own ranges of clocks and power."""
    like, sheet = FITTED[own.like], gpu_types()[own.like]
    clocks, power = own.f_max / like.f_max, own.tdp_w / like.tdp_w
    return replace(
        like,
        name=own.name,
        peak_flops=own.peak_flops,
        hbm_bw=own.hbm_bw,
        mem_gb=own.mem_gb,
        tdp_w=own.tdp_w,
        idle_w=own.idle_w or like.idle_w * power,
        f_max=own.f_max,
        f_min=own.f_min,
        ar_bw=like.ar_bw * own.link_bw / sheet.link_bw,
        f_bw=like.f_bw * clocks,
        f_v=max(own.f_min, like.f_v * clocks),
        c_clk=like.c_clk * power,
    )


def _named(field_name: str, table: Mapping[str, P], name: str) -> P:
    try:
        return table[name]
    except KeyError:
        raise UnknownConfiguration(field_name, name, ", ".join(sorted(table))) from None


def gpu(name: str) -> GpuParams:
    """Returns the parameters of a GPU type. Raises UnknownConfiguration."""
    return _named("gpu", GPUS, name)


@cached(maxsize=256)
def model(name: str) -> ModelParams:
    """Returns the shape of a model by its name here, or by the shape's own key. Raises UnknownConfiguration."""
    if name not in MODELS and is_key(name):
        try:
            return shape_of_key(name)
        except BadShape as error:
            raise UnknownConfiguration("model", name, f"shapes that a transformer can have ({error})") from None
    return _named("model", MODELS, name)


def knows_model(name: str) -> bool:
    """Says whether this is a model's name here, or the key of a shape."""
    try:
        model(name)
    except UnknownConfiguration:
        return False
    return True


def engine(name: str) -> EngineParams:
    """Returns the parameters of an engine. Raises UnknownConfiguration."""
    return _named("engine", ENGINES, name)

"""Parameter sets of the engine model, each fitted as a whole and kept as it was: older results go on holding.

Set 1 (data/engine_params.json) was fitted to ML.ENERGY H100 (2024), Splitwise, FREESH, throttLL'eM and DynamoLLM.
Set 2 (data/engine_params_2.json) has more terms (docs/fidelity.md) and was fitted to ML.ENERGY H100 and B200 (2025), to
locked clocks of a V100, and to idle power of nodes. An engine belongs to the set that its name is in; so do its GPUs.

Measured was the V100 PCIe with 32 GB. Of set 2's V100-16GB, the same card with half the memory, it is assumed to hold
in all else; V100 SXM cards are like that by their data sheets. Set 2's `eager-2023` has the host's times, and the
shares of FLOP/s and links, of set 1's `eager-2023-a100`, fitted to Splitwise's A100: assumed for hosts of V100.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from core.engine import gpu_slices
from core.engine.gpu_types import GpuType, gpu_types
from core.engine.model_shape import ModelParams
from core.engine.parameter_caches import cached

_DATA = Path(__file__).parent / "data"


@dataclass(frozen=True, slots=True)
class GpuParams:
    """A GPU type: data sheet, and coefficients fitted to published measurements. Set 2 brought those with a default."""

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
    t_moe_us: float = 0.0  # of each layer with experts: router, sorting, gathering
    row_layer_us: float = 0.0  # of each row and layer: kernels that do not fill the GPU
    clk_gate: float = 0.0  # share of the clock's power that goes to idle's while the GPU waits
    wait_clk: float = 1.0  # share of waiting (small kernels, collectives) in which it counts as working
    e_kv_x: float = 1.0  # energy of a byte of KV cache over that of a weight's
    cap_share: float = 1.0  # of the TDP that firmware lets it draw on the mean
    fp8: bool = False  # multiplies at 8 bit
    fp4: bool = False  # multiplies at 4 bit

    @property
    def cap_w(self) -> float:
        """The power above which firmware lowers the clock."""
        return self.tdp_w * self.cap_share

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
    """A serving engine's host-side overheads and how well it uses the GPU. Set 2 brought `sample_ns` and all below."""

    name: str
    host_ms: float
    seq_us: float
    launch_us: float = 0.0
    comm_scale: float = 1.0
    c_scale: float = 1.0
    sample_ns: float = 0.0  # of each logit: sampling
    e_logit_nj: float = 0.0
    eager_layer_us: float = 0.0  # of each layer of an iteration that no captured graph covers
    eager_ms: float = 0.0  # of such an iteration
    eager_moe_ms: float = 0.0  # of such an iteration of a model with experts
    mix: float = 0.0  # share of those with prompts that no graph covers
    floor_ms: float = 0.0  # the host's time for an iteration, if it is longer than the GPU's
    floor_seq_us: float = 0.0


@dataclass(frozen=True, slots=True)
class FormatParams:
    """The kernels for weights of a format. Factors are on the GPU's efficiencies at 16 bit."""

    flop_x: float = 1.0  # FLOP/s of experts
    flop_dense_x: float = 1.0  # of other matrices
    e_flop_x: float = 1.0  # energy of a FLOP of experts
    e_flop_dense_x: float = 1.0  # of other matrices
    eff_expert_c: float = 1.0  # FLOP/s of grouped matrices
    eff_expert_m: float = 1.0  # bandwidth of reading experts
    pad_rows: float = 0.0  # rows that each expert in use is filled up by
    pad_all: float = 0.0  # rows that each expert is filled up by, in use or not
    block_switch: bool = False  # tiles of four times the rows from one token an expert on
    t_big_us: float = 0.0  # of each layer with experts, with such tiles
    graph_tokens: float = 512.0  # the largest captured iteration


@dataclass(frozen=True, slots=True)
class ExpertParams:
    """Describes how tokens go to experts. Neutral: each token to any expert alike, all GPUs equally busy."""

    route_a: float = math.inf  # shape of the gamma distribution of experts' popularity
    ep_skew: float = 0.0  # of the FLOP of the busiest GPU, with expert parallelism
    ep_max: float = 0.0  # of the experts in use on the busiest GPU, in deviations of the expected maximum


@dataclass(frozen=True, slots=True)
class ParameterSet:
    """One set. `engines` by name, and of each by GPU type, "" for all others."""

    number: int
    fitted: Mapping[str, GpuParams]
    engines: Mapping[str, Mapping[str, EngineParams]]
    formats: Mapping[str, FormatParams] = field(default_factory=dict)
    experts: ExpertParams = ExpertParams()

    def gpu(self, name: str) -> GpuParams | None:
        """Returns a type's parameters, fitted or by data sheet; None: there is neither. A slice has its part."""
        whole, slices = gpu_slices.whole(name)
        if slices > 1:
            return None if (found := self.gpu(whole)) is None else _slice(name, found, slices)
        if name in self.fitted:
            return self.fitted[name]
        own = gpu_types().get(name)
        return None if own is None else _by_data_sheet(self.number, own)

    def engine(self, name: str, gpu: str) -> EngineParams:
        """Returns an engine's parameters on a GPU type. Raises KeyError."""
        of_gpus = self.engines[name]
        return of_gpus.get(gpu_slices.whole(gpu)[0]) or of_gpus[""]

    def format_of(self, model: ModelParams, gpu: GpuParams) -> FormatParams:
        """Returns the kernels that a model's weights run on. GPUs without units of a format unpack to 16 bit."""
        if not self.formats:
            return FormatParams()
        expert = self.formats[_expert_format(model, gpu)]
        dense = self.formats["fp8" if model.compute_bits == 8 and gpu.fp8 and model.dense_bits < 12.0 else "bf16"]
        return replace(expert, flop_dense_x=dense.flop_dense_x, e_flop_dense_x=dense.e_flop_x)


def _expert_format(model: ModelParams, gpu: GpuParams) -> str:
    if not model.experts or model.expert_bits >= 12.0:
        return "bf16"
    if model.compute_bits == 8 and gpu.fp8:
        return "fp8block" if model.blocks else "fp8"
    return "mxfp4" if gpu.fp4 and model.expert_bits < 8.0 else "mxfp4-marlin"


P = TypeVar("P", GpuParams, ModelParams, EngineParams)


def rows_of(kind: type[P], rows: Mapping[str, Mapping[str, Any]]) -> Mapping[str, P]:
    """Makes parameters of a file's rows by name. Raises ValueError: a field that there is not."""
    known = {item.name for item in fields(kind)}
    for name, row in rows.items():
        if unknown := set(row) - known:
            raise ValueError(f"{name}: unknown parameters {sorted(unknown)}")
    return MappingProxyType({name: kind(name=name, **row) for name, row in rows.items()})


def _read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((_DATA / name).read_text(encoding="utf-8"))
    return found


def _first(tables: Mapping[str, Any]) -> ParameterSet:
    engines = {name: {"": one} for name, one in rows_of(EngineParams, tables["engines"]).items()}
    return ParameterSet(1, rows_of(GpuParams, tables["gpus"]), engines)


def _second(tables: Mapping[str, Any], before: ParameterSet) -> ParameterSet:
    """What set 2 does not say of a GPU stands as in set 1."""
    gpus = {
        name: replace(before.fitted[name], **row) if name in before.fitted else GpuParams(name=name, **row)
        for name, row in tables["gpus"].items()
    }
    engines = {
        name: {gpu: EngineParams(name=name, **row) for gpu, row in by_gpu.items()}
        for name, by_gpu in tables["engines"].items()
    }
    formats = {name: FormatParams(**row) for name, row in tables["formats"].items()}
    return ParameterSet(2, {**before.fitted, **gpus}, engines, formats, ExpertParams(**tables["experts"]))


_tables = _read("engine_params.json")
MODELS: Mapping[str, ModelParams] = rows_of(ModelParams, _tables["models"])
_SET_1 = _first(_tables)
SETS: Mapping[int, ParameterSet] = MappingProxyType({1: _SET_1, 2: _second(_read("engine_params_2.json"), _SET_1)})
FITTED: tuple[str, ...] = tuple(dict.fromkeys(name for one in SETS.values() for name in one.fitted))  # were measured


def set_of(engine: str) -> ParameterSet | None:
    """Returns the set that an engine's parameters are in; None: the engine is unknown."""
    return next((one for one in SETS.values() if engine in one.engines), None)


class Gpus(Mapping[str, GpuParams]):
    """All GPU types that can be planned with, by the first set that has measured them, else by data sheet.

    Slices can be looked up; a list names whole GPUs alone.
    """

    def __getitem__(self, name: str) -> GpuParams:
        whole, _ = gpu_slices.whole(name)
        found = next((one for one in SETS.values() if whole in one.fitted), SETS[1]).gpu(name)
        if found is None:
            raise KeyError(name)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*FITTED, *gpu_types())))

    def __len__(self) -> int:
        return len(set(FITTED) | gpu_types().keys())


def part(g: GpuParams, share: float) -> GpuParams:
    """Returns a share of a GPU, as if it were a smaller one.

    It has that part of compute, bandwidth, memory, TDP, and of what the GPU draws whatever it does. Kernels too small
    to fill a GPU take as long as on the whole.
    """
    names = ("peak_flops", "hbm_bw", "mem_gb", "tdp_w", "idle_w", "c_clk")
    return g if share == 1.0 else replace(g, **{name: getattr(g, name) * share for name in names})


@cached(maxsize=256)
def _slice(name: str, whole: GpuParams, slices: int) -> GpuParams:
    return replace(part(whole, 1.0 / slices), name=name)


@cached(maxsize=256)
def _by_data_sheet(number: int, own: GpuType) -> GpuParams:
    """Gives a type the coefficients of the one that it is like, in its own ranges of clocks and power."""
    like, sheet = SETS[number].gpu(own.like), gpu_types()[own.like]
    assert like is not None
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
        fp8=own.fp8_flops > 0.0,
        fp4=own.fp4_flops > 0.0,
    )

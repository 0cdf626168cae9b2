"""The engine model: time, power and energy of one iteration of a serving engine, in closed form.

Fitted by us to published measurements only (ML.ENERGY H100, Splitwise A100 and H100, FREESH, throttLL'eM, DynamoLLM);
the parameters are in data/engine_params.json. Every answer is `Source.MODELLED`: leave a margin of at least 10 % on
time and power, and 30 % on H100 clock choices, until the node itself has been profiled. Of a GPU type that nobody has
measured it is `Source.DATA_SHEET`, with wider margins.

Symbols as in the formulas below: f clock, r = f/f_max, n tokens of the iteration (prefill tokens + B), B decoding
sequences, K the sum of their contexts, rows = B + prefills, L layers, e = vocabulary x hidden, v(f) relative voltage.
Units inside: seconds, watts, joules, MHz, bytes, FLOP.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from core.engine import gpu_slices
from core.engine.corrections import Correction, configuration, correction_of, factor
from core.engine.engine_params import (
    ENGINES,
    GPUS,
    MODELS,
    EngineParams,
    GpuParams,
    UnknownConfiguration,
    UnsplittableModel,
    gpu,
    model,
    modelled_source,
    parameters,
)
from core.engine.iteration import Iteration, Totals
from core.engine.model_shape import ModelParams
from core.engine.parameter_caches import cached
from core.engine.parameter_sets import part
from core.engine.second_set import NUMBERS, SecondSet, SecondWork, second_at, second_set, second_work
from core.engine.steady_state import MAX_SEQUENCES, SteadyState, max_rps, steady_state
from core.types import Limits, Source

__all__ = [
    "ENGINES",
    "GPUS",
    "MAX_SEQUENCES",
    "MODELS",
    "Constants",
    "EngineModel",
    "GpuParams",
    "SteadyState",
    "UnknownConfiguration",
    "closed_form",
    "engine_model",
    "gpu",
    "model",
]

_THROTTLE_BISECTIONS = 20
_KV_BLOCK_TOKENS = 16  # vLLM's: the least that a sequence can hold
_MEMORY_SHARE = 0.9  # of the GPU's memory that the engine may fill
_MEMORY_RESERVE_BYTES = 2e9  # activations and workspace of each GPU


@dataclass(frozen=True, slots=True)
class _Work:
    """FLOP and bytes of one iteration over the whole instance, and what sets its overheads."""

    flop_linear: float  # f_lin + f_head
    flop_prefill_attention: float
    flop_decode_attention: float
    bytes_stream: float  # weights, head, activations
    bytes_kv: float
    tokens: float  # n
    rows: float


@dataclass(frozen=True, slots=True)
class Constants:
    """The figures that depend on (model, GPU, TP, engine) alone. `second`: those of parameter set 2; None: set 1."""

    flop_per_token: float
    flop_per_row: float
    flop_per_attention: float  # per token pair
    dense_bytes: float
    expert_bytes: float
    expert_miss: float  # 1 - k/E: chance that a token leaves an expert out
    head_bytes: float
    activation_bytes: float  # per token
    kv_bytes: float  # per token, over all GPUs, copies included
    compute: float  # FLOP/s at the top clock
    bandwidth: float  # bytes/s, b(f) not yet applied
    ar_fixed_s: float
    ar_per_token_s: float
    layers_s: float  # L * t_layer
    launch_s: float
    host_s: float
    seq_s: float
    second: SecondSet | None = None


def _bandwidth_share(f: float, f_bw: float) -> float:
    x = f / f_bw
    return float(x / (1.0 + x**4) ** 0.25)


def _constants(m: ModelParams, g: GpuParams, e: EngineParams, tp: int, second: SecondSet | None) -> Constants:
    all_reduces = 2 * m.layers * e.comm_scale if tp > 1 else 0.0
    return Constants(
        flop_per_token=2.0 * (m.dense_params + m.expert_params * m.routed),
        flop_per_row=2.0 * m.embedding_params,
        flop_per_attention=4.0 * m.layers * m.heads * m.head_dim,
        dense_bytes=m.dense_params * m.dense_bits / 8,
        expert_bytes=m.expert_params * m.expert_bits / 8,
        expert_miss=1.0 - m.routed,
        head_bytes=m.dtype_bytes * m.embedding_params,
        activation_bytes=32.0 * m.layers * m.hidden,
        kv_bytes=m.kv_bytes * tp / min(tp, m.kv_shards),  # GPUs beyond the shards keep copies
        compute=tp * g.peak_flops * g.eff_c * e.c_scale,
        bandwidth=tp * g.hbm_bw * g.eff_m / _bandwidth_share(g.f_max, g.f_bw),
        ar_fixed_s=all_reduces * g.ar_us * 1e-6 * math.sqrt(tp),
        ar_per_token_s=all_reduces * 2.0 * (tp - 1) / tp * m.hidden * m.dtype_bytes / g.ar_bw,
        layers_s=m.layers * g.t_layer_us * 1e-6 if second is None else second.layers_s + second.moe_s,
        launch_s=m.layers * e.launch_us * 1e-6,
        host_s=e.host_ms * 1e-3,
        seq_s=e.seq_us * 1e-6,
        second=second,
    )


@dataclass(frozen=True, slots=True)
class EngineModel:
    """One instance: a model on `tp` GPUs of a type under an engine. Make it with `engine_model`, which caches.

    With `share` below 1 it has that part of each of its GPUs to itself (a MIG slice, or MPS with a fixed share of
    threads): of compute, bandwidth, memory, TDP, and of what the GPU draws whatever it does. Of a lone GPU's kernels
    those too small to fill it take as long as ever.

    Raises UnknownConfiguration when one of the four is not known, UnsplittableModel (one of them) where the GPUs cannot
    share the model's heads, ValueError for a share that is none. Clocks outside
    the GPU's range are brought to its nearest end, as the driver does.
    """

    model: str
    gpu: str
    tp: int
    engine: str = "vllm-v1"
    share: float = 1.0
    correction: Correction | None = None
    ep: int = 1
    gpu_params: GpuParams = field(init=False, repr=False, compare=False)
    model_params: ModelParams = field(init=False, repr=False, compare=False)
    _k: Constants = field(init=False, repr=False, compare=False)
    _source: Source = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.tp, int) or self.tp < 1:
            raise UnknownConfiguration("tp", self.tp, "whole numbers from 1")
        if not 0.0 < self.share <= 1.0:
            raise ValueError(f"a share of a GPU is above 0 and at most 1, not {self.share}")
        m = model(self.model)
        if fault := gpu_slices.fault(self.gpu, self.tp) or m.split_fault(self.tp):
            raise UnsplittableModel(self.tp, fault)
        own, e, whole = parameters(self.engine, self.gpu)
        g = part(whole, self.share)
        second = None if own.number == 1 else second_set(own, m, g, e, self.ep)
        object.__setattr__(self, "gpu_params", g)
        object.__setattr__(self, "model_params", m)
        object.__setattr__(self, "_source", modelled_source(self.engine, self.gpu))
        object.__setattr__(self, "_k", _constants(m, g, e, self.tp, second))

    @property
    def source(self) -> Source:
        """The origin of its figures."""
        return self._source if self.correction is None else self.correction.source

    @property
    def memory_bytes(self) -> float:
        """The bytes that weights and KV cache may fill, over all GPUs: TP (0.9 mem - 2 GB)."""
        return self.tp * self.share * (gpu(self.gpu).mem_gb * 1e9 * _MEMORY_SHARE - _MEMORY_RESERVE_BYTES)

    @property
    def weight_bytes(self) -> float:
        return self.model_params.weight_bytes

    @property
    def kv_capacity_tokens(self) -> float:
        """Tokens of KV cache beside the weights: (memory - weights) / bytes per token, at least 0."""
        return max(0.0, (self.memory_bytes - self.weight_bytes) / self._k.kv_bytes)

    @property
    def constants(self) -> Constants:
        """The figures that the formulas take from model, GPU, TP and engine, for those who compile them."""
        return self._k

    @property
    def fits(self) -> bool:
        """True where the weights leave room for at least one block of KV cache."""
        return self.kv_capacity_tokens >= _KV_BLOCK_TOKENS

    def idle_gpu_watts(self, mhz: float) -> float:
        """Power of each GPU with the model loaded and nothing to do."""
        watts, g = self.gpu_params.loaded_idle_w(mhz), self.gpu_params
        return watts if self.correction is None else watts * factor(self.correction.power, g, g.clamp_mhz(mhz))

    def idle_watts(self, mhz: float) -> float:
        """Power of the instance with the model loaded and nothing to do."""
        return self.tp * self.idle_gpu_watts(mhz)

    def iteration(
        self, mhz: float, prefills: Sequence[tuple[int, int]] = (), decodes: int = 0, context_tokens: float = 0.0
    ) -> Iteration:
        """Computes one iteration that prefills (new, already cached) tokens each and decodes `decodes` sequences.

        Args:
            mhz: SM clock asked for.
            prefills: For each prefill (or chunk) its new tokens and the tokens already in its KV cache.
            decodes: Sequences that get one token each (B).
            context_tokens: Sum of the context lengths of the decoding sequences (K).

        Raises:
            ValueError: Nothing to do; an idle instance draws `idle_gpu_watts` and has no iterations.
        """
        new = cached = 0.0
        pairs = 0.0
        for tokens, context in prefills:
            new += tokens
            cached += context
            pairs += tokens * (context + tokens / 2.0)
        if new + decodes <= 0:
            raise ValueError("an iteration needs at least one token to prefill or one sequence to decode")
        return self._run(mhz, self._work_of(Totals(new, cached, pairs, len(prefills), decodes, context_tokens)))

    def iteration_of(self, mhz: float, totals: Totals) -> Iteration:
        """As `iteration`, for totals, which need not be whole numbers: they may be means over many iterations."""
        return self._run(mhz, self._work_of(totals))

    def watts_over(self, mhz: float, totals: Totals, t_s: float) -> float:
        """Returns the power, in W, of the instance when an iteration's work is spread over `t_s` seconds, as a clock
        has timed it.

        What the work switches is the same as in `iteration`, what the clock draws goes by the time. At most the TDP.
        """
        g = self.gpu_params
        f = g.clamp_mhz(mhz)
        work = self._work_of(totals)
        if isinstance(work, SecondWork):
            own_s, watts = self._at(f, work)
            watts = g.idle_w + (watts - g.idle_w) * own_s / t_s  # what is above idle power is the work's
        else:
            watts = self._gpu_watts(f, work, t_s)
        return self.tp * min(watts, g.tdp_w)

    def _work_of(self, totals: Totals) -> _Work | SecondWork[float]:
        if totals.new_tokens + totals.decodes <= 0:
            raise ValueError("an iteration needs at least one token to prefill or one sequence to decode")
        t = totals
        given = (t.new_tokens, t.cached_tokens, t.pairs, t.prefills, t.decodes, t.context_tokens)
        second = self._k.second
        return self._work(*given) if second is None else second_work(self._k, second, *given, NUMBERS)

    def _work(self, new: float, cached: float, pairs: float, prefills: float, decodes: float, context: float) -> _Work:
        k = self._k
        tokens = new + decodes
        rows = decodes + prefills
        experts = k.expert_bytes * (1.0 - k.expert_miss**tokens) if k.expert_bytes else 0.0
        return _Work(
            flop_linear=k.flop_per_token * tokens + k.flop_per_row * rows,
            flop_prefill_attention=k.flop_per_attention * pairs,
            flop_decode_attention=k.flop_per_attention * context,
            bytes_stream=k.dense_bytes + experts + k.head_bytes + k.activation_bytes * tokens,
            bytes_kv=k.kv_bytes * (context + tokens + cached),
            tokens=tokens,
            rows=rows,
        )

    def _run(self, mhz: float, work: _Work | SecondWork[float]) -> Iteration:
        g = self.gpu_params
        f = g.clamp_mhz(mhz)
        t_s, watts = self._at(f, work)
        if watts > g.cap_w:
            f, t_s, watts = self._throttle(f, work)
        total = self.tp * watts
        return Iteration(t_s, total, min(watts, g.cap_w), f, total * t_s, self.source)

    def _throttle(self, f: float, work: _Work | SecondWork[float]) -> tuple[float, float, float]:
        """Returns the clock at which the GPU keeps its TDP, as its firmware finds it; with that clock's time
        and power."""
        low, high = self.gpu_params.f_min, f
        for _ in range(_THROTTLE_BISECTIONS):
            middle = (low + high) / 2.0
            if self._at(middle, work)[1] > self.gpu_params.cap_w:
                high = middle
            else:
                low = middle
        return high, *self._at(high, work)

    def _at(self, f: float, work: _Work | SecondWork[float]) -> tuple[float, float]:
        """Returns seconds, and watts of each GPU, corrected where they were measured: each by its own factor."""
        if isinstance(work, SecondWork):
            assert self._k.second is not None
            g = self.gpu_params
            t_s, watts = second_at(self._k, self._k.second, g, self.tp, f, g.voltage(f) ** 2, work, NUMBERS)
        else:
            t_s = self._time_s(f, work)
            watts = self._gpu_watts(f, work, t_s)
        if (known := self.correction) is None:
            return t_s, watts
        return t_s * factor(known.time, self.gpu_params, f), watts * factor(known.power, self.gpu_params, f)

    def _time_s(self, f: float, work: _Work) -> float:
        """Returns t_iter = max(t_gpu, L launch) + host + seq rows in seconds; t_gpu = |t_c, t_m|_p + t_attn + t_kv +
        t_ar + layers."""
        k, g = self._k, self.gpu_params
        r = f / g.f_max
        compute = k.compute * r
        bandwidth = k.bandwidth * _bandwidth_share(f, g.f_bw)
        t_c = work.flop_linear / compute
        t_m = work.bytes_stream / bandwidth
        t_gpu = (
            float((t_c**g.p_norm + t_m**g.p_norm) ** (1.0 / g.p_norm))
            + work.flop_prefill_attention / (compute * g.eff_attn)
            + work.bytes_kv / (bandwidth * g.eff_kv)
            + k.ar_fixed_s
            + k.ar_per_token_s * work.tokens
            + k.layers_s * (g.k_sm / r + 1.0 - g.k_sm)
        )
        return max(t_gpu, k.launch_s) + k.host_s + k.seq_s * work.rows

    def _gpu_watts(self, f: float, work: _Work, t_s: float) -> float:
        """Returns each GPU's P = idle + c_clk r v^2 + (v^2 e_flop FLOP + (e_byte0 + e_byte1 v^2) bytes) / t_iter / TP,
        in W."""
        g = self.gpu_params
        v2 = g.voltage(f) ** 2
        flop = work.flop_linear + work.flop_prefill_attention + work.flop_decode_attention
        moved = work.bytes_stream + work.bytes_kv
        dynamic_j = (v2 * g.e_flop_pj * flop + (g.e_byte0_pj + g.e_byte1_pj * v2) * moved) * 1e-12
        return g.idle_w + g.c_clk * f / g.f_max * v2 + dynamic_j / t_s / self.tp

    def steady_state(self, rps: float, prompt_tokens: float, output_tokens: float, mhz: float) -> SteadyState:
        """The instance under `rps` requests a second of these lengths: see `steady_state.steady_state`."""
        return steady_state(self, rps, prompt_tokens, output_tokens, mhz)

    def max_rps(
        self, prompt_tokens: float, output_tokens: float, mhz: float, limits: Limits, spare_deviations: float = 0.0
    ) -> float:
        """The largest stable rate within `limits`, 0 if there is none: see `steady_state.max_rps`."""
        return max_rps(self, prompt_tokens, output_tokens, mhz, limits, spare_deviations)


@cached(maxsize=1024)
def engine_model(
    model_name: str, gpu_name: str, tp: int, engine_name: str = "vllm-v1", share: float = 1.0
) -> EngineModel:
    """Returns the engine model of a configuration, corrected where it was measured. Raises UnknownConfiguration."""
    correction = correction_of(configuration(model_name, gpu_name, tp, engine_name))
    return EngineModel(model_name, gpu_name, tp, engine_name, share, correction)


@cached(maxsize=1024)
def closed_form(model_name: str, gpu_name: str, tp: int, engine_name: str = "vllm-v1") -> EngineModel:
    """Returns the engine model without corrections: what measurements are held against. Raises UnknownConfiguration."""
    return EngineModel(model_name, gpu_name, tp, engine_name)

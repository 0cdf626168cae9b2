"""The terms that parameter set 2 adds to the engine model; docs/fidelity.md says what each was fitted to.

Beside the formulas of `engine_model`:

- Experts: of n tokens each goes to k of E experts whose popularity is gamma-distributed with shape a, so that
  1 - (1 + x/a)^-a of them are read, x = -n ln(1 - k/E). Each expert in use is filled up to a tile of rows. With expert
  parallelism the busiest GPU has more than its share of both.
- Formats: FLOP/s, bandwidth and energy of a FLOP depend on the weights' format.
- Rows: sampling goes with rows x vocabulary. Layers with windows read min(K, B window) tokens of the cache.
- Graphs: iterations beyond the largest captured graph, and part of those with prompts, pay for launches by layer.
- Power: while the GPU waits for small kernels, collectives and its host, part of the clock's power is gated.

Times and energies stay linear in K at a batch. One body serves numbers and arrays: `Ops` says how to take a maximum.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from core.engine.model_shape import KERNELS, ModelParams
from core.engine.parameter_sets import EngineParams, GpuParams, ParameterSet

_GRAPH_SLOPE = 0.25  # of the captured tokens: how soon beyond them all of an iteration is launched kernel by kernel
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Ops(Generic[V]):
    """Says how numbers, or arrays, are compared."""

    maximum: Callable[[Any, Any], V]
    minimum: Callable[[Any, Any], V]
    where: Callable[[Any, Any, Any], V]


NUMBERS: Ops[float] = Ops(max, min, lambda condition, yes, no: yes if condition else no)


@dataclass(frozen=True, slots=True)
class SecondSet:
    """The constants of a configuration that these terms need. Names as in `Constants`; seconds, joules, FLOP, bytes."""

    flop_dense: float  # per token
    flop_expert: float  # per token
    flop_pad: float  # per row that every expert is filled up by
    flop_decode: float  # per token of context
    expert_bytes: float
    log_miss: float  # -ln(1 - k/E)
    route_a: float
    skew: float  # FLOP of the busiest GPU over the mean
    ep_spread: float  # deviations of the expected maximum, over the root of a GPU's experts
    big_tokens: float  # from where on tiles are big
    pad_rows: float
    pad_all: float
    dense_x: float
    expert_x: float
    expert_m: float
    e_dense_x: float
    e_expert_x: float
    row_s: float  # per row, at the top clock
    layers_s: float
    moe_s: float
    big_s: float
    eager_s: float
    mix: float
    graph_tokens: float
    floor_s: float
    floor_row_s: float
    logit_j: float  # per row, on each GPU, at full voltage
    full: float
    window: float

    def seen(self, context: Any, decodes: Any, ops: Ops[Any] = NUMBERS) -> Any:
        """Returns the tokens of context that a layer reads on the mean, of `context` in all for `decodes` sequences."""
        if self.full >= 1.0:
            return context
        return self.full * context + (1.0 - self.full) * ops.minimum(context, decodes * self.window)


def second_set(own: ParameterSet, m: ModelParams, g: GpuParams, e: EngineParams, ep: int) -> SecondSet:
    """Computes the constants of a configuration; `ep`: GPUs that experts are cut over as wholes."""
    kernels, experts = own.format_of(m, g), own.experts
    local = max(1.0, m.experts / ep)
    layers = m.expert_layers
    return SecondSet(
        flop_dense=2.0 * m.dense_params,
        flop_expert=2.0 * m.expert_params * m.routed,
        flop_pad=2.0 * m.expert_params,
        flop_decode=4.0 * m.layers * m.heads * (m.latent or m.head_dim),
        expert_bytes=m.expert_params * m.expert_bits / 8.0,
        log_miss=-math.log1p(-m.routed) if m.routed < 1.0 else math.inf,
        route_a=experts.route_a,
        skew=1.0 + experts.ep_skew * (1.0 - 1.0 / ep),
        ep_spread=experts.ep_max * math.sqrt(2.0 * math.log(ep) / local),
        big_tokens=local if kernels.block_switch else math.inf,
        pad_rows=kernels.pad_rows,
        pad_all=kernels.pad_all,
        dense_x=kernels.flop_dense_x,
        expert_x=kernels.eff_expert_c * kernels.flop_x,
        expert_m=kernels.eff_expert_m,
        e_dense_x=kernels.e_flop_dense_x,
        e_expert_x=kernels.e_flop_x,
        row_s=e.sample_ns * 1e-9 * m.vocab + g.row_layer_us * 1e-6 * m.layers,
        layers_s=m.layers * m.kernels / KERNELS * g.t_layer_us * 1e-6,
        moe_s=layers * g.t_moe_us * 1e-6,
        big_s=layers * kernels.t_big_us * 1e-6,
        eager_s=m.layers * e.eager_layer_us * 1e-6 + (e.eager_ms + (e.eager_moe_ms if layers else 0.0)) * 1e-3,
        mix=e.mix,
        graph_tokens=kernels.graph_tokens,
        floor_s=e.floor_ms * 1e-3,
        floor_row_s=e.floor_seq_us * 1e-6,
        logit_j=e.e_logit_nj * 1e-9 * m.vocab,
        full=m.full_share,
        window=float(m.window),
    )


@dataclass(frozen=True, slots=True)
class SecondWork(Generic[V]):
    """An iteration's FLOP and bytes over the instance; `busiest` ones as if all GPUs had what the busiest has."""

    flop_dense: V
    flop_head: V
    flop_expert: V
    flop_attention: V  # of prompts
    flop_decode: V
    bytes_dense: V
    bytes_expert: V
    bytes_expert_busiest: V
    bytes_kv: V
    tokens: V
    rows: V
    big: V
    over: V  # share of the iteration that no captured graph covers


def second_work(
    k: Any, s: SecondSet, new: Any, cached: Any, pairs: Any, prefills: Any, decodes: Any, context: Any, ops: Ops[Any]
) -> SecondWork[Any]:
    """Computes an iteration's work; the arguments are those of `Totals`, numbers or arrays of one shape.

    `k`: the configuration's `engine_model.Constants`.
    """
    tokens, rows = new + decodes, decodes + prefills
    touched: Any = 0.0 * tokens
    if s.expert_bytes > 0.0:
        x = tokens * s.log_miss
        touched = 1.0 - (1.0 + x / s.route_a) ** -s.route_a
    most = ops.minimum(1.0, touched + s.ep_spread * (touched * (1.0 - touched)) ** 0.5)
    big = ops.where(tokens > s.big_tokens, 1.0, 0.0)
    pad = s.pad_rows * (1.0 + 3.0 * big) * touched + s.pad_all
    seen = s.seen(context, decodes, ops)
    beyond = ops.minimum(1.0, ops.maximum(0.0, (tokens / s.graph_tokens - 1.0) / _GRAPH_SLOPE))
    return SecondWork(
        flop_dense=s.flop_dense * tokens,
        flop_head=k.flop_per_row * rows,
        flop_expert=s.flop_expert * tokens + s.flop_pad * pad,
        flop_attention=k.flop_per_attention * pairs,
        flop_decode=s.flop_decode * seen,
        bytes_dense=k.dense_bytes + k.head_bytes + k.activation_bytes * tokens,
        bytes_expert=s.expert_bytes * touched,
        bytes_expert_busiest=s.expert_bytes * most,
        bytes_kv=k.kv_bytes * (seen + tokens + cached),
        tokens=tokens,
        rows=rows,
        big=big,
        over=ops.maximum(beyond, ops.where(prefills > 0.0, s.mix, 0.0)),
    )


def second_at(
    k: Any, s: SecondSet, g: GpuParams, tp: int, f: Any, v2: Any, work: SecondWork[Any], ops: Ops[Any]
) -> tuple[Any, Any]:
    """Returns seconds, and watts of each GPU, at clock `f` in MHz where the squared voltage is `v2`."""
    r = f / g.f_max
    x = f / g.f_bw
    compute, bandwidth = k.compute * r, k.bandwidth * (x / (1.0 + x**4) ** 0.25)
    t_c = (work.flop_dense / s.dense_x + work.flop_head + work.flop_expert * (s.skew / s.expert_x)) / compute
    t_m = (work.bytes_dense + work.bytes_expert_busiest / s.expert_m) / bandwidth
    busy_s = (
        (t_c**g.p_norm + t_m**g.p_norm) ** (1.0 / g.p_norm)
        + work.flop_attention / (compute * g.eff_attn)
        + work.bytes_kv / (bandwidth * g.eff_kv)
        + s.row_s * work.rows / r
    )
    small_s = (s.layers_s + s.moe_s + s.big_s * work.big) * (g.k_sm / r + 1.0 - g.k_sm)
    gpu_s = busy_s + k.ar_fixed_s + k.ar_per_token_s * work.tokens + small_s + s.eager_s * work.over
    floor_s = ops.maximum(k.launch_s, s.floor_s + s.floor_row_s * work.rows)
    t_s = ops.maximum(gpu_s, floor_s) + k.host_s + k.seq_s * work.rows
    works = ops.minimum(1.0, (busy_s + g.wait_clk * (gpu_s - busy_s)) / t_s)
    flop = (
        work.flop_dense * s.e_dense_x
        + work.flop_head
        + work.flop_attention
        + work.flop_decode
        + work.flop_expert * s.e_expert_x
    )
    moved = work.bytes_dense + work.bytes_expert + g.e_kv_x * work.bytes_kv
    dynamic_j = (v2 * g.e_flop_pj * flop + (g.e_byte0_pj + g.e_byte1_pj * v2) * moved) * 1e-12 / tp
    gated = 1.0 - g.clk_gate * (1.0 - g.idle_clk_share) * (1.0 - works)
    watts = g.idle_w + g.c_clk * r * v2 * gated + (dynamic_j + v2 * s.logit_j * work.rows) / t_s
    return t_s, watts

"""The engine model over arrays: clocks, batches, contexts, prefill sizes and configurations at once.

The formulas are those of `engine_model`, whose scalar form stays as it is because the gateway and the simulated nodes
call it for one batch at a time, where arrays cost several times more. A test holds both together, to 1e-12 (relative).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from core.engine.corrections import knots_mhz
from core.engine.engine_model import Constants, EngineModel
from core.engine.engine_params import GpuParams
from core.engine.second_set import Ops, SecondWork, second_at, second_work
from core.types import Source

Floats = NDArray[np.float64]
_THROTTLE_BISECTIONS = 20
ARRAYS: Ops[Any] = Ops(np.maximum, np.minimum, np.where)


@dataclass(frozen=True, slots=True)
class Iterations:
    """`engine_model.Iteration`, each field an array of the broadcast shape of what was asked."""

    t_s: Floats
    watts: Floats
    gpu_watts: Floats
    f_eff_mhz: Floats
    energy_j: Floats
    source: Source = Source.MODELLED


@dataclass(frozen=True, slots=True)
class _Work:
    flop_linear: Floats
    flop_prefill_attention: Floats
    flop_decode_attention: Floats
    bytes_stream: Floats
    bytes_kv: Floats
    tokens: Floats
    rows: Floats


def iterations(
    instances: EngineModel | Sequence[EngineModel],
    mhz: ArrayLike,
    *,
    prefill_tokens: ArrayLike = 0,
    prefill_context: ArrayLike = 0,
    prefills: ArrayLike = 1,
    decodes: ArrayLike = 0,
    context_tokens: ArrayLike = 0,
) -> Iterations:
    """Computes many iterations; the arguments are broadcast against each other.

    Args:
        instances: One configuration, or several: they become the first axis of the answer.
        mhz: SM clocks asked for, brought to the GPU's range.
        prefill_tokens: New tokens of each prefill; 0: no prefill in that iteration.
        prefill_context: Tokens that each prefill already has in its KV cache.
        prefills: How many prefills of that size the iteration has; ignored where `prefill_tokens` is 0.
        decodes: Sequences that get one token each (B).
        context_tokens: Sum of the context lengths of the decoding sequences (K).

    Raises:
        ValueError: An iteration with nothing to do, or shapes that do not broadcast.
    """
    if not isinstance(instances, EngineModel):
        each = [
            iterations(
                one,
                mhz,
                prefill_tokens=prefill_tokens,
                prefill_context=prefill_context,
                prefills=prefills,
                decodes=decodes,
                context_tokens=context_tokens,
            )
            for one in instances
        ]
        if not each:
            raise ValueError("no configuration to evaluate")
        return Iterations(
            t_s=np.stack([found.t_s for found in each]),
            watts=np.stack([found.watts for found in each]),
            gpu_watts=np.stack([found.gpu_watts for found in each]),
            f_eff_mhz=np.stack([found.f_eff_mhz for found in each]),
            energy_j=np.stack([found.energy_j for found in each]),
        )
    given = (mhz, prefill_tokens, prefill_context, prefills, decodes, context_tokens)
    f, new, cached, count, batch, context = np.broadcast_arrays(*(np.asarray(item, dtype=np.float64) for item in given))
    count = np.where(new > 0, count, 0.0)
    if np.any(count * new + batch <= 0):
        raise ValueError("an iteration needs at least one token to prefill or one sequence to decode")
    k = instances.constants
    if k.second is None:
        work: _Work | SecondWork[Floats] = _work(k, new, cached, count, batch, context)
    else:
        pairs = count * new * (cached + new / 2.0)
        work = second_work(k, k.second, count * new, count * cached, pairs, count, batch, context, ARRAYS)
    return _run(instances, np.clip(f, instances.gpu_params.f_min, instances.gpu_params.f_max), work)


def _work(k: Constants, new: Floats, cached: Floats, count: Floats, batch: Floats, context: Floats) -> _Work:
    tokens = count * new + batch
    rows = batch + count
    experts = k.expert_bytes * (1.0 - k.expert_miss**tokens) if k.expert_bytes else 0.0
    return _Work(
        flop_linear=k.flop_per_token * tokens + k.flop_per_row * rows,
        flop_prefill_attention=k.flop_per_attention * count * new * (cached + new / 2.0),
        flop_decode_attention=k.flop_per_attention * context,
        bytes_stream=k.dense_bytes + experts + k.head_bytes + k.activation_bytes * tokens,
        bytes_kv=k.kv_bytes * (context + tokens + count * cached),
        tokens=tokens,
        rows=rows,
    )


def _run(instance: EngineModel, f: Floats, work: _Work | SecondWork[Floats]) -> Iterations:
    g = instance.gpu_params
    f = np.array(f)
    t_s, watts = (np.array(each) for each in _at(instance, f, work))
    hot = watts > g.cap_w
    if hot.any():
        f[hot], t_s[hot], watts[hot] = _throttle(instance, f[hot], _of(work, hot))
    total = instance.tp * watts
    return Iterations(t_s, total, np.minimum(watts, g.cap_w), f, total * t_s, instance.source)


W = TypeVar("W", bound="_Work | SecondWork[Floats]")


def _of(work: W, where: NDArray[np.bool_]) -> W:
    return type(work)(*(np.broadcast_to(getattr(work, item.name), where.shape)[where] for item in fields(work)))


def _throttle(instance: EngineModel, f: Floats, work: _Work | SecondWork[Floats]) -> tuple[Floats, Floats, Floats]:
    low, high = np.full_like(f, instance.gpu_params.f_min), f.copy()
    for _ in range(_THROTTLE_BISECTIONS):
        middle = (low + high) / 2.0
        over = _at(instance, middle, work)[1] > instance.gpu_params.cap_w
        high = np.where(over, middle, high)
        low = np.where(over, low, middle)
    return high, *_at(instance, high, work)


def _at(instance: EngineModel, f: Floats, work: _Work | SecondWork[Floats]) -> tuple[Floats, Floats]:
    g, k = instance.gpu_params, instance.constants
    if isinstance(work, SecondWork):
        assert k.second is not None
        t_s, watts = second_at(k, k.second, g, instance.tp, f, _voltage(g, f) ** 2, work, ARRAYS)
    else:
        t_s = _time_s(instance, f, work)
        watts = _gpu_watts(instance, f, work, t_s)
    if (known := instance.correction) is None:
        return t_s, watts
    knots = knots_mhz(g)
    return t_s * np.interp(f, knots, known.time), watts * np.interp(f, knots, known.power)


def _time_s(instance: EngineModel, f: Floats, work: _Work) -> Floats:
    k, g = instance.constants, instance.gpu_params
    r = f / g.f_max
    compute = k.compute * r
    x = f / g.f_bw
    bandwidth = k.bandwidth * (x / (1.0 + x**4) ** 0.25)
    t_c = work.flop_linear / compute
    t_m = work.bytes_stream / bandwidth
    t_gpu = (
        (t_c**g.p_norm + t_m**g.p_norm) ** (1.0 / g.p_norm)
        + work.flop_prefill_attention / (compute * g.eff_attn)
        + work.bytes_kv / (bandwidth * g.eff_kv)
        + k.ar_fixed_s
        + k.ar_per_token_s * work.tokens
        + k.layers_s * (g.k_sm / r + 1.0 - g.k_sm)
    )
    found: Floats = np.maximum(t_gpu, k.launch_s) + k.host_s + k.seq_s * work.rows
    return found


def _gpu_watts(instance: EngineModel, f: Floats, work: _Work, t_s: Floats) -> Floats:
    g = instance.gpu_params
    v2 = _voltage(g, f) ** 2
    flop = work.flop_linear + work.flop_prefill_attention + work.flop_decode_attention
    moved = work.bytes_stream + work.bytes_kv
    dynamic_j = (v2 * g.e_flop_pj * flop + (g.e_byte0_pj + g.e_byte1_pj * v2) * moved) * 1e-12
    found: Floats = g.idle_w + g.c_clk * f / g.f_max * v2 + dynamic_j / t_s / instance.tp
    return found


def _voltage(g: GpuParams, f: Floats) -> Floats:
    found: Floats = g.v_min + (1.0 - g.v_min) * np.maximum(0.0, f - g.f_v) / (g.f_max - g.f_v)
    return found

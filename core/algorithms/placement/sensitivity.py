"""Scores how a model's operators react to the clock (mu-Serve, section 3.1).

The score of an operator is Delta latency / Delta frequency: by how much of itself its latency rises when the clock goes
from the default to half of it. The half is the unit of Delta frequency, so that the score is at the same time the share
of the latency that goes with 1/f, which is how Algorithm 3 uses it: 0 bound by memory, 1 bound by the clock alone.
Below 1 an operator is called insensitive (section 4.4).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from core.engine.engine_model import EngineModel
from core.engine.iteration import Totals


class OperatorKind(StrEnum):
    EMBEDDING = "embedding"
    QKV = "qkv"
    ATTENTION = "attention"
    OUT = "out"
    MLP = "mlp"
    EXPERTS = "experts"
    COLLECTIVE = "collective"
    HEAD = "head"


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator at the default clock. Memory: its weights, and for attention the KV cache, over all GPUs."""

    name: str
    kind: OperatorKind
    sensitivity: float
    latency_s: float
    memory_bytes: float


def sensitivity(default_s: float, half_s: float) -> float:
    """Returns the score from latencies measured at the default clock and at half of it; faster at half is
    noise, and 0.

    Raises:
        ValueError: A latency is not above 0.
    """
    if default_s <= 0.0 or half_s <= 0.0:
        raise ValueError("latencies are longer than nothing")
    return max(0.0, half_s / default_s - 1.0)


def profiled(name: str, kind: OperatorKind, default_s: float, half_s: float, memory_bytes: float) -> Operator:
    """Makes an operator as measured at both clocks."""
    return Operator(name, kind, sensitivity(default_s, half_s), default_s, memory_bytes)


# -- operators from the engine model ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Load:
    """The work of one operator in an iteration, as the terms of the engine model that are its own."""

    name: str
    kind: OperatorKind
    weights_bytes: float = 0.0  # that it holds
    flop: float = 0.0
    stream_bytes: float = 0.0  # that it reads: weights and activations
    attention_flop: float = 0.0
    kv_bytes: float = 0.0
    fixed_s: float = 0.0  # whatever the clock
    kernel_s: float = 0.0  # at the top clock; a share k_sm of it goes with 1/f
    cache_bytes: float = 0.0  # KV cache that it holds


def operators(instance: EngineModel, totals: Totals, kv_tokens: float = 0.0) -> tuple[Operator, ...]:
    """Lists a transformer's operators in order, scored by the engine model for a batch.

    Each gets the terms of the model's iteration time that are its own; the time of small kernels is shared evenly by a
    layer's operators. All GPUs of a TP group run each operator together, so latencies are the instance's. Half of the
    default (top) clock is what `sensitivity` compares with. What the host does is not on the GPU, and left out.

    Args:
        totals: The batch, such as the mean one of a steady state.
        kv_tokens: Tokens of KV cache to keep room for; each layer's attention holds its part.

    Raises:
        ValueError: The batch has no token.
    """
    if totals.new_tokens + totals.decodes <= 0:
        raise ValueError("operators are scored for a batch with at least one token")
    top = instance.gpu_params.f_max
    found = []
    for load in _loads(instance, totals, kv_tokens):
        default_s, half_s = (_latency_s(instance, load, mhz) for mhz in (top, top / 2.0))
        score = sensitivity(default_s, half_s)
        found.append(Operator(load.name, load.kind, score, default_s, load.weights_bytes + load.cache_bytes))
    return tuple(found)


def _latency_s(instance: EngineModel, load: _Load, mhz: float) -> float:
    k, g = instance.constants, instance.gpu_params
    r, x = mhz / g.f_max, mhz / g.f_bw
    compute, bandwidth = k.compute * r, k.bandwidth * x / (1.0 + x**4) ** 0.25
    t_c, t_m = load.flop / compute, load.stream_bytes / bandwidth
    return float(
        (t_c**g.p_norm + t_m**g.p_norm) ** (1.0 / g.p_norm)
        + load.attention_flop / (compute * g.eff_attn)
        + load.kv_bytes / (bandwidth * g.eff_kv)
        + load.fixed_s
        + load.kernel_s * (g.k_sm / r + 1.0 - g.k_sm)
    )


def _loads(instance: EngineModel, totals: Totals, kv_tokens: float) -> list[_Load]:
    m, k = instance.model_params, instance.constants
    n, layers = totals.new_tokens + totals.decodes, m.layers
    activations = k.activation_bytes * n / layers / 4.0  # of each of a layer's four operators
    embedding = m.embedding_params
    loads = [
        _Load(
            "embedding",
            OperatorKind.EMBEDDING,
            weights_bytes=0.0 if m.tied else embedding * m.dtype_bytes,
            stream_bytes=2.0 * n * m.hidden * m.dtype_bytes,  # a row of the table, read and written, for each token
        )
    ]
    for layer in range(layers):
        loads += _layer(instance, f"layer{layer}", totals, activations, kv_tokens)
    rows = totals.decodes + totals.prefills
    return [
        *loads,
        _Load(
            "head",
            OperatorKind.HEAD,
            weights_bytes=k.head_bytes,
            flop=k.flop_per_row * rows,
            stream_bytes=k.head_bytes,
        ),
    ]


def _layer(instance: EngineModel, layer: str, totals: Totals, activations: float, kv_tokens: float) -> list[_Load]:
    m, k = instance.model_params, instance.constants
    n = totals.new_tokens + totals.decodes
    size = m.dense_bits / 8.0
    query, key_value = m.heads * m.head_dim, m.kv_heads * m.head_dim
    qkv, out = float(m.hidden * (query + 2 * key_value)), float(query * m.hidden)
    dense = m.dense_params / m.layers
    # With MLA queries and keys go through narrow matrices; of DeepSeek-V3's dense weights 3/4 are attention's.
    narrow = 0.75 * dense / (qkv + out) if m.latent else 1.0
    qkv, out = narrow * qkv, narrow * out
    mlp = dense - qkv - out  # with norms, and the router of experts
    expert_bytes, experts = k.expert_bytes / m.layers, m.expert_params / m.layers
    used = experts * (1.0 - k.expert_miss)  # that a token goes through
    read = expert_bytes * (1.0 - k.expert_miss**n) if expert_bytes else 0.0  # that any token of the batch goes through
    kernel_s = k.layers_s / m.layers / 4.0
    collective_s = (k.ar_fixed_s + k.ar_per_token_s * n) / m.layers / 2.0
    touched = totals.context_tokens + n + totals.cached_tokens
    last = OperatorKind.EXPERTS if m.experts else OperatorKind.MLP
    parts = [
        _Load(f"{layer}.qkv", OperatorKind.QKV, qkv * size, 2.0 * qkv * n, qkv * size + activations, kernel_s=kernel_s),
        _Load(
            f"{layer}.attention",
            OperatorKind.ATTENTION,
            stream_bytes=activations,
            attention_flop=k.flop_per_attention * totals.pairs / m.layers,
            kv_bytes=k.kv_bytes * touched / m.layers,
            kernel_s=kernel_s,
            cache_bytes=k.kv_bytes * kv_tokens / m.layers,
        ),
        _Load(f"{layer}.out", OperatorKind.OUT, out * size, 2.0 * out * n, out * size + activations, kernel_s=kernel_s),
        _Load(f"{layer}.collective1", OperatorKind.COLLECTIVE, fixed_s=collective_s),
        _Load(
            f"{layer}.{last}",
            last,
            weights_bytes=mlp * size + expert_bytes,
            flop=2.0 * (mlp + used) * n,
            stream_bytes=mlp * size + read + activations,
            kernel_s=kernel_s,
        ),
        _Load(f"{layer}.collective2", OperatorKind.COLLECTIVE, fixed_s=collective_s),
    ]
    return [part for part in parts if part.kind is not OperatorKind.COLLECTIVE or instance.tp > 1]

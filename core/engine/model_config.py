"""Makes a model's shape of the fields of its configuration (Hugging Face's config.json, defaults filled in).

Parameters are counted from the shape: weights of attention, feed-forward layers, experts, routers, norms, embeddings.
Biases, well below 1 % of a model of some size, and vision towers (some 0.3 to 0.7 billion parameters) are left out.
Whatever cannot be counted is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from core.engine.model_shape import KERNELS, BadShape, ModelParams

_GATED, _PLAIN = 3, 2  # matrices of a feed-forward layer
_FULL = "full_attention"
_WINDOWED = ("sliding_attention", "chunked_attention")

# Kernels of a layer, where they are more than Llama's: norms of queries and keys, norms of what a part of the layer
# gives back, the narrow matrices of MLA.
_KERNELS: Mapping[str, int] = {
    "deepseek_v2": 17,
    "deepseek_v3": 17,
    "exaone4": 13,
    "gemma2": 13,
    "gemma3_text": 15,
    "glm4": 13,
    "gpt_oss": 13,
    "llama4_text": 13,
    "olmo2": 13,
    "olmo3": 13,
    "olmoe": 13,
    "qwen3": 13,
    "qwen3_moe": 13,
    "qwen3_vl_moe_text": 13,
    "qwen3_vl_text": 13,
}

# Of these, as of all checkpoints in MXFP4, only the experts are published quantized, whether the file says so or not.
_EXPERTS_ALONE = ("gpt_oss", "llama4_text")

# Matrices of a feed-forward layer, by the type of a model. What is not here keeps other state than a KV cache, or other
# layers than these, and its figures would be wrong.
TYPES: Mapping[str, int] = {
    "apertus": _PLAIN,
    "arcee": _PLAIN,
    "cohere": _GATED,
    "cohere2": _GATED,
    "deepseek_v2": _GATED,
    "deepseek_v3": _GATED,
    "ernie4_5": _GATED,
    "ernie4_5_moe": _GATED,
    "exaone4": _GATED,
    "gemma": _GATED,
    "gemma2": _GATED,
    "gemma3_text": _GATED,
    "glm": _GATED,
    "glm4": _GATED,
    "glm4_moe": _GATED,
    "gpt2": _PLAIN,
    "gpt_neox": _PLAIN,
    "gpt_oss": _GATED,
    "granite": _GATED,
    "granitemoe": _GATED,
    "hunyuan_v1_dense": _GATED,
    "hunyuan_v1_moe": _GATED,
    "llama": _GATED,
    "llama4_text": _GATED,
    "ministral": _GATED,
    "mistral": _GATED,
    "mixtral": _GATED,
    "nemotron": _PLAIN,
    "olmo": _GATED,
    "olmo2": _GATED,
    "olmo3": _GATED,
    "olmoe": _GATED,
    "opt": _PLAIN,
    "phi": _PLAIN,
    "phi3": _GATED,
    "phimoe": _GATED,
    "qwen2": _GATED,
    "qwen2_5_vl_text": _GATED,
    "qwen2_moe": _GATED,
    "qwen2_vl_text": _GATED,
    "qwen3": _GATED,
    "qwen3_moe": _GATED,
    "qwen3_vl_moe_text": _GATED,
    "qwen3_vl_text": _GATED,
    "seed_oss": _GATED,
    "smollm3": _GATED,
    "stablelm": _GATED,
    "starcoder2": _PLAIN,
}


class BadConfig(ValueError):
    """A configuration that no shape can be made of; says which field, and why."""

    def __init__(self, field_name: str, reason: str) -> None:
        super().__init__(f"{field_name}: {reason}")
        self.field_name = field_name


@dataclass(frozen=True, slots=True)
class Bits:
    """The formats of a checkpoint: bits of an element of each kind, scales and zero points included."""

    attention: float
    feed_forward: float
    experts: float
    compute: int


def shape_of_config(config: Mapping[str, Any], name: str = "", kv_bits: float | None = None) -> ModelParams:
    """Makes the shape of a model's configuration, that of its language model where it has other parts too.

    Args:
        config: The fields of its config.json with the defaults of its type.
        name: The model's, for messages.
        kv_bits: Of an element of the KV cache; None: as the checkpoint says, else as activations.

    Raises:
        BadConfig: What cannot be counted.
    """
    text = config.get("text_config") or config
    kind = str(text.get("model_type") or config.get("model_type") or "")
    if kind not in TYPES:
        known = ", ".join(sorted(TYPES))
        raise BadConfig("model_type", f"'{kind}' is none that can be computed: {known}; measure it with a profile")
    _refuse_other_layers(config, text)
    read = _Fields(text)
    layers, hidden, vocab = read.count("num_hidden_layers"), read.count("hidden_size"), read.count("vocab_size")
    heads = read.count("num_attention_heads")
    attention = _attention(read, hidden, heads)
    dense_layer = TYPES[kind] * hidden * read.first("intermediate_size_mlp", "intermediate_size", or_else=4 * hidden)
    experts = _experts(read, TYPES[kind], hidden, layers)
    tied = bool(config.get("tie_word_embeddings", text.get("tie_word_embeddings", False)))
    embeddings = (1 if tied else 2) * vocab * hidden
    feed_forward = (layers - experts.layers) * dense_layer + experts.shared
    own = embeddings + layers * attention.params + feed_forward + experts.routers + (2 * layers + 1) * hidden
    quantization = config.get("quantization_config") or text.get("quantization_config")
    bits, kv = _bits(quantization, _dtype_bytes(config, text), kind in _EXPERTS_ALONE)
    dense_bits = (layers * attention.params * bits.attention + feed_forward * bits.feed_forward) / max(
        1, layers * attention.params + feed_forward
    )
    window, window_layers = _windows(text, layers)
    try:
        return ModelParams(
            name=name or kind,
            params=own + experts.params,
            layers=layers,
            hidden=hidden,
            heads=heads,
            kv_heads=attention.kv_heads,
            head_dim=attention.head_dim,
            vocab=vocab,
            expert_params=experts.params,
            experts=experts.count,
            top_k=experts.top_k,
            tied=tied,
            dtype_bytes=_dtype_bytes(config, text),
            expert_layers=experts.layers,
            latent=attention.latent,
            window=window,
            window_layers=window_layers,
            dense_bits=round(dense_bits, 4),
            expert_bits=bits.experts if experts.count else 0.0,
            kv_bits=kv_bits or kv,
            compute_bits=bits.compute,
            kernels=_KERNELS.get(kind, KERNELS),
            blocks=bits.compute == 8 and _in_blocks(config.get("quantization_config") or {}, kind),
        )
    except BadShape as error:
        field_name, _, reason = str(error).partition(": ")
        raise BadConfig(field_name, reason) from None


def _refuse_other_layers(config: Mapping[str, Any], text: Mapping[str, Any]) -> None:
    if config.get("is_encoder_decoder"):
        raise BadConfig("is_encoder_decoder", "encoders with decoders cannot be computed, only decoders")
    if others := sorted({str(kind) for kind in text.get("layer_types") or ()} - {_FULL, *_WINDOWED}):
        raise BadConfig("layer_types", f"{', '.join(others)} keep other state than a KV cache and cannot be computed")


class _Fields:
    """Reads counts. Raises BadConfig."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values

    def count(self, name: str) -> int:
        value = self.values.get(name)
        if value is None:
            raise BadConfig(name, "missing")
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise BadConfig(name, f"{value!r} is not a whole number above 0")
        return value

    def first(self, *names: str, or_else: int) -> int:
        """Returns the first of these that is there; a field that is null or 0 is not."""
        return next((self.count(name) for name in names if self.values.get(name)), or_else)


@dataclass(frozen=True, slots=True)
class _Attention:
    """The attention of one layer."""

    params: int
    kv_heads: int
    head_dim: int
    latent: int


def _attention(read: _Fields, hidden: int, heads: int) -> _Attention:
    if latent := read.first("kv_lora_rank", or_else=0):  # MLA: DeepSeek-V2, section 2.1
        rope, nope, value = (read.count(name) for name in ("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"))
        query = read.first("q_lora_rank", or_else=0)
        queries = query * (hidden + heads * (nope + rope)) if query else hidden * heads * (nope + rope)
        keys = hidden * (latent + rope) + latent * heads * (nope + value)
        params = queries + keys + heads * value * hidden
        return _Attention(params, heads, (nope + rope + value) // 2, latent + rope)
    head_dim = read.first("head_dim", or_else=hidden // heads)
    kv_heads = read.first("num_key_value_heads", or_else=heads)
    return _Attention(2 * hidden * (heads + kv_heads) * head_dim, kv_heads, head_dim, 0)


@dataclass(frozen=True, slots=True)
class _Experts:
    """The experts of all layers together. `shared` are the parameters of experts that every token uses."""

    count: int = 0
    top_k: int = 0
    layers: int = 0
    params: int = 0
    shared: int = 0
    routers: int = 0


def _experts(read: _Fields, matrices: int, hidden: int, layers: int) -> _Experts:
    count = read.first("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts", or_else=0)
    if not count:
        return _Experts()
    top_k = read.first("num_experts_per_tok", "moe_k", "moe_topk", "num_experts_per_token", or_else=0)
    if not top_k:
        raise BadConfig("num_experts_per_tok", "missing, though there are experts")
    width = read.first("moe_intermediate_size", "intermediate_size", or_else=0) or read.count("intermediate_size")
    with_experts = _expert_layers(read, layers)
    each = matrices * hidden * width
    shared_width = read.first("shared_expert_intermediate_size", or_else=0)
    if not shared_width:
        shared_width = width * read.first("n_shared_experts", "moe_num_shared_experts", or_else=0)
    if read.values.get("model_type") == "llama4_text":  # has one, and no field that says so
        shared_width = width
    return _Experts(
        count,
        top_k,
        with_experts,
        params=with_experts * count * each,
        shared=with_experts * matrices * hidden * shared_width,
        routers=with_experts * hidden * count,
    )


def _expert_layers(read: _Fields, layers: int) -> int:
    named = read.values.get("moe_layers")
    if isinstance(named, list) and named:
        return len(named)
    first = read.first("first_k_dense_replace", "moe_layer_start_index", or_else=0)
    step = read.first("interleave_moe_layer_step", "decoder_sparse_step", "moe_layer_freq", or_else=1)
    plain = read.values.get("mlp_only_layers")
    return max(0, (layers - first) // step - (len(plain) if isinstance(plain, list) else 0))


def _windows(text: Mapping[str, Any], layers: int) -> tuple[int, int]:
    """Returns the window of attention in tokens, and the layers that have it."""
    kinds = text.get("layer_types") or ()
    chunk = text.get("attention_chunk_size") if "chunked_attention" in kinds else None
    window = chunk or text.get("sliding_window")
    if not isinstance(window, int) or isinstance(window, bool) or window < 1:
        return 0, 0
    if kinds:
        with_window = sum(kind in _WINDOWED for kind in kinds)
    else:
        with_window = layers if text.get("use_sliding_window", True) else 0
    return (window, with_window) if with_window else (0, 0)


def _dtype_bytes(config: Mapping[str, Any], text: Mapping[str, Any]) -> int:
    named = config.get("dtype") or config.get("torch_dtype") or text.get("dtype") or text.get("torch_dtype")
    kind = str(named or "bfloat16").removeprefix("torch.")
    if kind in ("bfloat16", "float16"):
        return 2
    if kind == "float32":
        return 4
    raise BadConfig("dtype", f"'{kind}' is none of bfloat16, float16, float32")


def _in_blocks(quantization: Mapping[str, Any], kind: str) -> bool:
    """Says whether FP8 weights have scales by block; checkpoints of Qwen3's experts have, said or not."""
    return bool(quantization.get("weight_block_size")) or kind == "qwen3_moe"


_SCALE_BITS = 16
_MXFP4_BITS = 4 + 8 / 32  # one scale of 8 bits for 32 elements (OCP MX 1.0)
_NVFP4_BITS = 4 + 8 / 16


def _bits(given: object, dtype_bytes: int, experts_alone: bool) -> tuple[Bits, float]:
    """Reads a checkpoint's quantization; returns the bits of weights, and those of the KV cache."""
    usual = 8.0 * dtype_bytes
    if not given:
        return Bits(usual, usual, usual, round(usual)), usual
    if not isinstance(given, Mapping):
        raise BadConfig("quantization_config", f"{given!r} is not an object")
    method = str(given.get("quant_method") or "").lower()
    weights, compute = _weight_bits(method, given)
    kept = " ".join(map(str, given.get("modules_to_not_convert") or given.get("ignore") or ()))
    attention = usual if "self_attn" in kept else weights
    if experts_alone or method == "mxfp4":
        return Bits(usual, usual, weights, compute), usual
    feed_forward = usual if "shared_expert" in kept else weights
    cache = given.get("kv_cache_scheme")
    kv = 8.0 if (isinstance(cache, Mapping) and cache.get("num_bits") == 8) or _names_fp8_cache(given) else usual
    return Bits(attention, feed_forward, weights, compute), kv


def _names_fp8_cache(given: Mapping[str, Any]) -> bool:
    return str(given.get("kv_cache_quant_algo") or "").upper() == "FP8"


def _weight_bits(method: str, given: Mapping[str, Any]) -> tuple[float, int]:
    """Returns the bits of a quantized weight, and those that matrices are multiplied in."""
    if method in ("fp8", "fbgemm_fp8"):
        return 8.0, 8
    if method in ("awq", "gptq", "auto-round"):
        return _grouped(given.get("bits"), given.get("group_size")), 16
    if method == "mxfp4":
        return _MXFP4_BITS, 16
    if method == "modelopt":
        algorithm = str(given.get("quant_algo") or "").upper()
        if algorithm == "NVFP4":
            return _NVFP4_BITS, 16
        if algorithm == "FP8":
            return 8.0, 8
        raise BadConfig("quantization_config", f"quant_algo '{algorithm}' is neither FP8 nor NVFP4")
    if method == "compressed-tensors":
        return _compressed_tensors(given)
    raise BadConfig(
        "quantization_config",
        f"quant_method '{method}' is none of fp8, fbgemm_fp8, awq, gptq, auto-round, mxfp4, modelopt, "
        "compressed-tensors",
    )


def _grouped(bits: object, group: object) -> float:
    """Returns the bits of an element with its part of the group's scale and zero point."""
    if not isinstance(bits, int) or isinstance(bits, bool) or not 1 < bits <= 8:
        raise BadConfig("quantization_config", f"bits {bits!r} is not a whole number from 2 to 8")
    size = group if isinstance(group, int) and not isinstance(group, bool) and group > 0 else 0
    return bits + (_SCALE_BITS + bits) / size if size else float(bits)


def _compressed_tensors(given: Mapping[str, Any]) -> tuple[float, int]:
    groups = given.get("config_groups")
    first = next(iter(groups.values()), None) if isinstance(groups, Mapping) else None
    weights = first.get("weights") if isinstance(first, Mapping) else None
    if not isinstance(weights, Mapping):
        raise BadConfig("quantization_config", "config_groups say nothing of weights")
    bits, kind = weights.get("num_bits"), weights.get("type")
    activations = first.get("input_activations") if isinstance(first, Mapping) else None
    if bits == 8:
        return 8.0, 8 if activations else 16
    if kind == "float" and bits == 4:
        return _NVFP4_BITS, 16
    return _grouped(bits, weights.get("group_size")), 16

"""The shape of a transformer: what the engine model must know of a model to time and meter it.

A shape has a key, a line of text that says it whole and can be read back: `80x8192.q64x128.kv8.v128256.p70553706496`.
The engine model goes by these keys, so that fine-tunes of one base share its figures, its profiles and its caches, and
processes need no list of models. `core.engine.model_config` makes a shape of a published configuration.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

_DTYPE_BYTES = 2  # bfloat16 and float16
KERNELS = 11  # in a layer of Llama
_MOST_NAMED_TP = 16  # degrees that a message names


class BadShape(ValueError):
    """A text that is no shape's key, or a shape that no transformer can have."""


@dataclass(frozen=True, slots=True)
class ModelParams:
    """A transformer's shape. Two of the same shape are equal, whatever their names.

    `params` counts all, embeddings included; `expert_params` those of the experts that a router chooses among (`top_k`
    of `experts` a token, in `expert_layers` of the layers). `tied`: input and output embeddings are one matrix.
    `latent`: with MLA, the elements that a token caches a layer, whatever the heads; `head_dim` is then the mean of
    those of queries and of values. `window_layers` of the layers look back no further than `window` tokens.

    Bits are of one element: `dense_bits` of all weights but experts and embeddings, `compute_bits` of what matrices are
    multiplied in (8: FP8; weights of fewer bits are unpacked to 16). `dtype_bytes` is of everything else: activations,
    embeddings and, unless said otherwise, all the former. `blocks`: FP8 weights have a scale for each block of them.
    `kernels` are those of a layer; norms of queries and keys, or of what a layer gives back, are more than Llama's.
    """

    name: str = field(compare=False)
    params: float
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    expert_params: float = 0.0
    experts: int = 0
    top_k: int = 0
    tied: bool = False
    dtype_bytes: int = _DTYPE_BYTES
    expert_layers: int = 0
    latent: int = 0
    window: int = 0
    window_layers: int = 0
    dense_bits: float = 0.0
    expert_bits: float = 0.0
    kv_bits: float = 0.0
    compute_bits: int = 0
    kernels: int = KERNELS
    blocks: bool = False

    def __post_init__(self) -> None:
        usual = 8 * self.dtype_bytes
        for name in ("dense_bits", "expert_bits", "kv_bits", "compute_bits"):
            object.__setattr__(self, name, getattr(self, name) or usual)
        if self.experts:
            object.__setattr__(self, "expert_layers", self.expert_layers or self.layers)
        if wrong := self._wrong():
            raise BadShape(wrong)

    def _wrong(self) -> str:
        for name in ("params", "layers", "hidden", "heads", "kv_heads", "head_dim", "vocab", "dtype_bytes"):
            if not getattr(self, name) > 0:
                raise BadShape(f"{name}: {getattr(self, name)} is not above 0")
        if self.dense_params < 0.0:
            return f"params: {self.params:.0f} are fewer than embeddings and experts have"
        if self.experts and not 0 < self.top_k <= self.experts:
            return f"top_k: {self.top_k} of {self.experts} experts"
        if max(self.window_layers, self.expert_layers) > self.layers:
            return f"layers: {self.layers} are fewer than those with windows or experts"
        return ""

    @property
    def embedding_params(self) -> float:
        """Elements of one embedding matrix."""
        return float(self.vocab * self.hidden)

    @property
    def dense_params(self) -> float:
        """Parameters that every token uses, embeddings left out."""
        return self.params - self.expert_params - (1 if self.tied else 2) * self.embedding_params

    @property
    def active_params(self) -> float:
        """Parameters that a token uses, embeddings included."""
        return self.params - self.expert_params * (1.0 - self.routed)

    @property
    def routed(self) -> float:
        """The share of the experts that a token uses; 0 without experts."""
        return self.top_k / self.experts if self.experts else 0.0

    @property
    def weight_bytes(self) -> float:
        embeddings = self.params - self.expert_params - self.dense_params
        return (
            self.dense_params * self.dense_bits / 8 + self.expert_params * self.expert_bits / 8
        ) + embeddings * self.dtype_bytes

    @property
    def kv_elements(self) -> int:
        """Elements that a token caches in one layer."""
        return self.latent or 2 * self.kv_heads * self.head_dim

    @property
    def kv_shards(self) -> int:
        """The GPUs that a token's cache can be cut over; beyond that each keeps a copy of a part."""
        return 1 if self.latent else self.kv_heads

    def splits(self, tp: int) -> bool:
        """Says whether `tp` GPUs can share the heads, as engines do: as many to each, of KV heads whole copies beyond.

        A latent is not cut: each GPU keeps all of it.
        """
        if tp < 1 or self.heads % tp:
            return False
        return bool(self.latent) or not self.kv_heads % tp or not tp % self.kv_heads

    def split_fault(self, tp: int) -> str:
        """Says why `tp` GPUs cannot share the heads, and which numbers can; empty: they can."""
        if self.splits(tp):
            return ""
        able = ", ".join(str(other) for other in range(1, min(self.heads, _MOST_NAMED_TP) + 1) if self.splits(other))
        kv = "" if self.latent else f" and {self.kv_heads} KV heads"
        return f"{tp} GPUs cannot share {self.heads} attention heads{kv} evenly; choose one of {able}"

    @property
    def full_share(self) -> float:
        """The share of the layers that look back to the first token."""
        return 1.0 - self.window_layers / self.layers

    @property
    def kv_bytes(self) -> float:
        """Bytes that a token caches over all layers, each of which keeps it."""
        return self.layers * self.kv_elements * self.kv_bits / 8

    @property
    def key(self) -> str:
        """Says the whole shape; `shape_of_key` reads it back."""
        words = [
            f"{self.layers}x{self.hidden}",
            f"q{self.heads}x{self.head_dim}",
            f"kv{self.kv_heads}",
            f"v{self.vocab}",
            f"p{self.params:.0f}",
        ]
        if self.tied:
            words.append("tied")
        if self.experts:
            words.append(f"e{self.experts}x{self.top_k}x{self.expert_layers}x{self.expert_params:.0f}")
        if self.latent:
            words.append(f"mla{self.latent}")
        if self.window_layers:
            words.append(f"win{self.window}x{self.window_layers}")
        usual = 8 * self.dtype_bytes
        if self.dtype_bytes != _DTYPE_BYTES:
            words.append(f"d{self.dtype_bytes}")
        bits = {"w": self.dense_bits, "x": self.expert_bits, "k": self.kv_bits, "c": self.compute_bits}
        words += [f"{letter}{_decimal(value)}" for letter, value in bits.items() if value != usual]
        if self.kernels != KERNELS:
            words.append(f"n{self.kernels}")
        if self.blocks:
            words.append("blocks")
        return ".".join(words)


def _decimal(value: float) -> str:
    return f"{value:g}".replace(".", "_")  # a dot ends a word


_WORDS = {
    "layers": r"(?P<layers>\d+)x(?P<hidden>\d+)",
    "heads": r"q(?P<heads>\d+)x(?P<head_dim>\d+)",
    "kv_heads": r"kv(?P<kv_heads>\d+)",
    "vocab": r"v(?P<vocab>\d+)",
    "params": r"p(?P<params>\d+)",
    "tied": r"(?P<tied>tied)",
    "experts": r"e(?P<experts>\d+)x(?P<top_k>\d+)x(?P<expert_layers>\d+)x(?P<expert_params>\d+)",
    "latent": r"mla(?P<latent>\d+)",
    "window": r"win(?P<window>\d+)x(?P<window_layers>\d+)",
    "dtype_bytes": r"d(?P<dtype_bytes>\d+)",
    "dense_bits": r"w(?P<dense_bits>\d+(?:_\d+)?)",
    "expert_bits": r"x(?P<expert_bits>\d+(?:_\d+)?)",
    "kv_bits": r"k(?P<kv_bits>\d+(?:_\d+)?)",
    "compute_bits": r"c(?P<compute_bits>\d+)",
    "kernels": r"n(?P<kernels>\d+)",
    "blocks": r"(?P<blocks>blocks)",
}
_MUST = 5
_PATTERN = re.compile(
    r"\.".join(list(_WORDS.values())[:_MUST]) + "".join(rf"(?:\.{word})?" for word in list(_WORDS.values())[_MUST:])
)
_FRACTIONAL = ("dense_bits", "expert_bits", "kv_bits")


def shape_of_key(key: str) -> ModelParams:
    """Reads a shape's key. Raises BadShape."""
    if (found := _PATTERN.fullmatch(key)) is None:
        raise BadShape(f"'{key}' is no shape's key, such as 80x8192.q64x128.kv8.v128256.p70553706496")
    values: dict[str, Any] = {name: text for name, text in found.groupdict().items() if text is not None}
    for name, text in values.items():
        if name in _FRACTIONAL:
            values[name] = float(text.replace("_", "."))
        else:
            values[name] = True if name in ("tied", "blocks") else int(text)
    return ModelParams(name=key, **values)


def is_key(text: str) -> bool:
    """Says whether a text is a shape's key."""
    return _PATTERN.fullmatch(text) is not None

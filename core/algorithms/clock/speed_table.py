"""Tables of an engine's iterations a second: plain arrays that the compiled clock search reads instead of a model.

A model of iterations a second (throttLL'eM's M, section IV-C1: see `core.predictors.ips`) is asked once an engine, over
all clocks it offers and a grid of batch sizes and KV-cache use. The search then only looks up: exact in clock and small
batches, linear in larger ones and in KV blocks, in which the time of an iteration is (nearly) linear anyway (III-B).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from core.engine.measured import Basis

Floats = NDArray[np.float64]
_KV_LEVELS = 33  # from an empty cache to a full one
_SINGLE_BATCHES, _BATCH_STEP = 32, 8  # every batch size up to here is asked for, then every eighth
_PROMPT_LEVELS = 17  # from no prompt to a full chunk


class IpsModel(Protocol):
    """Iterations a second of an engine that generates one token for each of `batch` sequences. Never blocks."""

    def predict(self, tp: int, batch: Floats, kv_blocks: Floats, mhz: Floats) -> Floats:
        """Predicts element by element; `kv_blocks` are those in use over the whole batch."""
        ...


class PromptModel(Protocol):
    """Seconds that prompt tokens add to an iteration. Never blocks."""

    def prompt_s(self, tp: int, prompt_tokens: Floats, mhz: Floats) -> Floats: ...


@dataclass(frozen=True, slots=True)
class EngineShape:
    """The cache blocks, requests and tokens that an engine of a size has room for."""

    tp: int  # E, the engine's size
    kv_blocks: int  # of the whole cache
    block_tokens: int = 16  # N; vLLM's block. TensorRT-LLM's are larger
    max_sequences: int = 256  # in one batch
    chunk_tokens: int = 8192  # of prompts, that one iteration takes in

    def __post_init__(self) -> None:
        if min(self.tp, self.kv_blocks, self.block_tokens, self.max_sequences, self.chunk_tokens) < 1:
            raise ValueError(f"an engine needs at least one of each: {self}")

    @property
    def kv_tokens(self) -> int:
        return self.kv_blocks * self.block_tokens


@dataclass(frozen=True, slots=True, eq=False)
class SpeedTable:
    """Seconds of an iteration by clock, batch and KV blocks. Clocks ascend; a higher one is never slower.

    `basis`: what is known of the engine; None: not said.
    """

    shape: EngineShape
    clocks_mhz: Floats  # (clocks,)
    seconds: Floats  # (clocks, batch - 1, KV level); levels are evenly spaced from 0 to shape.kv_blocks
    prompt_s: Floats  # (clocks, prompt level): added by prompt tokens; evenly spaced from 0 to shape.chunk_tokens
    basis: Basis | None = None

    @property
    def top(self) -> int:
        """The index of the highest clock."""
        return int(self.clocks_mhz.size) - 1


def speed_table(
    ips: IpsModel,
    prompts: PromptModel | None,
    shape: EngineShape,
    clocks_mhz: Sequence[float],
    margin: float = 0.0,
) -> SpeedTable:
    """Asks the models once for all that the search may need.

    Args:
        prompts: What prompts cost. None is the paper's choice: a prompt is one more row of the batch (IV-F).
        clocks_mhz: Those that the GPU offers, ascending.
        margin: Share by which everything takes longer than predicted.

    Raises:
        ValueError: Clocks that do not ascend, or a model that predicts no finite, positive speed.
    """
    clocks = np.asarray(clocks_mhz, dtype=np.float64)
    if clocks.size == 0 or clocks[0] <= 0.0 or np.any(np.diff(clocks) <= 0.0):
        raise ValueError("the clocks must ascend, from above 0")
    if margin < 0.0:
        raise ValueError(f"a margin below 0 ({margin:g}) would make the engine faster than predicted")
    every = np.arange(1, shape.max_sequences + 1, dtype=np.float64)
    batches = every[(every <= _SINGLE_BATCHES) | (every % _BATCH_STEP == 0) | (every == shape.max_sequences)]
    blocks = np.linspace(0.0, shape.kv_blocks, _KV_LEVELS)
    mhz, batch, kv = (grid.ravel() for grid in np.meshgrid(clocks, batches, blocks, indexing="ij"))
    speed = ips.predict(shape.tp, batch, kv, mhz)
    if not np.all(np.isfinite(speed)) or np.any(speed <= 0.0):
        raise ValueError("the model predicts iterations that never end, or take no time")
    seconds = (1.0 / speed).reshape(clocks.size, batches.size, blocks.size)
    added = np.zeros((clocks.size, _PROMPT_LEVELS))
    if prompts is not None:
        tokens = np.linspace(0.0, shape.chunk_tokens, _PROMPT_LEVELS)
        mhz, prompt = (grid.ravel() for grid in np.meshgrid(clocks, tokens, indexing="ij"))
        added = np.maximum(0.0, prompts.prompt_s(shape.tp, prompt, mhz)).reshape(added.shape)
    dense = _between_batches(seconds, batches, every)
    return SpeedTable(shape, clocks, _never_slower(dense) * (1.0 + margin), _never_slower(added) * (1.0 + margin))


def _between_batches(seconds: Floats, batches: Floats, every: Floats) -> Floats:
    """Fills in every batch size (axis 1) linearly between those that the model was asked for."""
    above = np.searchsorted(batches, every)
    below = np.maximum(above - 1, 0)
    span = batches[above] - batches[below]
    share = np.where(span > 0.0, (every - batches[below]) / np.where(span > 0.0, span, 1.0), 0.0)[:, None]
    found: Floats = (1.0 - share) * seconds[:, below, :] + share * seconds[:, above, :]
    return found


def _never_slower(seconds: Floats) -> Floats:
    """Keeps the time from rising with the clock, as noise in a model or a GPU at its TDP may make it: the
    binary search needs this."""
    found: Floats = np.minimum.accumulate(seconds, axis=0)
    return found

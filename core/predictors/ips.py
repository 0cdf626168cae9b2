"""Iterations a second of an engine from its size, batch, KV cache and clock: throttLL'eM's M (IV-C1).

Two choices behind `IpsModel`: gradient-boosted trees learned from profile points, as in the paper, and the engine model
in closed form, for engines that nobody has profiled. Neither is asked in the clock search: both are exported as a dense
table (`core.algorithms.clock.speed_table`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from core.algorithms.clock.speed_table import EngineShape
from core.engine.engine_model import EngineModel, engine_model
from core.engine.engine_vector import iterations
from core.engine.profiles import Profile

Floats = NDArray[np.float64]

# A faster clock never slows an engine; more sequences, or more cache to read, never speed it up. Size is left free: a
# small model gains nothing from more GPUs. In the order of `IpsSamples.features`.
_MONOTONE = (0, -1, -1, 1)
_TREES = {
    "max_iter": 160,
    "learning_rate": 0.12,
    "max_leaf_nodes": 16,
    "min_samples_leaf": 4,  # a tenth of a profile has few points
    "l2_regularization": 1e-3,
    "early_stopping": False,
    "random_state": 0,
}


@dataclass(frozen=True, slots=True, eq=False)
class IpsSamples:
    """Profile points of one model on engines of several sizes; all arrays have the same length."""

    tp: Floats
    batch: Floats
    kv_blocks: Floats
    mhz: Floats
    ips: Floats

    def __len__(self) -> int:
        return int(self.ips.size)

    @property
    def features(self) -> Floats:
        return np.column_stack((self.tp, self.batch, self.kv_blocks, self.mhz))

    def rows(self, which: NDArray[Any]) -> IpsSamples:
        return IpsSamples(self.tp[which], self.batch[which], self.kv_blocks[which], self.mhz[which], self.ips[which])


@dataclass(frozen=True, slots=True)
class IpsScores:
    """How well a model predicts points it has not seen: the paper's three figures (table III)."""

    r2: float
    mae_ips: float
    mape: float  # a share
    trained_on: int
    tested_on: int


def context_blocks(batch: Floats, context_tokens: Floats, block_tokens: int) -> Floats:
    """Returns the blocks, (n,), that sequences with `context_tokens` in all have: the last block of each is half full
    in the mean."""
    return (context_tokens + batch * (block_tokens - 1) / 2.0) / block_tokens


def block_context(batch: Floats, kv_blocks: Floats, block_tokens: int) -> Floats:
    """Inverts `context_blocks`: returns context tokens, (n,), at least one a sequence."""
    found: Floats = np.maximum(batch, kv_blocks * block_tokens - batch * (block_tokens - 1) / 2.0)
    return found


def samples_of(profiles: Iterable[Profile], block_tokens: int = 16) -> IpsSamples:
    """The points of profiles that only generate: those with a prompt say what prompts cost, not how fast tokens come.

    Raises:
        ValueError: Profiles of more than one model, GPU type or engine; or no point at all.
    """
    given = tuple(profiles)
    if len({(profile.model, profile.gpu, profile.engine) for profile in given}) > 1:
        raise ValueError("one predictor is for one model on one GPU type under one engine")
    points = [
        (profile.tp, point.batch, point.context_tokens, point.mhz, 1.0 / point.t_s)
        for profile in given
        for point in profile.points
        if point.prefill_tokens == 0
    ]
    if not points:
        raise ValueError("no point without a prompt to learn from")
    tp, batch, context, mhz, ips = np.array(points, dtype=np.float64).T
    return IpsSamples(tp, batch, context_blocks(batch, context, block_tokens), mhz, ips)


@dataclass(frozen=True, slots=True)
class EngineIps:
    """The engine model as IpsModel and PromptModel. Raises UnknownConfiguration."""

    model: str
    gpu: str
    engine: str = "vllm-v1"
    block_tokens: int = 16

    def at(self, tp: int) -> EngineModel:
        return engine_model(self.model, self.gpu, tp, self.engine)

    def shape(self, tp: int, max_sequences: int = 256, chunk_tokens: int = 8192) -> EngineShape:
        """Returns what the engine of a size holds. Raises ValueError when the model leaves no room for a block."""
        blocks = int(self.at(tp).kv_capacity_tokens // self.block_tokens)
        return EngineShape(tp, blocks, self.block_tokens, max_sequences, chunk_tokens)

    def predict(self, tp: int, batch: Floats, kv_blocks: Floats, mhz: Floats) -> Floats:
        context = block_context(batch, kv_blocks, self.block_tokens)
        found: Floats = 1.0 / iterations(self.at(tp), mhz, decodes=batch, context_tokens=context).t_s
        return found

    def prompt_s(self, tp: int, prompt_tokens: Floats, mhz: Floats) -> Floats:
        """Returns the seconds that each prompt of so many tokens adds to the iteration of a batch of 32, (n,)."""
        beside = {"decodes": 32.0, "context_tokens": 32.0 * 512.0}
        whole = iterations(self.at(tp), mhz, prefill_tokens=prompt_tokens, **beside).t_s
        found: Floats = whole - iterations(self.at(tp), mhz, **beside).t_s
        return found

    def samples(self, tps: Sequence[int], batches: Sequence[int], mhz: Sequence[float], kv_levels: int) -> IpsSamples:
        """Points as the paper profiles them: for each size, batch and clock, KV use from one block a sequence up to a
        full cache."""
        parts = []
        for tp in tps:
            blocks = self.shape(tp).kv_blocks
            for batch in (b for b in batches if b <= blocks):
                grid = np.meshgrid(np.linspace(batch, blocks, kv_levels), np.asarray(mhz, dtype=np.float64))
                kv, clock = (axis.ravel() for axis in grid)
                size = np.full(kv.size, float(batch))
                ips = self.predict(tp, size, kv, clock)
                parts.append(np.stack((np.full(kv.size, float(tp)), size, kv, clock, ips)))
        return IpsSamples(*np.concatenate(parts, axis=1))


@dataclass(frozen=True, slots=True, eq=False)
class BoostedIps:
    """Gradient-boosted trees, learned from points (`BoostedIps.fit`). They know no prompts.

    One thread: there are few points, and threads that wait for each other cost more than they save on a busy machine.
    """

    _trees: Any
    slowest_ips: float  # that was seen: sums of trees may fall below anything

    @classmethod
    def fit(cls, samples: IpsSamples) -> BoostedIps:
        """Deterministic: the same points give the same trees."""
        # Imported here because it takes a second, and only those who learn need it.
        from sklearn.ensemble import HistGradientBoostingRegressor

        if len(samples) == 0 or np.any(samples.ips <= 0.0):
            raise ValueError("learning needs points, each with a speed above 0")
        trees = HistGradientBoostingRegressor(monotonic_cst=_MONOTONE, **_TREES)
        with threadpool_limits(1, "openmp"):
            trees.fit(samples.features, samples.ips)
        return cls(trees, float(samples.ips.min()))

    def predict(self, tp: int, batch: Floats, kv_blocks: Floats, mhz: Floats) -> Floats:
        return self._predict(np.column_stack((np.full(batch.size, float(tp)), batch, kv_blocks, mhz)))

    def _predict(self, features: Floats) -> Floats:
        with threadpool_limits(1, "openmp"):
            found: Floats = np.maximum(self.slowest_ips, self._trees.predict(features))
        return found

    def score(self, samples: IpsSamples, trained_on: int) -> IpsScores:
        """Scores the model against points that it has not seen."""
        predicted = self._predict(samples.features)
        error = predicted - samples.ips
        spread = samples.ips - samples.ips.mean()
        return IpsScores(
            r2=float(1.0 - np.sum(error**2) / np.sum(spread**2)),
            mae_ips=float(np.mean(np.abs(error))),
            mape=float(np.mean(np.abs(error) / samples.ips)),
            trained_on=trained_on,
            tested_on=len(samples),
        )


def fit_and_score(samples: IpsSamples, train_share: float, rng: np.random.Generator) -> tuple[BoostedIps, IpsScores]:
    """Learns from a random share of the points, one row each, and scores the rest (the paper's splits: 0.9, 0.1).

    Raises ValueError.
    """
    if not 0.0 < train_share < 1.0:
        raise ValueError(f"a share to learn from lies between 0 and 1, not at {train_share:g}")
    order = rng.permutation(len(samples))
    cut = round(train_share * len(samples))
    if cut == 0 or cut > len(samples) - 2:
        raise ValueError(f"{len(samples)} points are too few to learn from {train_share:.0%} of them")
    model = BoostedIps.fit(samples.rows(order[:cut]))
    return model, model.score(samples.rows(order[cut:]), cut)

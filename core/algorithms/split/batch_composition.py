"""DynaServe's local decision: what the next batch of an instance holds (section 4.2, Algorithm 2).

All decodes go first, since each waits for its next token; then prefills in order of arrival, within the budget of
prompt tokens that keeps the batch within the ITL objective. The budget is read from a table of batch times by (prompt
tokens, mean context of the decodes, number of decodes), which starts from the engine model and takes in the measured
time of every batch. The text of the paper has lost the listing; this follows its prose.

Between the nodes of the table times are interpolated linearly in each of the three. A measurement moves the (up to
eight) nodes around it by their weights (normalised least mean squares), so that the table needs no batch to hit a node.

A table holds for one configuration at one clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.compiled import compiled
from core.engine.engine_model import MAX_SEQUENCES, EngineModel
from core.engine.engine_vector import iterations

Floats = NDArray[np.float64]

_OUTLIER = 10.0  # a batch that took so many times longer than predicted, or shorter, was held up or mismeasured
_SHORTEST_S = 1e-6


@compiled
def _place(axis: Floats, at: float) -> tuple[int, float]:
    """Returns the cell of `axis` that `at` is in, and its share of the way through; the last cells go on beyond the
    ends."""
    k = 0
    while k < axis.size - 2 and axis[k + 1] <= at:
        k += 1
    return k, float((at - axis[k]) / (axis[k + 1] - axis[k]))


@compiled
def _at(seconds: Floats, p: int, c: int, c_share: float, d: int, d_share: float) -> float:
    """Over context and decodes, at one node of prompt tokens."""
    near = seconds[p, c, d] * (1.0 - d_share) + seconds[p, c, d + 1] * d_share
    far = seconds[p, c + 1, d] * (1.0 - d_share) + seconds[p, c + 1, d + 1] * d_share
    return float(near * (1.0 - c_share) + far * c_share)


@compiled
def _predict(seconds: Floats, axes: tuple[Floats, Floats, Floats], prefill: float, context: float, n: float) -> float:
    p, p_share = _place(axes[0], prefill)
    c, c_share = _place(axes[1], context)
    d, d_share = _place(axes[2], n)
    near, far = _at(seconds, p, c, c_share, d, d_share), _at(seconds, p + 1, c, c_share, d, d_share)
    return float(near * (1.0 - p_share) + far * p_share)


@compiled
def _learn(
    seconds: Floats, axes: tuple[Floats, Floats, Floats], prefill: float, context: float, n: float, step_s: float
) -> None:
    """Moves the nodes around a point so that the prediction there moves by `step_s`, in the least change of them."""
    p, p_share = _place(axes[0], prefill)
    c, c_share = _place(axes[1], context)
    d, d_share = _place(axes[2], n)
    square = 1.0
    for share in (p_share, c_share, d_share):
        square *= share**2 + (1.0 - share) ** 2
    for i in range(2):
        for j in range(2):
            for k in range(2):
                weight = (
                    (p_share if i else 1.0 - p_share)
                    * (c_share if j else 1.0 - c_share)
                    * (d_share if k else 1.0 - d_share)
                )
                moved = seconds[p + i, c + j, d + k] + step_s * weight / square
                seconds[p + i, c + j, d + k] = max(moved, _SHORTEST_S)


@compiled
def _allowed(
    seconds: Floats, axes: tuple[Floats, Floats, Floats], context: float, n: float, itl_s: float, most: float
) -> float:
    """Returns the prompt tokens up to which no batch is predicted to take longer than `itl_s`."""
    c, c_share = _place(axes[1], context)
    d, d_share = _place(axes[2], n)
    axis = axes[0]
    before = _at(seconds, 0, c, c_share, d, d_share)
    if before > itl_s:
        return 0.0
    for p in range(1, axis.size):
        after = _at(seconds, p, c, c_share, d, d_share)
        if after > itl_s:
            return float(min(most, axis[p - 1] + (axis[p] - axis[p - 1]) * (itl_s - before) / (after - before)))
        if axis[p] >= most:
            return most
        before = after
    return float(min(most, axis[-1]))


@dataclass(frozen=True, slots=True, eq=False)
class LatencyTable:
    """Batch times, seconds[prompt tokens, mean context, decodes], and how many measurements it has taken in."""

    prefill_tokens: Floats
    context_tokens: Floats
    decodes: Floats
    seconds: Floats
    measurements: int = 0

    @property
    def _axes(self) -> tuple[Floats, Floats, Floats]:
        return self.prefill_tokens, self.context_tokens, self.decodes

    def predict_s(self, prefill_tokens: float, mean_context_tokens: float, decodes: float) -> float:
        """Returns the seconds that a batch takes; beyond the table's ends it extrapolates along a straight line."""
        found = _predict(self.seconds, self._axes, float(prefill_tokens), float(mean_context_tokens), float(decodes))
        return max(found, _SHORTEST_S)

    def learned(
        self,
        prefill_tokens: float,
        mean_context_tokens: float,
        decodes: float,
        measured_s: float,
        gain: float = 0.25,
    ) -> LatencyTable:
        """The table after one more batch: its prediction for it has moved by `gain` of the error.

        Batches beyond the table's ends, and those off by more than tenfold, teach nothing.
        """
        if measured_s <= 0.0 or not 0.0 < gain <= 1.0:
            raise ValueError("a batch takes longer than nothing, and the gain is in (0, 1]")
        point = (float(prefill_tokens), float(mean_context_tokens), float(decodes))
        inside = all(axis[0] <= at <= axis[-1] for axis, at in zip(self._axes, point, strict=True))
        predicted_s = self.predict_s(*point)
        if not inside or not 1.0 / _OUTLIER <= measured_s / predicted_s <= _OUTLIER:
            return self
        seconds = self.seconds.copy()
        _learn(seconds, self._axes, *point, gain * (measured_s - predicted_s))
        return replace(self, seconds=seconds, measurements=self.measurements + 1)

    def prefill_budget(self, mean_context_tokens: float, decodes: int, itl_s: float, most: int) -> int:
        """The most prompt tokens, up to `most`, beside these decodes with which a batch keeps `itl_s`."""
        found = _allowed(
            self.seconds, self._axes, float(mean_context_tokens), float(decodes), float(itl_s), float(max(0, most))
        )
        return int(found)

    def to_json(self) -> dict[str, Any]:
        return {
            "prefill_tokens": self.prefill_tokens.tolist(),
            "context_tokens": self.context_tokens.tolist(),
            "decodes": self.decodes.tolist(),
            "seconds": self.seconds.tolist(),
            "measurements": self.measurements,
        }

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> LatencyTable:
        """Reads what `to_json` wrote. Raises ValueError when the parts do not fit together."""
        names = ("prefill_tokens", "context_tokens", "decodes")
        prefill, context, decodes = axes = [np.asarray(found[name], dtype=np.float64) for name in names]
        seconds = np.asarray(found["seconds"], dtype=np.float64)
        if seconds.shape != tuple(axis.size for axis in axes):
            raise ValueError("the table has another shape than its axes")
        if any(axis.size < 2 or (np.diff(axis) <= 0).any() for axis in axes):
            raise ValueError("each axis needs at least two values, and rises")
        return cls(prefill, context, decodes, seconds, int(found["measurements"]))


def modelled_table(
    instance: EngineModel,
    mhz: float,
    most_prefill_tokens: int,
    most_context_tokens: int = 131_072,
    max_sequences: int = MAX_SEQUENCES,
) -> LatencyTable:
    """Returns the table to start with: the engine model's times at nodes that double."""
    prefill = _doubling(32, max(32, most_prefill_tokens))
    context = _doubling(128, max(128, most_context_tokens))
    decodes = _doubling(1, max(1, max_sequences))
    p, c, d = prefill[:, None, None], context[None, :, None], decodes[None, None, :]
    # Nothing at all takes no batch: one decode stands in for it, which is within microseconds of the weights' time.
    batch = np.where((p == 0) & (d == 0), 1.0, d)
    found = iterations(instance, mhz, prefill_tokens=p, decodes=batch, context_tokens=batch * (c + 1.0))
    return LatencyTable(prefill, context, decodes, found.t_s)


def _doubling(first: int, last: int) -> Floats:
    values = [0.0]
    at = float(first)
    while at < last:
        values.append(at)
        at *= 2.0
    return np.array([*values, float(last)])


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """`itl_s`: the objective for the gap between tokens. `token_budget` and `max_sequences` of one batch.

    The table tells how long such batches take on average, and the objective is to hold for 99 of 100: `margin` is the
    share of it that batches leave free.
    """

    itl_s: float
    token_budget: int
    max_sequences: int = MAX_SEQUENCES
    margin: float = 0.05

    def __post_init__(self) -> None:
        if self.itl_s <= 0.0 or self.token_budget < 1 or self.max_sequences < 1 or not 0.0 <= self.margin < 1.0:
            raise ValueError("batches need an objective above 0, a budget and places from 1, and a margin in [0, 1)")


@dataclass(frozen=True, slots=True)
class Composition:
    """The next batch: all decodes, and the first `len(chunks)` of the prefills with so many tokens each."""

    decodes: int
    mean_context_tokens: float
    chunks: tuple[int, ...]
    prefill_budget: int
    predicted_s: float | None  # None: nothing to do

    @property
    def prefill_tokens(self) -> int:
        return sum(self.chunks)


def compose(
    context_tokens: Sequence[int],
    prefill_tokens: Sequence[int],
    table: LatencyTable,
    limits: BatchLimits,
    free_kv_tokens: int | None = None,
) -> Composition:
    """Composes the next batch of an instance.

    Without decodes nobody waits between tokens: the prefills then have the whole token budget.

    Args:
        context_tokens: Of each decoding sequence.
        prefill_tokens: What each request that is not yet decoding has left of its prompt, in order of arrival.
        free_kv_tokens: Room in the KV cache for new tokens of this batch; None: no bound.
    """
    n = len(context_tokens)
    mean = sum(context_tokens) / n if n else 0.0
    most = limits.token_budget - n
    if free_kv_tokens is not None:
        most = min(most, free_kv_tokens - n)
    most = max(0, most)
    budget = table.prefill_budget(mean, n, (1.0 - limits.margin) * limits.itl_s, most) if n else most
    chunks: list[int] = []
    left = budget
    for tokens in prefill_tokens[: max(0, limits.max_sequences - n)]:
        if left <= 0:
            break
        chunks.append(min(tokens, left))
        left -= chunks[-1]
    predicted_s = table.predict_s(sum(chunks), mean, n) if n or chunks else None
    return Composition(n, mean, tuple(chunks), budget, predicted_s)

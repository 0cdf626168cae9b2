"""The clock rule that throttLL'eM compares itself with: ReTail's, as V-F3 transfers it to language models.

A linear regression predicts what a request takes from end to end, from five features: clock, batch, KV cache in use,
and the lengths of prompt and output. At each arrival the lowest clock is taken at which every request present keeps its
deadline. Batch and KV cache are those of the moment: nothing is projected, and nobody waits for admission.

What the paper leaves open: how much of its time a request has behind it. We take the share of its output that it has
generated. The regression is fitted to points over the whole range of the engine, for lengths around typical ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.algorithms.clock.speed_table import SpeedTable
from core.controllers.basis import basis_json
from core.controllers.clock.throttllem_clock import ThrottleState
from core.controllers.request.admission import Requests
from core.engine.measured import Basis
from core.types import Effects, Rationale, Reason, SetSmClock

Floats = NDArray[np.float64]
_SPREAD = (0.25, 1.0, 2.0)  # of typical lengths, that the regression has seen
_CLOCKS, _BATCHES, _LEVELS = 8, 8, 8  # points of the grid along each axis


@dataclass(frozen=True, slots=True, eq=False)
class LinearLatency:
    """Seconds of a request from end to end: `weights` of 1, MHz, batch, KV blocks, prompt and output tokens."""

    weights: Floats
    r2: float  # of the points it was fitted to; the paper: close to 0.4

    def seconds(self, mhz: Floats, batch: int, kv_blocks: float, prompt: Floats, output: Floats) -> Floats:
        """Returns predicted latencies in seconds, (clocks, requests), at least 0."""
        w = self.weights
        own = w[0] + w[2] * batch + w[3] * kv_blocks + w[4] * prompt + w[5] * output
        found: Floats = np.maximum(0.0, w[1] * mhz[:, None] + own[None, :])
        return found


def fit(table: SpeedTable, prompt_tokens: float, output_tokens: float) -> LinearLatency:
    """Fits by least squares over clocks, batches and KV levels of the table, for lengths from a quarter to twice the
    given."""
    clocks, batches, levels = table.seconds.shape
    places = (_spaced(clocks, _CLOCKS), _spaced(batches, _BATCHES), _spaced(levels, _LEVELS))
    lengths = (np.array(_SPREAD) * prompt_tokens, np.array(_SPREAD) * output_tokens)
    c, b, k, in_spread, out_spread = (
        axis.ravel() for axis in np.meshgrid(*places, np.arange(len(_SPREAD)), np.arange(len(_SPREAD)), indexing="ij")
    )
    p, o = lengths[0][in_spread], lengths[1][out_spread]
    e2e_s = p * table.prompt_s[c, -1] / table.shape.chunk_tokens + o * table.seconds[c, b, k]
    features = np.column_stack(
        (np.ones(c.size), table.clocks_mhz[c], b + 1.0, k * (table.shape.kv_blocks / (levels - 1)), p, o)
    )
    scale = np.abs(features).max(axis=0)
    weights = np.linalg.lstsq(features / scale, e2e_s, rcond=None)[0] / scale
    wrong = features @ weights - e2e_s
    return LinearLatency(weights, float(1.0 - np.sum(wrong**2) / np.sum((e2e_s - e2e_s.mean()) ** 2)))


def _spaced(size: int, count: int) -> NDArray[np.int64]:
    return np.unique(np.linspace(0, size - 1, count).astype(np.int64))


@dataclass(frozen=True, slots=True, eq=False)
class RetailObservation:
    """An engine and all its requests, those that wait and the one that arrived included: a column for each quantity.

    `share_left`: of each request's output, that is still to come. `deadline_s`: on the clock of `now_s`; infinite:
    none.
    """

    now_s: float
    instance: str
    kv_blocks: float  # in use now
    prompt_tokens: Floats
    output_tokens: Floats
    share_left: Floats
    deadline_s: Floats


def observe(
    now_s: float, instance: str, kv_blocks: float, requests: Sequence[Requests], predictor_error: float
) -> RetailObservation:
    """Builds what the rule sees of an engine's requests. Predictions are raised by the error, a share of them.

    One that has outgrown its own is taken to run to its maximum, as with throttLL'eM's projection (IV-F).
    """
    prompt, predicted, most, made, deadline_s = (
        np.concatenate([getattr(part, name) for part in requests]).astype(np.float64)
        for name in ("prompt_tokens", "predicted_tokens", "max_tokens", "generated_tokens", "deadline_s")
    )
    output = np.maximum(1.0, predicted * (1.0 + predictor_error))
    output = np.where(made >= output, np.maximum(made + 1.0, most), output)
    return RetailObservation(now_s, instance, kv_blocks, prompt, output, 1.0 - made / output, deadline_s)


@dataclass(frozen=True, slots=True, eq=False)
class RetailConfig:
    """The clocks that the GPU offers, ascending, and what a request takes at them. `basis`: as a SpeedTable's."""

    clocks_mhz: Floats
    latency: LinearLatency
    basis: Basis | None = None


def step(state: ThrottleState | None, obs: RetailObservation, config: RetailConfig) -> tuple[ThrottleState, Effects]:
    """Chooses the lowest clock that keeps all deadlines, the top one when none does; a SetSmClock when it changes."""
    clocks = config.clocks_mhz
    batch = int(obs.prompt_tokens.size)
    takes_s = config.latency.seconds(clocks, batch, obs.kv_blocks, obs.prompt_tokens, obs.output_tokens)
    kept = (takes_s * obs.share_left < obs.deadline_s - obs.now_s).all(axis=1)
    found = int(np.argmax(kept)) if kept.any() else None
    mhz = float(clocks[-1 if found is None else found])
    reason = Reason.AT_LIMIT if found is None else Reason.WITHIN_LIMITS
    asked = None if state is None else state.target_mhz
    inputs: dict[str, Any] = {"from_mhz": asked, "to_mhz": mhz, "running": batch, "kv_blocks": obs.kv_blocks}
    if config.basis is not None:
        inputs |= basis_json(config.basis)
    why = "No clock keeps every deadline" if found is None else f"The lowest clock for the deadlines of {batch}"
    commands = () if mhz == asked else (SetSmClock(obs.instance, mhz),)
    return ThrottleState(mhz), Effects(commands, None, Rationale(reason, f"{why}: {mhz:.0f} MHz.", inputs))

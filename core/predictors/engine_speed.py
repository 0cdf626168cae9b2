"""The speed table of one engine over the clocks of its GPU: what throttLL'eM's projections are made on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from core.algorithms.clock.speed_table import EngineShape, SpeedTable, speed_table
from core.engine.corrections import configuration
from core.engine.engine_model import gpu as gpu_params
from core.engine.measured import basis, profile_of
from core.engine.step_tables import CLOCK_STEP_MHZ
from core.predictors.ips import BoostedIps, EngineIps, IpsSamples, samples_of

# What the trees learn from: throttLL'eM IV-C1.
_PROFILED_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_PROFILED_CLOCK_STEP_MHZ, _PROFILED_LEVELS = 60.0, 16
_LEAST_POINTS = 24  # measured ones, below which trees would know less than the engine model


def engine_speed(
    model: str,
    gpu: str,
    tp: int,
    engine: str,
    kv_tokens: int,
    max_sequences: int = 256,
    chunk_tokens: int = 2048,
    floor_mhz: float | None = None,
    trees: bool = False,
) -> SpeedTable:
    """Computes the engine's iterations a second, over all clocks from `floor_mhz` (None: the GPU's lowest) to the top.

    Args:
        trees: By trees that learned from the engine's profile, as in the paper, and not by the engine model; where it
            has no profile, from points of the engine model.

    Raises:
        UnknownConfiguration: The engine model does not know the configuration.
    """
    known = EngineIps(model, gpu, engine)
    shape = EngineShape(tp, max(1, kv_tokens // known.block_tokens), known.block_tokens, max_sequences, chunk_tokens)
    params = gpu_params(gpu)
    clocks = clocks_mhz(params.clamp_mhz(floor_mhz or params.f_min), params.f_max)
    if trees:
        found = speed_table(BoostedIps.fit(_points(known, tp)), None, shape, clocks)
    else:
        found = speed_table(known, known, shape, clocks)
    return replace(found, basis=basis(configuration(model, gpu, tp, engine)))


def _points(known: EngineIps, tp: int) -> IpsSamples:
    """Returns what the trees learn from: the engine's own profile, else points of the engine model."""
    profile = profile_of(configuration(known.model, known.gpu, tp, known.engine))
    if profile is not None:
        measured = sum(point.prefill_tokens == 0 for point in profile.points)
        if measured >= _LEAST_POINTS:
            return samples_of((profile,), known.block_tokens)
    params = gpu_params(known.gpu)
    learned = np.arange(params.f_min, params.f_max + 1.0, _PROFILED_CLOCK_STEP_MHZ).tolist()
    return known.samples((tp,), _PROFILED_BATCHES, learned, _PROFILED_LEVELS)


def clocks_mhz(low_mhz: float, top_mhz: float) -> Sequence[float]:
    """Lists the clocks, ascending to the top, in the GPU's steps."""
    steps = int((top_mhz - low_mhz) / CLOCK_STEP_MHZ + 1e-9)
    return [top_mhz - CLOCK_STEP_MHZ * n for n in range(steps, -1, -1)]

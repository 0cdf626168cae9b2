"""Computes what a mode does with requests of given lengths at its top clock: slow loops plan with that."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from core.engine.corrections import configuration
from core.engine.engine_model import EngineModel
from core.engine.iteration import Totals
from core.engine.measured import basis, engine_costs
from core.engine.parameter_caches import cached
from core.engine.profiled_engine import ProfiledEngine
from core.engine.steady_state import SPARE_DEVIATIONS
from core.types import Limits, Mode, ModeProfile, Source

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Lengths:
    """Mean lengths of requests, in tokens. `context_tokens`: of one that runs; None: as if all were equally long."""

    prompt_tokens: float
    output_tokens: float
    context_tokens: float | None = None

    @property
    def running_tokens(self) -> float:
        """Mean context of a running request."""
        return self.prompt_tokens + self.output_tokens / 2.0 if self.context_tokens is None else self.context_tokens

    @property
    def rounded(self) -> Lengths:
        context = None if self.context_tokens is None else rounded(self.context_tokens)
        return Lengths(rounded(self.prompt_tokens), rounded(self.output_tokens), context)


def mean_context(requests: Floats, prompt: Floats, output: Floats) -> float | None:
    """Returns a running request's mean context from requests and tokens in all, (cells,) each; None: there are
    none.

    Long answers run longer, so that it is more than a mean request's prompt and half its answer.
    """
    if not output.any():
        return None
    each = np.divide(prompt + output / 2.0, requests, out=np.zeros_like(output), where=requests > 0.0)
    return float(output @ each / output.sum())


@cached(maxsize=65_536)
def mode_profile(model: str, engine: str, mode: Mode, lengths: Lengths, limits: Limits) -> ModeProfile:
    """Computes the rate that an instance carries within `limits` with room for bursts, and its power and latencies
    then.

    A rate of 0 with the idle power: it can keep the limits at no load.

    Raises:
        UnknownConfiguration: Neither a profile nor the engine model knows the model, the engine or the GPU.
    """
    worker = engine_costs(model, mode.gpu, mode.tp, engine)
    at_s = basis(configuration(model, mode.gpu, mode.tp, engine)).measured_at_s
    top_mhz = worker.gpu_params.f_max
    rate = worker.max_rps(lengths.prompt_tokens, lengths.output_tokens, top_mhz, limits, SPARE_DEVIATIONS)
    if rate <= 0.0:
        return ModeProfile(0.0, worker.idle_watts(top_mhz), None, None, None, worker.source, at_s)
    steady = worker.steady_state(rate, lengths.prompt_tokens, lengths.output_tokens, top_mhz)
    source = source_at(worker, top_mhz, steady.batch, lengths)
    return ModeProfile(rate, steady.power_w, steady.ttft_s, steady.tpot_s, steady.e2e_s, source, at_s)


def source_at(worker: ProfiledEngine | EngineModel, mhz: float, batch: float, lengths: Lengths) -> Source:
    """Returns what the figures rest on there: between the points of a profile interpolated, beyond them modelled."""
    if isinstance(worker, EngineModel):
        return worker.source
    decodes = max(1.0, batch)
    context = decodes * (lengths.prompt_tokens + lengths.output_tokens / 2.0)
    return worker.predict(mhz, Totals(0.0, 0.0, 0.0, 0.0, decodes, context)).iteration.source


def rounded(tokens: float) -> float:
    """To about 3 %: the engine model is asked again when traffic changes, not at every request or epoch."""
    step = 2.0 ** max(0, int(tokens).bit_length() - 5)
    return max(1.0, round(tokens / step) * step)

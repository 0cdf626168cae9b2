"""What a mode does with requests of given lengths at its top clock: what slow loops plan with."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from scheduler.core.engine_model import engine_model
from scheduler.core.steady_state import SPARE_DEVIATIONS
from scheduler.core.types import Limits, Mode, ModeProfile, Source


@dataclass(frozen=True, slots=True)
class Lengths:
    """Mean lengths of requests, in tokens."""

    prompt_tokens: float
    output_tokens: float

    @property
    def rounded(self) -> Lengths:
        return Lengths(rounded(self.prompt_tokens), rounded(self.output_tokens))


@lru_cache(maxsize=65_536)
def mode_profile(model: str, engine: str, mode: Mode, lengths: Lengths, limits: Limits) -> ModeProfile:
    """What an instance carries within `limits` with room for bursts, and its power and latencies then.

    A rate of 0 with the idle power: it can keep the limits at no load.

    Raises:
        UnknownConfiguration: The engine model does not know the model, the engine or the GPU.
    """
    worker = engine_model(model, mode.gpu, mode.tp, engine)
    top_mhz = worker.gpu_params.f_max
    rate = worker.max_rps(lengths.prompt_tokens, lengths.output_tokens, top_mhz, limits, SPARE_DEVIATIONS)
    if rate <= 0.0:
        return ModeProfile(0.0, worker.idle_gpu_watts(top_mhz) * mode.tp, None, None, None, Source.MODELLED)
    steady = worker.steady_state(rate, lengths.prompt_tokens, lengths.output_tokens, top_mhz)
    return ModeProfile(rate, steady.power_w, steady.ttft_s, steady.tpot_s, steady.e2e_s, Source.MODELLED)


def rounded(tokens: float) -> float:
    """To about 3 %: the engine model is asked again when traffic changes, not at every request or epoch."""
    step = 2.0 ** max(0, int(tokens).bit_length() - 5)
    return max(1.0, round(tokens / step) * step)

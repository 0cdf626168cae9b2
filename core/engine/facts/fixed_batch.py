"""An instance kept at a batch, as the engine model's steady state defines it."""

from __future__ import annotations

from dataclasses import dataclass

from core.engine.engine_model import EngineModel
from core.engine.engine_vector import iterations


@dataclass(frozen=True, slots=True)
class AtBatch:
    ttft_s: float
    tpot_s: float
    watts: float


def at_batch(instance: EngineModel, mhz: float, batch: float, prompt_tokens: float, output_tokens: float) -> AtBatch:
    """Computes the mean iteration at a batch B of (prompt, output) requests.

    A decode-only iteration a, and one with prefill b (max(1, B / out) prefills), whose share is q = min(1, B / out);
    each sequence's context is prompt + out / 2. TTFT = t_b, TPOT = (1 - q) t_a + q t_b, power weighted by time.
    """
    turnover = batch / output_tokens
    q = min(1.0, turnover)
    found = iterations(
        instance,
        mhz,
        prefill_tokens=[0.0, prompt_tokens],
        prefills=max(1.0, turnover),
        decodes=batch,
        context_tokens=batch * (prompt_tokens + output_tokens / 2.0),
    )
    (t_a, t_b), (e_a, e_b) = found.t_s.tolist(), found.energy_j.tolist()
    t = (1.0 - q) * t_a + q * t_b
    return AtBatch(t_b, t, ((1.0 - q) * e_a + q * e_b) / t)

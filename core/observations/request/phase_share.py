"""Says how many of a service's instances do prompts, and how many the answers after them (BiScale's first tier).

Importing this loads compiled code.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from core.algorithms.split.request_mix import RequestMix
from core.algorithms.split.sustained_rates import Steady, rate_of
from core.algorithms.split.virtual_passes import parts
from core.engine.engine_model import EngineModel
from core.observations.request.split_given import engine_passes
from core.ports import EngineLimits
from core.types import Limits

LATE = 0.01  # share of prompts that may wait for too long
_BISECTIONS = 20


@dataclass(frozen=True, slots=True)
class PhaseRates:
    """The requests/s of which one instance does the prompts, the answers, or all, at the top clock within the limits.

    Answers keep theirs up to the batch whose iteration takes the limit on the time between tokens. Prompts queue: an
    instance takes as many as let all but `LATE` of them begin in time.
    """

    prompts_rps: float
    answers_rps: float
    whole_rps: float

    @property
    def first_share(self) -> float:
        """The share of instances that are to do prompts, so that both parts keep their limits at the same rate."""
        both_rps = self.prompts_rps + self.answers_rps
        return self.answers_rps / both_rps if both_rps > 0.0 else 0.5

    @property
    def leaning(self) -> float:
        """The prompts that an instance does in the time of an answer: those with the most of unlike ones do prompts."""
        return self.prompts_rps / self.answers_rps if self.answers_rps > 0.0 else math.inf

    @property
    def apart(self) -> float:
        """The requests that instances sustain whose parts are done apart, for each one that they do of whole ones."""
        if self.whole_rps <= 0.0:
            return 1.0
        return self.prompts_rps * self.first_share / self.whole_rps


def phase_rates(model: EngineModel, engine: EngineLimits, mix: RequestMix, limits: Limits) -> PhaseRates:
    """Returns what an instance sustains of each part.

    Args:
        mix: The mean request.
        limits: Those that are to be kept, of TTFT and TPOT; None: no limit.

    Raises:
        ValueError: The model does not fit its GPUs.
    """
    passes = engine_passes(model, engine.max_num_batched_tokens, engine.max_num_seqs, 0.0)
    costs, limit_s = passes.steady(model.gpu_params.f_max).costs, limits.tpot_s or 0.0
    prompt, output = max(1, round(mix.prompt_tokens)), max(2, round(mix.output_tokens))
    first, second = parts(prompt, prompt + output, prompt)
    prompts_rps = rate_of(Steady(costs, 0.0), first)
    if limits.ttft_s is not None:
        prompts_rps *= busy_share(limits.ttft_s * prompts_rps - 1.0)
    whole_rps = rate_of(Steady(costs, limit_s), (prompt, output - 1, 0))
    return PhaseRates(float(prompts_rps), float(rate_of(Steady(costs, limit_s), second)), float(whole_rps))


def busy_share(waits: float) -> float:
    """Returns how busy a server may be so that all but `LATE` of its jobs, which are all alike and come by chance, wait
    for no longer than so many of them take: from 0 to 1.

    Longer waits are about as rare as the busy share x exp(-2 (1 - busy share) waits) (the tail of M/D/1).
    """
    low, high = 0.0, 1.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2.0
        rare = middle * math.exp(-2.0 * (1.0 - middle) * max(0.0, waits)) <= LATE
        low, high = (middle, high) if rare else (low, middle)
    return low

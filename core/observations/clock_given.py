"""Says what limits clock rules act at, and how low a clock may go."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from core.algorithms.clock.primal_dual import Curves
from core.engine.engine_model import GPUS
from core.engine.engine_params import GpuParams
from core.engine.load_profile import CLOCK_STEP_MHZ, LOWEST_MHZ, Floats, LoadProfile, clocks
from core.observations.limits import class_limits, planned
from core.policy.knobs import Knobs
from core.ports import EngineLimits
from core.types import Limits


@dataclass(frozen=True, slots=True)
class ProfileClocks:
    """The clocks that a profile has: `step_mhz` apart, from the one on that the knobs clock_floor and clock_floor_mhz
    say (`profiled_from_mhz`)."""

    step_mhz: float = CLOCK_STEP_MHZ
    floor: str = "gpu"
    floor_mhz: float | None = None

    def of(self, gpu: GpuParams) -> Floats:
        """Returns those of a GPU in MHz, (clocks,), rising."""
        own = gpu.name, gpu.f_min, gpu.f_max
        return clocks(gpu, self.step_mhz, profiled_from_mhz(*own, self.floor, self.floor_mhz))


def shared(limits: Limits, ttft_share: float, tpot_share: float) -> Limits:
    """Returns shares of limits: of TTFT the one, of TPOT and E2E the other."""
    e2e_s = None if limits.e2e_s is None else limits.e2e_s * tpot_share
    return replace(planned(limits, ttft_share, tpot_share), e2e_s=e2e_s)


def clock_limits(slo: Limits, own: Limits, knobs: Knobs) -> Limits:
    """Returns the limits that clocks act at: of each the policy's share of what plans keep, or the class's threshold
    if that is tighter.

    Args:
        slo: The service's objectives.
        own: The class's thresholds.
    """
    kept = shared(class_limits(slo, own, knobs), knobs.clock_ttft_share, knobs.clock_tpot_share)
    return Limits(_tighter(kept.ttft_s, own.ttft_s), _tighter(kept.tpot_s, own.tpot_s), _tighter(kept.e2e_s, own.e2e_s))


def least_mhz(gpu: str, min_mhz: float, max_mhz: float, floor: str, floor_mhz: float | None) -> float:
    """Returns the lowest clock that a rule may set on a GPU, in MHz.

    Args:
        gpu: Its type.
        min_mhz, max_mhz: What it can be set to.
        floor, floor_mhz: The knobs clock_floor and clock_floor_mhz. Where the engine model does not know the GPU,
            nobody knows where its voltage stops falling either: then it is the GPU's lowest.
    """
    if floor_mhz is None:
        floor_mhz = GPUS[gpu].f_v if floor == "voltage" and gpu in GPUS else min_mhz
    return min(max(floor_mhz, min_mhz), max_mhz)


def profiled_from_mhz(gpu: str, min_mhz: float, max_mhz: float, floor: str, floor_mhz: float | None) -> float:
    """Returns the lowest clock that is profiled, in MHz: the floor's, or as DynamoLLM's where there is none."""
    if floor_mhz is None and floor == "gpu":
        floor_mhz = LOWEST_MHZ
    return least_mhz(gpu, min_mhz, max_mhz, floor, floor_mhz)


def full_tokens(chunk_tokens: int) -> int:
    """Returns the prompt tokens of an iteration with two prompts' chunks: a request's own, and one before it.

    Args:
        chunk_tokens: Of one prompt at most; 0: all that there is room for.
    """
    room = EngineLimits().max_num_batched_tokens
    return min(room, 2 * (chunk_tokens or room))


def curves(profile: LoadProfile, output_tokens: float, batch: float) -> Curves:
    """Returns an engine at each clock of its profile, with `batch` requests under way, by Little's law."""
    under_way = profile.rps * (profile.ttft_s + max(1.0, output_tokens) * profile.tpot_s)

    def at_batch(values: Floats) -> Floats:
        return np.array([np.interp(batch, x, y) for x, y in zip(under_way, values, strict=True)])

    of = (profile.rps, profile.watts, profile.ttft_s, profile.tpot_s)
    return Curves(profile.mhz, *(at_batch(values) for values in of))


def queued(waiting: int, full_tokens: int | None, prompt_tokens: float) -> int:
    """Returns how many of those that wait the next iteration does not take in.

    Args:
        waiting: Requests that wait.
        full_tokens: Prompt tokens of the iteration that is planned with; None: none is, and all of them wait.
        prompt_tokens: Of a prompt, on the mean.
    """
    return waiting if full_tokens is None else max(0, waiting - int(full_tokens / max(1.0, prompt_tokens)))


def _tighter(one_s: float | None, other_s: float | None) -> float | None:
    return min((limit_s for limit_s in (one_s, other_s) if limit_s is not None), default=None)

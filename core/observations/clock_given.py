"""Says what limits clock rules act at, and how low a clock may go."""

from __future__ import annotations

from dataclasses import dataclass, replace

from core.engine.engine_model import GPUS
from core.observations.limits import class_limits, planned
from core.policy.knobs import Knobs
from core.types import Limits


@dataclass(frozen=True, slots=True)
class ProfileClocks:
    """The clocks that a profile has: `step_mhz` apart, from the one on that the knobs clock_floor and clock_floor_mhz
    say (`least_mhz`)."""

    step_mhz: float
    floor: str
    floor_mhz: float | None


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


def _tighter(one_s: float | None, other_s: float | None) -> float | None:
    return min((limit_s for limit_s in (one_s, other_s) if limit_s is not None), default=None)

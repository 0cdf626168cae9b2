"""The clock loop: MIAD on one instance's SM clock (FREESH eq. 5).

Up fast when requests wait or a latency crosses its limit, down slowly while all is well: energy is saved in slack and
the latency objectives are defended at once.
"""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.core.algorithms.miad import MiadConfig, next_clock_mhz
from scheduler.core.types import ClockObservation, Effects, Rationale, Reason, SetSmClock

__all__ = ["ClockState", "MiadConfig", "step"]


@dataclass(frozen=True, slots=True)
class ClockState:
    """The clock last asked for; None: none yet, the GPU runs at its top clock.

    The loop steps from what it asked for, not from what the GPU reports: a GPU that idles or throttles reports less,
    and stepping down from there would ratchet.
    """

    target_mhz: float | None = None


def step(state: ClockState | None, obs: ClockObservation, config: MiadConfig) -> tuple[ClockState, Effects]:
    """One period: the next clock, or a hold when it is already at its end.

    An instance that runs nothing, or whose requests have not finished yet, has slack: nothing waits.
    """
    asked = state.target_mhz if state is not None else None
    current = min(max(obs.max_mhz if asked is None else asked, obs.min_mhz), obs.max_mhz)
    why = _congestion(obs)
    target = next_clock_mhz(current, bool(why), obs.min_mhz, obs.max_mhz, config)
    if target == current:
        end = "top" if why else "bottom"
        reason = Reason.AT_LIMIT
        summary = f"{_sentence(why)}; the clock is already at its {end}, {current:.0f} MHz."
    else:
        reason = Reason.CONGESTED if why else Reason.SLACK
        summary = f"{_sentence(why)}: {current:.0f} MHz -> {target:.0f} MHz."
    rationale = Rationale(reason, summary, _inputs(obs, current, target))
    # An unchanged clock is still asked for once, so that state and GPU agree from the first period on.
    commands = () if target == asked else (SetSmClock(obs.instance, target),)
    return ClockState(target), Effects(commands, obs.now_s + config.period_s, rationale)


def _congestion(obs: ClockObservation) -> str:
    """What is wrong, in words; empty when nothing is."""
    if obs.waiting > 0:
        return f"{obs.waiting} request{'s wait' if obs.waiting > 1 else ' waits'}"
    limits = obs.limits
    for name, value, limit in (
        ("TTFT", obs.ttft_s, limits.ttft_s),
        ("TPOT", obs.tpot_s, limits.tpot_s),
        ("E2E", obs.e2e_s, limits.e2e_s),
    ):
        if value is not None and limit is not None and value > limit:
            return f"{name} of {value:.3g} s is over its limit of {limit:g} s"
    return ""


def _sentence(why: str) -> str:
    return why[:1].upper() + why[1:] if why else "Nothing waits and every latency is within its limit"


def _inputs(obs: ClockObservation, current: float, target: float) -> dict[str, float | int | str | None]:
    return {
        "from_mhz": current,
        "to_mhz": target,
        "sm_clock_mhz": obs.sm_clock_mhz,
        "min_mhz": obs.min_mhz,
        "max_mhz": obs.max_mhz,
        "running": obs.running,
        "waiting": obs.waiting,
        "ttft_s": obs.ttft_s,
        "tpot_s": obs.tpot_s,
        "e2e_s": obs.e2e_s,
        "ttft_limit_s": obs.limits.ttft_s,
        "tpot_limit_s": obs.limits.tpot_s,
        "e2e_limit_s": obs.limits.e2e_s,
    }

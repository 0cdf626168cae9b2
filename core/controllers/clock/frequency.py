"""The clock loop: one instance's SM clock by MIAD (FREESH eq. 5) or by the primal-dual rule (eq. 4).

MIAD goes up fast when requests wait or a latency crosses its limit and down slowly while all is well: energy is saved
in slack and the latency objectives are defended at once. The primal-dual rule weighs what tokens are worth against
power. The configuration's type says which of them it is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from core.algorithms.clock import primal_dual
from core.algorithms.clock.miad import MiadConfig, next_clock_mhz
from core.algorithms.clock.primal_dual import Curves, Prices, PrimalDualConfig
from core.types import ClockObservation, Effects, Rationale, Reason, SetSmClock

__all__ = [
    "ClockState",
    "MiadConfig",
    "PrimalDualConfig",
    "ProfiledClock",
    "clock_inputs",
    "congestion",
    "present_mhz",
    "profiled",
    "step",
]


@dataclass(frozen=True, slots=True)
class ClockState:
    """The clock last asked for; None: none yet, the GPU runs at its top clock.

    The loop steps from what it asked for, not from what the GPU reports: a GPU that idles or throttles reports less,
    and stepping down from there would ratchet.
    """

    target_mhz: float | None = None
    prices: Prices | None = None  # of the primal-dual rule


@dataclass(frozen=True, slots=True)
class ProfiledClock(ClockObservation):
    """The same, with the engine's own curves at its present batch. None: nobody knows such an engine."""

    curves: Curves | None = None


def profiled(obs: ClockObservation, curves: Curves | None) -> ProfiledClock:
    """Returns the observation with the curves."""
    own = {item.name: getattr(obs, item.name) for item in fields(ClockObservation)}
    return ProfiledClock(**own, curves=curves)


def step(
    state: ClockState | None, obs: ClockObservation, config: MiadConfig | PrimalDualConfig
) -> tuple[ClockState, Effects]:
    """Decides one period: the next clock, or a hold when it is already at its end.

    An instance that runs nothing, or whose requests have not finished yet, has slack: nothing waits.
    """
    asked = state.target_mhz if state is not None else None
    current = present_mhz(asked, obs)
    why = congestion(obs)
    if isinstance(config, PrimalDualConfig):
        curves = obs.curves if isinstance(obs, ProfiledClock) and config.by_profile else None
        target, prices = _priced(state, obs, current, bool(why), config, curves)
        reason, summary = _weighed(obs, why, current, target)
        if config.by_profile and curves is None:
            summary += " By constants: nobody has a profile of it."
    else:
        target, prices = next_clock_mhz(current, bool(why), obs.min_mhz, obs.max_mhz, config), None
        reason, summary = _judged(why, current, target)
    rationale = Rationale(reason, summary, clock_inputs(obs, current, target))
    # An unchanged clock is still asked for once, so that state and GPU agree from the first period on.
    commands = () if target == asked else (SetSmClock(obs.instance, target),)
    return ClockState(target, prices), Effects(commands, obs.now_s + config.period_s, rationale)


def present_mhz(asked: float | None, obs: ClockObservation) -> float:
    """Returns the clock that a rule goes on from: what it asked for, or the top, within the GPU's range."""
    return min(max(obs.max_mhz if asked is None else asked, obs.min_mhz), obs.max_mhz)


def _judged(why: str, current: float, target: float) -> tuple[Reason, str]:
    if target == current:
        end = "top" if why else "bottom"
        return Reason.AT_LIMIT, f"{_sentence(why)}; the clock is already at its {end}, {current:.0f} MHz."
    reason = Reason.CONGESTED if why else Reason.SLACK
    return reason, f"{_sentence(why)}: {current:.0f} MHz -> {target:.0f} MHz."


def _priced(
    state: ClockState | None,
    obs: ClockObservation,
    current: float,
    urgent: bool,
    config: PrimalDualConfig,
    curves: Curves | None,
) -> tuple[float, Prices]:
    """Returns the next clock in whole MHz, as clocks are set.

    A step of less than one is taken as one, so that it arrives. Where curves are known, no clock is below the lowest
    that keeps the limits by them.
    """
    known = state.prices if state is not None else None
    requests = obs.running + obs.waiting
    least = obs.min_mhz
    if curves is not None and requests:
        least = min(max(least, curves.least_mhz(obs.limits)), obs.max_mhz)
    range_mhz = least, obs.max_mhz
    exact, prices = primal_dual.next_clock_mhz(current, known, requests, urgent, *range_mhz, config, curves)
    whole = math.ceil(exact) if exact > current else math.floor(exact)
    return float(min(max(whole, least), obs.max_mhz)) if abs(exact - current) > 0.5 else current, prices


def _weighed(obs: ClockObservation, why: str, current: float, target: float) -> tuple[Reason, str]:
    worth = f"{obs.running + obs.waiting} requests" + (f", urgent ({why})" if why else "")
    if target == current:
        at_end = target in (obs.min_mhz, obs.max_mhz)
        return (Reason.AT_LIMIT if at_end else Reason.NO_CHANGE), f"{worth}: {current:.0f} MHz is worth its power."
    verb = "more clock is worth its power" if target > current else "less clock is worth its power"
    reason = Reason.CONGESTED if target > current else Reason.SLACK
    return reason, f"{worth}: {verb}, {current:.0f} MHz -> {target:.0f} MHz."


def congestion(obs: ClockObservation) -> str:
    """Says what is congested; the text is empty when nothing is."""
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


def clock_inputs(obs: ClockObservation, current: float, target: float) -> dict[str, float | int | str | None]:
    """Returns what a decision rests on, as JSON."""
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

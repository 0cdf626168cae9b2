"""One instance's SM clock by plain thresholds (`core.algorithms.clock.busy_thresholds`)."""

from __future__ import annotations

from dataclasses import dataclass

from core.algorithms.clock.busy_thresholds import ThresholdClockConfig, next_clock_mhz
from core.controllers.clock.frequency import ClockState, clock_inputs, congestion, present_mhz
from core.types import ClockObservation, Effects, Rationale, Reason, SetSmClock

__all__ = ["ThresholdClockConfig", "ThresholdClockObservation", "step"]


@dataclass(frozen=True, slots=True)
class ThresholdClockObservation:
    """`use`: share of the instance's busiest resource, KV cache or places in the batch; None: the engine does not
    tell."""

    latencies: ClockObservation
    use: float | None


def step(
    state: ClockState | None, obs: ThresholdClockObservation, config: ThresholdClockConfig
) -> tuple[ClockState, Effects]:
    """Decides one period. Without a known use the clock goes up when requests wait or are late, and never down."""
    seen, asked = obs.latencies, None if state is None else state.target_mhz
    current = present_mhz(asked, seen)
    why = congestion(seen)
    target = next_clock_mhz(current, obs.use, bool(why), seen.min_mhz, seen.max_mhz, config)
    reason, summary = _judged(why, obs.use, current, target, config)
    inputs = {**clock_inputs(seen, current, target), "use": obs.use}
    # An unchanged clock is still asked for once, so that state and GPU agree from the first period on.
    commands = () if target == asked else (SetSmClock(seen.instance, target),)
    return ClockState(target), Effects(commands, seen.now_s + config.period_s, Rationale(reason, summary, inputs))


def _judged(
    why: str, use: float | None, current: float, target: float, config: ThresholdClockConfig
) -> tuple[Reason, str]:
    busy = "the use of its KV cache and batch is not known" if use is None else f"its busiest resource is at {use:.0%}"
    text = f"{why or 'nothing waits or is late'}, and {busy}"
    text = text[:1].upper() + text[1:]
    if target != current:
        reason = Reason.CONGESTED if target > current else Reason.SLACK
        return reason, f"{text}: {current:.0f} MHz -> {target:.0f} MHz."
    if why or (use is not None and not config.busy_low <= use <= config.busy_high):
        end = "top" if why or (use is not None and use > config.busy_high) else "bottom"
        return Reason.AT_LIMIT, f"{text}; the clock is already at its {end}, {current:.0f} MHz."
    if use is None:
        return Reason.NO_DATA, f"{text}; the clock stays at {current:.0f} MHz."
    return Reason.NO_CHANGE, f"{text}: {current:.0f} MHz stays."

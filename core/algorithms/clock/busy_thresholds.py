"""The clock by plain thresholds: to the top when busy or late, a step down when idle, the same in between."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ThresholdClockConfig:
    """`busy_high`, `busy_low`: share of the busiest resource above which the clock goes up, below which down."""

    period_s: float = 5.0
    busy_high: float = 0.75
    busy_low: float = 0.5
    clock_step_mhz: float = 90.0

    def __post_init__(self) -> None:
        if not 0.0 < self.busy_low < self.busy_high or self.clock_step_mhz <= 0.0 or self.period_s <= 0.0:
            raise ValueError("busy_low is above 0 and below busy_high; clock_step_mhz and period_s are above 0")


def next_clock_mhz(
    mhz: float, use: float | None, congested: bool, floor_mhz: float, top_mhz: float, config: ThresholdClockConfig
) -> float:
    """Returns the next clock in MHz.

    Args:
        mhz: The present clock. One below its floor stays.
        use: Share of the busiest resource; None: not known, neither busy nor idle.
        congested: Requests wait, or a latency is over its limit.
        floor_mhz, top_mhz: Between these the clock may move.
        config: The thresholds and the step.
    """
    if congested or (use is not None and use > config.busy_high):
        return top_mhz
    if use is not None and use < config.busy_low:
        return min(mhz, max(mhz - config.clock_step_mhz, floor_mhz))
    return mhz

"""MIAD: multiplicative increase, additive decrease of the SM clock (FREESH eq. 5)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MiadConfig:
    """FREESH's knobs: M, delta, and the period of the loop."""

    increase: float = 2.0  # M
    decrease_mhz: float = 100.0  # delta
    period_s: float = 1.0

    def __post_init__(self) -> None:
        if self.increase <= 1.0 or self.decrease_mhz <= 0.0 or self.period_s <= 0.0:
            raise ValueError("MIAD needs increase > 1, decrease_mhz > 0 and period_s > 0")


def next_clock_mhz(mhz: float, congested: bool, min_mhz: float, max_mhz: float, config: MiadConfig) -> float:
    """Returns f(t+1) in MHz: min(M f, f_max) when congested, else max(f - delta, f_min)."""
    if congested:
        return min(config.increase * mhz, max_mhz)
    return max(mhz - config.decrease_mhz, min_mhz)

"""The optimum of FREESH's primal-dual clock rule, by bisection on eq. 3: what the updates of eq. 4 are to reach."""

from __future__ import annotations

from core.algorithms.clock.primal_dual import PrimalDualConfig


def best_clock_mhz(requests: int, urgent: bool, min_mhz: float, max_mhz: float, config: PrimalDualConfig) -> float:
    """f* for so many requests of utility w log y: gamma = N w / r(f), so N w r'(f) / r(f) = beta P'(f)."""
    weight = (config.urgency if urgent else 1.0) / config.full_at
    s, power = config.sensitivity, config.power_exponent

    def worth_more(x: float) -> bool:
        """At a share x of the top clock, with r(x) = x / ((1 - s) x + s) and P(x) = x^power."""
        slope_over_rate = s / (((1.0 - s) * x + s) * x)
        return requests * weight * slope_over_rate > config.beta * power * x ** (power - 1.0)

    low, high = min_mhz / max_mhz, 1.0
    if not worth_more(low):
        return low * max_mhz
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (middle, high) if worth_more(middle) else (low, middle)
    return high * max_mhz

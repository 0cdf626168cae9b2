"""The primal-dual clock rule (FREESH section 3.2, eq. 2 to 4, proposition 1), of which MIAD is the practical stand-in.

    max   sum_i U_i(y_i) - beta P(f)    s.t.  sum_i y_i <= r(f)  : gamma,   f_min <= f <= f_max               (2)

y_i is the token rate of request i, U_i what it is worth, P(f) power, r(f) the rate of all tokens at clock f and gamma
the price of a token. At the optimum beta P'(f) = gamma r'(f) (3). One update of all three, from the same old values:

    y_i   <- [y_i + k_y (U_i'(y_i) - gamma)]+                                                                 (4a)
    f     <- [f + k_f (-beta P'(f) + gamma r'(f))] within [f_min, f_max]                                      (4b)
    gamma <- [gamma + k_gamma (sum_i y_i - r(f))]+                                                            (4c)

As printed, the proposition writes U_i(x_i) and a step k_x: y and its step are meant. The optimum is a fixed point of
the updates for any steps; they reach it where the steps are small enough for the curvatures.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from core.types import Limits

Floats = NDArray[np.float64]

LEAST_RATE = 1e-9  # y stays above 0, where the utility of a logarithm has no slope


@dataclass(frozen=True, slots=True)
class Problem:
    """Eq. 2 by its slopes. The rate itself is needed too, for its constraint."""

    utility_slope: Callable[[Floats], Floats]  # U_i'(y_i) of all requests
    power_slope: Callable[[float], float]  # P'(f)
    rate: Callable[[float], float]  # r(f)
    rate_slope: Callable[[float], float]  # r'(f)
    least: float  # f_min
    most: float  # f_max
    beta: float = 1.0


def update(
    y: Floats, f: float, gamma: float, problem: Problem, steps: tuple[Floats | float, float, float]
) -> tuple[Floats, float, float]:
    """Applies eq. 4 once. `steps` are k_y (one, or one for each request), k_f and k_gamma."""
    k_y, k_f, k_gamma = steps
    rates = np.maximum(LEAST_RATE, y + k_y * (problem.utility_slope(y) - gamma))
    push = -problem.beta * problem.power_slope(f) + gamma * problem.rate_slope(f)
    clock = min(max(f + k_f * push, problem.least), problem.most)
    price = max(0.0, gamma + k_gamma * (float(y.sum()) - problem.rate(f)))
    return rates, clock, price


@dataclass(frozen=True, slots=True)
class PrimalDualConfig:
    """The rule as a clock loop: shares of the top clock and of the token rate there, log-utility for each request.

    `by_profile`: P and r are the engine's own (`Curves`) where somebody knows them. The rest is for where nobody does.

    U_i = w log y_i with w = 1 / `full_at`; P(x) = x^`power_exponent` (1: the paper's straight line) and
    r(x) = x / ((1 - s) x + s) with s the `sensitivity`, the share of an iteration that the clock speeds up: at s = 1
    tokens come in proportion to the clock. Then N requests are worth the share N / `full_at` of the top clock when
    power and rate are straight lines, and those that can gain less from the clock get less. While a latency is over
    its limit, or requests wait, a token is worth `urgency` times as much: the paper leaves SLOs to eq. 5.
    """

    full_at: float = 16.0
    sensitivity: float = 0.6
    power_exponent: float = 1.0
    beta: float = 1.0
    urgency: float = 4.0
    by_profile: bool = True
    rounds: int = 40  # updates in a period
    step: float = 0.1  # of each update, relative to the curvature there
    period_s: float = 1.0

    def __post_init__(self) -> None:
        if not (self.full_at > 0.0 and 0.0 < self.sensitivity <= 1.0 and self.beta > 0.0 and self.period_s > 0.0):
            raise ValueError("primal-dual needs full_at, beta and period_s above 0 and sensitivity in (0, 1]")
        if self.power_exponent < 1.0 or self.urgency < 1.0 or self.rounds < 1 or not 0.0 < self.step <= 0.5:
            raise ValueError("primal-dual needs power_exponent, urgency and rounds from 1 and step in (0, 0.5]")


@dataclass(frozen=True, slots=True)
class Prices:
    """The rule's memory between periods: the rate of each request (all alike) and the price of a token."""

    rate: float
    gamma: float


@dataclass(frozen=True, slots=True, eq=False)
class Curves:
    """An engine at the batch that it has now, at each clock: (clocks,), rising. Latencies in s, `watts` of all of it.

    P and r are lines between the clocks; their slopes are central differences at each, and lines in between, so that
    they have no steps.
    """

    mhz: Floats
    rps: Floats
    watts: Floats
    ttft_s: Floats
    tpot_s: Floats

    def rate(self, mhz: float) -> float:
        return float(np.interp(mhz, self.mhz, self.rps))

    def power_w(self, mhz: float) -> float:
        return float(np.interp(mhz, self.mhz, self.watts))

    def rate_slope(self, mhz: float) -> float:
        """Returns r'(f) in requests/s for each MHz."""
        return float(np.interp(mhz, self.mhz, _slopes(self.mhz, self.rps)))

    def power_slope(self, mhz: float) -> float:
        """Returns P'(f) in watts for each MHz."""
        return float(np.interp(mhz, self.mhz, _slopes(self.mhz, self.watts)))

    def least_mhz(self, limits: Limits) -> float:
        """Returns the lowest of the clocks from which on all keep the limits of TTFT and TPOT; if none does, the top
        one."""
        late = np.zeros(self.mhz.size, dtype=bool)
        for values, limit in ((self.ttft_s, limits.ttft_s), (self.tpot_s, limits.tpot_s)):
            if limit is not None:
                late |= values > limit
        after = int(np.flatnonzero(late)[-1]) + 1 if late.any() else 0
        return float(self.mhz[min(after, self.mhz.size - 1)])


def _slopes(mhz: Floats, values: Floats) -> Floats:
    found: Floats = np.gradient(values, mhz) if mhz.size > 1 else np.zeros(mhz.size)
    return found


def next_clock_mhz(
    mhz: float,
    prices: Prices | None,
    requests: int,
    urgent: bool,
    min_mhz: float,
    max_mhz: float,
    config: PrimalDualConfig,
    curves: Curves | None = None,
) -> tuple[float, Prices]:
    """Returns the clock after a period's updates, and what to remember.

    Without requests it falls as the price runs out. With `curves`, see `_profiled`.
    """
    x, worth = mhz / max_mhz, None
    if curves is None or not requests:
        problem, weight = _problem(min_mhz / max_mhz, urgent, config)
    else:
        problem, worth = _profiled(curves, urgent, min_mhz / max_mhz, max_mhz, config)
        weight = worth(x) / requests
    if not requests:
        gamma = 0.0 if prices is None else prices.gamma
        none: Floats = np.zeros(0)
        for _ in range(config.rounds):
            _, x, gamma = update(none, x, gamma, problem, (0.0, config.step / 10.0, config.step))
        return x * max_mhz, Prices(LEAST_RATE, gamma)
    fair = problem.rate(x) / requests
    known = prices is not None and prices.rate > LEAST_RATE
    y = np.array([prices.rate if prices is not None and known else fair])
    gamma = prices.gamma if prices is not None and known else weight / fair
    alike = Problem(
        lambda rate: weight / rate,  # as it is in this round
        problem.power_slope,
        lambda share: problem.rate(share) / requests,  # (4c) of one request, since all are alike
        problem.rate_slope,
        problem.least,
        problem.most,
        config.beta,
    )
    for _ in range(config.rounds):
        weight = weight if worth is None else worth(x) / requests
        k_y = config.step * y**2 / weight  # over -U''
        k_gamma = config.step * weight / float(y[0]) ** 2
        k_f = config.step * x**2 / (requests * weight)
        y, x, gamma = update(y, x, gamma, alike, (k_y, k_f, k_gamma))
    return x * max_mhz, Prices(float(y[0]), gamma)


def _profiled(
    curves: Curves, urgent: bool, least: float, max_mhz: float, config: PrimalDualConfig
) -> tuple[Problem, Callable[[float], float]]:
    """Returns eq. 2 for an engine's own P and r, as shares of those at the top clock, and what all tokens are worth.

    Calm, tokens are worth what they draw, P(x): then (3) is P'/P = r'/r, the clock of least energy a token. While a
    limit is missed or requests wait they are worth so much that the top clock is worth its power: P' r / r' there.
    """
    watts, rps = curves.power_w(max_mhz), curves.rate(max_mhz)
    x = (curves.mhz / max_mhz).tolist()
    power, rate = (_lines(x, values) for values in (curves.watts / watts, curves.rps / rps))
    power_slope, rate_slope = (
        _lines(x, _slopes(curves.mhz, values) * max_mhz) for values in (curves.watts / watts, curves.rps / rps)
    )
    gain = rate_slope(1.0)
    urgent_worth = config.beta * power_slope(1.0) / gain if urgent and gain > 0.0 else 0.0

    def worth(share: float) -> float:
        return max(config.beta * power(share), urgent_worth)

    return Problem(lambda y: worth(1.0) / y, power_slope, rate, rate_slope, least, 1.0, config.beta), worth


def _lines(x: list[float], values: Floats) -> Callable[[float], float]:
    """Returns the function of lines through the points, level beyond them: many times faster than `np.interp` of one
    number."""
    y = values.tolist()

    def at(share: float) -> float:
        after = bisect_right(x, share)
        if after in (0, len(x)):
            return float(y[min(after, len(x) - 1)])
        part = (share - x[after - 1]) / (x[after] - x[after - 1])
        return float(y[after - 1] + part * (y[after] - y[after - 1]))

    return at


def _problem(least: float, urgent: bool, config: PrimalDualConfig) -> tuple[Problem, float]:
    s = config.sensitivity
    weight = (config.urgency if urgent else 1.0) / config.full_at
    problem = Problem(
        lambda rate: weight / rate,
        lambda x: config.power_exponent * math.pow(x, config.power_exponent - 1.0),
        lambda x: x / ((1.0 - s) * x + s),
        lambda x: s / ((1.0 - s) * x + s) ** 2,
        least,
        1.0,
        config.beta,
    )
    return problem, weight

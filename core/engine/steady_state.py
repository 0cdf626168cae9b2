"""An instance under a constant rate of requests: from the cost of iterations to latencies, power and the largest rate.

It asks for the cost of an iteration only, so that the closed form and a measured profile share it (`IterationCosts`).

An iteration is of two kinds at a batch of B sequences: decode-only (a), and with prefill (b), whose share is
q = min(1, B / out) and which starts max(1, B / out) prompts. The mean iteration is t = (1 - q) t_a + q t_b, and B
solves B = rps (t_b + out t) (Little's law).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from core.engine.iteration import IterationCosts, Totals
from core.types import Limits

MAX_SEQUENCES = 256  # in one iteration: vLLM's default max_num_seqs
# Objectives are for 99 of 100 requests: a rate that fills the KV cache on the mean leaves half of them waiting.
SPARE_DEVIATIONS = 2.33
_BATCH_BISECTIONS = 40


@dataclass(frozen=True, slots=True)
class SteadyState:
    """An instance under a constant rate. Not `stable`: the queue grows, so TTFT and E2E are infinite."""

    ttft_s: float
    tpot_s: float
    e2e_s: float
    power_w: float
    batch: float  # mean number of sequences in flight
    stable: bool


@dataclass(frozen=True, slots=True)
class BatchPoint:
    """An instance kept at a batch: TTFT = t_b, TPOT = mean iteration, and mean power while it works."""

    ttft_s: float
    tpot_s: float
    busy_w: float

    def rps(self, batch: float, output_tokens: float) -> float:
        """Returns the rate that keeps `batch` sequences in flight, by Little's law."""
        return batch / (self.ttft_s + output_tokens * self.tpot_s)


def steady_state(
    costs: IterationCosts, rps: float, prompt_tokens: float, output_tokens: float, mhz: float
) -> SteadyState:
    """Computes the instance under `rps` requests a second of the given lengths, each (prompt, output).

    Below B = 1 the instance idles the rest of the time. A rate beyond the batch that KV cache and engine allow is not
    stable.
    """
    out = max(1.0, output_tokens)
    cap = largest_batch(costs, prompt_tokens, out)
    if rps <= 0.0:
        point = batch_point(costs, mhz, 1.0, prompt_tokens, out)
        idle_w = costs.idle_watts(mhz)
        return SteadyState(point.ttft_s, point.tpot_s, point.ttft_s + out * point.tpot_s, idle_w, 0.0, True)
    top = batch_point(costs, mhz, max(1.0, cap), prompt_tokens, out)
    if cap < 1.0 or top.rps(cap, out) < rps:
        return SteadyState(math.inf, top.tpot_s, math.inf, top.busy_w, cap, False)
    lone = batch_point(costs, mhz, 1.0, prompt_tokens, out)
    lone_rps = lone.rps(1.0, out)
    if rps <= lone_rps:
        batch, point = rps / lone_rps, lone
    else:
        batch = _bisect(1.0, cap, lambda b: batch_point(costs, mhz, b, prompt_tokens, out).rps(b, out) <= rps)
        point = batch_point(costs, mhz, batch, prompt_tokens, out)
    busy = min(1.0, batch)
    power_w = busy * point.busy_w + (1.0 - busy) * costs.idle_watts(mhz)
    return SteadyState(point.ttft_s, point.tpot_s, point.ttft_s + out * point.tpot_s, power_w, batch, True)


def max_rps(
    costs: IterationCosts,
    prompt_tokens: float,
    output_tokens: float,
    mhz: float,
    limits: Limits,
    spare_deviations: float = 0.0,
) -> float:
    """Returns the largest stable rate at which the mean latencies keep `limits`; 0 when even a lone request breaks
    them.

    Latencies and rate both rise with the batch, so the largest batch within the limits gives the largest rate.
    Under Poisson arrivals the batch varies about its mean B like a Poisson number (M/G/inf): with `spare_deviations`
    z, B + z sqrt(B) sequences still find room in the KV cache. 2.33 keeps 99 % from waiting.
    """
    out = max(1.0, output_tokens)
    cap = with_spare(largest_batch(costs, prompt_tokens, out), spare_deviations)

    def within(batch: float) -> bool:
        point = batch_point(costs, mhz, batch, prompt_tokens, out)
        return (
            (limits.ttft_s is None or point.ttft_s <= limits.ttft_s)
            and (limits.tpot_s is None or point.tpot_s <= limits.tpot_s)
            and (limits.e2e_s is None or point.ttft_s + out * point.tpot_s <= limits.e2e_s)
        )

    if cap < 1.0 or not within(1.0):
        return 0.0
    batch = cap if within(cap) else _bisect(1.0, cap, within)
    return batch_point(costs, mhz, batch, prompt_tokens, out).rps(batch, out)


def largest_batch(
    costs: IterationCosts, prompt_tokens: float, output_tokens: float, context_tokens: float | None = None
) -> float:
    """Returns the sequences that KV cache (at their mean context) and engine allow; 0 when not even one fits whole.

    `context_tokens`: of a running sequence, on the mean; None: as if all answers were equally long.
    """
    capacity = costs.kv_capacity_tokens
    if prompt_tokens + output_tokens > capacity:
        return 0.0
    mean_tokens = prompt_tokens + output_tokens / 2.0 if context_tokens is None else context_tokens
    return min(float(MAX_SEQUENCES), capacity / mean_tokens)


def with_spare(batch: float, spare_deviations: float) -> float:
    """The mean B of which B + z sqrt(B) is `batch`: see `max_rps`."""
    return float(((math.sqrt(spare_deviations**2 + 4.0 * batch) - spare_deviations) / 2.0) ** 2)


def batch_point(
    costs: IterationCosts,
    mhz: float,
    batch: float,
    prompt_tokens: float,
    output_tokens: float,
    context_tokens: float | None = None,
) -> BatchPoint:
    """Computes the mean iteration at a batch of like requests: TPOT and TTFT in seconds, and power in watts.

    `context_tokens`: of a running sequence, on the mean; None: as if all answers were equally long.
    """
    context = batch * (prompt_tokens + output_tokens / 2.0 if context_tokens is None else context_tokens)
    starts = max(1.0, batch / output_tokens)  # prefills of an iteration that has any
    q = min(1.0, batch / output_tokens)
    new, pairs = starts * prompt_tokens, starts * prompt_tokens**2 / 2.0
    a = costs.iteration_of(mhz, Totals(decodes=batch, context_tokens=context))
    b = costs.iteration_of(mhz, Totals(new, 0.0, pairs, starts, batch, context))
    t = (1.0 - q) * a.t_s + q * b.t_s
    return BatchPoint(b.t_s, t, ((1.0 - q) * a.energy_j + q * b.energy_j) / t)


def _bisect(low: float, high: float, holds: Callable[[float], bool]) -> float:
    """Returns the largest value in [low, high] for which `holds`, given that it holds at `low` and is monotone."""
    for _ in range(_BATCH_BISECTIONS):
        middle = (low + high) / 2.0
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low

"""Computes what one instance would have done with its requests: latencies and joules, by the engine model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from core.engine.engine_model import EngineModel
from core.engine.iteration import Totals
from core.engine.steady_state import batch_point

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
BATCHES = np.arange(1.0, 129.0)  # of the tables; the demo's load stays far below
PROMPTS = np.geomspace(1.0, 16_384.0, 60)


@dataclass(frozen=True, slots=True)
class Latencies:
    """Holds the latencies of requests in order of arrival, each (n,), in seconds."""

    ttft_s: Floats
    tpot_s: Floats
    e2e_s: Floats


@dataclass(frozen=True, slots=True)
class BusyTime:
    """An instance by interval: how long it had requests, in us, and the energy of each of its GPUs, in uJ, (n,)."""

    busy_us: Ints
    serving_uj: Ints
    idle_uj: Ints


class ModelledEngine:
    """An instance at a fixed clock under a steady stream of requests of about these mean lengths."""

    def __init__(
        self, costs: EngineModel, mhz: float, rate_rps: float, prompt_tokens: float, output_tokens: float
    ) -> None:
        self._idle_w = costs.idle_gpu_watts(mhz)
        points = [batch_point(costs, mhz, batch, prompt_tokens, output_tokens) for batch in BATCHES.tolist()]
        self._tpot_s = np.array([point.tpot_s for point in points])
        self._busy_w = np.array([point.busy_w for point in points]) / costs.tp
        self._prefill_s = np.array(
            [costs.iteration_of(mhz, Totals.plain(tokens, 0.0, 0.0)).t_s for tokens in PROMPTS.tolist()]
        )
        steady = costs.steady_state(rate_rps, prompt_tokens, output_tokens, mhz)
        self.power_w, self._steady_tpot_s = steady.power_w, steady.tpot_s

    def latencies(self, arrival_s: Floats, prompt_tokens: Ints, output_tokens: Ints) -> Latencies:
        """Takes each request's TPOT at the batch that it finds: of those that still run if all go at the mean pace."""
        prefill_s = np.interp(prompt_tokens, PROMPTS, self._prefill_s)
        ends_s = np.sort(arrival_s + prefill_s + output_tokens * self._steady_tpot_s)
        found = np.arange(len(arrival_s)) - np.searchsorted(ends_s, arrival_s) + 1.0
        tpot_s = np.interp(found, BATCHES, self._tpot_s)
        ttft_s = prefill_s + np.where(found > 1.0, tpot_s, 0.0)  # the iteration under way ends first
        return Latencies(ttft_s, tpot_s, ttft_s + np.maximum(0, output_tokens - 1) * tpot_s)

    def busy(self, step_s: float, count: int, arrival_s: Floats, e2e_s: Floats) -> BusyTime:
        """Cuts its time into `count` intervals of `step_s`. What runs on at their end runs on at their beginning."""
        longest = int(np.ceil(e2e_s.max(initial=0.0) / step_s))
        edges = step_s * np.arange(count + longest + 1.0)
        ends_s = arrival_s + e2e_s
        covered = np.diff(_covered(arrival_s, ends_s)(edges))
        in_flight_s = np.diff(_passed(arrival_s, edges) - _passed(ends_s, edges))
        for course in (covered, in_flight_s):
            course[:longest] += course[count:]
        busy_s, in_flight_s = np.clip(covered[:count], 0.0, step_s), in_flight_s[:count]
        batch = np.divide(in_flight_s, busy_s, out=np.ones(count), where=busy_s > 1e-6)
        busy_us = np.rint(busy_s * 1e6).astype(np.int64)
        watts = np.interp(batch, BATCHES, self._busy_w)
        idle_us = round(step_s * 1e6) - busy_us
        return BusyTime(busy_us, _microjoules(busy_us, watts), _microjoules(idle_us, self._idle_w))


@dataclass(frozen=True, slots=True)
class _Course:
    at_s: Floats
    total_s: Floats

    def __call__(self, at_s: Floats) -> Floats:
        found: Floats = np.interp(at_s, self.at_s, self.total_s)
        return found


def _covered(start_s: Floats, end_s: Floats) -> _Course:
    """Returns the course of the time that was covered by at least one of the spans, which begin in order."""
    if not len(start_s):
        return _Course(np.zeros(1), np.zeros(1))
    reached = np.maximum.accumulate(end_s)
    opens = np.concatenate([[True], start_s[1:] > reached[:-1]])
    first = start_s[opens]
    last = np.concatenate([reached[:-1][opens[1:]], reached[-1:]])
    total = np.cumsum(last - first)
    at = np.column_stack([first, last]).ravel()
    return _Course(at, np.column_stack([total - (last - first), total]).ravel())


def _passed(moments_s: Floats, edges: Floats) -> Floats:
    """Returns at each edge the sum of the time since each of the moments before it."""
    ordered = np.sort(moments_s)
    before = np.searchsorted(ordered, edges)
    found: Floats = before * edges - np.concatenate([[0.0], np.cumsum(ordered)])[before]
    return found


def _microjoules(length_us: Ints, watts: Floats | float) -> Ints:
    found: Ints = np.rint(length_us * watts).astype(np.int64)
    return found

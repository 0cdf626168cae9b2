"""Makes series of what a run drew and emitted over time, by site, with few enough points for a chart."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from core.simulator.runs.runner import Requests, Run
from core.simulator.scenario.scenario import Scenario
from core.units import J_PER_KWH

POINTS = 240
SLICES = 64  # of a run, after each of which it says how far it is


def span_s(scenario: Scenario, requests: Requests) -> float:
    """Returns over how many seconds requests come; infinity where that is not known beforehand."""
    spans = [service.workload.duration_s for service in scenario.services]
    if requests.whole and requests.first:
        return float(requests.first[-1].arrival_s[-1])
    return max((span for span in spans if span is not None), default=math.inf)


def of(run: Run) -> dict[str, Any]:
    """Returns `step_s`, and by site mean `power_w` at the GPUs and `carbon_g_per_h` (PUE included; None: not known)."""
    outcome = run.outcome
    width_s = outcome.bin_s if math.isfinite(outcome.bin_s) else outcome.end_s
    count = outcome.series_j.shape[1]
    if not count or width_s <= 0.0:
        return {"step_s": None, "sites": {}}
    merge = math.ceil(count / POINTS)
    step_s = width_s * merge
    edges_s = np.minimum(np.arange(math.ceil(count / merge) + 1) * step_s, outcome.end_s)
    long_s = np.maximum(np.diff(edges_s), 1e-9)
    found: dict[str, Any] = {}
    for name in dict.fromkeys(spec.site for spec in outcome.instances):
        own = [i for i, spec in enumerate(outcome.instances) if spec.site == name]
        energy_j = outcome.series_j[own].sum(axis=0)
        merged_j = np.add.reduceat(energy_j, np.arange(0, count, merge))
        site = run.scenario.sites.get(name)
        carbon: list[float | None] = [None] * len(merged_j)
        if site is not None and site.carbon_g_per_kwh is not None:
            values = site.carbon_g_per_kwh.each(np.arange(0.5, count, dtype=np.float64) * width_s) * site.pue
            # what has no intensity spoils only the points in which something was drawn
            grams = np.where(energy_j > 0.0, energy_j / J_PER_KWH * values, 0.0)
            sums = np.add.reduceat(grams, np.arange(0, count, merge)) / long_s * 3_600.0
            carbon = [None if math.isnan(value) else round(value, 4) for value in sums.tolist()]
        found[name] = {"power_w": np.round(merged_j / long_s, 2).tolist(), "carbon_g_per_h": carbon}
    return {"step_s": step_s, "end_s": outcome.end_s, "sites": found}

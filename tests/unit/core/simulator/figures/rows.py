"""Requests and ends of runs made up, as the simulator would hand them over."""

from __future__ import annotations

from typing import Any

import numpy as np

from core.simulator.kernel import kernel
from core.simulator.kernel.commands import Decision
from core.simulator.kernel.objectives import Labels, Slo
from core.simulator.kernel.outcome import Outcome
from core.simulator.kernel.simulated import FixedCosts, InstanceSpec

LABELS = Labels(
    classes=("short", "long", "none"),
    slos=(Slo(ttft_s=0.3, tpot_mean_s=0.1), Slo(itl_p99_s=0.4, e2e_s=20.0), Slo()),
    services=("chat", "code"),
    tenants=("a", "b", "c"),
    cells=("s", "m", "l"),
    pools=("east", "west"),
)


def rows(seed: int, count: int, in_flight: bool = False) -> Any:
    """Random requests, of `LABELS`; some rejected, and some in flight if asked."""
    rng = np.random.default_rng(seed)
    made = np.zeros(count, kernel.REQUEST)
    made["number"] = rng.permutation(count)
    made["arrival_s"] = rng.uniform(0.0, 100.0, count)
    made["prompt"] = rng.integers(1, 4000, count)
    made["output"] = rng.integers(1, 300, count)
    made["predicted"] = rng.integers(1, 300, count)
    made["lat_s"] = rng.exponential(3.0, count)
    for name, size in (("request_class", 3), ("cell", 3), ("service", 2), ("tenant", 3), ("preemptions", 3)):
        made[name] = rng.integers(0, size, count)
    states = [kernel.DONE] * 7 + [kernel.REJECTED] + [kernel.IN_FLIGHT] * in_flight
    made["status"] = rng.choice(states, count)
    done, rejected = made["status"] == kernel.DONE, made["status"] == kernel.REJECTED
    made["generated"] = np.where(done, made["output"], np.where(rejected, 0, made["output"] // 2))
    made["timely"] = (made["generated"] * rng.uniform(0.0, 1.0, count)).astype(np.int64)
    made["pool"] = np.where(rejected, kernel.NONE, rng.integers(0, 2, count))
    made["instance"] = np.where(rejected, kernel.NONE, rng.integers(0, 2, count))
    first_s = made["arrival_s"] + rng.exponential(0.3, count)
    made["first_token_s"] = np.where(done, first_s, np.nan)
    pace_s = rng.exponential(0.08, count)
    made["finish_s"] = np.where(done, first_s + pace_s * (made["output"] - 1), np.nan)
    made["itl_p50_s"], made["itl_p99_s"], made["itl_max_s"] = pace_s, 2.0 * pace_s, 5.0 * pace_s
    made["energy_j"] = np.where(rejected, 0.0, rng.exponential(100.0, count))
    return made


def instance(name: str, site: str = "site", tp: int = 1) -> InstanceSpec:
    costs = FixedCosts(0.5, 0.25, 0.125, busy_w=100.0, idle_w=10.0)
    return InstanceSpec(name, "fixed", "fixed", tp, mhz=1.0, engine="fixed", site=site, costs=costs)


def outcome(
    series_j: Any,
    instances: tuple[InstanceSpec, ...] | None = None,
    bin_s: float = 3600.0,
    end_s: float | None = None,
    decisions: tuple[Decision, ...] = (),
) -> Outcome:
    """The end of a run with this energy, a row an instance; half of it decode, and each instance on all the time."""
    series = np.atleast_2d(np.asarray(series_j, dtype=np.float64))
    spent_j = series.sum(axis=1)
    end_s = series.shape[1] * bin_s if end_s is None else end_s
    first_s = bin_s * np.arange(series.shape[1]) if series.shape[1] > 1 else np.zeros(1)
    gaps = np.zeros(kernel.GAP_BINS, np.int64)
    gaps[[1000, 1500]] = (99, 1)
    return Outcome(
        instances=instances or tuple(instance(f"i{n}") for n in range(len(series))),
        requests=0,
        spent_j={
            "prefill": 0.2 * spent_j,
            "decode": 0.5 * spent_j,
            "idle": 0.2 * spent_j,
            "transition": 0.1 * spent_j,
        },
        series_j=series,
        series_on_s=np.tile(np.clip(end_s - first_s, 0.0, bin_s), (len(series), 1)),
        bin_s=bin_s,
        on_s=np.full(len(series), end_s),
        mhz_s=1000.0 * end_s * np.arange(1, len(series) + 1),
        gaps=gaps,
        end_s=end_s,
        iterations=1,
        decisions=decisions,
        holds={"scale": 3},
    )

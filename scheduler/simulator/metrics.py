"""From an outcome to the figures people ask for. Vectorised; percentiles are of requests that finished."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scheduler.core.fairness import jain, timely_totals
from scheduler.core.units import j_to_kwh, j_to_wh
from scheduler.simulator import kernel
from scheduler.simulator.fleet import FleetSpec, Load
from scheduler.simulator.outcome import Floats, Ints, Outcome

VIOLATION_FACTOR = 5.0  # a request whose E2E exceeds 5 x Lat is violated (FREESH)
QUANTILES = {"p50": 0.50, "p90": 0.90, "p99": 0.99}


@dataclass(frozen=True, slots=True)
class Slo:
    """Latency objectives of a request class; None: none of that kind."""

    ttft_s: float | None = None
    tpot_mean_s: float | None = None
    itl_p99_s: float | None = None
    e2e_s: float | None = None

    @property
    def any(self) -> bool:
        return any(limit is not None for limit in (self.ttft_s, self.tpot_mean_s, self.itl_p99_s, self.e2e_s))


@dataclass(frozen=True, slots=True)
class SitePrices:
    """What a kWh means at a site, one entry an hour of the run, repeated from the start; empty: unknown."""

    pue: float = 1.0
    carbon_g_per_kwh: tuple[float, ...] = ()
    usd_per_kwh: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Latencies:
    """Columns, one entry a request; NaN where there is none (not finished, or a single token has no TPOT)."""

    ttft_s: Floats
    tpot_s: Floats
    itl_p99_s: Floats
    e2e_s: Floats

    @classmethod
    def of(cls, outcome: Outcome) -> Latencies:
        at = outcome.load.arrival_s
        gaps = np.where(outcome.load.output_tokens > 1, outcome.load.output_tokens - 1.0, np.nan)
        return cls(
            ttft_s=outcome.first_token_s - at,
            tpot_s=(outcome.finish_s - outcome.first_token_s) / gaps,
            itl_p99_s=np.where(outcome.finished & (outcome.load.output_tokens > 1), outcome.itl_p99_s, np.nan),
            e2e_s=outcome.finish_s - at,
        )


def summary(
    outcome: Outcome,
    fleet: FleetSpec,
    classes: Sequence[str],
    slos: Sequence[Slo],
    sites: Mapping[str, SitePrices],
    lat_s: Floats,
    tenant: Ints | None = None,
) -> dict[str, Any]:
    """The figures of a run, JSON-able; None where the scenario does not say enough.

    Args:
        lat_s: Lat of each request (FREESH C.2): what it takes alone, from which fairness windows are made.
        tenant: Whose each request is; None: one tenant.
    """
    latency = Latencies.of(outcome)
    counted = (outcome.status == kernel.DONE) | (outcome.status == kernel.REJECTED)
    met, by_class = _attainment(outcome, latency, classes, slos)
    hours = outcome.end_s / 3600.0
    has_slo = any(slo.any for slo in slos)
    tokens = int(outcome.load.output_tokens[met].sum())
    return {
        "requests": len(outcome.load),
        "finished": int(outcome.finished.sum()),
        "rejected": int((outcome.status == kernel.REJECTED).sum()),
        "preemptions": int(outcome.preemptions.sum()),
        "partial": outcome.partial,
        "simulated_s": outcome.end_s,
        "energy_wh": j_to_wh(outcome.total_j),
        "energy_wh_by": {name: j_to_wh(float(spent.sum())) for name, spent in outcome.spent_j.items()}
        | {"transition": 0.0},
        "carbon_g": _priced(outcome, fleet, sites, "carbon_g_per_kwh"),
        "cost_usd": _priced(outcome, fleet, sites, "usd_per_kwh"),
        "gpu_hours": hours * sum(spec.tp for spec in fleet.instances),
        "mean_power_w": outcome.total_j / outcome.end_s if outcome.end_s > 0.0 else None,
        "slo_attainment": float(met[counted].mean()) if has_slo and counted.any() else None,
        "slo_attainment_by": by_class,
        "ttft_s": _quantiles(latency.ttft_s),
        "tpot_s": _quantiles(latency.tpot_s),
        "itl_s": _gap_quantiles(outcome.gaps),
        "e2e_s": _quantiles(latency.e2e_s),
        "goodput_rps": float(met.sum()) / outcome.end_s if outcome.end_s > 0.0 else None,
        "goodput_tokens_s": tokens / outcome.end_s if outcome.end_s > 0.0 else None,
        "violation_rate": _violations(outcome, latency, lat_s, counted),
        "jain": _timely_jain(outcome, range(len(classes))),
        "jain_by": {name: _timely_jain(outcome, [k]) for k, name in enumerate(classes)},
        "jain_tenants": _tenant_jain(outcome, tenant),
    }


def _attainment(
    outcome: Outcome, latency: Latencies, classes: Sequence[str], slos: Sequence[Slo]
) -> tuple[NDArray[np.bool_], dict[str, dict[str, float | None]]]:
    """Whether each request kept all its objectives, and per class and objective the share that did.

    A rejected request keeps none. One without a TPOT or ITL (a single token) keeps those.
    """
    met = outcome.finished.copy()
    counted = outcome.finished | (outcome.status == kernel.REJECTED)
    shares: dict[str, dict[str, float | None]] = {}
    for k, (name, slo) in enumerate(zip(classes, slos, strict=True)):
        mine = (outcome.load.request_class == k) & counted
        kinds = {
            "ttft": (slo.ttft_s, latency.ttft_s),
            "tpot_mean": (slo.tpot_mean_s, latency.tpot_s),
            "itl_p99": (slo.itl_p99_s, latency.itl_p99_s),
            "e2e": (slo.e2e_s, latency.e2e_s),
        }
        shares[name] = {}
        for kind, (limit, values) in kinds.items():
            if limit is None:
                continue
            kept = outcome.finished & ~(values > limit)
            met &= kept | (outcome.load.request_class != k)
            shares[name][kind] = float(kept[mine].mean()) if mine.any() else None
    return met, shares


def _quantiles(values: Floats) -> dict[str, float | None]:
    known = values[~np.isnan(values)]
    if not known.size:
        return dict.fromkeys([*QUANTILES, "mean"])
    points = np.quantile(known, list(QUANTILES.values())).tolist()
    return dict(zip(QUANTILES, points, strict=True)) | {"mean": float(known.mean())}


def _gap_quantiles(gaps: Ints) -> dict[str, float | None]:
    """Of the gaps between tokens, to the width of the kernel's bins (0.5 %)."""
    total = int(gaps.sum())
    if not total:
        return dict.fromkeys([*QUANTILES, "mean"])
    middle_s = kernel.GAP_MIN_S * np.exp((np.arange(gaps.size) + 0.5) / kernel.GAP_BINS_PER_E)
    reached = np.cumsum(gaps)
    points = {name: float(middle_s[np.searchsorted(reached, math.ceil(q * total))]) for name, q in QUANTILES.items()}
    return {**points, "mean": float((gaps * middle_s).sum() / total)}


def _priced(outcome: Outcome, fleet: FleetSpec, sites: Mapping[str, SitePrices], series: str) -> float | None:
    """Sum over sites and hours of energy x PUE x the hour's value; None when a site with energy has no values."""
    total = 0.0
    for i, spec in enumerate(fleet.instances):
        site = sites.get(spec.site)
        values: tuple[float, ...] = getattr(site, series) if site is not None else ()
        if site is None or not values:
            return None
        energy_kwh = np.array([j_to_kwh(j) for j in outcome.series_j[i].tolist()])
        if len(values) == 1:
            total += float(energy_kwh.sum()) * site.pue * values[0]
            continue
        if not math.isfinite(outcome.bin_s):
            return None  # the reference keeps no series
        hour = (np.arange(energy_kwh.size) * outcome.bin_s // 3600.0).astype(np.int64)
        total += float((energy_kwh * np.asarray(values)[hour % len(values)]).sum()) * site.pue
    return total


def _violations(outcome: Outcome, latency: Latencies, lat_s: Floats, counted: NDArray[np.bool_]) -> float | None:
    if not counted.any():
        return None
    late = ~(latency.e2e_s <= VIOLATION_FACTOR * lat_s)  # a rejected one has no E2E: violated
    return float(late[counted].mean())


def _timely_jain(outcome: Outcome, classes: Sequence[int] | range) -> float | None:
    """FREESH eq. 9 over the output-length quartiles of the given classes."""
    totals: list[float] = []
    for k in classes:
        mine = outcome.load.request_class == k
        if mine.any():
            totals.extend(timely_totals(outcome.load.output_tokens[mine], outcome.timely_tokens[mine]))
    return jain(totals)


def _tenant_jain(outcome: Outcome, tenant: Ints | None) -> float | None:
    """Jain's index over tenants of the tokens each got per token it asked for."""
    if tenant is None:
        return None
    got = np.bincount(tenant, weights=outcome.generated)
    asked = np.bincount(tenant, weights=outcome.load.output_tokens)
    return jain((got[asked > 0] / asked[asked > 0]).tolist())


def request_table(outcome: Outcome, fleet: FleetSpec, classes: Sequence[str], slos: Sequence[Slo]) -> dict[str, Any]:
    """One row a request, as columns for Parquet."""
    latency = Latencies.of(outcome)
    met, _ = _attainment(outcome, latency, classes, slos)
    load: Load = outcome.load
    states = np.array(["ahead", "in_flight", "finished", "rejected"])
    names = np.array([spec.name for spec in fleet.instances] + [""])  # the last one for -1: none
    return {
        "arrival_s": load.arrival_s,
        "prompt_tokens": load.prompt_tokens,
        "output_tokens": load.output_tokens,
        "request_class": np.array(classes)[load.request_class],
        "instance": names[outcome.instance],
        "status": states[outcome.status],
        "generated_tokens": outcome.generated,
        "ttft_s": latency.ttft_s,
        "tpot_s": latency.tpot_s,
        "itl_p50_s": np.where(np.isnan(latency.itl_p99_s), np.nan, outcome.itl_p50_s),
        "itl_p99_s": latency.itl_p99_s,
        "itl_max_s": np.where(np.isnan(latency.itl_p99_s), np.nan, outcome.itl_max_s),
        "e2e_s": latency.e2e_s,
        "preemptions": outcome.preemptions,
        "timely_tokens": outcome.timely_tokens,
        "slo_met": met,
        "energy_j": outcome.energy_j,
    }

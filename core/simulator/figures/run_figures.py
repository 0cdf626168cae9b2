"""From requests as they end, and the end of a run, to the figures people ask for. Memory does not grow with requests.

Percentiles are of requests that finished.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.fairness import jain_of_tenants
from core.simulator.figures.bills import bills, fleet_j, total
from core.simulator.figures.quantiles import EXACT_VALUES, NAMED, Quantiles
from core.simulator.figures.timely_tokens import TimelyGroups
from core.simulator.kernel import kernel
from core.simulator.kernel.commands import Decision
from core.simulator.kernel.objectives import KINDS, Judge, JudgedRows, Labels, Rows
from core.simulator.kernel.outcome import Outcome
from core.simulator.site_series import Site
from core.units import j_to_wh

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

VIOLATION_FACTOR = 5.0  # a request whose E2E exceeds 5 x Lat is violated (FREESH eq. 10)
ENERGY_KINDS = ("prefill", "decode", "idle", "transition")
POWER_BIN_S = 60.0
_ROWS = 8192  # at a time: their columns stay in the processor's cache


class Figures:
    """A Sink that keeps sums and distributions; `summary` makes figures of them."""

    def __init__(self, labels: Labels) -> None:
        self._labels = labels
        self._judge = Judge(labels.slos)
        classes, services, tenants = len(labels.classes), len(labels.services), len(labels.tenants)
        self._requests, self._done, self._rejected = 0, 0, 0
        self._preemptions, self._retries = 0, 0
        self._met, self._met_tokens, self._late, self._windowed = 0, 0, 0, 0
        self._class_counted = np.zeros(classes, np.int64)
        self._class_kept = np.zeros((len(KINDS), classes), np.int64)
        self._groups = TimelyGroups(classes)
        self._tenant_timely, self._tenant_asked = np.zeros(tenants), np.zeros(tenants)
        self._ttft, self._tpot, self._e2e, self._wait = (Quantiles() for _ in range(4))
        self._services = [_Service(EXACT_VALUES // services) for _ in labels.services]

    def take(self, rows: Rows) -> None:
        for first in range(0, len(rows), _ROWS):
            self._absorb(rows[first : first + _ROWS])

    def _absorb(self, rows: Rows) -> None:
        found = self._judge(rows)
        done, counted = found.done, found.done | found.rejected
        request_class, output, timely = rows["request_class"], rows["output"], rows["timely"]
        self._requests += len(rows)
        self._done += int(np.count_nonzero(done))
        self._rejected += int(np.count_nonzero(found.rejected))
        self._preemptions += int(rows["preemptions"].sum())
        self._retries += int(rows["retries"].sum())
        self._met += int(np.count_nonzero(found.met))
        self._met_tokens += int(output[found.met].sum())
        windowed = counted & ~np.isnan(rows["lat_s"])
        in_window = done & (found.e2e_s <= VIOLATION_FACTOR * rows["lat_s"])  # a rejected one has no E2E: violated
        self._windowed += int(np.count_nonzero(windowed))
        self._late += int(np.count_nonzero(windowed & ~in_window))
        self._class_counted += _counts(request_class[counted], self._class_counted.size)
        for kept, sums in zip(found.kept, self._class_kept, strict=True):
            sums += _counts(request_class[kept], sums.size)
        self._groups.add(request_class, output, timely)
        tenant, tenants = rows["tenant"], self._tenant_asked.size
        if tenants > 1:
            self._tenant_timely += np.bincount(tenant, weights=timely, minlength=tenants)
            self._tenant_asked += np.bincount(tenant, weights=output, minlength=tenants)
        self._ttft.add(found.ttft_s[done])
        self._tpot.add(_known(found.tpot_s))
        self._e2e.add(found.e2e_s[done])
        self._wait.add(found.longest_wait_s[done])
        for number, service in enumerate(self._services):
            service.add(rows["energy_j"], found, rows["service"] == number)

    def summary(self, outcome: Outcome, sites: Mapping[str, Site]) -> dict[str, Any]:
        """Computes the figures of a run, JSON-able; None where the scenario does not say enough.

        Args:
            outcome: Whose requests this has taken; its `rows` are not looked at.

        Raises:
            ValueError: The energy series is too coarse for a site's carbon or price series.
        """
        by_site = bills(outcome, sites)
        spent_j = dict.fromkeys(ENERGY_KINDS, 0.0)
        spent_j |= {kind: float(spent.sum()) for kind, spent in outcome.spent_j.items()}
        whole = total(by_site.values())
        if whole.empty_gpu_hours:
            spent_j["empty"] = whole.empty_j
        counted, end_s = self._done + self._rejected, outcome.end_s
        has_slo = any(slo.any for slo in self._labels.slos)
        gap_limits_s = [slo.itl_p99_s for slo in self._labels.slos if slo.itl_p99_s is not None]
        return {
            "requests": self._requests,
            "finished": self._done,
            "rejected": self._rejected,
            "in_flight": self._requests - counted,
            "preemptions": self._preemptions,
            "retries": self._retries,
            "partial": outcome.partial,
            "simulated_s": end_s,
            "iterations": outcome.iterations,
            "energy_wh": j_to_wh(math.fsum(spent_j.values())),
            "energy_wh_by": {kind: j_to_wh(energy_j) for kind, energy_j in spent_j.items()},
            "mean_power_w": _ratio(math.fsum(spent_j.values()), end_s),
            "power_w": power_quantiles(outcome, sites),
            **whole.figures(),
            "slo_attainment": _ratio(self._met, counted) if has_slo else None,
            "slo_attainment_by": self._attainment(),
            "ttft_s": self._ttft.summary(),
            "tpot_s": self._tpot.summary(),
            "itl_s": gap_quantiles(outcome.gaps),
            "itl_in_time": gaps_within(outcome.gaps, min(gap_limits_s)) if gap_limits_s else None,
            "e2e_s": self._e2e.summary(),
            "longest_wait_s": self._wait.summary(),
            "goodput_rps": _ratio(self._met, end_s),
            "goodput_tokens_s": _ratio(self._met_tokens, end_s),
            "violation_rate": _ratio(self._late, self._windowed),
            "jain_lengths": self._groups.jain(*range(len(self._labels.classes))),
            "jain_lengths_by": {name: self._groups.jain(k) for k, name in enumerate(self._labels.classes)},
            "jain_tenants": jain_of_tenants(self._tenant_timely.tolist(), self._tenant_asked.tolist()),
            "by_service": {
                name: service.figures(has_slo)
                for name, service in zip(self._labels.services, self._services, strict=True)
            },
            "by_site": {name: {"energy_wh": bill.energy_wh, **bill.figures()} for name, bill in by_site.items()},
            "decisions": _reasons(outcome.decisions),
            "holds": dict(outcome.holds),
        }

    def _attainment(self) -> dict[str, dict[str, float | None]]:
        """Returns by class and objective the share of its finished and rejected requests that kept it."""
        return {
            name: {
                kind: _ratio(int(self._class_kept[n, k]), int(self._class_counted[k]))
                for n, (kind, limit_s) in enumerate(zip(KINDS, slo.limits_s, strict=True))
                if limit_s is not None
            }
            for k, (name, slo) in enumerate(zip(self._labels.classes, self._labels.slos, strict=True))
        }


class _Service:
    """The figures that are reported of each service."""

    def __init__(self, exact_values: int) -> None:
        self._requests, self._counted, self._met, self._energy_j = 0, 0, 0, 0.0
        self._ttft, self._tpot = Quantiles(exact_values), Quantiles(exact_values)

    def add(self, energy_j: Floats, found: JudgedRows, mine: NDArray[np.bool_]) -> None:
        requests = int(np.count_nonzero(mine))
        if not requests:
            return
        self._requests += requests
        self._counted += int(np.count_nonzero(mine & (found.done | found.rejected)))
        self._met += int(np.count_nonzero(mine & found.met))
        self._energy_j += float(energy_j[mine].sum())
        self._ttft.add(found.ttft_s[mine & found.done])
        self._tpot.add(_known(found.tpot_s[mine]))

    def figures(self, has_slo: bool) -> dict[str, Any]:
        """`energy_wh` is what its requests took; idle and transition energy is nobody's."""
        return {
            "requests": self._requests,
            "slo_attainment": _ratio(self._met, self._counted) if has_slo else None,
            "energy_wh": j_to_wh(self._energy_j),
            "ttft_s": self._ttft.summary(),
            "tpot_s": self._tpot.summary(),
        }


def gap_quantiles(gaps: Ints) -> dict[str, float | None]:
    """Returns quantiles, in s, of the gaps between tokens, exact to the width of the kernel's bins (0.5 %).

    `gaps` (bins,) has a count each.
    """
    count = int(gaps.sum())
    if not count:
        return dict.fromkeys([*NAMED, "mean"])
    middle_s = kernel.GAP_MIN_S * np.exp((np.arange(gaps.size) + 0.5) / kernel.GAP_BINS_PER_E)
    reached = np.cumsum(gaps)
    points = {name: float(middle_s[np.searchsorted(reached, math.ceil(q * count))]) for name, q in NAMED.items()}
    return {**points, "mean": float((gaps * middle_s).sum() / count)}


def power_quantiles(outcome: Outcome, sites: Mapping[str, Site]) -> dict[str, float | None]:
    """Returns quantiles, in W, of the fleet's mean power over the whole stretches of the energy series, which is a
    minute's at most."""
    whole = int(outcome.end_s / outcome.bin_s + 1e-9)
    if outcome.bin_s > POWER_BIN_S or not whole:
        return dict.fromkeys(NAMED)
    watts = fleet_j(outcome, sites)[:whole] / outcome.bin_s
    return {name: float(np.quantile(watts, q)) for name, q in NAMED.items()}


def gaps_within(gaps: Ints, limit_s: float) -> float | None:
    """Returns the share of the gaps between tokens, counted by bin (bins,), that are at most so long, to a
    bin's width."""
    count = int(gaps.sum())
    bins = kernel.GAP_BINS_PER_E * math.log(limit_s / kernel.GAP_MIN_S)
    return float(gaps[: max(0, math.ceil(bins - 0.5))].sum() / count) if count else None


def _reasons(decisions: tuple[Decision, ...]) -> dict[str, dict[str, int]]:
    counts: dict[str, dict[str, int]] = {}
    for decision in decisions:
        own = counts.setdefault(decision.loop, {})
        own[decision.reason] = own.get(decision.reason, 0) + 1
    return counts


def _counts(numbers: Ints, size: int) -> Ints:
    counts: Ints = np.bincount(numbers, minlength=size)
    return counts


def _known(values: Floats) -> Floats:
    return values[~np.isnan(values)]


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0.0 else None

"""Values a run's energy, site by site: emissions and costs.

At a site whose GPUs stay powered, those without an engine draw the idle power of their type, which is metered like the
rest.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from core.engine import gpu_slices
from core.engine.engine_model import gpu
from core.simulator.kernel.outcome import Outcome
from core.simulator.kernel.simulated import InstanceSpec
from core.simulator.site_series import Series, Site
from core.units import j_to_kwh, j_to_wh

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Bill:
    """The bill of a site, or of all. Energy is as metered at the GPUs; what is priced is that times PUE. None: unknown.

    `carbon_missing_wh` and `price_missing_wh` are energy that no carbon intensity or no price is known for; where that
    is above 0, the sum is unknown. A site without a price for GPU-hours costs electricity only (`gpu_usd` is None).
    """

    energy_wh: float
    empty_j: float  # of it, at GPUs without an engine
    gpu_hours: float  # of GPUs with an engine
    empty_gpu_hours: float  # of powered GPUs without one
    mhz_hours: float  # of GPUs: their clock over that time
    carbon_g: float | None
    carbon_missing_wh: float
    electricity_usd: float | None
    price_missing_wh: float
    gpu_usd: float | None

    @property
    def cost_usd(self) -> float | None:
        """Electricity, and GPU-hours where they have a price."""
        return None if self.electricity_usd is None else self.electricity_usd + (self.gpu_usd or 0.0)

    def figures(self) -> dict[str, object]:
        return {
            "carbon_g": self.carbon_g,
            "carbon_missing_wh": self.carbon_missing_wh,
            "cost_usd": self.cost_usd,
            "cost_usd_by": {"electricity": self.electricity_usd, "gpu": self.gpu_usd},
            "price_missing_wh": self.price_missing_wh,
            "gpu_hours": self.gpu_hours,
            "empty_gpu_hours": self.empty_gpu_hours,
            "clock_mhz": self.mhz_hours / self.gpu_hours if self.gpu_hours else None,
        }


def bills(outcome: Outcome, sites: Mapping[str, Site]) -> dict[str, Bill]:
    """Makes a bill for each site that an instance stood at, or that has powered GPUs.

    Raises:
        ValueError: The energy series is too coarse for a site's steps; `site_series.bin_s` says how fine it must be.
    """
    members: dict[str, list[int]] = {name: [] for name, site in sites.items() if site.powered_gpus}
    for i, spec in enumerate(outcome.instances):
        members.setdefault(spec.site, []).append(i)
    return {name: _bill(outcome, own, sites.get(name, Site(name))) for name, own in members.items()}


def total(bills: Iterable[Bill]) -> Bill:
    """Adds up all bills; carbon and electricity are unknown if any site's are."""
    each = list(bills)
    gpu_usd = [bill.gpu_usd for bill in each if bill.gpu_usd is not None]
    return Bill(
        energy_wh=math.fsum(bill.energy_wh for bill in each),
        empty_j=math.fsum(bill.empty_j for bill in each),
        gpu_hours=math.fsum(bill.gpu_hours for bill in each),
        empty_gpu_hours=math.fsum(bill.empty_gpu_hours for bill in each),
        mhz_hours=math.fsum(bill.mhz_hours for bill in each),
        carbon_g=_sum(bill.carbon_g for bill in each),
        carbon_missing_wh=math.fsum(bill.carbon_missing_wh for bill in each),
        electricity_usd=_sum(bill.electricity_usd for bill in each),
        price_missing_wh=math.fsum(bill.price_missing_wh for bill in each),
        gpu_usd=math.fsum(gpu_usd) if gpu_usd else None,
    )


def _bill(outcome: Outcome, members: list[int], site: Site) -> Bill:
    empty_s = _empty_s(outcome, members, site)
    empty_j = _idle_j(empty_s, outcome.series_j.shape[1])
    energy_j = float(sum(spent[members].sum() for spent in outcome.spent_j.values())) + float(empty_j.sum())
    gpus = np.array([_gpus(outcome.instances[i]) for i in members])
    gpu_hours = float(gpus @ outcome.on_s[members]) / 3600.0
    series_j = outcome.series_j[members].sum(axis=0) + empty_j
    carbon_g, carbon_missing_j = _priced(outcome, series_j, site, site.carbon_g_per_kwh)
    usd, price_missing_j = _priced(outcome, series_j, site, site.usd_per_kwh)
    return Bill(
        energy_wh=j_to_wh(energy_j),
        empty_j=float(empty_j.sum()),
        gpu_hours=gpu_hours,
        empty_gpu_hours=float(sum(own.sum() / _slices_of(name) for name, own in empty_s.items())) / 3600.0,
        mhz_hours=float(gpus @ outcome.mhz_s[members]) / 3600.0,
        carbon_g=carbon_g,
        carbon_missing_wh=j_to_wh(carbon_missing_j),
        electricity_usd=usd,
        price_missing_wh=j_to_wh(price_missing_j),
        gpu_usd=None if site.usd_per_gpu_hour is None else gpu_hours * site.usd_per_gpu_hour,
    )


def _gpus(spec: InstanceSpec) -> float:
    """Returns the whole GPUs that an instance has, slices and shares as their part of one."""
    return spec.tp * spec.gpu_share / _slices_of(spec.gpu)


def _slices_of(gpu_type: str) -> int:
    """Returns how many of a type make a GPU."""
    return gpu_slices.whole(gpu_type)[1]


def fleet_j(outcome: Outcome, sites: Mapping[str, Site]) -> Floats:
    """Returns what all GPUs drew in each stretch of the energy series, (bins,), those without an engine among them."""
    found: Floats = outcome.series_j.sum(axis=0)
    for site in (one for one in sites.values() if one.powered_gpus):
        members = [i for i, spec in enumerate(outcome.instances) if spec.site == site.name]
        found = found + _idle_j(_empty_s(outcome, members, site), found.size)
    return found


def _idle_j(empty_s: Mapping[str, Floats], bins: int) -> Floats:
    return sum((gpu(name).idle_w * own for name, own in empty_s.items()), np.zeros(bins))


def _empty_s(outcome: Outcome, members: list[int], site: Site) -> dict[str, Floats]:
    """Returns the seconds of GPUs, or of slices, without an engine in each stretch of the energy series, (bins,), by
    type."""
    bins = outcome.series_j.shape[1]
    if not site.powered_gpus:
        return {}
    first_s = np.arange(bins) * outcome.bin_s if bins > 1 else np.zeros(1)
    width_s = np.minimum(outcome.end_s - first_s, outcome.bin_s)
    found = {}
    for name, count in site.powered_gpus.items():
        own = [i for i in members if outcome.instances[i].gpu == name]
        gpus = np.array([_gpus(outcome.instances[i]) for i in own]) * _slices_of(name)
        found[name] = np.maximum(0.0, count * width_s - gpus @ outcome.series_on_s[own])
    return found


def _priced(outcome: Outcome, series_j: Floats, site: Site, series: Series | None) -> tuple[float | None, float]:
    """Sum over time of energy x PUE x value, and the energy (J) that has no value: then the sum is None."""
    if series is None:
        energy_j = float(series_j.sum())
        return (None, energy_j) if energy_j > 0.0 else (0.0, 0.0)
    if series.constant:
        values = np.full(series_j.size, series.values[0])
    elif not math.isfinite(outcome.bin_s):  # the whole run in one bin: no telling when
        values = np.full(series_j.size, np.nan)
    else:
        if series.grid_s % outcome.bin_s:
            raise ValueError(
                f"energy in bins of {outcome.bin_s:g} s cannot be priced by the steps of site {site.name}: "
                f"take bins that divide {series.grid_s} s"
            )
        values = series.each(np.arange(0.5, series_j.size, dtype=np.float64) * outcome.bin_s)
    missing_j = float(series_j[np.isnan(values)].sum())
    if missing_j > 0.0:
        return None, missing_j
    known = ~np.isnan(values)
    return j_to_kwh(float(series_j[known] @ values[known])) * site.pue, 0.0


def _sum(values: Iterable[float | None]) -> float | None:
    """Adds up values; the sum is None if any of them is."""
    each = list(values)
    known = [value for value in each if value is not None]
    return math.fsum(known) if len(known) == len(each) else None

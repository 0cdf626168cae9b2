"""Weighs energy at each site over the coming steps: by its carbon or its price, where these are known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from core.algorithms.fleet.fleet_problem import Objective
from core.algorithms.fleet.site_mix import worth_per_watt

_KWH_PER_MWH = 1000.0  # prices count by the MWh, whose figures are as large as grams per kWh


@dataclass(frozen=True, slots=True)
class SiteAhead:
    """A site with its intensity and its price in each coming step, None where one is not known; empty: it has none."""

    name: str
    pue: float
    g_per_kwh: tuple[float | None, ...]
    usd_per_kwh: tuple[float | None, ...] = ()

    @property
    def mean_g_per_kwh(self) -> float | None:
        """The mean intensity of the steps of which one is known; None: of none."""
        return _mean(self.g_per_kwh)


def worths(sites: Sequence[SiteAhead], objective: Objective) -> dict[str, float]:
    """Returns the weight of a watt at the GPUs of each site, by name.

    Carbon, or cost, is the mean of what is known of the steps. Where nothing is known of one site, energy counts at
    all: grams of one do not compare with watts of another.
    """
    means = {site.name: _mean(_ahead(site, objective)) for site in sites}
    known = None not in means.values()
    return {site.name: worth_per_watt(site.pue, means[site.name] if known else None) for site in sites}


def _ahead(site: SiteAhead, objective: Objective) -> tuple[float | None, ...]:
    if objective is Objective.CARBON:
        return site.g_per_kwh
    if objective is Objective.COST:
        return tuple(None if usd is None else usd * _KWH_PER_MWH for usd in site.usd_per_kwh)
    return ()


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None and math.isfinite(value)]
    return sum(known) / len(known) if known else None

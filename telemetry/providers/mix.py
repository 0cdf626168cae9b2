"""Carbon intensity of a generation mix, for sources that tell what is generated and not what it emits.

Lifecycle factors are the medians of IPCC AR5 WG III (2014), annex III, table A.III.2 (pulverised coal, combined-cycle
gas, dedicated biomass, utility-scale solar PV); it has none for oil, where 650 g/kWh is the figure of the UK
Parliamentary Office of Science and Technology that Electricity Maps uses too. Direct factors are the United States'
means of 2022 in pounds a kWh (EIA, FAQ 74: coal 2.30, gas 0.97, petroleum 2.38), and 0 for what burns nothing and, as
EIA counts it, for biomass.

What has no factor (waste, peat, oil shale, "other") is left out; where that is more than a tenth, the intensity is
unknown. Storage only gives back what was generated before: it counts as neither. Imports are not seen at all.
"""

from __future__ import annotations

from collections.abc import Mapping

from core.units import lb_per_mwh_to_g_per_kwh

STORAGE = "storage"
UNKNOWN = "unknown"
MOST_UNKNOWN = 0.1
LEAST_SHARE = 0.01  # of the whole answer: a fuel above it must stand in every interval

LIFECYCLE: Mapping[str, float] = {
    "coal": 820.0,
    "gas": 490.0,
    "oil": 650.0,
    "biomass": 230.0,
    "geothermal": 38.0,
    "hydro": 24.0,
    "nuclear": 12.0,
    "solar": 48.0,
    "wind": 11.0,
    "wind offshore": 12.0,
    "marine": 17.0,
}
DIRECT: Mapping[str, float] = {
    "coal": lb_per_mwh_to_g_per_kwh(2_300.0),
    "gas": lb_per_mwh_to_g_per_kwh(970.0),
    "oil": lb_per_mwh_to_g_per_kwh(2_380.0),
    **dict.fromkeys(("biomass", "hydro", "nuclear", "solar", "wind", "wind offshore", "marine"), 0.0),
}
FACTORS: Mapping[str, Mapping[str, float]] = {"lifecycle": LIFECYCLE, "direct": DIRECT}


def intensity_g_per_kwh(generated: Mapping[str, float], factor: str) -> float | None:
    """Returns the mean of what was generated, by fuel in one unit; None: nothing was, or too much of it is unknown.

    A plant that draws more than it gives counts as off.
    """
    factors = FACTORS[factor]
    given = {fuel: amount for fuel, amount in generated.items() if amount > 0.0 and fuel != STORAGE}
    total = sum(given.values())
    known = {fuel: amount for fuel, amount in given.items() if fuel in factors}
    if not known or total - sum(known.values()) > MOST_UNKNOWN * total:
        return None
    return sum(amount * factors[fuel] for fuel, amount in known.items()) / sum(known.values())


def intensities(mixes: Mapping[float, Mapping[str, float]], factor: str) -> dict[float, float | None]:
    """Returns g/kWh by start of the interval. None: a fuel of some weight is not reported yet."""
    totals: dict[str, float] = {}
    for mix in mixes.values():
        for fuel, amount in mix.items():
            totals[fuel] = totals.get(fuel, 0.0) + max(0.0, amount)
    least = LEAST_SHARE * sum(totals.values())
    needed = {fuel for fuel, amount in totals.items() if amount > least and fuel != STORAGE}
    return {
        at_s: intensity_g_per_kwh(mix, factor) if needed <= set(mix) else None for at_s, mix in sorted(mixes.items())
    }

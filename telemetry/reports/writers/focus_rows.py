"""Writes what each row of FOCUS has for itself: quantities, costs, emissions, and its ratio of the origin charge."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import polars

from telemetry.report_values import line_blocks

RATIO_PLACES = 12
ONE = 10**RATIO_PLACES
TOKENS, THOUSAND_TOKENS, GPU_HOURS = "Tokens", "1000 Tokens", "GPU-Hours"
_DETAILS = '"{""Elements"":[{""AllocatedRatio"":', ',""UsageQuantity"":', ',""UsageUnit"":""Joules""}]}"'


@cache
def expressions() -> dict[str, polars.Expr]:
    """Returns by fact how it is written from a block's columns, `ratio` and `cost_nano` among them."""
    tokens = polars.col("prompt_tokens") + polars.col("output_tokens")
    energy_j = line_blocks.fixed(polars.col("energy_uj"), 6)
    gpu_hours = line_blocks.fixed((line_blocks.wide("gpu_us") * 1_000 + 18) // 36, 11)
    before, between, after = map(_text, _DETAILS)
    ratio = line_blocks.fixed(polars.col("ratio"), RATIO_PLACES)
    return {
        "cost": line_blocks.fixed(polars.col("cost_nano"), 9),
        "hours": gpu_hours,
        "hours_unit": _text(GPU_HOURS),
        "tokens": _attributed(tokens.cast(polars.String)),
        "tokens_unit": _attributed(_text(TOKENS)),
        "thousand_tokens": _attributed(line_blocks.fixed(tokens, 3)),
        "thousand_tokens_unit": _attributed(_text(THOUSAND_TOKENS)),
        "method_details": polars.concat_str(before, ratio, between, energy_j, after),
        "energy_j": energy_j,
        "energy_kwh": _kwh("energy_uj"),
        "facility_kwh": _kwh("facility_uj"),
        "gpu_hours": gpu_hours,
        "location_kg": _known_kg("location_ug", polars.col("location_missing_uj") == 0),
        "market_kg": _known_kg(line_blocks.MARKET, polars.col(line_blocks.MARKET_MISSING) == 0),
        "embodied_kg": _known_kg("embodied_ug", polars.col("embodied_missing_us") == 0),
        "prompt_tokens": _attributed(polars.col("prompt_tokens").cast(polars.String)),
        "output_tokens": _attributed(polars.col("output_tokens").cast(polars.String)),
    }


def _text(words: str) -> polars.Expr:
    return polars.lit(words)


def _attributed(value: polars.Expr) -> polars.Expr:
    """An empty cell for unattributed time: nobody knows what it served."""
    return polars.when(polars.col("kind") == "unattributed").then(_text("")).otherwise(value)


def _kwh(name: str) -> polars.Expr:
    return line_blocks.fixed((line_blocks.wide(name) * 10 + 18) // 36, 12)


def _known_kg(name: str, where: polars.Expr) -> polars.Expr:
    """Writes kilograms; an empty cell where the amount is not known."""
    return polars.when(where).then(line_blocks.fixed(polars.col(name), 9)).otherwise(_text(""))


def shares(costs: Sequence[int], energies_uj: Sequence[int]) -> list[int]:
    """Returns ratios of an origin charge in 10**-12, which add up to 10**12 exactly, by largest remainder.

    By cost; where costs have two signs or are nothing by energy, and where that is nothing evenly.
    """
    weights = [abs(cost) for cost in costs]
    one_sign = all(cost >= 0 for cost in costs) or all(cost <= 0 for cost in costs)
    if not one_sign or not any(weights):
        weights = list(energies_uj) if any(energies_uj) else [1] * len(costs)
    if len(weights) == 1:
        return [ONE]
    total = sum(weights)
    parts = [divmod(weight * ONE, total) for weight in weights]
    found = [ratio for ratio, _ in parts]
    short = ONE - sum(found)
    if short:
        left = [remainder for _, remainder in parts]
        for i in sorted(range(len(left)), key=left.__getitem__, reverse=True)[:short]:  # of equal ones the first
            found[i] += 1
    return found

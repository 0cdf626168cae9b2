"""Numbers as people read them: SI prefixes, units always, an en dash for unknown. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

UNKNOWN = "\u2013"
PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"), (1e-6, "µ"))

# The unit that a name ends in, as the house writes names; longest first.
UNIT_SUFFIXES = (
    ("_usd_per_kwh", "USD/kWh"),
    ("_g_per_kwh", "gCO₂e/kWh"),
    ("_gco2e", "gCO₂e"),
    ("_tokens", "tokens"),
    ("_mhz", "MHz"),
    ("_rps", "req/s"),
    ("_usd", "USD"),
    ("_wh", "Wh"),
    ("_s", "s"),
    ("_j", "J"),
    ("_w", "W"),
)
ABBREVIATIONS = {name: name.upper() for name in ("gpu", "slo", "ttft", "tpot", "e2e", "kv", "tp", "pue")}
ABBREVIATIONS["gpus"] = "GPUs"


def prefix(largest: float | None, floor: float = 1.0) -> tuple[float, str]:
    """Returns divisor and SI prefix that bring `largest` to between 1 and 1000; the divisor is at least `floor`."""
    if largest is None or largest == 0 or not math.isfinite(largest):
        return 1.0, ""
    for divisor, name in PREFIXES:
        if divisor < floor:
            break
        if abs(largest) >= divisor:
            return divisor, name
    return floor, dict(PREFIXES)[floor]


def figures(value: float, digits: int = 3) -> str:
    """Writes a number with `digits` significant figures, in full up to 999 999, without an exponent."""
    if value == 0:
        return "0"
    value = float(f"{value:.{digits}g}")  # 9.997 is 10.0, not 10.00
    if not math.isfinite(value):
        return UNKNOWN
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{min(decimals, 6)}f}".replace(",", "\u202f")


def plain(value: float) -> str:
    """Writes four significant figures at most, without trailing zeros: `0.4`, `1410`."""
    text = figures(value, 4)
    return text.rstrip("0").rstrip(".") if "." in text else text


def si(value: float | None, unit: str, digits: int = 3, floor: float = 1.0) -> str:
    """Writes `3210, "W"` as `3.21 kW`, and None as an en dash."""
    if value is None:
        return UNKNOWN
    divisor, name = prefix(value, floor)
    # 999.7 rounds up to 1000: then the next prefix says it better
    if abs(value) / divisor >= 999.5:
        divisor, name = prefix(value * 1.001, floor)
    return f"{figures(value / divisor, digits)}\u00a0{name}{unit}".rstrip("\u00a0")


def seconds(value: float | None) -> str:
    """Writes a latency or an age: `0.123` as `123 ms`, `75` as `75 s`, `4000` as `67 min`."""
    if value is None:
        return UNKNOWN
    size = abs(value)
    if size < 1:
        return f"{value * 1_000:.0f}\u00a0ms"
    if size < 10:
        return f"{value:.1f}".removesuffix(".0") + "\u00a0s"
    if size < 120:
        return f"{value:.0f}\u00a0s"
    if size < 7_200:
        return f"{value / 60:.0f}\u00a0min"
    if size < 172_800:
        return f"{value / 3_600:.0f}\u00a0h"
    return f"{value / 86_400:.0f}\u00a0d"


def percent(share: float | None, digits: int = 1) -> str:
    """Writes `0.98765` as `98.8 %`. It never rounds up to 100 when something was missed."""
    if share is None:
        return UNKNOWN
    scale = 10**digits
    rounded = math.floor(share * 100 * scale) / scale if 0.5 < share < 1 else share * 100
    return f"{rounded:.{digits}f}\u00a0%"


def unit_of(name: str) -> tuple[str, str]:
    """Returns words and unit of a field's name: `mean_power_w` -> (`mean power`, `W`)."""
    for suffix, unit in UNIT_SUFFIXES:
        if name.endswith(suffix) and len(name) > len(suffix):
            name = name.removesuffix(suffix)
            return words(name), unit
    return words(name), ""


def words(name: str) -> str:
    """Writes a field's name in words: `gpu_budget` as `GPU budget`."""
    return " ".join(ABBREVIATIONS.get(part, part) for part in name.split("_"))


def quantity(value: float | None, unit: str) -> str:
    """A number in the unit its name gave: SI prefixes for W, J and grams, ms for short times, kWh for much energy."""
    if value is None:
        return UNKNOWN
    if unit == "s":
        return seconds(value)
    if unit in ("W", "J"):
        return si(value, unit, floor=1e-3)
    if unit == "gCO₂e":
        return si(value, "gCO₂e", floor=1e-3)
    return f"{plain(value)}\u00a0{unit}".rstrip("\u00a0")


def few(names: Sequence[str], most: int = 5) -> str:
    """Names in a sentence, of many the first ones and how many others there are."""
    if len(names) <= most + 1:
        return ", ".join(names)
    return f"{', '.join(names[:most])} and {len(names) - most:,} others"

"""A datapoint of ESRS E1, and how its figure is written: with the same digits in every format.

Commission Delegated Regulation (EU) 2023/2772, annex I, ESRS E1. Ids of datapoints are those of EFRAG's list
(Implementation Guidance 3, 2024). Paragraphs of appendix A begin with AR.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from itertools import accumulate, pairwise

from ..lines import decimal_text, joules
from ..table import Cell

MWH, TONNES, PERCENT = "MWh", "tCO2e", "%"
PLACES = {
    MWH: 6,
    TONNES: 6,
    PERCENT: 4,
}  # to the watt-hour and the gram, so that a small fleet is not written as nothing
KNOWN, PARTIAL, UNKNOWN = "known", "partial", "unknown"
UJ_PER_MWH = 3_600_000_000_000_000
US_PER_HOUR = 3_600_000_000
UG_PER_TONNE = 1_000_000_000_000
SUPPLIED = "To be supplied by the organisation"


@dataclass(frozen=True, slots=True)
class Datapoint:
    """One row. `value` is None where nothing is known; where a part is not known, it is that of the rest.

    Attributes:
        disclosure: E1-5 or E1-6.
        name: The row's own key, which never changes.
        ids: EFRAG's; empty where the list has none for it.
        part: Whether the row is a part of the one above it.
        exact: Joules, grams, or a share as a fraction: what `value` is rounded from.
        status: `known`, `partial` or `unknown`, of what the fleet used.
        not_covered: How much of it the value does not have, with `not_covered_unit`.
        sources: Keys of the report's sources.
    """

    disclosure: str
    name: str
    ids: str
    paragraph: str
    label: str
    unit: str
    value: Cell
    exact: Cell
    status: str
    part: bool = False
    not_covered: Cell = None
    not_covered_unit: str = ""
    note: str = ""
    sources: tuple[str, ...] = ()


def to_supply(disclosure: str, name: str, ids: str, paragraph: str, label: str, unit: str, why: str) -> Datapoint:
    """Returns a row of what GreenServe cannot know, so that it is asked for and not invented."""
    return Datapoint(disclosure, name, ids, paragraph, label, unit, None, None, UNKNOWN, note=f"{SUPPLIED}: {why}")


def written(value: Fraction, unit: str) -> str:
    """Writes a figure with all places of its unit, half to even."""
    return _text(_rounded(value, unit), unit)


def added_up(parts: Iterable[Fraction], unit: str) -> list[str]:
    """Writes parts so that what is printed adds up: each is the difference of two rounded running sums."""
    sums = [0, *(_rounded(value, unit) for value in accumulate(parts))]
    return [_text(after - before, unit) for before, after in pairwise(sums)]


def printed_sum(texts: Iterable[Cell]) -> Cell:
    """Returns the sum of printed figures; None where none of them is known."""
    known = [Decimal(text) for text in texts if text is not None]
    return f"{sum(known):f}" if known else None


def mwh(energy_uj: int) -> Fraction:
    return Fraction(energy_uj, UJ_PER_MWH)


def tonnes(carbon_ug: Fraction | int) -> Fraction:
    return Fraction(carbon_ug) / UG_PER_TONNE


def without_kwh(energy_uj: int) -> Cell:
    """Writes energy that a figure does not have, to the watt-hour, never as nothing; None: it has all."""
    return _not_nothing(Fraction(energy_uj, UJ_PER_MWH) * 1_000)


def without_gpu_hours(gpu_us: int) -> Cell:
    """Writes GPU time that a figure does not have, to the thousandth of an hour, never as nothing; None: it has all."""
    return _not_nothing(Fraction(gpu_us, US_PER_HOUR))


def exact_j(energy_uj: int) -> str:
    return joules(energy_uj)


def exact_g(carbon_ug: int) -> str:
    return decimal_text(carbon_ug, 6)


def exact_share(share: Fraction | None) -> Cell:
    return None if share is None else f"{share.numerator}/{share.denominator}"


def percent(share: Fraction | None) -> Cell:
    return None if share is None else written(100 * share, PERCENT)


def _not_nothing(amount: Fraction) -> Cell:
    return f"{Decimal(max(1, round(1_000 * amount))).scaleb(-3):f}" if amount else None


def _rounded(value: Fraction, unit: str) -> int:
    return round(value * Fraction(10) ** PLACES[unit])


def _text(value: int, unit: str) -> str:
    return f"{Decimal(value).scaleb(-PLACES[unit]):f}"

"""Units that people can read: a column of watt-hours is not written as 0.0 kWh, nor one of gigawatt-hours in full.

A table has one unit for a quantity, chosen by its largest figure. What is not nothing is never written as nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from .table import Cell

LARGE = 10_000.0  # of the unit that figures are in; from here on the next larger one
MOST_PLACES = 9
UNKNOWN = "\u2013"
NO_BREAK = "\u00a0"


@dataclass(frozen=True, slots=True)
class Scale:
    """A unit, and how many of the unit that figures are in go into it."""

    unit: str
    size: float

    def cell(self, cell: Cell, places: int) -> str:
        return UNKNOWN if cell is None else written(float(cell) / self.size, places)


ENERGY = (Scale("MWh", 1e3), Scale("kWh", 1.0), Scale("Wh", 1e-3), Scale("mWh", 1e-6))
CARBON = (Scale("tCO2e", 1e3), Scale("kgCO2e", 1.0), Scale("gCO2e", 1e-3), Scale("mgCO2e", 1e-6))
PLAIN = Scale("", 1.0)


def scale_for(scales: tuple[Scale, ...], cells: Iterable[Cell | float]) -> Scale:
    """Chooses the scale in which the largest figure is at least 1; larger ones from 10,000 of the usual one on."""
    most = max((abs(float(cell)) for cell in cells if cell is not None), default=0.0)
    if most == 0.0:
        return next(scale for scale in scales if scale.size == 1.0)
    fitting = (scale for scale in scales if most >= (LARGE if scale.size > 1.0 else scale.size))
    return next(fitting, scales[-1])


def written(value: float, places: int) -> str:
    """Writes a figure, thousands apart; `<0.01` for what would be written as nothing and is not."""
    text = f"{value:,.{places}f}"
    if value and not any(digit in text for digit in "123456789"):
        return f"{'<' if value > 0 else '>-'}{10.0**-places:.{places}f}"
    return text.replace(",", NO_BREAK)


def energy_words(energy_uj: int) -> str:
    """Writes energy as people read it in a sentence, such as `12.300 Wh`."""
    kwh = energy_uj / 3.6e12
    scale = scale_for(ENERGY, [kwh])
    return f"{kwh / scale.size:,.3f} {scale.unit}"


def places_for(places: int, cells: Iterable[Cell]) -> int:
    """Returns the places that show three digits or so of the largest of small figures."""
    most = max((abs(float(cell)) for cell in cells if cell is not None), default=0.0)
    if not places or not 0.0 < most < 1.0:
        return places
    return min(MOST_PLACES, places + math.ceil(-math.log10(most)))

"""Words for the intensities behind the location-based figure: of generation alone, or of the life cycle too.

Scope 2 has emissions of generation. Those upstream of it, and losses in grids, are category 3 of Scope 3. A lifecycle
intensity mixes both, and nobody can part them afterwards (GHG Protocol, Scope 2 Guidance, 2015; Scope 3 Standard, 2011,
table 5.5).
"""

from __future__ import annotations

from collections.abc import Sequence

from ..inputs import FactorUse
from ..unit_scale import energy_words
from .datapoints import SUPPLIED

DIRECT, LIFECYCLE = "direct", "lifecycle"
NOT_ON_RECORD = "Whether intensities are direct or lifecycle ones is not on record."


def _by_factor(uses: Sequence[FactorUse]) -> dict[str, int]:
    found: dict[str, int] = {}
    for one in uses:
        name = one.factor if one.factor in (DIRECT, LIFECYCLE) else ""
        found[name] = found.get(name, 0) + one.energy_uj
    return dict(sorted(found.items()))


def location_words(uses: Sequence[FactorUse]) -> str:
    """Says what the location-based figure contains."""
    by = _by_factor(uses)
    if not by:
        return NOT_ON_RECORD
    if set(by) == {DIRECT}:
        return "By direct intensities: emissions of generation alone."
    if set(by) == {LIFECYCLE}:
        return "By lifecycle intensities: it has upstream emissions too, which belong to category 3 of Scope 3."
    return f"At the GPUs, {_amounts(by)}. Lifecycle ones have upstream emissions too (category 3 of Scope 3)."


def category_3_words(uses: Sequence[FactorUse]) -> str:
    """Says where upstream emissions of the electricity are: they have no figure of their own."""
    by = _by_factor(uses)
    if not by:
        return f"{SUPPLIED}. {NOT_ON_RECORD}"
    if set(by) == {DIRECT}:
        return f"{SUPPLIED}: intensities are direct, so upstream emissions are in no figure here."
    if set(by) == {LIFECYCLE}:
        return (
            "In the location-based Scope 2 already, since intensities are lifecycle ones, and not to be parted from "
            "it: do not add it there once more. The market-based figure goes by contracts' factors."
        )
    return (
        f"{SUPPLIED}: at the GPUs, {_amounts(by)}; what lifecycle ones valued is in the location-based Scope 2 already."
    )


def _amounts(by: dict[str, int]) -> str:
    names = {DIRECT: "direct intensities", LIFECYCLE: "lifecycle intensities", "": "intensities that do not say which"}
    return ", ".join(f"{energy_words(uj)} by {names[name]}" for name, uj in by.items())

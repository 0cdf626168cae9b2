"""ESRS E1-6: gross emissions by scope, as far as meters, intensities, contracts and embodied factors know them.

Only Scope 2 can be whole. Totals have what is known of Scope 2 and Scope 3, and say that they are partial.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from decimal import Decimal

from ..inputs import EMBODIED, INTENSITY, PUE
from ..market import HOURLY
from ..statement import MATCHING_WORDS, Statement
from .datapoints import (
    KNOWN,
    PARTIAL,
    PERCENT,
    TONNES,
    UNKNOWN,
    Datapoint,
    exact_g,
    printed_sum,
    to_supply,
    tonnes,
    without_gpu_hours,
    without_kwh,
    written,
)
from .factor_basis import category_3_words, location_words
from .instruments import E1_6, Instruments
from .sources import CONTRACT, METER, Sources

AMORTISED = (
    "GPUs and servers alone, amortised by use (SCI 1.1, M). The GHG Protocol's category 2 has all emissions of a "
    "purchase in its year: this is an amortised figure, and not that one."
)


def emission_rows(statement: Statement, sources: Sources) -> list[Datapoint]:
    """Returns the rows of E1-6, in the order of the table of AR 48."""
    emissions = _Emissions(statement, sources)
    location, market, goods = emissions.location(), emissions.market(), emissions.capital_goods()
    return [
        *_scope1(),
        location,
        market,
        *Instruments(statement, sources, partial=market.status != KNOWN).rows(),
        *_biogenic(),
        *emissions.scope3(goods),
        emissions.total("total_location", "E1-6_12", "52(a)", "location-based", location, goods),
        emissions.total("total_market", "E1-6_13", "52(b)", "market-based", market, goods),
        *_per_revenue(),
    ]


@dataclass(frozen=True, slots=True)
class _Emissions:
    statement: Statement
    sources: Sources

    def location(self) -> Datapoint:
        sums = self.statement.scope2.total()
        words = location_words(self.statement.basis.inputs.factors)
        if sums.location_missing_uj:
            words += " Energy without an intensity is counted at the GPUs."
        return self._scope2(
            *("scope2_location", "E1-6_09", "49(a)", "location-based", sums.location_ug),
            *(sums.location_missing_uj, sums.energy_uj, words, self.sources.keys(METER, PUE, INTENSITY)),
        )

    def market(self) -> Datapoint:
        scope2 = self.statement.scope2
        sums = scope2.total()
        hourly = scope2.matching == HOURLY
        ug, missing_uj = (
            (sums.hourly_ug, sums.hourly_missing_uj) if hourly else (sums.period_ug, sums.period_missing_uj)
        )
        words = f"{MATCHING_WORDS[scope2.matching].capitalize()}."
        if missing_uj:
            words += " What has neither contract nor residual mix is not in it."
        if sums.silent_hours:
            words += f" In {sums.silent_hours:,} hours a contract's generation is not known: it covers nothing then."
        keys = self.sources.keys(METER, PUE, CONTRACT)
        label = "market-based"
        return self._scope2("scope2_market", "E1-6_10", "49(b)", label, ug, missing_uj, sums.facility_uj, words, keys)

    def _scope2(
        self,
        name: str,
        ids: str,
        paragraph: str,
        way: str,
        ug: int,
        missing_uj: int,
        of_uj: int,
        note: str,
        keys: tuple[str, ...],
    ) -> Datapoint:
        status = self._status(bool(missing_uj), bool(missing_uj) and missing_uj >= of_uj)
        known = status != UNKNOWN
        return Datapoint(
            *(E1_6, name, ids, paragraph, f"Gross Scope 2 GHG emissions, {way}", TONNES),
            value=written(tonnes(ug), TONNES) if known else None,
            exact=exact_g(ug) if known else None,
            status=status,
            not_covered=without_kwh(missing_uj),
            not_covered_unit="kWh" if missing_uj else "",
            note=note,
            sources=keys,
        )

    def _status(self, gap: bool, nothing: bool) -> str:
        if nothing:
            return UNKNOWN
        return PARTIAL if gap or self.statement.total.unmetered else KNOWN

    def capital_goods(self) -> Datapoint:
        """Category 2 is never whole: it has GPUs and servers, and no building, network or other goods."""
        total = self.statement.total
        missing_us = total.embodied_missing_us
        known = not missing_us or missing_us < total.gpu_us
        return Datapoint(
            *(E1_6, "scope3_category_2", "E1-6_04", "51", "Scope 3, category 2: capital goods, amortised", TONNES),
            value=written(tonnes(total.embodied_ug), TONNES) if known else None,
            exact=exact_g(total.embodied_ug) if known else None,
            status=PARTIAL if known else UNKNOWN,
            part=True,
            not_covered=without_gpu_hours(missing_us),
            not_covered_unit="GPU-hours" if missing_us else "",
            note=AMORTISED,
            sources=self.sources.keys(METER, EMBODIED),
        )

    def scope3(self, goods: Datapoint) -> Iterator[Datapoint]:
        yield Datapoint(
            *(E1_6, "scope3", "E1-6_11", "51", "Gross Scope 3 GHG emissions", TONNES, goods.value, goods.exact),
            status=goods.status,
            note="Category 2 alone, amortised." if goods.value is not None else "Nothing of it is known.",
            sources=goods.sources,
        )
        yield goods
        label = "Scope 3, category 3: fuel- and energy-related activities"
        words = category_3_words(self.statement.basis.inputs.factors)
        keys = self.sources.keys(INTENSITY)
        yield Datapoint(
            *(E1_6, "scope3_category_3", "E1-6_04", "51", label, TONNES, None, None, UNKNOWN, True),
            note=words,
            sources=keys,
        )
        other = to_supply(
            *(E1_6, "scope3_other", "E1-6_04", "51", "Scope 3, categories 1 and 4 to 15", TONNES),
            "GreenServe knows nothing of them.",
        )
        yield replace(other, part=True)

    def total(self, name: str, ids: str, paragraph: str, way: str, scope2: Datapoint, goods: Datapoint) -> Datapoint:
        """Adds printed figures, so that the total is that of the lines; it is never whole without Scope 1."""
        known = scope2.value is not None
        parts = [one for one in (scope2, goods) if one.exact is not None]
        grams = sum((Decimal(one.exact or 0) for one in parts), Decimal(0))
        lacks = "" if goods.value is not None else " Category 2 is not known, and not in it."
        note = f"Scope 2 and category 2 of Scope 3, as far as known; without Scope 1 and other categories.{lacks}"
        return Datapoint(
            *(E1_6, name, ids, paragraph, f"Total GHG emissions, {way}", TONNES),
            value=printed_sum(one.value for one in parts) if known else None,
            exact=f"{grams.normalize():f}" if known else None,
            status=PARTIAL if known else UNKNOWN,
            not_covered=scope2.not_covered,
            not_covered_unit=scope2.not_covered_unit,
            note=note if known else "Scope 2 is not known.",
            sources=self.sources.ordered(*scope2.sources, *goods.sources),
        )


# -- what the organisation supplies ----------------------------------------------------------------


def _scope1() -> Iterator[Datapoint]:
    why = "GreenServe meters no fuel of generators and no refrigerants."
    yield to_supply(E1_6, "scope1", "E1-6_07", "48(a)", "Gross Scope 1 GHG emissions", TONNES, why)
    label = "Share of Scope 1 GHG emissions under regulated emission trading schemes"
    yield to_supply(E1_6, "scope1_trading_share", "E1-6_08", "48(b)", label, PERCENT, "it needs Scope 1.")


def _biogenic() -> Iterator[Datapoint]:
    label = "Biogenic CO2 of biomass that is not in Scope 2"
    why = "contracts and feeds do not state it."
    yield to_supply(E1_6, "scope2_biogenic", "E1-6_24", "AR 45(e)", label, TONNES, why)


def _per_revenue() -> Iterator[Datapoint]:
    for name, ids, way in (
        ("intensity_location", "E1-6_30", "location-based"),
        ("intensity_market", "E1-6_31", "market-based"),
    ):
        label = f"GHG intensity, {way}: total GHG emissions over net revenue"
        yield to_supply(E1_6, name, ids, "53", label, "tCO2e per currency unit", "net revenue, and what totals lack.")

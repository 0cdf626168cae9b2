"""Market-based Scope 2: what a site's electricity emits by the contracts under which it was bought.

GHG Protocol, Scope 2 Guidance (2015), chapter 6: contractual instruments with a volume (certificates, power purchase
agreements) cover that much of the consumption; the rest is the supplier's own factor, or else the residual mix. Where
there is neither, the emission of the rest is not known. It is never zero, and never the location's.

Hourly matching lets a volume cover at most what is consumed in the hour of its generation. Matching over the period
lets it cover any of the period's consumption, as annual matching does: it is there to compare.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from .contracts import ORDER, UJ_PER_KWH, VOLUME_KINDS, Contract, Generated

HOURLY, PERIOD = MATCHINGS = ("hourly", "period")
UG_PER_G = 1_000_000


@dataclass(frozen=True, slots=True)
class Cover:
    """The part of a site's consumption that one contract covers."""

    contract: Contract
    covered_uj: int


@dataclass(frozen=True, slots=True)
class Covered:
    """A site's consumption in some time, and what its contracts cover of it. `surplus_uj`: generated and not used."""

    facility_uj: int
    covers: tuple[Cover, ...]
    surplus_uj: int
    silent_hours: int = 0  # in which a contract's generation is not known

    def by_kind_uj(self, *kinds: str) -> int:
        return sum(cover.covered_uj for cover in self.covers if cover.contract.kind in kinds)

    @property
    def matched_uj(self) -> int:
        """Returns what volumes cover."""
        return self.by_kind_uj(*VOLUME_KINDS)

    @property
    def uncovered_uj(self) -> int:
        return self.facility_uj - self.by_kind_uj(*ORDER)

    @property
    def emitted(self) -> Fraction:
        """Returns micrograms of what is covered."""
        return sum((emitted_ug(cover) for cover in self.covers), Fraction(0))

    @property
    def carbon_free_uj(self) -> int:
        """Returns what volumes of carbon-free generation cover, by their declared mixes."""
        own = [cover for cover in self.covers if cover.contract.kind in VOLUME_KINDS]
        return sum(int(cover.covered_uj * (cover.contract.carbon_free or 0)) for cover in own)


def emitted_ug(cover: Cover) -> Fraction:
    """Returns micrograms of what a contract covers, by its factor."""
    return cover.covered_uj * Fraction(cover.contract.factor_g_per_kwh) * UG_PER_G / UJ_PER_KWH


def covered(facility_uj: int, generated: Iterable[Generated], start_s: int, end_s: int) -> Covered:
    """Lays a site's contracts, in the order of their use, over what it consumed in [start_s, end_s).

    A factor without a volume must be valid for all of that time to be used for the rest.
    """
    left_uj, surplus_uj, silent, covers = facility_uj, 0, 0, []
    for one in generated:
        contract = one.contract
        if contract.end_s <= start_s or contract.start_s >= end_s:
            continue
        if contract.kind in VOLUME_KINDS:
            volume_uj = one.between_uj(start_s, end_s)
            covered_uj = min(left_uj, volume_uj)
            surplus_uj += volume_uj - covered_uj
            silent += one.silent_hours(start_s, end_s)
        else:
            covered_uj = left_uj if contract.start_s <= start_s and contract.end_s >= end_s else 0
        if covered_uj > 0:
            covers.append(Cover(contract, covered_uj))
            left_uj -= covered_uj
    return Covered(facility_uj, tuple(covers), surplus_uj, silent)


@dataclass(frozen=True, slots=True)
class MarketHour:
    """A site's market-based emission in one hour, or the part of it that the period has, by both ways of matching.

    Whole numbers: hours of a site add up to the period's. `..._missing_uj` have no contract.
    """

    covered: Covered
    ug: Mapping[str, int]  # by matching
    missing_uj: Mapping[str, int]
    matched_uj: Mapping[str, int]


@dataclass(slots=True)
class SiteMarket:
    """Matches a site's hours, in the order of time.

    Attributes:
        whole: The whole period's consumption and contracts, matched over the period.
    """

    generated: tuple[Generated, ...]
    whole: Covered
    _used_uj: int = 0
    _by_contract_uj: dict[int, int] = field(default_factory=dict)  # hourly, by the contract's identity

    @classmethod
    def of(cls, site: str, facility_uj: int, contracts: Iterable[Contract], start_s: int, end_s: int) -> SiteMarket:
        own = [contract for contract in contracts if contract.site == site]
        own.sort(key=lambda c: (ORDER.index(c.kind), c.start_s, c.end_s, c.source))
        generated = tuple(map(Generated, own))
        return cls(generated, covered(facility_uj, generated, start_s, end_s))

    def hour(self, facility_uj: int, start_s: int, end_s: int) -> MarketHour:
        """Returns the next hour, matched; the site consumed so much in it."""
        found = covered(facility_uj, self.generated, start_s, end_s)
        before_uj, self._used_uj = self._used_uj, self._used_uj + facility_uj
        for cover in found.covers:
            at = id(cover.contract)
            self._by_contract_uj[at] = self._by_contract_uj.get(at, 0) + cover.covered_uj
        whole = self.whole
        ug, missing_uj, matched_uj = (
            self._share(amount, before_uj) for amount in (whole.emitted, whole.uncovered_uj, whole.matched_uj)
        )
        return MarketHour(
            found,
            ug={HOURLY: int(found.emitted), PERIOD: ug},
            missing_uj={HOURLY: found.uncovered_uj, PERIOD: missing_uj},
            matched_uj={HOURLY: found.matched_uj, PERIOD: matched_uj},
        )

    def covers(self, matching: str) -> tuple[Cover, ...]:
        """Returns what each contract covers of all hours so far."""
        if matching == PERIOD:
            return self.whole.covers
        contracts = (one.contract for one in self.generated)
        found = (Cover(contract, self._by_contract_uj.get(id(contract), 0)) for contract in contracts)
        return tuple(cover for cover in found if cover.covered_uj)

    def _share(self, amount: Fraction | int, before_uj: int) -> int:
        """Returns the whole part of a period's amount that the consumption since `before_uj` has."""
        whole_uj = self.whole.facility_uj
        if not whole_uj:
            return 0
        return int(amount * self._used_uj / whole_uj) - int(amount * before_uj / whole_uj)

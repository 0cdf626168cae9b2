"""Market-based Scope 2: what a site's electricity emits by the contracts under which it was bought.

GHG Protocol, Scope 2 Guidance (2015), chapter 6: contractual instruments with a volume (certificates, power purchase
agreements) cover that much of the consumption; the rest is the supplier's own factor, or else the residual mix. Where
there is neither, the emission of the rest is not known. It is never zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction

UJ_PER_KWH = 3_600_000_000_000
UG_PER_G = 1_000_000
# What is used first. Volumes go before factors without one.
ORDER = ("ppa", "certificate", "supplier", "residual")


@dataclass(frozen=True, slots=True)
class Contract:
    """A contractual instrument of one site, valid in [start_s, end_s).

    `volume_wh` is what it covers in all that time, None for kinds that cover whatever is left.
    """

    site: str
    kind: str
    factor_g_per_kwh: str  # a decimal, as it stands in the contract
    volume_wh: int | None
    start_s: int
    end_s: int
    source: str


@dataclass(frozen=True, slots=True)
class Cover:
    """The part of a site's consumption that one contract covers in the period."""

    contract: Contract
    covered_uj: int


@dataclass(frozen=True, slots=True)
class SiteMarket:
    """A site's mix of contracts in the period. `ug_per_uj` is None while part of the consumption has no contract."""

    site: str
    facility_uj: int
    covers: tuple[Cover, ...]
    ug_per_uj: Fraction | None

    @property
    def uncovered_uj(self) -> int:
        return self.facility_uj - sum(cover.covered_uj for cover in self.covers)

    def emitted_ug(self, facility_uj: int) -> int | None:
        """Returns the share of a line, to the nearest microgram."""
        rate = self.ug_per_uj
        return None if rate is None else (2 * facility_uj * rate.numerator + rate.denominator) // (2 * rate.denominator)


def site_market(site: str, facility_uj: int, contracts: Iterable[Contract], start_s: int, end_s: int) -> SiteMarket:
    """Lays the site's contracts over what it consumed in [start_s, end_s).

    A volume counts in proportion to the time that the contract shares with the period, so that it is used evenly over
    its validity and never twice. A factor without a volume must be valid for the whole period to be used for the rest.
    """
    left_uj, covers, emitted = facility_uj, [], Fraction(0)
    own = [c for c in contracts if c.site == site and c.start_s < end_s and c.end_s > start_s]
    for contract in sorted(own, key=lambda c: (ORDER.index(c.kind), c.start_s, c.end_s, c.source)):
        if contract.volume_wh is not None:
            shared_s = min(end_s, contract.end_s) - max(start_s, contract.start_s)
            volume_uj = contract.volume_wh * UJ_PER_KWH // 1_000 * shared_s // (contract.end_s - contract.start_s)
            covered_uj = min(left_uj, volume_uj)
        elif contract.start_s <= start_s and contract.end_s >= end_s:
            covered_uj = left_uj
        else:
            continue
        if covered_uj > 0:
            covers.append(Cover(contract, covered_uj))
            emitted += covered_uj * Fraction(contract.factor_g_per_kwh) * UG_PER_G / UJ_PER_KWH
            left_uj -= covered_uj
    known = left_uj == 0 and facility_uj > 0
    return SiteMarket(site, facility_uj, tuple(covers), emitted / facility_uj if known else None)


def volume_words(contract: Contract) -> str:
    """Returns what a contract covers, as it follows its factor; nothing where it covers whatever is left."""
    return "" if contract.volume_wh is None else f", up to {contract.volume_wh / 1_000:,.0f} kWh"


def markets(
    facility_uj: Mapping[str, int], contracts: Iterable[Contract], start_s: int, end_s: int
) -> dict[str, SiteMarket]:
    contracts = tuple(contracts)
    return {site: site_market(site, uj, contracts, start_s, end_s) for site, uj in sorted(facility_uj.items())}

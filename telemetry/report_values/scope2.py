"""Scope 2, location-based and market-based side by side, and what contracts cover: sums of hours of sites."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from fractions import Fraction
from typing import TypeVar

from .contracts import Contract
from .market import HOURLY, PERIOD, MarketHour, SiteMarket

K = TypeVar("K", bound=Hashable)


@dataclass(slots=True)
class Scope2Sums:
    """Sums over some hours of a site, or of all sites. `..._missing_...`: that of which it is not known.

    `hourly_...` and `period_...` are by the two ways of matching; the contracts' parts below them are by the hour.
    """

    energy_uj: int = 0
    facility_uj: int = 0
    location_ug: int = 0
    location_missing_uj: int = 0
    hourly_ug: int = 0
    hourly_missing_uj: int = 0
    hourly_matched_uj: int = 0
    period_ug: int = 0
    period_missing_uj: int = 0
    period_matched_uj: int = 0
    carbon_free_uj: int = 0
    supplier_uj: int = 0
    residual_uj: int = 0
    surplus_uj: int = 0
    hours: int = 0
    silent_hours: int = 0

    @classmethod
    def of_hour(cls, energy_uj: int, location: tuple[int, int], market: MarketHour) -> Scope2Sums:
        """Makes the sums of one hour. `location`: micrograms, and the energy without an intensity."""
        covered = market.covered
        return cls(
            energy_uj=energy_uj,
            facility_uj=covered.facility_uj,
            location_ug=location[0],
            location_missing_uj=location[1],
            hourly_ug=market.ug[HOURLY],
            hourly_missing_uj=market.missing_uj[HOURLY],
            hourly_matched_uj=market.matched_uj[HOURLY],
            period_ug=market.ug[PERIOD],
            period_missing_uj=market.missing_uj[PERIOD],
            period_matched_uj=market.matched_uj[PERIOD],
            carbon_free_uj=covered.carbon_free_uj,
            supplier_uj=covered.by_kind_uj("supplier"),
            residual_uj=covered.by_kind_uj("residual"),
            surplus_uj=covered.surplus_uj,
            hours=1,
            silent_hours=covered.silent_hours,
        )

    def __iadd__(self, other: Scope2Sums) -> Scope2Sums:
        for item in fields(self):
            setattr(self, item.name, getattr(self, item.name) + getattr(other, item.name))
        return self

    def share(self, part_uj: int) -> Fraction | None:
        """Returns a part of the facility's energy; None: nothing was used."""
        return Fraction(part_uj, self.facility_uj) if self.facility_uj else None


@dataclass(slots=True)
class Scope2:
    """Takes the hours of sites in, in the order of time, and has their sums.

    Attributes:
        matching: The way of matching that a report's rows go by.
    """

    matching: str
    sites: Mapping[str, SiteMarket]
    hours: dict[tuple[str, int, int], Scope2Sums] = field(default_factory=dict)  # by site, start and end

    @classmethod
    def of(
        cls, matching: str, facility_uj: Mapping[str, int], contracts: Iterable[Contract], start_s: int, end_s: int
    ) -> Scope2:
        """Makes what takes the hours of [start_s, end_s) in; `facility_uj`: all that each site uses in that time."""
        contracts = tuple(contracts)
        sites = {site: SiteMarket.of(site, uj, contracts, start_s, end_s) for site, uj in sorted(facility_uj.items())}
        return cls(matching, sites)

    def add(
        self, site: str, span: tuple[int, int], energy_uj: tuple[int, int], location: tuple[int, int]
    ) -> MarketHour:
        """Takes an hour of a site in, and returns it matched.

        Args:
            span: Unix seconds of its start and end.
            energy_uj: At the GPUs, and at the site's meter.
            location: Location-based micrograms, and the energy without an intensity.
        """
        found = self.sites[site].hour(energy_uj[1], *span)
        self.hours[site, *span] = Scope2Sums.of_hour(energy_uj[0], location, found)
        return found

    def by_site(self) -> dict[str, Scope2Sums]:
        return self._by(lambda site, start_s: site)

    def total(self) -> Scope2Sums:
        return added(self.hours.values())

    def by_hour_of_day(self, local_hour: Callable[[int], int]) -> dict[int, Scope2Sums]:
        """Returns sums by the hour of the day that `local_hour` gives for a moment."""
        return dict(sorted(self._by(lambda site, start_s: local_hour(start_s)).items()))

    def _by(self, key: Callable[[str, int], K]) -> dict[K, Scope2Sums]:
        found: dict[K, Scope2Sums] = {}
        for (site, start_s, _), sums in self.hours.items():
            one = found.setdefault(key(site, start_s), Scope2Sums())
            one += sums
        return found


def added(parts: Iterable[Scope2Sums]) -> Scope2Sums:
    found = Scope2Sums()
    for one in parts:
        found += one
    return found

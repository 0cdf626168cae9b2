"""Contracts for energy attributes as values: what they cover, by the hour, and what they prove of it.

GHG Protocol, Scope 2 Guidance (2015), chapter 7, table 7.1 has the quality criteria of contractual instruments.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

UJ_PER_WH = 3_600_000_000
UJ_PER_KWH = 1_000 * UJ_PER_WH
HOUR_S = 3_600
DAY_S = 24 * HOUR_S
VOLUME_KINDS = ("ppa", "certificate")
# What is used first. Volumes go before factors without one.
ORDER = (*VOLUME_KINDS, "supplier", "residual")
KIND_WORDS = {
    "ppa": "power purchase agreement",
    "certificate": "certificates",
    "supplier": "supplier's own factor",
    "residual": "residual mix",
}
EVEN, PROFILE, METERED = GENERATIONS = ("even", "profile", "metered")
FOSSIL, NUCLEAR, RENEWABLE = GROUPS = ("fossil", "nuclear", "renewable")
SOURCES: Mapping[str, str] = {
    **dict.fromkeys(("coal", "oil", "gas", "other fossil"), FOSSIL),
    "nuclear": NUCLEAR,
    **dict.fromkeys(
        ("wind", "wind offshore", "solar", "hydro", "geothermal", "marine", "biomass", "other renewable"), RENEWABLE
    ),
}
# Biomass is renewable, and burns: it is not counted as carbon-free.
CARBON_FREE = frozenset(name for name, group in SOURCES.items() if group != FOSSIL) - {"biomass", "other renewable"}


@dataclass(frozen=True, slots=True)
class Contract:
    """A contractual instrument of one site, valid in [start_s, end_s).

    `volume_wh` is what it covers in all that time; None for kinds that cover whatever is left, and for those whose
    generation is metered.

    Attributes:
        generation: Of a volume: even, by `profile`, or metered (`hours`).
        profile: Weights of the 24 UTC hours of a day.
        hours: Start and Wh of each hour that was metered; None: the meter was silent.
        mix: Share of each of SOURCES, as decimals that sum to 1; empty: not declared.
        bundled: Whether the attributes came with the energy; None: not declared.
    """

    site: str
    kind: str
    factor_g_per_kwh: str  # a decimal, as it stands in the contract
    volume_wh: int | None
    start_s: int
    end_s: int
    source: str
    generation: str = EVEN
    profile: tuple[int, ...] = ()
    hours: tuple[tuple[int, int | None], ...] = ()
    mix: Mapping[str, str] = field(default_factory=dict)
    bundled: bool | None = None
    vintage_year: int | None = None
    market: str = ""
    cancellation: str = ""

    @property
    def words(self) -> str:
        """Returns what the contract covers, as it follows its factor; nothing where it covers whatever is left."""
        if self.volume_wh is not None:
            by = " by its profile" if self.generation == PROFILE else ""
            return f", up to {self.volume_wh / 1_000:,.0f} kWh{by}"
        return ", as metered by the hour" if self.kind in VOLUME_KINDS else ""

    @property
    def carbon_free(self) -> Fraction | None:
        """Returns the share that is generated without carbon; None: the mix is not declared."""
        return share_of(self.mix, CARBON_FREE)

    def unproven(self, site_market: str, year: int) -> Iterator[str]:
        """Yields which of the quality criteria a certificate or agreement does not show, in words."""
        if self.kind not in VOLUME_KINDS:
            return
        if not self.cancellation:
            yield "no cancellation for this organisation is on record (criterion 3)"
        if self.vintage_year is None and self.generation == EVEN:
            yield "its vintage is not declared (criterion 4)"
        elif self.vintage_year is not None and self.vintage_year != year:
            yield f"its vintage {self.vintage_year} is not the year of use, {year} (criterion 4)"
        if not (self.market and site_market):
            yield "whether it is of the site's market is not declared (criterion 5)"


def share_of(mix: Mapping[str, str], sources: frozenset[str]) -> Fraction | None:
    """Returns the share of a declared mix that these sources have; None: no mix is declared."""
    return sum((Fraction(share) for name, share in mix.items() if name in sources), Fraction(0)) if mix else None


@dataclass(slots=True)
class Generated:
    """The volume of a contract over time: whole microjoules, so that spans that adjoin add up to it exactly."""

    contract: Contract
    _metered: dict[int, int | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._metered = dict(self.contract.hours)

    def between_uj(self, start_s: int, end_s: int) -> int:
        """Returns what was generated in [start_s, end_s); an hour whose meter was silent counts as nothing."""
        own = self.contract
        start_s, end_s = max(start_s, own.start_s), min(end_s, own.end_s)
        if start_s >= end_s:
            return 0
        if own.generation == METERED:
            return sum(self._hour_uj(at_s, start_s, end_s) for at_s in _hours(start_s, end_s))
        return self._until_uj(end_s) - self._until_uj(start_s)

    def silent_hours(self, start_s: int, end_s: int) -> int:
        """Returns in how many hours of [start_s, end_s) nobody knows what was generated."""
        own = self.contract
        if own.generation != METERED:
            return 0
        hours = _hours(max(start_s, own.start_s), min(end_s, own.end_s))
        return sum(self._metered.get(at_s) is None for at_s in hours)

    def _hour_uj(self, at_s: int, start_s: int, end_s: int) -> int:
        whole_uj = (self._metered.get(at_s) or 0) * UJ_PER_WH
        first, last = max(start_s, at_s) - at_s, min(end_s, at_s + HOUR_S) - at_s
        return whole_uj * last // HOUR_S - whole_uj * first // HOUR_S

    def _until_uj(self, at_s: int) -> int:
        own = self.contract
        weight = self._weight(at_s) - self._weight(own.start_s)
        return (own.volume_wh or 0) * UJ_PER_WH * weight // (self._weight(own.end_s) - self._weight(own.start_s))

    def _weight(self, at_s: int) -> int:
        """Returns seconds since 1970, each times the weight of its hour of the day."""
        profile = self.contract.profile
        if self.contract.generation == EVEN:
            return at_s
        days, second = divmod(at_s, DAY_S)
        hour, rest = divmod(second, HOUR_S)
        return HOUR_S * (days * sum(profile) + sum(profile[:hour])) + rest * profile[hour]


def _hours(start_s: int, end_s: int) -> range:
    return range(start_s // HOUR_S * HOUR_S, max(start_s, end_s), HOUR_S)

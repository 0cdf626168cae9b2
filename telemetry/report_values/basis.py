"""The inputs of a report besides the ledger's lines, kept with it, so that it can be made again byte for byte.

Names change, contracts are entered late, meters go on: the report has them as they were when it was made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from .contracts import Contract
from .inputs import ReportInputs
from .lines import SloCount
from .period import Period

WRITERS = 6  # raised when files of the same report come out as other bytes


@dataclass(frozen=True, slots=True)
class SiteBasis:
    """`rented`: some GPU-hour of the site has a rate in the period; if not, its cost is electricity only.

    `colour` is the site's in all charts; None: a report from before sites had one, drawn by rank. `market` is where its
    contracts must be from.
    """

    pk: int
    label: str
    currency: str
    rank: int
    rented: bool
    facility_uj: int
    colour: int | None = None
    market: str = ""


@dataclass(frozen=True, slots=True)
class PoolBasis:
    name: str
    site: str
    service: str
    model: str


@dataclass(frozen=True, slots=True)
class MeterBasis:
    """One GPU: what its counter had moved when the report was made, and what the ledger has of it by then.

    The counter is counted from `opened_s` to `mark_s`; `entered_uj` is the sum of the ledger's entries for that time
    and `period_uj` for the report's period. Resets are in the opening (see MeterMark).
    """

    gpu: str
    site: str
    opened_s: int
    mark_s: int
    metered_uj: int
    entered_uj: int
    period_uj: int


@dataclass(frozen=True, slots=True)
class DemandCharge:
    """The charge of a site's tariff for a local month's highest quarter of an hour. The bill has it, and no row."""

    site: str
    month: str  # 2026-10
    start_s: int
    end_s: int
    peak_w: float  # at the site's meter
    charge_nano: int | None  # None: no tariff was in force
    currency: str
    quarter: tuple[tuple[str | None, int], ...] = ()  # facility uJ of each tenant's requests in that quarter


@dataclass(frozen=True, slots=True)
class Baseline:
    """The same requests under another policy: modelled, never metered."""

    policy: str
    energy_uj: int
    location_ug: int | None
    requests: int
    left_out: int  # requests that could not be replayed
    how: str
    span_s: int | None = None  # what was replayed of the period; None: the report is older than this field

    def hours_words(self, period: Period) -> str:
        """Returns the number of hours that were replayed, and of how many."""
        whole = f"{(period.end_s - period.start_s) / 3600:,.0f} hours of {period.words}"
        return f"{self.span_s / 3600:,.0f} of the {whole}" if self.span_s is not None else f"some of the {whole}"

    @classmethod
    def from_json(cls, stored: object) -> Baseline:
        return msgspec.convert(stored, cls)


@dataclass(frozen=True, slots=True)
class Basis:
    """A report's version, its issuer, and everything that it names. `writers`: those that made its files."""

    number: int
    revision: int
    ledger_version: int
    made_s: int
    organisation: str
    product: str
    settled_until_s: int  # how far into the period every site is settled
    sites: Mapping[str, SiteBasis]
    pools: Mapping[str, PoolBasis]  # by id
    tenants: Mapping[str, tuple[str, str]]  # by id: name, label
    contracts: tuple[Contract, ...]
    slo: tuple[SloCount, ...]
    meters: tuple[MeterBasis, ...]
    demand: tuple[DemandCharge, ...] = ()
    baseline: Baseline | None = None
    inputs: ReportInputs = field(default_factory=ReportInputs)
    writers: int = 1

    @property
    def version(self) -> str:
        """Report number, its revision, and the version of the ledger it was made from."""
        return f"R{self.number}.{self.revision}-L{self.ledger_version}"

    def sites_by_rank(self) -> list[tuple[str, SiteBasis]]:
        return sorted(self.sites.items(), key=lambda item: (item[1].rank, item[0]))

    def as_json(self) -> dict[str, Any]:
        found: dict[str, Any] = msgspec.to_builtins(self)
        return found

    @classmethod
    def from_json(cls, stored: object) -> Basis:
        return msgspec.convert(stored, cls)

"""The fully loaded bill: who bears a period's joules, emissions and money, shared parts included. Whole numbers.

A bill has a line for each tenant, site, service and part, and for each LoRA adapter of direct parts. What nobody can
be asked to bear is the operator's own line, so that the lines add up to the meters and to the money, with nothing left
over (`Bill.left_over`). docs/reports.md has the three bases; `bill_sharing.py` applies them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .line_blocks import MARKET, MARKET_MISSING
from .totals import SUMMED, Totals

BASES = ("usage", "allocation", "marginal")
DIRECT, BASE, IDLE, TRANSITION, UNATTRIBUTED = PARTS = ("direct", "base", "idle", "transition", "unattributed")
PART_WORDS = {
    DIRECT: "direct: serving",
    BASE: "idle base of serving GPUs",
    IDLE: "shared idle",
    TRANSITION: "transition: starting and draining",
    UNATTRIBUTED: "unattributed: nobody saw what for",
}
BASIS_WORDS = {
    "usage": "By usage: shared parts go by each tenant's direct energy in the same pool and hour; demand by its power.",
    "allocation": "By allocation: shared parts and demand go by the shares that services reserve, used or not.",
    "marginal": "By marginal cost: tenants bear the energy that their load adds; capacity is the operator's.",
}
OPERATOR = "(operator)"  # in words, of the tenant None
NO_SERVICE, NO_ADAPTER = "(no service)", "(no adapter)"
AMOUNT_NAMES = (*SUMMED, MARKET, MARKET_MISSING)  # what a line of the bill has of `Totals`


@dataclass(frozen=True, slots=True)
class BillLine:
    """A line says what a tenant bears of a part at a site.

    `tenant` None: the operator; `service` None: of no pool; `adapter` None: of requests that named none, or shared.
    """

    tenant: str | None
    site: str
    service: str | None
    part: str
    currency: str
    totals: Totals
    adapter: str | None = None

    @property
    def words(self) -> tuple[str, str, str, str, str]:
        """Returns tenant, site, service, adapter and part as people read them."""
        of = self.service or NO_SERVICE, self.adapter or NO_ADAPTER
        return self.tenant or OPERATOR, self.site, *of, PART_WORDS[self.part]


@dataclass(frozen=True, slots=True)
class DemandShare:
    """A tenant bears a part of a site's demand charge. `charge_nano` None: no tariff was in force, so not known."""

    tenant: str | None
    site: str
    month: str
    currency: str
    peak_uw: int  # microwatts at the site's meter
    charge_nano: int | None


@dataclass(frozen=True, slots=True)
class Due:
    """Money of some lines, in billionths of one currency. None: a part of it is not known, and so is the total."""

    electricity_nano: int | None
    gpu_hours_nano: int | None
    demand_nano: int | None

    @property
    def total_nano(self) -> int | None:
        parts = (self.electricity_nano, self.gpu_hours_nano, self.demand_nano)
        return None if None in parts else sum(part for part in parts if part is not None)


@dataclass(frozen=True, slots=True)
class Bill:
    """All lines by tenant, site, service and part; the operator's come last."""

    basis: str
    lines: Sequence[BillLine]
    demand: Sequence[DemandShare]

    def of(self, tenant: str | None) -> Bill:
        """Returns what one tenant bears; None: the operator."""
        return self._where(lambda line: line.tenant == tenant)

    def in_currency(self, currency: str) -> Bill:
        return self._where(lambda line: line.currency == currency)

    @property
    def tenants(self) -> list[str | None]:
        return list(dict.fromkeys(sorted((one.tenant for one in self._all()), key=_nobody_last)))

    @property
    def currencies(self) -> list[str]:
        return sorted({one.currency for one in self._all()})

    def total(self) -> Totals:
        """Returns the sum of all lines. Its money means something in one currency alone: see `due`."""
        return added(line.totals for line in self.lines)

    def by_part(self) -> dict[str, Totals]:
        """Returns the totals of each part that there is, in the order of PARTS."""
        found = {part: [line.totals for line in self.lines if line.part == part] for part in PARTS}
        return {part: added(totals) for part, totals in found.items() if totals}

    def due(self, currency: str) -> Due:
        own = self.in_currency(currency)
        total = own.total()
        charges = [share.charge_nano for share in own.demand]
        return Due(
            None if total.electricity_missing_uj else total.electricity_nano,
            None if total.rental_missing_us else total.rental_nano,
            None if None in charges else sum(charge for charge in charges if charge is not None),
        )

    def left_over(self, total: Totals, charges_nano: int) -> dict[str, int]:
        """Returns what lies between a report's totals and this bill, by amount; nothing, if it adds up."""
        own = self.total()
        found = {name: getattr(total, name) - getattr(own, name) for name in AMOUNT_NAMES}
        found["demand_nano"] = charges_nano - sum(share.charge_nano or 0 for share in self.demand)
        return {name: value for name, value in found.items() if value}

    def _all(self) -> list[BillLine | DemandShare]:
        return [*self.lines, *self.demand]

    def _where(self, holds: Callable[[Any], bool]) -> Bill:
        return Bill(self.basis, tuple(filter(holds, self.lines)), tuple(filter(holds, self.demand)))


def ordered(lines: Iterable[BillLine]) -> tuple[BillLine, ...]:
    """Returns lines in the one order that a bill has; what is nobody's comes last."""

    def place(line: BillLine) -> tuple[Any, ...]:
        part = PARTS.index(line.part), *_nobody_last(line.adapter)
        return *_nobody_last(line.tenant), line.site, *_nobody_last(line.service), *part, line.currency

    return tuple(sorted(lines, key=place))


def part_totals(part: str, amounts: Mapping[str, int]) -> Totals:
    """Makes the totals of one line of a bill from its amounts by name."""
    return Totals(lines=1, idle_uj=amounts["energy_uj"] if part in (IDLE, TRANSITION) else 0, **amounts)


def added(parts: Iterable[Totals]) -> Totals:
    found = Totals()
    for one in parts:
        found += one
    return found


def _nobody_last(name: str | None) -> tuple[bool, str]:
    return name is None, name or ""

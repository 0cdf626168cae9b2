"""An invoice's lines: what one tenant bears in one currency, in hundredths that add up on paper to what is due.

Exact amounts have billionths (`bill`). On an invoice each line is the difference of two rounded running sums, so that
lines, subtotals and total agree to the last digit that is printed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Decimal

from .bill import PART_WORDS, Bill, BillLine, added
from .totals import Totals

ELECTRICITY, GPU_HOURS, DEMAND = "Electricity", "GPU-hours", "Demand charges"
GROUPS = (ELECTRICITY, GPU_HOURS, DEMAND)
NANO_PER_HUNDREDTH = 10_000_000
UJ_PER_KWH, US_PER_HOUR, UW_PER_KW = 3_600_000_000_000, 3_600_000_000, 1_000_000_000


@dataclass(frozen=True, slots=True)
class InvoiceLine:
    """A printed line. `hundredths` None: the amount is not known. The unit's price is the mean of what it values."""

    group: str
    words: str
    quantity: Decimal
    unit: str
    nano: int | None
    hundredths: int | None

    @property
    def unit_price(self) -> Decimal | None:
        if self.nano is None or not self.quantity:
            return None
        return (Decimal(self.nano).scaleb(-9) / self.quantity).quantize(Decimal("0.0001"), ROUND_HALF_EVEN)


@dataclass(frozen=True, slots=True)
class Invoice:
    """Lines that one tenant owes in one currency."""

    currency: str
    lines: Sequence[InvoiceLine]

    def of(self, group: str) -> list[InvoiceLine]:
        return [line for line in self.lines if line.group == group]

    def subtotal(self, group: str) -> int | None:
        """Returns hundredths; None: a line of the group is not known."""
        return _sum([line.hundredths for line in self.of(group)])

    @property
    def total(self) -> int | None:
        return _sum([line.hundredths for line in self.lines])


def invoices(bill: Bill, tenant: str, labels: dict[str, str]) -> list[Invoice]:
    """Returns one invoice for each currency in which the tenant bears anything. `labels`: sites' names for people."""
    own = bill.of(tenant)
    return [Invoice(currency, _rounded(_drafts(own.in_currency(currency), labels))) for currency in own.currencies]


def _drafts(own: Bill, labels: dict[str, str]) -> Iterator[InvoiceLine]:
    """Yields electricity and then GPU-hours by site, service, adapter and part, and demand charges; not yet rounded."""
    places: dict[str, list[Totals]] = {}
    for line in own.lines:
        places.setdefault(_words(line, labels), []).append(line.totals)
    lines = [(words, added(parts)) for words, parts in places.items()]
    for words, totals in lines:
        nano = None if totals.electricity_missing_uj else totals.electricity_nano
        if totals.energy_uj or nano != 0:
            yield InvoiceLine(ELECTRICITY, words, Decimal(totals.energy_uj) / UJ_PER_KWH, "kWh", nano, None)
    for words, totals in lines:
        nano = None if totals.rental_missing_us else totals.rental_nano
        if nano != 0:
            yield InvoiceLine(GPU_HOURS, words, Decimal(totals.gpu_us) / US_PER_HOUR, "GPU-hour", nano, None)
    for share in own.demand:
        what = f"{labels.get(share.site, share.site)}, {share.month}: part of the peak"
        yield InvoiceLine(DEMAND, what, Decimal(share.peak_uw) / UW_PER_KW, "kW", share.charge_nano, None)


def _words(line: BillLine, labels: dict[str, str]) -> str:
    adapter = f", adapter {line.adapter}" if line.adapter else ""
    part = PART_WORDS[line.part].split(":")[0]
    return f"{labels.get(line.site, line.site)}, {line.service or 'no service'}{adapter}: {part}"


def _rounded(drafts: Iterator[InvoiceLine]) -> tuple[InvoiceLine, ...]:
    found, running = [], 0
    for draft in drafts:
        hundredths = None
        if draft.nano is not None:
            before = _hundredths(running)
            running += draft.nano
            hundredths = _hundredths(running) - before
        found.append(InvoiceLine(draft.group, draft.words, draft.quantity, draft.unit, draft.nano, hundredths))
    return tuple(found)


def _hundredths(nano: int) -> int:
    return (2 * nano + NANO_PER_HUNDREDTH) // (2 * NANO_PER_HUNDREDTH)


def _sum(parts: Sequence[int | None]) -> int | None:
    return None if None in parts else sum(part for part in parts if part is not None)

"""The bill as a table: a row for each line and each part of a demand charge. CSV, workbook and document share it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO

from core.cells import write_csv

from .bill import NO_ADAPTER, NO_SERVICE, OPERATOR, Bill, Due, added
from .lines import money
from .table import COLUMNS, Cell, number
from .totals import Group, Totals

DEMAND_WORDS = "demand charge"
BILL_NAMES = ("tenant", "site", "service", "adapter", "part", "currency")
_METERED = (
    *("energy_j", "energy_kwh", "facility_kwh", "gpu_hours"),
    *("scope2_location_kgco2e", "scope2_market_kgco2e", "embodied_kgco2e"),
)


@dataclass(frozen=True, slots=True)
class BillRow:
    """Some lines of a bill together: what they use and emit, and the money that is due for them."""

    names: tuple[str, ...]
    totals: Totals
    due: Due


@dataclass(frozen=True, slots=True)
class BillColumn:
    """`places` are those that people see."""

    name: str
    cell: Callable[[BillRow], Cell]
    places: int


def _metered(name: str) -> BillColumn:
    column = next(column for column in COLUMNS if column.name == name)
    return BillColumn(name, lambda row: column.cell(Group((), None, row.totals, True)), column.places)


def _money(name: str, value: Callable[[Due], int | None]) -> BillColumn:
    def cell(row: BillRow) -> Cell:
        nano = value(row.due)
        return None if nano is None else money(nano)

    return BillColumn(name, cell, 2)


BILL_COLUMNS = (
    *map(_metered, _METERED),
    _money("electricity_cost", lambda due: due.electricity_nano),
    _money("gpu_hour_cost", lambda due: due.gpu_hours_nano),
    _money("demand_charge", lambda due: due.demand_nano),
    _money("due", lambda due: due.total_nano),
)
CELLS: Mapping[str, Callable[[BillRow], Cell]] = {column.name: column.cell for column in BILL_COLUMNS}


def rows(bill: Bill) -> list[BillRow]:
    """Returns a row for each line, with names for BILL_NAMES, and then one for each part of a demand charge."""
    found = []
    for line in bill.lines:
        own = Bill(bill.basis, (line,), ())
        found.append(BillRow((*line.words, line.currency), line.totals, own.due(line.currency)))
    for share in bill.demand:
        what = (NO_SERVICE, NO_ADAPTER, f"{DEMAND_WORDS} {share.month}")
        names = (share.tenant or OPERATOR, share.site, *what, share.currency)
        found.append(BillRow(names, Totals(), Due(0, 0, share.charge_nano)))
    return found


def by_tenant(bill: Bill) -> list[BillRow]:
    """Returns a subtotal for each tenant and currency, the operator's last."""
    return [
        subtotal((tenant or OPERATOR, currency), own.in_currency(currency), currency)
        for tenant in bill.tenants
        for own in [bill.of(tenant)]
        for currency in own.currencies
    ]


def by_currency(bill: Bill) -> list[BillRow]:
    """Returns the total of each currency: they are never added to each other."""
    return [subtotal(("total", currency), bill.in_currency(currency), currency) for currency in bill.currencies]


def subtotal(names: tuple[str, ...], bill: Bill, currency: str) -> BillRow:
    return BillRow(names, added(line.totals for line in bill.lines), bill.due(currency))


def write_bill_csv(found: Iterable[BillRow], fixed: Mapping[str, str], out: IO[str]) -> int:
    """Writes one row for each line, none for totals; an empty cell is not known. Returns the number of rows."""
    rows = ([*fixed.values(), *row.names, *map(number, cells(row))] for row in found)
    return write_csv(out, [*fixed, *BILL_NAMES, *(column.name for column in BILL_COLUMNS)], rows)


def cells(row: BillRow) -> Sequence[Cell]:
    return [column.cell(row) for column in BILL_COLUMNS]

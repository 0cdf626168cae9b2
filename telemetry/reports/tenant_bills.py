"""Keeps each tenant's part of a report's bill beside the report's files, so that its page has it at once.

A bill shares out each hour of a month, by pool; working it out again takes seconds for a large fleet. Cells are texts
with all the digits that the report's own bill has.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import polars
from django.db.models import QuerySet

from pools.models import JobState
from telemetry.models import Report
from telemetry.report_values.bill import BASES, PARTS, Bill, BillLine, DemandShare
from telemetry.report_values.bill_table import CELLS, BillRow, subtotal
from telemetry.report_values.table import Cell

from .report_requests import reports_folder

KEPT = "tenant-bills.parquet"
DEMAND, WHOLE = "demand", ""  # in the place of a part: a demand charge, and all that a tenant bears
ORDER = (*PARTS, DEMAND, WHOLE)
NAMES = ("tenant", "currency", "part")
SCHEMA = dict.fromkeys((*NAMES, *CELLS), polars.String())
OPEN = (JobState.QUEUED, JobState.RUNNING)


@dataclass(frozen=True, slots=True)
class BilledPart:
    """A tenant's share of one part in one currency: cells by the names that the bill's CSV has."""

    part: str
    currency: str
    cells: Mapping[str, Cell]


@dataclass(frozen=True, slots=True)
class MonthReport:
    """A report with a bill of exactly some span. `warnings`: why its figures are not to be paid as they are."""

    pk: int
    basis: str
    state: str
    progress: float
    version: str
    signature: str
    signed_by: str
    warnings: tuple[str, ...]
    ledger_version: int
    made_at: datetime

    @property
    def done(self) -> bool:
        return self.state == JobState.DONE


@dataclass(frozen=True, slots=True)
class TenantBill:
    """A tenant's share of a report's bill. `totals`: by currency. `parts` None: the report is older than they are."""

    report: MonthReport
    totals: Sequence[BilledPart]
    parts: Sequence[BilledPart] | None


def keep(bill: Bill, folder: Path) -> None:
    """Writes each tenant's totals and parts into a folder that becomes a report's."""
    rows = [
        (tenant, currency, part, *(cell(row) for cell in CELLS.values())) for tenant, currency, part, row in _rows(bill)
    ]
    polars.DataFrame(rows, schema=SCHEMA, orient="row").write_parquet(folder / KEPT)


def _rows(bill: Bill) -> Iterator[tuple[str, str, str, BillRow]]:
    """Yields tenant, currency, part and sums; the operator has no page."""
    groups: dict[tuple[str, str], dict[str, list[BillLine | DemandShare]]] = {}
    all_of_it: list[BillLine | DemandShare] = [*bill.lines, *bill.demand]
    for one in all_of_it:
        if one.tenant is not None:
            part = one.part if isinstance(one, BillLine) else DEMAND
            parts = groups.setdefault((one.tenant, one.currency), {})
            for name in (part, WHOLE):
                parts.setdefault(name, []).append(one)
    for (tenant, currency), parts in groups.items():
        for part in sorted(parts, key=ORDER.index):
            yield tenant, currency, part, subtotal((), _bill(bill.basis, parts[part]), currency)


def _bill(basis: str, found: Sequence[BillLine | DemandShare]) -> Bill:
    lines = tuple(one for one in found if isinstance(one, BillLine))
    return Bill(basis, lines, tuple(one for one in found if isinstance(one, DemandShare)))


def month_reports(
    seen: QuerySet[Report], start: datetime, end: datetime, sites: Collection[str], every: bool
) -> list[MonthReport]:
    """Returns reports with a bill of exactly this span and these sites, the newest first. One query.

    Args:
        seen: Those that the reader may see.
        sites: Names of sites. `every`: they are all that there are, so that a report of all sites fits too.
    """
    rows = seen.filter(period_start=start, period_end=end, asked__basis__in=BASES).order_by("-pk")
    known = ("version", "signature", "warnings")
    values = rows.values(
        *("pk", "asked__basis", "asked__sites", "job__state", "job__progress", "signed_by", "ledger_version"),
        *("created_at", *(f"summary__{name}" for name in known)),
    )
    return [
        _report(row) for row in values if set(row["asked__sites"]) == set(sites) or (every and not row["asked__sites"])
    ]


def _report(row: Mapping[str, Any]) -> MonthReport:
    return MonthReport(
        pk=row["pk"],
        basis=row["asked__basis"],
        state=row["job__state"],
        progress=row["job__progress"],
        version=row["summary__version"] or "",
        signature=row["summary__signature"] or "",
        signed_by=row["signed_by"],
        warnings=tuple(row["summary__warnings"] or ()),
        ledger_version=row["ledger_version"] or 0,
        made_at=row["created_at"],
    )


def bill_of(report: MonthReport, tenant: str) -> TenantBill:
    """Returns what a tenant bears by a report that is done. Without totals: the bill has no line of it."""
    path = reports_folder() / str(report.pk) / KEPT
    if not path.exists():
        return TenantBill(report, _summed(report, tenant), None)
    rows = polars.scan_parquet(path).filter(polars.col("tenant") == tenant).collect()
    found = [
        BilledPart(row["part"], row["currency"], {name: row[name] for name in CELLS})
        for row in rows.iter_rows(named=True)
    ]
    parts = tuple(one for one in found if one.part != WHOLE)
    return TenantBill(report, tuple(one for one in found if one.part == WHOLE), parts)


def _summed(report: MonthReport, tenant: str) -> tuple[BilledPart, ...]:
    """Reads the totals from the summary of a report that is older than what is kept here."""
    summary = Report.objects.values_list("summary", flat=True).get(pk=report.pk) or {}
    rows = (summary.get("bill") or {}).get("tenants", ())
    own = (row for row in rows if row["tenant"] == tenant)
    return tuple(BilledPart(WHOLE, row["currency"], {name: row.get(name) for name in CELLS}) for row in own)

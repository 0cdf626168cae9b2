"""Makes files of lines in one pass over them, whatever their number. The same lines and basis give the same bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from telemetry.report_values.basis import Basis
from telemetry.report_values.bill_sharing import BillSharing, sharing_of
from telemetry.report_values.bill_table import rows as bill_rows
from telemetry.report_values.bill_table import write_bill_csv
from telemetry.report_values.errors import BadReport
from telemetry.report_values.esrs.table import Esrs, write_esrs_csv
from telemetry.report_values.line_blocks import Block
from telemetry.report_values.period import Period
from telemetry.report_values.report_request import FIRST_FOCUS, FOCUS_FORMATS, NO_BILL, ReportRequest
from telemetry.report_values.scope2 import Scope2
from telemetry.report_values.scope2_table import write_scope2_csv
from telemetry.report_values.statement import Statement
from telemetry.report_values.table import write_rows
from telemetry.report_values.totals import ReportTotals

from .document import write_document
from .focus import FocusWriter
from .invoice import write_invoices
from .parquet import write_parquet
from .read_back import MadeFile, reconciliation
from .workbook import write_workbook

RECONCILIATION, INVOICES = "reconciliation", "invoices"
ENDINGS = {
    "focus-csv": "focus.csv",
    "focus-parquet": "focus.parquet",
    "csv": "csv",
    "xlsx": "xlsx",
    "pdf": "pdf",
    "bill-csv": "bill.csv",
    "scope2-csv": "scope2.csv",
    "esrs-csv": "esrs.csv",
    RECONCILIATION: "reconciliation.json",
}


def make_files(
    request: ReportRequest, basis: Basis, blocks: Iterable[Block], folder: Path
) -> tuple[Statement, list[MadeFile]]:
    """Writes every format that was asked for, and the reconciliation, into `folder`, which must be there.

    Args:
        blocks: Lines by hour, site and pool, each pool's together; read once.

    Raises:
        BadReport: There is nothing in the period, or FOCUS needs a cost that is not known.
        OSError: The folder cannot be written to.
    """
    period = request.span()
    totals = empty_totals(request, basis, period)
    focus = folder / file_name(request, basis, "focus-csv")
    sharing = None if request.basis == NO_BILL else sharing_of(request.basis, basis)
    rows = _read(request, basis, _taken_in(blocks, totals, sharing), focus)
    if not totals.groups:
        raise BadReport("period", f"nothing was settled in {request.period}: see from when to when the ledger reaches")
    totals.add_slo(basis.slo, {name: site.currency for name, site in basis.sites.items()})
    statement = Statement.of(request, basis, totals, None if sharing is None else sharing.bill(basis.demand))
    made = [_write(kind, statement, folder, focus, rows) for kind in request.formats if kind != INVOICES]
    if INVOICES in request.formats:
        made += [_made(path, kind, None) for kind, path in write_invoices(statement, folder, file_stem(request, basis))]
    if "focus-csv" not in request.formats:
        focus.unlink(missing_ok=True)
    text = reconciliation(statement, made, folder)
    target = folder / file_name(request, basis, RECONCILIATION)
    target.write_text(text, encoding="utf-8")
    return statement, [*made, _made(target, RECONCILIATION, None)]


def file_name(request: ReportRequest, basis: Basis, kind: str) -> str:
    """FOCUS files have their version in their name, but for that of before there was a choice."""
    ending = ENDINGS[kind]
    if kind in FOCUS_FORMATS and request.focus_version != FIRST_FOCUS:
        ending = ending.replace("focus", f"focus-{request.focus_version}")
    return f"{file_stem(request, basis)}.{ending}"


def file_stem(request: ReportRequest, basis: Basis) -> str:
    return f"{request.period.replace('/', '_to_')}_{basis.version}"


def empty_totals(request: ReportRequest, basis: Basis, period: Period) -> ReportTotals:
    """Returns the totals that a report's lines are added to."""
    facility_uj = {name: site.facility_uj for name, site in basis.sites.items()}
    scope2 = Scope2.of(request.matching, facility_uj, basis.contracts, period.start_s, period.end_s)
    return ReportTotals(request.by, scope2, tuple(period.days()))


def _taken_in(blocks: Iterable[Block], totals: ReportTotals, sharing: BillSharing | None) -> Iterator[Block]:
    for block in blocks:
        added = totals.add(block)
        if sharing is not None:
            sharing.add(added)
        yield added


def _read(request: ReportRequest, basis: Basis, blocks: Iterator[Block], focus: Path) -> int:
    """Takes all lines in, and writes them as FOCUS on the way where that is wanted. Returns the rows of it."""
    if not set(FOCUS_FORMATS) & set(request.formats):
        for _ in blocks:
            pass
        return 0
    writer = FocusWriter(basis, request.focus_version)
    with focus.open("wb") as out:
        writer.write(blocks, out)
    return writer.rows


def _write(kind: str, statement: Statement, folder: Path, focus: Path, focus_rows: int) -> MadeFile:
    target = folder / file_name(statement.request, statement.basis, kind)
    rows: int | None = len(statement.rows)
    if kind in FOCUS_FORMATS:
        rows = focus_rows
        if kind == "focus-parquet":
            write_parquet(focus, target, statement.request.focus_version)
    elif kind in ("csv", "bill-csv", "scope2-csv", "esrs-csv"):
        period = statement.period
        fixed = {
            "period_start_utc": f"{period.start:%Y-%m-%dT%H:%M:%SZ}",
            "period_end_utc": f"{period.end:%Y-%m-%dT%H:%M:%SZ}",
            "report_version": statement.basis.version,
        }
        with target.open("w", encoding="utf-8", newline="") as out:
            if statement.bill is not None and kind == "bill-csv":
                rows = write_bill_csv(bill_rows(statement.bill), fixed, out)
            elif kind == "scope2-csv":
                rows = write_scope2_csv(statement.scope2, fixed, out)
            elif kind == "esrs-csv":
                rows = write_esrs_csv(Esrs.of(statement), fixed, out)
            else:
                write_rows(statement.rows, statement.request.by, fixed, out)
    elif kind == "xlsx":
        write_workbook(statement, target)
    else:
        write_document(statement, target)
        rows = None
    return _made(target, kind, rows)


def _made(path: Path, kind: str, rows: int | None) -> MadeFile:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
    return MadeFile(path.name, kind, digest.hexdigest(), path.stat().st_size, rows)

"""The bill in the workbook: subtotals and totals as formulas over its lines, the lines, and the report's inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xlsxwriter import Workbook
from xlsxwriter.utility import xl_col_to_name

from telemetry.report_values.bill import BASIS_WORDS, Bill
from telemetry.report_values.bill_table import (
    BILL_COLUMNS,
    BILL_NAMES,
    BillRow,
    by_currency,
    by_tenant,
    cells,
    rows,
)
from telemetry.report_values.statement import Statement

BILL_SHEET, LINES_SHEET, INPUTS_SHEET = "Bill", "Bill lines", "Inputs"
UNKNOWN = "unknown"
INPUT_HEADS = ("input", "site", "value", "quality", "source", "version", "valid", "used in the period")
FONT = {"font_name": "Calibri", "font_size": 10, "valign": "top"}


def add_bill(workbook: Workbook, statement: Statement) -> None:
    """Adds the sheets Bill, Bill lines and Inputs; none where there is no bill."""
    if statement.bill is None:
        return
    looks = {
        "text": workbook.add_format({**FONT, "text_wrap": True}),
        "head": workbook.add_format({**FONT, "bold": True, "bottom": 1, "text_wrap": True}),
        "number": workbook.add_format({**FONT, "num_format": "#,##0.######"}),
        "total": workbook.add_format({**FONT, "num_format": "#,##0.######", "bold": True, "top": 1}),
    }
    lines = rows(statement.bill)
    _bill(workbook, looks, statement, statement.bill, len(lines))
    _lines(workbook, looks, lines)
    _inputs(workbook, looks, statement)


def _bill(workbook: Workbook, looks: dict[str, Any], statement: Statement, bill: Bill, count: int) -> None:
    sheet = _sheet(workbook, BILL_SHEET, (24, 10, *[15] * len(BILL_COLUMNS)))
    facts = [f"Bill, {statement.period.words}", BASIS_WORDS[bill.basis], *statement.warnings]
    plain = workbook.add_format(FONT)
    for at, words in enumerate([*facts, f"Signature over figures and inputs, SHA-256: {statement.signature}"]):
        sheet.write_string(at, 0, words, plain)
    at = len(facts) + 2
    for i, name in enumerate(["tenant", "currency", *(_words(column.name) for column in BILL_COLUMNS)]):
        sheet.write_string(at, i, name, looks["head"])
    for row in by_tenant(bill):
        at += 1
        _subtotal(sheet, at, row, looks["number"], count, by_name=True)
    for row in by_currency(bill):
        at += 1
        _subtotal(sheet, at, row, looks["total"], count, by_name=False)


def _subtotal(sheet: Any, at: int, row: BillRow, look: Any, count: int, by_name: bool) -> None:
    """Writes formulas over the lines of the row's currency, and of its tenant, with their values."""
    tenant, currency = row.names
    sheet.write_string(at, 0, tenant, look)
    sheet.write_string(at, 1, currency, look)
    keys = f"{_cells(BILL_NAMES.index('currency'), count)},$B{at + 1}"
    if by_name:
        keys += f",{_cells(BILL_NAMES.index('tenant'), count)},$A{at + 1}"
    for i, value in enumerate(cells(row)):
        own = _cells(len(BILL_NAMES) + i, count)
        whole = f'COUNTIFS({keys},{own},"<>")=COUNTIFS({keys})'
        formula = f'=IF({whole},SUMIFS({own},{keys}),"{UNKNOWN}")'
        sheet.write_formula(at, 2 + i, formula, look, UNKNOWN if value is None else float(value))


def _lines(workbook: Workbook, looks: dict[str, Any], lines: Sequence[BillRow]) -> None:
    sheet = _sheet(workbook, LINES_SHEET, (*[20] * len(BILL_NAMES), *[15] * len(BILL_COLUMNS)))
    for i, name in enumerate([*BILL_NAMES, *(_words(column.name) for column in BILL_COLUMNS)]):
        sheet.write_string(0, i, name, looks["head"])
    sheet.freeze_panes(1, 1)
    for at, row in enumerate(lines, start=1):
        for i, text in enumerate(row.names):
            sheet.write_string(at, i, text, looks["text"])
        for i, value in enumerate(cells(row), start=len(BILL_NAMES)):
            if value is not None:  # an empty cell is not known
                sheet.write_number(at, i, float(value), looks["number"])


def _inputs(workbook: Workbook, looks: dict[str, Any], statement: Statement) -> None:
    sheet = _sheet(workbook, INPUTS_SHEET, (18, 14, 30, 30, 44, 12, 36, 36))
    for i, name in enumerate(INPUT_HEADS):
        sheet.write_string(0, i, name, looks["head"])
    sheet.freeze_panes(1, 0)
    for at, one in enumerate(statement.inputs(), start=1):
        valid = statement.span_words(one.valid_from_s, one.valid_to_s) or "always"
        used = statement.span_words(one.used_from_s, one.used_to_s)
        site = statement.site_label(one.site)
        for i, text in enumerate((one.kind, site, one.value, one.quality, one.source, one.version, valid, used)):
            sheet.write_string(at, i, text, looks["text"])


def _sheet(workbook: Workbook, name: str, widths: Sequence[float]) -> Any:
    sheet = workbook.add_worksheet(name)
    sheet.set_paper(9)  # A4
    sheet.set_landscape()
    sheet.fit_to_pages(1, 0)
    sheet.hide_gridlines(2)
    for i, width in enumerate(widths):
        sheet.set_column(i, i, width)
    return sheet


def _cells(column: int, count: int) -> str:
    letter = xl_col_to_name(column, col_abs=True)
    return f"'{LINES_SHEET}'!{letter}$2:{letter}${count + 1}"


def _words(name: str) -> str:
    return name.replace("_", " ").replace("kwh", "kWh").replace("kgco2e", "kgCO2e").replace("gpu", "GPU")

"""Scope 2 in the workbook: a row for each site, and their total as formulas."""

from __future__ import annotations

from xlsxwriter import Workbook
from xlsxwriter.utility import xl_col_to_name

from core.cells import is_formula
from telemetry.report_values.scope2_table import SCOPE2_COLUMNS, TOTAL, site_rows
from telemetry.report_values.statement import Statement

SCOPE2_SHEET = "Scope 2"
UNKNOWN = "unknown"
FONT = {"font_name": "Calibri", "font_size": 10, "valign": "top"}
WHOLE = "facility_kwh"
RATIOS = {  # of the whole, by the name of the share
    "matched_hourly_share": "matched_hourly_kwh",
    "carbon_free_share": "carbon_free_kwh",
    "matched_period_share": "matched_period_kwh",
}


def add_scope2(workbook: Workbook, statement: Statement) -> None:
    """Adds the sheet Scope 2."""
    looks = {
        "text": workbook.add_format({**FONT, "quote_prefix": True}),
        "head": workbook.add_format({**FONT, "bold": True, "bottom": 1, "text_wrap": True}),
        "number": workbook.add_format({**FONT, "num_format": "#,##0.######"}),
        "total": workbook.add_format({**FONT, "num_format": "#,##0.######", "bold": True, "top": 1}),
    }
    sheet = workbook.add_worksheet(SCOPE2_SHEET)
    sheet.set_paper(9)  # A4
    sheet.set_landscape()
    sheet.fit_to_pages(1, 0)
    sheet.hide_gridlines(2)
    sheet.set_column(0, 0, 24)
    sheet.set_column(1, len(SCOPE2_COLUMNS), 15)
    for at, name in enumerate(("site", *(column.name for column in SCOPE2_COLUMNS))):
        sheet.write_string(0, at, _words(name), looks["head"])
    sheet.freeze_panes(1, 1)
    for at, (site, sums) in enumerate(site_rows(statement.scope2), start=1):
        look = looks["total" if site == TOTAL else "number"]
        sheet.write_string(at, 0, site, looks["text"] if is_formula(site) else look)
        for i, column in enumerate(SCOPE2_COLUMNS, start=1):
            value = column.cell(sums)
            if site == TOTAL:
                shown = UNKNOWN if value is None else float(value)
                sheet.write_formula(at, i, _total(column.name, i, at), look, shown)
            elif value is not None:  # an empty cell is not known
                sheet.write_number(at, i, float(value), look)


def _total(name: str, i: int, count: int) -> str:
    if name in RATIOS:
        names = [column.name for column in SCOPE2_COLUMNS]
        part, whole = (f"{xl_col_to_name(1 + names.index(one))}{count + 1}" for one in (RATIOS[name], WHOLE))
        return f'=IF({whole}>0,{part}/{whole},"{UNKNOWN}")'
    letter = xl_col_to_name(i)
    cells = f"{letter}2:{letter}{count}"
    return f'=IF(COUNT({cells})={count - 1},SUM({cells}),"{UNKNOWN}")'


def _words(name: str) -> str:
    return name.replace("_", " ").replace("kwh", "kWh").replace("kgco2e", "kgCO2e")

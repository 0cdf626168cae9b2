"""The report as a workbook: rows of groups and days, and on the first sheet totals as formulas over them.

Nothing in the file depends on when it is written: its date is the report's, and the parts of the archive have none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from xlsxwriter import Workbook
from xlsxwriter.utility import xl_col_to_name

from core.cells import is_formula
from telemetry.report_values.basis import Basis
from telemetry.report_values.statement import Statement
from telemetry.report_values.table import COLUMNS, Cell, Column
from telemetry.report_values.unit_scale import MOST_PLACES, places_for

from .bill_sheet import add_bill
from .emission_sheet import add_scope2
from .esrs_sheet import add_esrs

ROWS_SHEET, DAYS_SHEET, FIRST_SHEET, METERS_SHEET, NOTES_SHEET = "Rows", "Days", "Summary", "Meters", "Notes"
UNKNOWN = "unknown"
NOTE_LETTERS = 95
WORDS = {"j": "J", "kwh": "kWh", "kgco2e": "kgCO2e", "gpu": "GPU", "slo": "SLO"}
MONEY = ("cost", "electricity_cost", "gpu_hour_cost")


@dataclass(frozen=True, slots=True)
class _Look:
    title: Any
    head: Any
    head_number: Any
    text: Any
    quoted: Any
    muted: Any
    numbers: dict[int, Any]


def write_workbook(statement: Statement, target: Path) -> None:
    """Writes Summary, Rows (by group), Days, Meters, Notes, Scope 2 and ESRS E1; with a bill three more."""
    basis = statement.basis
    with Workbook(str(target), {"constant_memory": True, "strings_to_formulas": False}) as workbook:
        made = datetime.fromtimestamp(basis.made_s, UTC).replace(tzinfo=None)
        workbook.set_properties({"title": statement.title, "author": basis.organisation, "created": made})
        workbook.set_calc_mode("auto")
        look = _look(workbook)
        _summary(workbook, look, statement)
        _rows(workbook, look, statement)
        _days(workbook, look, statement)
        _meters(workbook, look, basis)
        _notes(workbook, statement)
        add_scope2(workbook, statement)
        add_esrs(workbook, statement)
        add_bill(workbook, statement)


def _look(workbook: Workbook) -> _Look:
    base = {"font_name": "Calibri", "font_size": 10, "valign": "top"}
    places = range(MOST_PLACES + 1)
    head = {**base, "bold": True, "bottom": 1, "text_wrap": True, "valign": "bottom"}
    base["align"] = "left"
    right = {**base, "align": "right"}
    number = {n: workbook.add_format({**right, "num_format": _number_format(n)}) for n in places}
    return _Look(
        title=workbook.add_format({**base, "font_size": 14, "bold": True}),
        head=workbook.add_format(head),
        head_number=workbook.add_format({**head, "align": "right"}),
        text=workbook.add_format(base),
        quoted=workbook.add_format({**base, "quote_prefix": True}),
        muted=workbook.add_format({**base, "font_color": "#5B626B"}),
        numbers=number,
    )


def _number_format(places: int) -> str:
    """Zero is zero; what would look like it and is not has an exponent."""
    if not places:
        return "#,##0"
    fixed = "#,##0." + "0" * places
    least = f"{5 * 10.0 ** -(places + 1):.{places + 1}f}"
    return f"[>={least}]{fixed};[<=-{least}]-{fixed};General"


# -- the sheets ------------------------------------------------------------------------------------


def _summary(workbook: Workbook, look: _Look, statement: Statement) -> None:
    """Writes totals by currency, each a formula over the sheet of rows. Energy and carbon are over all rows."""
    sheet = workbook.add_worksheet(FIRST_SHEET)
    _page(sheet, landscape=False)
    sheet.set_column(0, 0, 34, look.text)
    sheet.set_column(1, 6, 18, look.text)
    sheet.set_row(0, 24)
    sheet.write_string(0, 0, statement.title, look.title)
    at = 1
    for name, words in statement.facts:
        sheet.write_string(at, 0, name, look.muted)
        _text(sheet, at, 1, words, look)
        at += 1
    at += 1
    currencies = [currency or "no currency" for currency in statement.totals_by_currency]
    for i, word in enumerate(["total", "all", *currencies]):
        sheet.write_string(at, i, word, look.head_number if i else look.head)
    at += 1
    lines: dict[str, int] = {}
    for column in COLUMNS:
        if not column.sums and column.ratio is None:
            continue
        lines[column.name] = at
        sheet.write_string(at, 0, _words(column.name), look.text)
        if column.name not in MONEY:
            value = statement.total_cell(column, None)
            _formula(sheet, at, 1, _total(statement, column, None, lines, "B"), value, look, column)
        for i, currency in enumerate(statement.totals_by_currency):
            value = statement.total_cell(column, currency or "")
            letter = xl_col_to_name(2 + i)
            formula = _total(statement, column, currency or "", lines, letter)
            _formula(sheet, at, 2 + i, formula, value, look, column)
        at += 1
    for currency, charge_nano in statement.demand_by_currency.items():
        sheet.write_string(at, 0, "demand charges, not in the rows", look.text)
        sheet.write_number(at, 2 + currencies.index(currency), charge_nano / 1e9, look.numbers[2])
        at += 1
    sheet.write_string(
        at + 1, 0, "Money of different currencies is never added up. 'unknown': a part is not known.", look.muted
    )


def _total(statement: Statement, column: Column, currency: str | None, lines: dict[str, int], letter: str) -> str:
    """Returns a formula in the words of the sheet of rows; of a ratio, in those of the totals above it."""
    if column.ratio is not None:
        over, under, factor = column.ratio
        a, b = f"{letter}{lines[over] + 1}", f"{letter}{lines[under] + 1}"
        times = "" if factor == "1" else f"*{factor}"
        guard = f",{letter}{lines['requests_without_tokens'] + 1}=0" if under == "output_tokens" else ""
        return f'=IF(AND(ISNUMBER({a}),ISNUMBER({b}),N({b})>0{guard}),{a}/{b}{times},"{UNKNOWN}")'
    count = len(statement.rows)
    cells = _range(statement.column_at(column.name), count)
    if currency is None:
        return f'=IF(COUNT({cells})={count},SUM({cells}),"{UNKNOWN}")'
    own = _range(statement.column_at("currency"), count)
    known = f'COUNTIFS({own},"{currency}",{cells},"<>")=COUNTIF({own},"{currency}")'
    return f'=IF({known},SUMIFS({cells},{own},"{currency}"),"{UNKNOWN}")'


def _range(column: int, count: int) -> str:
    letter = xl_col_to_name(column, col_abs=True)
    return f"{ROWS_SHEET}!{letter}$2:{letter}${count + 1}"


def _rows(workbook: Workbook, look: _Look, statement: Statement) -> None:
    sheet = workbook.add_worksheet(ROWS_SHEET)
    _page(sheet, landscape=True)
    names = statement.header
    texts = len(names) - len(COLUMNS)
    sheet.set_row(0, 42)
    for i, name in enumerate(names):
        sheet.set_column(i, i, 18 if i < texts else 14, look.text)
        sheet.write_string(0, i, _words(name), look.head_number if i >= texts else look.head)
    sheet.freeze_panes(1, texts)
    places = {column: places_for(column.places, [column.cell(group) for group in statement.rows]) for column in COLUMNS}
    for at, group in enumerate(statement.rows, start=1):
        for i, text in enumerate([*statement.labels(group), group.currency]):
            _text(sheet, at, i, text, look)
        for i, (column, own) in enumerate(places.items(), start=texts):
            _number(sheet, at, i, column.cell(group), look, own)
    if statement.rows:
        sheet.autofilter(0, 0, len(statement.rows), len(names) - 1)


def _days(workbook: Workbook, look: _Look, statement: Statement) -> None:
    sheet = workbook.add_worksheet(DAYS_SHEET)
    _page(sheet, landscape=False)
    sheet.set_column(0, 1, 16, look.text)
    sheet.set_column(2, 9, 14, look.text)
    sheet.set_row(0, 30)
    names = ("date", "site", *(column.name for column in statement.day_columns))
    for i, name in enumerate(names):
        sheet.write_string(0, i, _words(name), look.head_number if i > 1 else look.head)
    sheet.freeze_panes(1, 0)
    days = list(statement.day_rows())
    places = [
        places_for(column.places, [cells[i] for _, _, cells in days]) for i, column in enumerate(statement.day_columns)
    ]
    for at, (date, site, cells) in enumerate(days, start=1):
        sheet.write_string(at, 0, date, look.text)
        _text(sheet, at, 1, site, look)
        for i, (own, cell) in enumerate(zip(places, cells, strict=True), start=2):
            _number(sheet, at, i, cell, look, own)


def _meters(workbook: Workbook, look: _Look, basis: Basis) -> None:
    """Writes each GPU's counter against the ledger's entries; the difference is a formula."""
    sheet = workbook.add_worksheet(METERS_SHEET)
    _page(sheet, landscape=False)
    sheet.set_column(0, 0, 42, look.text)
    sheet.set_column(1, 5, 18, look.text)
    sheet.set_row(0, 42)
    heads = (
        "gpu",
        "site",
        "counter moved since opened, J",
        "entered since opened, J",
        "difference, J",
        "in the period, J",
    )
    for i, name in enumerate(heads):
        sheet.write_string(0, i, name, look.head_number if i > 1 else look.head)
    sheet.freeze_panes(1, 0)
    six = look.numbers[6]
    for at, meter in enumerate(basis.meters, start=1):
        _text(sheet, at, 0, meter.gpu, look)
        _text(sheet, at, 1, meter.site, look)
        sheet.write_number(at, 2, meter.metered_uj / 1e6, six)
        sheet.write_number(at, 3, meter.entered_uj / 1e6, six)
        sheet.write_formula(at, 4, f"=D{at + 1}-C{at + 1}", six, (meter.entered_uj - meter.metered_uj) / 1e6)
        sheet.write_number(at, 5, meter.period_uj / 1e6, six)


def _notes(workbook: Workbook, statement: Statement) -> None:
    sheet = workbook.add_worksheet(NOTES_SHEET)
    _page(sheet, landscape=False)
    wrapped = workbook.add_format(
        {"font_name": "Calibri", "font_size": 10, "text_wrap": True, "valign": "top", "quote_prefix": True}
    )
    sheet.set_column(0, 0, NOTE_LETTERS, wrapped)
    for at, note in enumerate(statement.notes):
        sheet.set_row(at, 15 * math.ceil(len(note) / NOTE_LETTERS))
        sheet.write_string(at, 0, note, wrapped)


def _words(name: str) -> str:
    return " ".join(WORDS.get(word, word) for word in name.split("_"))


# -- cells -----------------------------------------------------------------------------------------


def _page(sheet: Any, landscape: bool) -> None:
    sheet.set_paper(9)  # A4
    if landscape:
        sheet.set_landscape()
    sheet.fit_to_pages(1, 0)
    sheet.hide_gridlines(2)


def _text(sheet: Any, at: int, column: int, text: str | None, look: _Look) -> None:
    """Writes a string, never a formula. One that looks like a formula stays a string when somebody edits the cell."""
    if text is not None:
        sheet.write_string(at, column, text, look.quoted if is_formula(text) else look.text)


def _number(sheet: Any, at: int, column: int, cell: Cell, look: _Look, places: int) -> None:
    """What is not known is an empty cell."""
    if cell is not None:
        sheet.write_number(at, column, float(cell), look.numbers[places])


def _formula(sheet: Any, at: int, column: int, formula: str, value: Cell, look: _Look, of: Column) -> None:
    """Writes a formula with its value, for readers that do not calculate."""
    style = look.numbers[places_for(of.places, [value])]
    sheet.write_formula(at, column, formula, style, UNKNOWN if value is None else float(value))

"""ESRS E1 in the workbook: a row for each datapoint of E1-5 and E1-6, and below them what they rest on."""

from __future__ import annotations

from typing import Any

from xlsxwriter import Workbook

from telemetry.report_values.esrs.datapoints import PLACES, Datapoint
from telemetry.report_values.esrs.sources import shortened
from telemetry.report_values.esrs.table import REGULATION, SCOPE, Esrs
from telemetry.report_values.statement import Statement

ESRS_SHEET = "ESRS E1"
FONT = {"font_name": "Calibri", "font_size": 10, "valign": "top"}
HEADS = (  # and the width of each column, in letters
    *(("requirement", 11), ("datapoint", 16), ("paragraph", 12), ("what it is", 52), ("value", 18), ("unit", 13)),
    *(("status", 9), ("not covered", 18), ("unit", 10), ("note", 60), ("sources", 22)),
)
SOURCE_HEADS = ("source", "kind", "site", "what it says")
WORDS_COLUMN = 3


def add_esrs(workbook: Workbook, statement: Statement) -> None:
    """Adds the sheet ESRS E1. Cells are wrapped; a cell without a value is not known."""
    esrs = Esrs.of(statement)
    looks = {
        "text": workbook.add_format({**FONT, "text_wrap": True, "quote_prefix": True}),
        "part": workbook.add_format({**FONT, "text_wrap": True, "indent": 1}),
        "head": workbook.add_format({**FONT, "bold": True, "bottom": 1, "text_wrap": True}),
        **{
            unit: workbook.add_format({**FONT, "num_format": f"#,##0.{'0' * places}"})
            for unit, places in PLACES.items()
        },
        "number": workbook.add_format({**FONT, "num_format": "#,##0.######"}),
    }
    sheet = workbook.add_worksheet(ESRS_SHEET)
    sheet.set_paper(9)  # A4
    sheet.set_landscape()
    sheet.fit_to_pages(1, 0)
    sheet.hide_gridlines(2)
    for i, (head, width) in enumerate(HEADS):
        sheet.set_column(i, i, width)
        sheet.write_string(0, i, head, looks["head"])
    sheet.freeze_panes(1, 0)
    for at, row in enumerate(esrs.rows, start=1):
        _datapoint(sheet, at, row, looks)
    _sources(sheet, len(esrs.rows) + 2, esrs, looks)


def _datapoint(sheet: Any, at: int, row: Datapoint, looks: dict[str, Any]) -> None:
    texts = {0: row.disclosure, 1: row.ids, 2: row.paragraph, 3: row.label, 5: row.unit, 6: row.status}
    for i, text in texts.items():
        _text(sheet, at, i, text, looks["part" if row.part and i == WORDS_COLUMN else "text"])
    if row.value is not None:
        sheet.write_number(at, 4, float(row.value), looks[row.unit])
    if row.not_covered is not None:
        sheet.write_number(at, 7, float(row.not_covered), looks["number"])
    for i, text in {8: row.not_covered_unit, 9: row.note, 10: shortened(row.sources)}.items():
        _text(sheet, at, i, text, looks["text"])


def _sources(sheet: Any, at: int, esrs: Esrs, looks: dict[str, Any]) -> None:
    for i, head in enumerate(SOURCE_HEADS):
        sheet.write_string(at, i, head, looks["head"])
    for source in esrs.sources.rows:
        at += 1
        for i, text in enumerate((source.key, source.kind, source.site, source.words)):
            _text(sheet, at, i, text, looks["text"])
    for text in (*esrs.warnings, SCOPE, REGULATION):
        at += 1
        _text(sheet, at, WORDS_COLUMN, text, looks["text"])


def _text(sheet: Any, at: int, column: int, text: str, look: Any) -> None:
    if text:
        sheet.write_string(at, column, text, look)

"""Writes a report of a few tables as CSV, workbook and document. Same figures and date, same bytes."""

from __future__ import annotations

from datetime import UTC
from functools import partial
from io import BytesIO
from typing import Any

from reportlab.lib.enums import TA_RIGHT
from reportlab.lib.styles import ParagraphStyle
from reportlab.lib.units import mm
from reportlab.platypus import Paragraph, Spacer, Table, TableStyle
from xlsxwriter import Workbook

from core.cells import csv_text
from telemetry.report_values.figure_tables import Figure, FigureReport, FigureTable
from telemetry.report_values.unit_scale import UNKNOWN, places_for, written

from . import styles
from .styles import BODY, CELL, HEAD, ROWS_STYLE, SECTION, SMALL, TITLE, WIDTH, chemistry, safe

NUMBER = ParagraphStyle("figure-number", parent=CELL, alignment=TA_RIGHT)
HEAD_NUMBER = ParagraphStyle("figure-head-number", parent=HEAD, alignment=TA_RIGHT)
FONT = {"font_name": "Calibri", "font_size": 10, "valign": "top"}
TEXT_SHARE = 1.6  # a column of texts is so many times as wide as one of numbers
SUMMARY = "Summary"


def figures_csv(table: FigureTable) -> str:
    return csv_text([column.name for column in table.columns], table.rows)


# -- the document ----------------------------------------------------------------------------------


def figures_pdf(report: FigureReport) -> bytes:
    out = BytesIO()
    document = styles.document_at(out, report.title, report.organisation, report.title)
    parts: list[Any] = [Paragraph(safe(report.title), TITLE), Spacer(1, 2 * mm), styles.facts_table(_facts(report))]
    for table in report.tables:
        source = Paragraph(chemistry(safe(f"Source: {table.source}")), SMALL)
        parts += [Paragraph(safe(table.title), SECTION), _grid(table), Spacer(1, 1 * mm), source]
    parts += [Paragraph("How it was worked out", SECTION)]
    parts += [Paragraph(f"\u2022 {chemistry(safe(note))}", BODY) for note in report.notes]
    parts += [Spacer(1, 3 * mm), Paragraph(_signed(report), SMALL), styles.signatures()]
    words = f"{report.organisation}, {report.title}"
    foot = partial(styles.foot, words=words, warnings=report.warnings)
    document.build(parts, onFirstPage=foot, onLaterPages=foot)
    return out.getvalue()


def _facts(report: FigureReport) -> list[tuple[str, str]]:
    return [*report.facts, ("made", f"{report.made.astimezone(UTC):%Y-%m-%d %H:%M} UTC")]


def _signed(report: FigureReport) -> str:
    return f"Signature over facts and figures, SHA-256: {report.signature}"


def _grid(table: FigureTable) -> Table:
    texts = [column.places is None for column in table.columns]
    heads = zip(table.columns, texts, strict=True)
    rows = [[Paragraph(safe(column.words), HEAD if text else HEAD_NUMBER) for column, text in heads]]
    rows += [
        [
            Paragraph(chemistry(safe(_shown(cell, column.places))), CELL if column.places is None else NUMBER)
            for cell, column in zip(row, table.columns, strict=True)
        ]
        for row in table.rows
    ]
    shares = [TEXT_SHARE if text else 1.0 for text in texts]
    grid = Table(rows, colWidths=[WIDTH * share / sum(shares) for share in shares], repeatRows=1)
    grid.setStyle(TableStyle([*ROWS_STYLE, ("LEFTPADDING", (1, 0), (-1, -1), 5)]))
    return grid


def _shown(cell: Figure, places: int | None) -> str:
    if cell is None:
        return UNKNOWN
    return cell if isinstance(cell, str) else written(float(cell), places_for(places or 0, [str(cell)]))


# -- the workbook ----------------------------------------------------------------------------------


def figures_xlsx(report: FigureReport) -> bytes:
    """Writes a sheet of facts and notes, and one for each table, whose numbers have all of their digits."""
    out = BytesIO()
    with Workbook(out, {"strings_to_formulas": False}) as workbook:
        made = report.made.astimezone(UTC).replace(tzinfo=None)
        workbook.set_properties({"title": report.title, "author": report.organisation, "created": made})
        text = workbook.add_format({**FONT, "text_wrap": True})
        head = workbook.add_format({**FONT, "bold": True, "bottom": 1, "text_wrap": True})
        sheet = workbook.add_worksheet(SUMMARY)
        sheet.set_column(0, 0, 22)
        sheet.set_column(1, 1, 95)
        sheet.write_string(0, 0, report.title, workbook.add_format({**FONT, "bold": True, "font_size": 14}))
        notes = [("note", note) for note in (*report.warnings, *report.notes, _signed(report))]
        for at, (name, words) in enumerate([*_facts(report), *notes], start=1):
            sheet.write_string(at, 0, name, text)
            sheet.write_string(at, 1, words, text)
        for table in report.tables:
            _table_sheet(workbook, table, text, head)
    return out.getvalue()


def _table_sheet(workbook: Workbook, table: FigureTable, text: Any, head: Any) -> None:
    sheet = workbook.add_worksheet(table.name)
    sheet.set_landscape()
    sheet.set_paper(9)  # A4
    sheet.fit_to_pages(1, 0)
    number = workbook.add_format({**FONT, "num_format": "#,##0.######"})
    for i, column in enumerate(table.columns):
        sheet.set_column(i, i, 14 if column.places is not None else 30)
        sheet.write_string(0, i, column.words, head)
    sheet.freeze_panes(1, 1)
    for at, row in enumerate(table.rows, start=1):
        for i, cell in enumerate(row):
            if isinstance(cell, str):
                sheet.write_string(at, i, cell, text)
            elif cell is not None:  # an empty cell is not known
                sheet.write_number(at, i, float(cell), number)

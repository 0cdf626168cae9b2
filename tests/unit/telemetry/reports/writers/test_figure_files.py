"""A report of a few tables: the same figures in CSV, workbook and document, and nothing that a spreadsheet runs."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from datetime import UTC, datetime

import openpyxl

from telemetry.report_values.figure_tables import FigureColumn, FigureReport, FigureTable
from telemetry.reports.writers import figure_files

TABLE = FigureTable(
    name="Differences",
    title="B against A, metered",
    columns=(FigureColumn("figure", "Figure"), FigureColumn("mean_a", "A, mean", 3), FigureColumn("pairs", "Pairs", 0)),
    rows=(("Energy", 1234.56789, 3), ("=HYPERLINK(1)", None, 0)),
    source="the ledger",
)
REPORT = FigureReport(
    title="Trial 1",
    organisation="Example",
    made=datetime(2030, 1, 2, tzinfo=UTC),
    facts=(("service", "=cmd"),),
    tables=(TABLE,),
    notes=("a note",),
    warnings=("provisional",),
)


def test_csv_and_workbook_have_the_same_figures_in_full_and_no_formula():
    _, *rows = csv.reader(io.StringIO(figure_files.figures_csv(TABLE)))
    assert rows == [["Energy", "1234.56789", "3"], ["'=HYPERLINK(1)", "", "0"]]
    workbook = openpyxl.load_workbook(io.BytesIO(figure_files.figures_xlsx(REPORT)))
    sheet = workbook["Differences"]
    assert [[cell.value for cell in row] for row in sheet.iter_rows(min_row=2)] == [
        ["Energy", 1234.56789, 3],
        ["=HYPERLINK(1)", None, 0],
    ]
    assert all(cell.data_type != "f" for page in workbook for row in page.iter_rows() for cell in row)


def test_document_and_workbook_are_the_same_bytes_for_the_same_figures():
    assert figure_files.figures_pdf(REPORT) == figure_files.figures_pdf(REPORT)
    assert figure_files.figures_xlsx(REPORT) == figure_files.figures_xlsx(REPORT)


def test_signature_changes_with_a_figure_and_not_with_the_date():
    changed = replace(REPORT, tables=(replace(TABLE, rows=(("Energy", 1234.5, 3),)),))
    assert changed.signature != REPORT.signature
    assert replace(REPORT, made=datetime(2031, 1, 1, tzinfo=UTC)).signature == REPORT.signature

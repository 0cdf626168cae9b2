"""ESRS E1 as pages of a document: the datapoints of E1-5 and E1-6, and below them what they rest on."""

from __future__ import annotations

from typing import Any

from reportlab.lib.enums import TA_RIGHT
from reportlab.lib.styles import ParagraphStyle
from reportlab.platypus import PageBreak, Paragraph, Spacer, Table, TableStyle

from telemetry.report_values.esrs.datapoints import Datapoint
from telemetry.report_values.esrs.sources import shortened
from telemetry.report_values.esrs.table import REGULATION, SCOPE, TITLES, Esrs
from telemetry.report_values.statement import Statement
from telemetry.report_values.unit_scale import UNKNOWN

from .styles import BODY, CELL, HEAD, ROWS_STYLE, SECTION, SMALL, WIDTH, chemistry, safe

NUMBER = ParagraphStyle("esrs-number", parent=CELL, alignment=TA_RIGHT)
HEAD_NUMBER = ParagraphStyle("esrs-head-number", parent=HEAD, alignment=TA_RIGHT)
PART = ParagraphStyle("esrs-part", parent=CELL, leftIndent=7)
MUTED_CELL = ParagraphStyle("esrs-muted", parent=SMALL, fontSize=7, leading=8.5)
HEADS = ("Paragraph", "What it is", "Value", "Unit", "Status, and what it is of", "Sources")
WIDTHS = (0.12, 0.27, 0.13, 0.08, 0.29, 0.11)
SOURCE_WIDTHS = (0.06, 0.13, 0.13, 0.68)


def esrs_pages(statement: Statement) -> list[Any]:
    """Returns a page for what a sustainability statement takes, from its top on."""
    esrs = Esrs.of(statement)
    found: list[Any] = [PageBreak(), Paragraph("ESRS E1", SECTION), Paragraph(f"{REGULATION}. {SCOPE}", BODY)]
    if esrs.warnings:
        found.append(Paragraph(safe(f"Mind: {', '.join(esrs.warnings)}."), BODY))
    for disclosure, title in TITLES.items():
        found += [Paragraph(title, SECTION), _table(esrs.of_disclosure(disclosure)), Spacer(1, 6)]
    return [*found, Paragraph("Sources of these", SECTION), _sources(esrs)]


def _table(rows: list[Datapoint]) -> Table:
    styles = (HEAD, HEAD, HEAD_NUMBER, HEAD, HEAD, HEAD)
    grid: list[list[Any]] = [[Paragraph(head, style) for head, style in zip(HEADS, styles, strict=True)]]
    for row in rows:
        reference = (
            f"{safe(row.paragraph)}<br/><font color='#5b626b'>{safe(row.ids)}</font>" if row.ids else row.paragraph
        )
        grid.append(
            [
                Paragraph(reference, CELL),
                Paragraph(chemistry(safe(row.label)), PART if row.part else CELL),
                Paragraph(UNKNOWN if row.value is None else row.value, NUMBER),
                Paragraph(chemistry(safe(row.unit)), CELL),
                [Paragraph(safe(_status(row)), CELL), *_note(row)],
                Paragraph(safe(shortened(row.sources)), CELL),
            ]
        )
    table = Table(grid, colWidths=[WIDTH * part for part in WIDTHS], repeatRows=1)
    table.setStyle(TableStyle([*ROWS_STYLE, ("LEFTPADDING", (3, 0), (-1, -1), 5)]))
    return table


def _status(row: Datapoint) -> str:
    if row.not_covered is None:
        return row.status
    return f"{row.status}: {row.not_covered} {row.not_covered_unit} not covered"


def _note(row: Datapoint) -> list[Paragraph]:
    return [Paragraph(chemistry(safe(row.note)), MUTED_CELL)] if row.note else []


def _sources(esrs: Esrs) -> Table:
    grid = [[Paragraph(name, HEAD) for name in ("Source", "Kind", "Site", "What it says")]]
    for one in esrs.sources.rows:
        cells = (one.key, one.kind, one.site, one.words)
        grid.append([Paragraph(chemistry(safe(text)), CELL) for text in cells])
    table = Table(grid, colWidths=[WIDTH * part for part in SOURCE_WIDTHS], repeatRows=1)
    table.setStyle(TableStyle(ROWS_STYLE))
    return table

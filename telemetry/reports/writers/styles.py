"""Letters, colours, rules and units of documents, and what stands across a page: reports and invoices share them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from reportlab.lib.colors import Color, HexColor
from reportlab.lib.pagesizes import A4
from reportlab.lib.styles import ParagraphStyle
from reportlab.lib.units import mm
from reportlab.platypus import KeepTogether, Paragraph, SimpleDocTemplate, Spacer, Table, TableStyle

from telemetry.report_values.table import Cell
from telemetry.report_values.unit_scale import CARBON, ENERGY, Scale, scale_for

MARGIN = 16 * mm
FRAME = 6  # points that Platypus keeps free within the margins
WIDTH = A4[0] - 2 * MARGIN - 2 * FRAME
INK, MUTED, RULE = HexColor("#1a1d21"), HexColor("#5b626b"), HexColor("#d5d9de")

BODY = ParagraphStyle("body", fontName="Helvetica", fontSize=8.5, leading=11.5, textColor=INK)
SMALL = ParagraphStyle("small", parent=BODY, fontSize=7.5, leading=10, textColor=MUTED)
CELL = ParagraphStyle("cell", parent=BODY, fontSize=7.5, leading=9.5)
HEAD = ParagraphStyle("head", parent=CELL, textColor=MUTED, fontSize=7, leading=8.5)
TITLE = ParagraphStyle("title", parent=BODY, fontName="Helvetica-Bold", fontSize=17, leading=22)
SECTION = ParagraphStyle(
    "section", parent=BODY, fontName="Helvetica-Bold", fontSize=10, leading=14, spaceBefore=10, keepWithNext=1
)
FIGURE = ParagraphStyle("figure", parent=BODY, fontSize=15, leading=19)
ROWS_STYLE = [
    ("LINEBELOW", (0, 0), (-1, 0), 0.6, MUTED),
    ("LINEBELOW", (0, 1), (-1, -1), 0.3, RULE),
    ("VALIGN", (0, 0), (-1, 0), "BOTTOM"),
    ("VALIGN", (0, 1), (-1, -1), "TOP"),
    ("LEFTPADDING", (0, 0), (-1, -1), 1),
    ("RIGHTPADDING", (0, 0), (-1, -1), 2),
    ("TOPPADDING", (0, 0), (-1, -1), 2),
    ("BOTTOMPADDING", (0, 0), (-1, -1), 2),
]
SCALED = {  # columns of one quantity have one unit in a table
    ("energy_kwh",): ENERGY,
    ("scope2_location_kgco2e", "scope2_market_kgco2e", "embodied_kgco2e"): CARBON,
}


def document_at(target: Path | BytesIO, title: str, author: str, subject: str) -> SimpleDocTemplate:
    """Returns an empty document on A4 whose bytes do not depend on when it is written."""
    return SimpleDocTemplate(
        str(target) if isinstance(target, Path) else target,
        pagesize=A4,
        leftMargin=MARGIN,
        rightMargin=MARGIN,
        topMargin=16 * mm,
        bottomMargin=18 * mm,
        title=title,
        author=author,
        subject=subject,
        invariant=1,
    )


def facts_table(facts: Iterable[tuple[str, str]]) -> Table:
    """Returns names with their words beside them, close together."""
    table = Table(
        [[Paragraph(name, SMALL), Paragraph(safe(value), BODY)] for name, value in facts],
        colWidths=[28 * mm, WIDTH - 28 * mm],
    )
    tight = [
        ("LEFTPADDING", (0, 0), (-1, -1), 0),
        ("TOPPADDING", (0, 0), (-1, -1), 0),
        ("BOTTOMPADDING", (0, 0), (-1, -1), 1),
    ]
    table.setStyle(TableStyle(tight))
    return table


def signatures() -> Any:
    """Returns the place where those who prepared and checked it sign."""
    rule = "_" * 34
    table = Table(
        [
            [Paragraph("Prepared by", SMALL), Paragraph("Checked and signed by", SMALL)],
            [Paragraph(rule, BODY), Paragraph(rule, BODY)],
            [Paragraph("name, date", SMALL), Paragraph("name, date", SMALL)],
        ],
        colWidths=[WIDTH / 2] * 2,
        rowHeights=[5 * mm, 12 * mm, 5 * mm],
    )
    table.setStyle(TableStyle([("LEFTPADDING", (0, 0), (-1, -1), 0), ("VALIGN", (0, 0), (-1, -1), "BOTTOM")]))
    return KeepTogether([Spacer(1, 8 * mm), table])


def column_scales(cells: Callable[[str], Iterable[Cell]]) -> dict[str, Scale]:
    """Returns the unit of each column that has one to choose, by the cells of a column."""
    found: dict[str, Scale] = {}
    for names, scales in SCALED.items():
        found |= dict.fromkeys(names, scale_for(scales, [cell for name in names for cell in cells(name)]))
    return found


def foot(canvas: Any, document: Any, words: str, warnings: Sequence[str]) -> None:
    """Writes whose page it is, its number, and warnings across it."""
    _watermark(canvas, warnings)
    canvas.saveState()
    canvas.setFont("Helvetica", 7)
    canvas.setFillColor(MUTED)
    canvas.drawString(MARGIN + FRAME, 10 * mm, plain(words))
    canvas.drawRightString(A4[0] - MARGIN - FRAME, 10 * mm, f"page {document.page}")
    canvas.restoreState()


def _watermark(canvas: Any, words: Sequence[str]) -> None:
    """Writes warnings across a page, so light that what stands there can be read; nothing where there are none."""
    if not words:
        return
    canvas.saveState()
    canvas.setFont("Helvetica-Bold", 34)
    canvas.setFillColor(Color(0.75, 0.1, 0.1, alpha=0.13))
    canvas.translate(A4[0] / 2, A4[1] / 2)
    canvas.rotate(52)
    canvas.drawCentredString(0, 0, ", ".join(words).upper())
    canvas.restoreState()


def plain(text: str) -> str:
    """Keeps the letters that the document's built-in fonts have; others become a question mark."""
    return text.encode("cp1252", "replace").decode("cp1252")


def safe(text: str) -> str:
    return escape(plain(text))


def chemistry(text: str) -> str:
    return text.replace("CO2e", "CO<sub>2</sub>e")

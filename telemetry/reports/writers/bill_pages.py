"""The bill and the report's inputs as parts of a document: who bears what, subtotals, totals, and what they rest on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from reportlab.lib.enums import TA_RIGHT
from reportlab.lib.styles import ParagraphStyle
from reportlab.platypus import KeepTogether, Paragraph, Spacer, Table, TableStyle

from telemetry.report_values.bill import BASIS_WORDS, PART_WORDS, Bill
from telemetry.report_values.bill_table import (
    CELLS,
    DEMAND_WORDS,
    BillRow,
    by_currency,
    by_tenant,
    subtotal,
)
from telemetry.report_values.statement import Statement
from telemetry.report_values.unit_scale import PLAIN, Scale

from .styles import BODY, CELL, HEAD, MUTED, ROWS_STYLE, SECTION, SMALL, WIDTH, chemistry, column_scales, safe

NUMBER = ParagraphStyle("bill-number", parent=CELL, alignment=TA_RIGHT)
HEAD_NUMBER = ParagraphStyle("bill-head-number", parent=HEAD, alignment=TA_RIGHT)
SHOWN = (  # column, its head, places
    ("energy_kwh", "Energy<br/>{unit}", 2),
    ("scope2_location_kgco2e", "Location<br/>{unit}", 2),
    ("scope2_market_kgco2e", "Market<br/>{unit}", 2),
    ("embodied_kgco2e", "Embodied<br/>{unit}", 2),
    ("electricity_cost", "Electricity", 2),
    ("gpu_hour_cost", "GPU-hours", 2),
    ("demand_charge", "Demand", 2),
    ("due", "Due", 2),
)
NAME_WIDTH = 0.24  # of the page's
INPUT_WIDTHS = (0.14, 0.1, 0.25, 0.3, 0.21)


def bill_pages(statement: Statement) -> list[Any]:
    """Returns the parts of a report's document that a bill adds; none where there is no bill."""
    bill = statement.bill
    if bill is None:
        return []
    return [
        KeepTogether(
            [
                Paragraph("The bill", SECTION),
                Paragraph(f"{BASIS_WORDS[bill.basis]} Electricity stands apart from GPU-hours; due is both.", BODY),
                Spacer(1, 4),
                _table("By tenant", by_tenant(bill), by_currency(bill)),
            ]
        ),
        Spacer(1, 8),
        _table("By part", _by_part(bill), by_currency(bill)),
        *input_pages(statement),
        Paragraph(f"Signature over figures and inputs, SHA-256: {statement.signature}", SMALL),
    ]


def input_pages(statement: Statement, sites: Sequence[str] | None = None) -> list[Any]:
    """Returns the table of inputs; with `sites` of these alone, and of what holds at every site."""
    head = [Paragraph(name, HEAD) for name in ("Input", "Site", "Value", "Source and version", "Valid; used for")]
    rows = [head]
    for one in statement.inputs():
        if sites is not None and one.site and one.site not in sites:
            continue
        used = statement.span_words(one.used_from_s, one.used_to_s)
        valid = statement.span_words(one.valid_from_s, one.valid_to_s)
        words = "; used ".join(part for part in (valid or "always", used) if part)
        source = f"{one.source}, {one.version}" if one.version else one.source
        value = f"{one.value}; {one.quality}" if one.quality else one.value
        cells = (one.kind, statement.site_label(one.site), value, source, words)
        rows.append([Paragraph(chemistry(safe(text)), CELL) for text in cells])
    table = Table(rows, colWidths=[WIDTH * part for part in INPUT_WIDTHS], repeatRows=1)
    table.setStyle(TableStyle(ROWS_STYLE))
    return [Paragraph("Inputs", SECTION), table, Spacer(1, 6)]


def _by_part(bill: Bill) -> list[BillRow]:
    found = []
    for currency in bill.currencies:
        own = bill.in_currency(currency)
        for part in own.by_part():
            lines = Bill(bill.basis, tuple(line for line in own.lines if line.part == part), ())
            found.append(subtotal((PART_WORDS[part], currency), lines, currency))
        if own.demand:
            found.append(subtotal((DEMAND_WORDS, currency), Bill(bill.basis, (), own.demand), currency))
    return found


def _table(title: str, rows: Sequence[BillRow], totals: Sequence[BillRow]) -> Table:
    scales = column_scales(lambda name: [CELLS[name](row) for row in (*rows, *totals)])
    heads = [head.format(unit=chemistry(scales.get(name, PLAIN).unit)) for name, head, _ in SHOWN]
    grid = [[Paragraph(title, HEAD), *(Paragraph(head, HEAD_NUMBER) for head in heads)]]
    for row in [*rows, *totals]:
        name, currency = row.names
        bold = row in totals
        texts = [_shown(row, column, places, scales) for column, _, places in SHOWN]
        texts[-1] = f"{texts[-1]} {currency}"
        cells = [safe(name), *map(safe, texts)]
        marked = [f"<b>{text}</b>" if bold else text for text in cells]
        grid.append([Paragraph(marked[0], CELL), *(Paragraph(text, NUMBER) for text in marked[1:])])
    rest = (1 - NAME_WIDTH) / (len(SHOWN) + 0.4)
    widths = [NAME_WIDTH, *[rest] * (len(SHOWN) - 1), rest * 1.4]
    table = Table(grid, colWidths=[WIDTH * width for width in widths], repeatRows=1)
    rule = ("LINEABOVE", (0, len(rows) + 1), (-1, len(rows) + 1), 0.6, MUTED)
    table.setStyle(TableStyle([*ROWS_STYLE, rule]))
    return table


def _shown(row: BillRow, name: str, places: int, scales: dict[str, Scale]) -> str:
    return scales.get(name, PLAIN).cell(CELLS[name](row), places)

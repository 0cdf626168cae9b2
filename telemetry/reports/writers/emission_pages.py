"""Scope 2 as a part of a document: location-based and market-based side by side, and what contracts cover."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from reportlab.lib.enums import TA_RIGHT
from reportlab.lib.styles import ParagraphStyle
from reportlab.platypus import KeepTogether, Paragraph, Spacer, Table, TableStyle

from telemetry.report_values.market import HOURLY
from telemetry.report_values.scope2_table import SCOPE2_CELLS, TOTAL, site_rows
from telemetry.report_values.statement import Statement
from telemetry.report_values.table import Cell
from telemetry.report_values.unit_scale import CARBON, ENERGY, PLAIN, UNKNOWN, Scale, scale_for, written

from .styles import BODY, CELL, HEAD, ROWS_STYLE, SECTION, SMALL, WIDTH, chemistry, safe

NUMBER = ParagraphStyle("emission-number", parent=CELL, alignment=TA_RIGHT)
HEAD_NUMBER = ParagraphStyle("emission-head-number", parent=HEAD, alignment=TA_RIGHT)
SHOWN = (  # column, its head
    ("facility_kwh", "At the site's<br/>meter, {unit}"),
    ("location_kgco2e", "Location-<br/>based, {unit}"),
    ("market_hourly_kgco2e", "Market, by<br/>the hour, {unit}"),
    ("market_period_kgco2e", "Market, over the<br/>period, {unit}"),
    ("matched_hourly_share", "Matched by<br/>the hour, %"),
    ("matched_period_share", "Matched over<br/>the period, %"),
    ("carbon_free_share", "24/7 carbon-<br/>free, %"),
    ("without_contract_hourly_kwh", "Without<br/>contract, {unit}"),
)
NAME_WIDTH = 0.16
WAYS = {
    HOURLY: "The rows of this report go by hourly matching; matching over the period stands beside it to compare.",
    "period": "The rows of this report go by matching over the period; hourly matching stands beside it to compare.",
}


def scope2_pages(statement: Statement) -> list[Any]:
    """Returns the table by site; the hours are in the CSV."""
    rows = list(site_rows(statement.scope2))
    scales = _scales({name: [SCOPE2_CELLS[name](sums) for _, sums in rows] for name, _ in SHOWN})
    heads = [chemistry(head.format(unit=scales[name].unit)) for name, head in SHOWN]
    grid = [[Paragraph("Site", HEAD), *(Paragraph(head, HEAD_NUMBER) for head in heads)]]
    for site, sums in rows:
        label = safe(site if site == TOTAL else statement.site_label(site))
        texts = [safe(_shown(name, SCOPE2_CELLS[name](sums), scales)) for name, _ in SHOWN]
        marked = [f"<b>{text}</b>" if site == TOTAL else text for text in (label, *texts)]
        grid.append([Paragraph(marked[0], CELL), *(Paragraph(text, NUMBER) for text in marked[1:])])
    rest = (1 - NAME_WIDTH) / len(SHOWN)
    table = Table(grid, colWidths=[WIDTH * part for part in (NAME_WIDTH, *[rest] * len(SHOWN))], repeatRows=1)
    table.setStyle(TableStyle(ROWS_STYLE))
    words = (
        "Matched is what purchase agreements and certificates cover; 24/7 carbon-free is the part of it whose declared "
        "source burns nothing. A dash is not known: a part has no intensity, or neither contract nor residual mix."
    )
    parts = [Paragraph("Scope 2", SECTION), Paragraph(WAYS[statement.scope2.matching], BODY), Spacer(1, 4)]
    return [KeepTogether([*parts, table, Paragraph(words, SMALL)])]


def _scales(columns: Mapping[str, Sequence[Cell]]) -> dict[str, Scale]:
    """Returns one unit for all energies and one for all emissions, so that columns can be compared."""
    found = dict.fromkeys(columns, PLAIN)
    for ending, scales in (("_kwh", ENERGY), ("_kgco2e", CARBON)):
        own = [name for name in columns if name.endswith(ending)]
        found |= dict.fromkeys(own, scale_for(scales, [cell for name in own for cell in columns[name]]))
    return found


def _shown(name: str, cell: Cell, scales: Mapping[str, Scale]) -> str:
    if name.endswith("_share"):
        return UNKNOWN if cell is None else written(float(cell) * 100, 1)
    return scales[name].cell(cell, 2)

"""The report as a document for people: figures, charts, rows, method, and a place to sign. Same input, same bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from reportlab.lib.enums import TA_RIGHT
from reportlab.lib.styles import ParagraphStyle
from reportlab.lib.units import mm
from reportlab.pdfbase.pdfmetrics import stringWidth
from reportlab.platypus import Paragraph, Spacer, Table, TableStyle

from telemetry.report_values.day_charts import day_charts
from telemetry.report_values.statement import Statement
from telemetry.report_values.table import COLUMNS, Cell
from telemetry.report_values.totals import Group
from telemetry.report_values.unit_scale import ENERGY, PLAIN, UNKNOWN, Scale, scale_for, written

from . import drawing, styles
from .bill_pages import bill_pages
from .emission_pages import scope2_pages
from .esrs_pages import esrs_pages
from .styles import BODY, CELL, FIGURE, HEAD, ROWS_STYLE, RULE, SECTION, SMALL, TITLE, WIDTH, chemistry, plain, safe

MOST_LABEL = 110.0  # points of a name's column; longer names wrap
CELL_MARGINS = 5.0
MOST_ROWS = 200  # of the table; all are in the CSV and the workbook
SHOWN = (  # column, its head, places
    ("energy_kwh", "Energy<br/>{unit}", 1),
    ("idle_share", "Idle<br/>%", 1),
    ("scope2_location_kgco2e", "Location<br/>{unit}", 2),
    ("scope2_market_kgco2e", "Market<br/>{unit}", 2),
    ("embodied_kgco2e", "Embodied<br/>{unit}", 2),
    ("cost", "Cost", 2),
    ("output_tokens", "Output<br/>tokens", 0),
    ("j_per_output_token", "J per<br/>token", 2),
    ("g_per_1k_output_tokens", "g per 1k<br/>tokens", 2),
    ("slo_attainment", "SLO<br/>%", 1),
)
PERCENT = ("idle_share", "slo_attainment")


def write_document(statement: Statement, target: Path) -> None:
    made = datetime.fromtimestamp(statement.basis.made_s, UTC)
    subject = f"Version {statement.basis.version}, made {made:%Y-%m-%d}"
    document = styles.document_at(target, statement.title, statement.basis.organisation, subject)
    words = f"{statement.basis.organisation}, {statement.title}, version {statement.basis.version}"
    warnings = () if statement.bill is None else statement.warnings
    foot = partial(styles.foot, words=words, warnings=warnings)
    document.build(
        [
            *_head(statement),
            *_charts(statement),
            *_rows(statement),
            *scope2_pages(statement),
            *bill_pages(statement),
            *_notes(statement),
            *esrs_pages(statement),
            styles.signatures(),
        ],
        onFirstPage=foot,
        onLaterPages=foot,
    )


# -- the first page --------------------------------------------------------------------------------


def _head(statement: Statement) -> list[Any]:
    facts = styles.facts_table(statement.facts)
    parts = [Paragraph(safe(statement.title), TITLE), Spacer(1, 2 * mm), facts, Spacer(1, 4 * mm)]
    cards: list[Any] = list(_cards(statement))
    across = 4
    grid = [cards[i : i + across] for i in range(0, len(cards), across)]
    grid[-1] += [""] * (across - len(grid[-1]))
    table = Table(grid, colWidths=[WIDTH / across] * across)
    table.setStyle(
        TableStyle(
            [
                ("BOX", (0, 0), (-1, -1), 0.5, RULE),
                ("INNERGRID", (0, 0), (-1, -1), 0.5, RULE),
                ("VALIGN", (0, 0), (-1, -1), "TOP"),
            ]
        )
    )
    return [*parts, table]


def _cards(statement: Statement) -> list[list[Paragraph]]:
    """Returns the figures that a reader looks for first. What is not known is a dash, and the notes say why."""
    total = Group((), None, statement.total, True)
    cells = {column.name: column.cell(total) for column in COLUMNS}
    scales = _scales([total])
    figures = (
        ("Energy at the GPUs", "energy_kwh", 1),
        ("Scope 2, location-based", "scope2_location_kgco2e", 2),
        ("Scope 2, market-based", "scope2_market_kgco2e", 2),
        ("Embodied", "embodied_kgco2e", 2),
    )
    cards = [
        _card(words, scales[name].cell(cells[name], places), chemistry(scales[name].unit))
        for words, name, places in figures
    ]
    for currency, totals in statement.totals_by_currency.items():
        if currency is not None:
            cost = _CELL["cost"](Group((), currency, totals, True))
            cards.append(_card("Cost", PLAIN.cell(cost, 2), currency))
    for currency, charge_nano in statement.demand_by_currency.items():
        cards.append(_card("Demand charges, besides", written(charge_nano / 1e9, 2), currency))
    cards += [_card(words, figure, currency) for words, figure, currency in _combined(statement)]
    cards += [
        _card("Output tokens", PLAIN.cell(cells["output_tokens"], 0), ""),
        _card("Energy per output token", PLAIN.cell(cells["j_per_output_token"], 2), "J"),
        _card("SLO attainment", _percent(cells["slo_attainment"]), "%"),
        _card("Idle share of energy", _percent(cells["idle_share"]), "%"),
    ]
    baseline = statement.basis.baseline
    if baseline is not None:
        saved = (baseline.energy_uj - statement.total.energy_uj) / 3.6e12
        scale = scale_for(ENERGY, [saved])
        name = f"Saved against {baseline.policy} (modelled)"
        cards.append(_card(name, written(saved / scale.size, 1), scale.unit))
    return cards


def _combined(statement: Statement) -> Iterator[tuple[str, str, str]]:
    """Yields one figure of all that is due where a demand charge stands beside the rows' cost."""
    if statement.bill is not None:
        for currency in sorted({charge.currency for charge in statement.basis.demand}):
            due_nano = statement.bill.due(currency).total_nano
            yield "Due with demand charges", UNKNOWN if due_nano is None else written(due_nano / 1e9, 2), currency


def _scales(groups: Sequence[Group]) -> dict[str, Scale]:
    return styles.column_scales(lambda name: [_CELL[name](group) for group in groups])


def _card(name: str, figure: str, unit: str) -> list[Paragraph]:
    return [Paragraph(name, SMALL), Paragraph(f'{escape(figure)} <font size="8" color="#5b626b">{unit}</font>', FIGURE)]


def _charts(statement: Statement) -> list[Any]:
    charts = day_charts(statement.days, statement.sites())
    if not charts:
        return []
    words = f"Days of {escape(statement.period.zone)}. A hollow mark: the day's figure is not known in full."
    return [
        Spacer(1, 5 * mm),
        drawing.bars(charts["energy"], WIDTH, 52 * mm),
        Spacer(1, 3 * mm),
        drawing.bars(charts["carbon"], WIDTH, 52 * mm),
        Paragraph(words, SMALL),
    ]


# -- rows, notes -----------------------------------------------------------------------------------


def _rows(statement: Statement) -> list[Any]:
    """Returns the table of rows. Its letters are as large as its widest numbers let them be."""
    by, groups = statement.request.by, statement.rows[:MOST_ROWS]
    labels = [[plain(label) for label in statement.labels(group)] for group in groups]
    scales = _scales(groups)
    heads = [head.format(unit=scales.get(name, PLAIN).unit) for name, head, _ in SHOWN]
    numbers = [[_shown(group, name, places, scales) for name, _, places in SHOWN] for group in groups]
    widths = [
        min(MOST_LABEL, _widest([name, *column])) for name, column in zip(by, _columns(labels, len(by)), strict=True)
    ]
    for head, column in zip(heads, _columns(numbers, len(SHOWN)), strict=True):
        widths.append(_widest([*head.split("<br/>"), *column]))
    fit = WIDTH / sum(widths)
    size = CELL.fontSize * min(1.0, fit)
    cell = ParagraphStyle("fitted", parent=CELL, fontSize=size, leading=size * 1.27)
    number = ParagraphStyle("fitted-number", parent=cell, alignment=TA_RIGHT)
    head_style = ParagraphStyle("fitted-head", parent=HEAD, fontSize=size * 0.93, leading=size * 1.15)
    head_number = ParagraphStyle("fitted-head-number", parent=head_style, alignment=TA_RIGHT)
    table = [[Paragraph(name, head_style) for name in by] + [Paragraph(head, head_number) for head in heads]]
    for names, figures in zip(labels, numbers, strict=True):
        table.append(
            [Paragraph(escape(name), cell) for name in names] + [Paragraph(escape(text), number) for text in figures]
        )
    grid = Table(table, colWidths=[width * fit for width in widths], repeatRows=1)
    grid.setStyle(TableStyle(ROWS_STYLE))
    parts = [Paragraph(f"By {', '.join(by) or 'nothing: all in one row'}", SECTION), Spacer(1, 1 * mm), grid]
    if len(statement.rows) > MOST_ROWS:
        parts.append(Paragraph(f"{len(statement.rows) - MOST_ROWS} more rows are in the CSV and the workbook.", SMALL))
    return parts


def _columns(rows: Sequence[Sequence[str]], count: int) -> list[list[str]]:
    return [[row[i] for row in rows] for i in range(count)]


def _widest(texts: Sequence[str]) -> float:
    """Returns the widest text's width in points, with the cell's margins."""
    return float(max(stringWidth(text, CELL.fontName, CELL.fontSize) for text in texts)) + CELL_MARGINS


def _notes(statement: Statement) -> list[Any]:
    notes = [Paragraph(f"\u2022 {chemistry(safe(note))}", BODY) for note in statement.notes]
    return [Paragraph("How it was counted, and what is not known", SECTION), *notes]


# -- words -----------------------------------------------------------------------------------------

_CELL = {column.name: column.cell for column in COLUMNS}


def _shown(group: Group, name: str, places: int, scales: Mapping[str, Scale]) -> str:
    cell = _CELL[name](group)
    if name in PERCENT:
        return _percent(cell)
    text = scales.get(name, PLAIN).cell(cell, places)
    return f"{text} {group.currency}" if name == "cost" and cell is not None and group.currency else text


def _percent(cell: Cell) -> str:
    return UNKNOWN if cell is None else written(float(cell) * 100, 1)

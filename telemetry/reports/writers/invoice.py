"""Invoices as documents: one for each tenant that bears anything. Same input, same bytes."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from reportlab.lib.enums import TA_RIGHT
from reportlab.lib.styles import ParagraphStyle
from reportlab.lib.units import mm
from reportlab.platypus import KeepTogether, Paragraph, Spacer, Table, TableStyle

from telemetry.report_values.bill import BASIS_WORDS, Bill
from telemetry.report_values.bill_table import CELLS, subtotal
from telemetry.report_values.invoice import GROUPS, Invoice, invoices
from telemetry.report_values.statement import Statement
from telemetry.report_values.unit_scale import CARBON, ENERGY, UNKNOWN, scale_for, written

from . import styles
from .bill_pages import input_pages
from .styles import BODY, CELL, FIGURE, HEAD, MUTED, ROWS_STYLE, SECTION, SMALL, TITLE, WIDTH, chemistry, safe

NUMBER = ParagraphStyle("invoice-number", parent=CELL, alignment=TA_RIGHT)
HEAD_NUMBER = ParagraphStyle("invoice-head-number", parent=HEAD, alignment=TA_RIGHT)
DUE = ParagraphStyle("invoice-due", parent=FIGURE, alignment=TA_RIGHT)
WIDTHS = (0.46, 0.14, 0.1, 0.15, 0.15)
EMITTED = (
    ("Energy at the GPUs", "energy_kwh", ENERGY, "metered"),
    ("Scope 2, location-based", "scope2_location_kgco2e", CARBON, "average grid intensity"),
    ("Scope 2, market-based", "scope2_market_kgco2e", CARBON, "contracts"),
    ("Embodied", "embodied_kgco2e", CARBON, "SCI 1.1, modelled from factors"),
)


def write_invoices(statement: Statement, folder: Path, stem: str) -> Iterator[tuple[str, Path]]:
    """Writes a file for each tenant of the bill, and yields its format's name and its path."""
    if statement.bill is None:
        raise ValueError("an invoice needs a bill: ask for a basis")
    for tenant in statement.bill.tenants:
        if tenant is not None:
            target = folder / f"{stem}.invoice-{quote(tenant, safe='')}.pdf"  # a slug stays as it is
            write_invoice(statement, statement.bill, tenant, target)
            yield f"invoice-{tenant}", target


def write_invoice(statement: Statement, bill: Bill, tenant: str, target: Path) -> None:
    basis = statement.basis
    label = next((label for name, label in basis.tenants.values() if name == tenant), tenant)
    number = f"{basis.version}-{tenant}"
    title, subject = f"Invoice {number}", f"{label}, {statement.period.words}"
    document = styles.document_at(target, title, basis.organisation, subject)
    own = bill.of(tenant)
    sites = sorted({line.site for line in own.lines} | {share.site for share in own.demand})
    parts = [*_head(statement, label, number)]
    for invoice in invoices(bill, tenant, {name: site.label for name, site in basis.sites.items()}):
        parts += _lines(invoice)
    parts += [*_emitted(own), *_method(statement, bill), *input_pages(statement, sites)]
    parts.append(Paragraph(f"Signature over figures and inputs, SHA-256: {statement.signature}", SMALL))
    words = f"{basis.organisation}, invoice {number}"
    foot = partial(styles.foot, words=words, warnings=statement.warnings)
    document.build(parts, onFirstPage=foot, onLaterPages=foot)


def _head(statement: Statement, label: str, number: str) -> list[Any]:
    basis, period = statement.basis, statement.period
    facts = [
        ("Issuer", basis.organisation),
        ("Billed to", label),
        ("Number", f"{number}{f', replaces revision {basis.revision - 1}' if basis.revision > 1 else ''}"),
        ("Date", f"{datetime.fromtimestamp(basis.made_s, UTC):%Y-%m-%d}"),
        ("Period", f"{statement.moment(period.start_s)} to {statement.moment(period.end_s)} (exclusive)"),
        *((("Note", ", ".join(statement.warnings)),) if statement.warnings else ()),
    ]
    title = f"Invoice, {period.words}"
    return [Paragraph(safe(title), TITLE), Spacer(1, 3 * mm), styles.facts_table(facts), Spacer(1, 5 * mm)]


def _lines(invoice: Invoice) -> list[Any]:
    """Returns the table of lines with a subtotal for each group, and the total due."""
    heads = ("Quantity", "Unit", f"Unit price, {invoice.currency}", f"Amount, {invoice.currency}")
    rows: list[list[Any]] = [[Paragraph("Item", HEAD), *(Paragraph(head, HEAD_NUMBER) for head in heads)]]
    rules = []
    for group in GROUPS:
        lines = invoice.of(group)
        for line in lines:
            price = UNKNOWN if line.unit_price is None else written(float(line.unit_price), 4)
            texts = (written(float(line.quantity), 3), line.unit, price, _amount(line.hundredths))
            words = f"{group}, {line.words}"
            rows.append([Paragraph(safe(words), CELL), *(Paragraph(safe(text), NUMBER) for text in texts)])
        if lines:
            rules.append(("LINEABOVE", (0, len(rows)), (-1, len(rows)), 0.6, MUTED))
            amount = Paragraph(f"<b>{_amount(invoice.subtotal(group))}</b>", NUMBER)
            rows.append(
                [Paragraph(f"<b>Subtotal, {group.lower()}</b>".replace("gpu", "GPU"), CELL), "", "", "", amount]
            )
    table = Table(rows, colWidths=[WIDTH * part for part in WIDTHS], repeatRows=1)
    table.setStyle(TableStyle([*ROWS_STYLE, *rules]))
    total = invoice.total
    words = "Due: not known, since a line is not" if total is None else f"Due: {_amount(total)} {invoice.currency}"
    return [table, Spacer(1, 3 * mm), KeepTogether([Paragraph(words, DUE), Spacer(1, 4 * mm)])]


def _emitted(own: Bill) -> list[Any]:
    row = subtotal(("", ""), Bill(own.basis, own.lines, ()), "")
    cells = [[Paragraph(head, HEAD) for head in ("Used and emitted", "Amount", "Where it comes from")]]
    for words, name, scales, source in EMITTED:
        cell = CELLS[name](row)
        scale = scale_for(scales, [cell])
        amount = f"{scale.cell(cell, 3)} {scale.unit}"
        cells.append([Paragraph(words, CELL), Paragraph(chemistry(safe(amount)), CELL), Paragraph(source, CELL)])
    tokens = written(row.totals.output_tokens, 0)
    cells.append([Paragraph("Output tokens", CELL), Paragraph(tokens, CELL), Paragraph("counted by engines", CELL)])
    table = Table(cells, colWidths=[WIDTH * 0.34, WIDTH * 0.26, WIDTH * 0.4])
    table.setStyle(TableStyle(ROWS_STYLE))
    return [KeepTogether([Paragraph("Energy and emissions, shared parts included", SECTION), table])]


def _method(statement: Statement, bill: Bill) -> list[Any]:
    notes = [
        f"{BASIS_WORDS[bill.basis]} The lines of all tenants and the operator's add up to the meters and the money.",
        "Electricity is billed for each kWh at the GPUs; its unit price has the site's PUE in it. Unit prices are "
        "means of the period. Amounts are rounded so that the printed lines add up to what is due.",
        f"It is drawn from report {statement.basis.version}. A figure that is not known is a dash; it is never zero.",
    ]
    return [
        Paragraph("How it was worked out", SECTION),
        *(Paragraph(f"\u2022 {safe(note)}", BODY) for note in notes),
    ]


def _amount(hundredths: int | None) -> str:
    return UNKNOWN if hundredths is None else written(hundredths / 100, 2)

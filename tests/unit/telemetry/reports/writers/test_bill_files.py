"""A report's bill as files: subtotals over lines, invoices that add up on paper, and a signature over all of it."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import openpyxl
import pytest

from telemetry.report_values.basis import WRITERS, Basis, DemandCharge
from telemetry.report_values.bill import BASES, OPERATOR
from telemetry.report_values.inputs import PUE, ReportInput, ReportInputs, SyntheticSpan
from telemetry.report_values.invoice import GROUPS, invoices
from telemetry.report_values.report_request import ReportRequest
from telemetry.reports.writers.files import make_files
from tests.fakes import reports as fake

REQUEST = ReportRequest("2026-10-05", by=("tenant",), formats=("bill-csv", "xlsx", "pdf", "invoices"), basis="usage")
LINES = tuple(fake.lines(REQUEST, hours=5))
SPAN = REQUEST.span()
CHARGE = DemandCharge(
    "location-1", "2026-10", SPAN.start_s, SPAN.end_s, 41_200.0, 499_999_999_999, "USD", (("acme", 2), ("birch", 1))
)
INPUTS = ReportInputs(
    (ReportInput(PUE, "location-1", "1.2", "the utility", "2026-09", SPAN.start_s, SPAN.end_s),),
    {fake.SERVICE: {"acme": "2", "nobody-else": "0.5"}},
)
BASIS = fake.basis(REQUEST, LINES, demand=(CHARGE,), inputs=INPUTS, writers=WRITERS)


def make(folder: Path, found=LINES, basis: Basis = BASIS, request: ReportRequest = REQUEST):
    folder.mkdir(exist_ok=True)
    statement, files = make_files(request, basis, fake.blocks(found), folder)
    return statement, {file.format: folder / file.name for file in files}


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """The usual one: for tests that read it."""
    return make(tmp_path_factory.mktemp("report"))


def lines_of(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("basis", BASES)
def test_lines_of_a_bill_add_up_to_the_report_when_they_are_read_back(tmp_path, basis):
    statement, paths = make(tmp_path, request=replace(REQUEST, formats=("bill-csv",), basis=basis))
    found = json.loads(paths["reconciliation"].read_text())
    assert (found["adds_up"], found["bill"]["left_over"]) == (True, {})
    rows = lines_of(paths["bill-csv"])
    assert sum(Decimal(row["energy_j"]) for row in rows) * 10**6 == statement.total.energy_uj
    for currency, totals in statement.totals_by_currency.items():
        own = [row for row in rows if row["currency"] == currency]
        charge = Decimal(CHARGE.charge_nano if currency == "USD" else 0)
        assert sum(Decimal(row["due"]) for row in own) * 10**9 == totals.cost_nano + charge
        assert sum(Decimal(row["electricity_cost"]) for row in own) * 10**9 == totals.electricity_nano
    assert any(row["tenant"] == OPERATOR for row in rows) == (basis == "marginal")


def test_bill_that_does_not_add_up_is_said_not_to(report):
    statement, _ = report
    short = replace(statement.bill, lines=statement.bill.lines[1:])
    missing = short.left_over(statement.total, CHARGE.charge_nano + 7)
    assert missing["energy_uj"] == statement.bill.lines[0].totals.energy_uj
    assert missing["demand_nano"] == 7


def test_subtotals_and_totals_of_the_workbook_are_sums_of_its_lines(report):
    _, paths = report
    values, formulas = (openpyxl.load_workbook(paths["xlsx"], data_only=only) for only in (True, False))
    heads, *rows = values["Bill lines"].values
    lines = [dict(zip(heads, row, strict=True)) for row in rows]
    grid = [row for row in values["Bill"].values if row[1]]
    names, *sums = grid
    assert [row[0] for row in sums] == [name for name in fake.TENANTS for _ in range(2)] + ["total", "total"]
    for row in sums:
        own = [one for one in lines if one["currency"] == row[1] and row[0] in (one["tenant"], "total")]
        for name, value in zip(names[2:], row[2:], strict=True):
            assert value == pytest.approx(sum(one[name] for one in own), rel=1e-9), (row[0], name)
    texts = [cell for row in formulas["Bill"].values for cell in row if str(cell).startswith("=")]
    assert len(texts) == len(sums) * (len(names) - 2)
    assert all("'Bill lines'!" in text for text in texts)


def test_figure_is_empty_and_not_zero_when_a_part_is_not_known(tmp_path):
    at = next(i for i, line in enumerate(LINES) if line.kind == "idle" and line.site == "location-1")
    idle = replace(LINES[at], electricity_missing_uj=1_000, location_missing_uj=LINES[at].energy_uj)
    found = [*LINES[:at], idle, *LINES[at + 1 :]]
    statement, paths = make(tmp_path, found, request=replace(REQUEST, formats=("bill-csv", "xlsx")))
    rows = [row for row in lines_of(paths["bill-csv"]) if row["site"] == "location-1" and "shared idle" in row["part"]]
    assert {(row["electricity_cost"], row["due"], row["scope2_location_kgco2e"]) for row in rows} == {("", "", "")}
    grid = [row for row in openpyxl.load_workbook(paths["xlsx"], data_only=True)["Bill"].values if row[1] == "USD"]
    assert {row[-1] for row in grid} == {"unknown"}
    (usd,) = (one for one in invoices(statement.bill, "acme", {}) if one.currency == "USD")
    assert (usd.total, usd.subtotal("GPU-hours") is None) == (None, False)


@pytest.mark.parametrize("basis", BASES)
def test_printed_lines_of_an_invoice_add_up_to_what_is_due(tmp_path, basis):
    statement, _ = make(tmp_path, request=replace(REQUEST, formats=("bill-csv",), basis=basis))
    for tenant in fake.TENANTS:
        for invoice in invoices(statement.bill, tenant, {}):
            assert sum(line.hundredths for line in invoice.lines) == invoice.total
            assert sum(invoice.subtotal(group) for group in GROUPS) == invoice.total
            exact = statement.bill.of(tenant).due(invoice.currency).total_nano
            assert abs(invoice.total * 10_000_000 - exact) <= 5_000_000


def test_each_tenant_has_an_invoice_of_the_same_bytes_when_it_is_made_again(report, tmp_path):
    (_, one), (_, two) = report, make(tmp_path / "two")
    own = [kind for kind in one if kind.startswith("invoice-")]
    assert own == [f"invoice-{tenant}" for tenant in fake.TENANTS]
    assert [one[kind].read_bytes() for kind in own] == [two[kind].read_bytes() for kind in own]


def test_signature_changes_when_a_figure_or_an_input_does_and_not_with_the_writers(tmp_path):
    request = replace(REQUEST, formats=("bill-csv",))

    def signed(found=LINES, **changes):
        return make(tmp_path, found, replace(BASIS, **changes), request)[0].signature

    assert signed(writers=1) == signed()
    more = replace(LINES[0], rental_nano=LINES[0].rental_nano + 1)
    other = replace(INPUTS, rates=(replace(INPUTS.rates[0], source="somebody else"),))
    assert len({signed(), signed([more, *LINES[1:]]), signed(inputs=other)}) == 3


def test_inputs_stand_in_the_workbook_with_source_version_and_validity(report):
    _, paths = report
    heads, *rows = openpyxl.load_workbook(paths["xlsx"])["Inputs"].values
    first = dict(zip(heads, rows[0], strict=True))
    assert (first["input"], first["site"], first["value"], first["source"], first["version"]) == (
        *("PUE", "Ashburn", "1.2", "the utility", "2026-09"),
    )
    assert first["used in the period"] == "from 2026-10-05 UTC to 2026-10-06 UTC"
    assert {row[0] for row in rows} == {"PUE", "contract for electricity", "reserved shares"}


@pytest.mark.parametrize(
    ("changes", "warnings"),
    [
        ({}, []),
        ({"settled_until_s": SPAN.end_s - 300}, ["provisional"]),
        (
            {"inputs": ReportInputs(synthetic=(SyntheticSpan("berlin", SPAN.start_s, SPAN.end_s, 8, 10**9),))},
            ["contains synthetic data"],
        ),
    ],
)
def test_pages_have_a_watermark_when_figures_are_not_to_be_paid(tmp_path, monkeypatch, changes, warnings):
    drawn = []
    monkeypatch.setattr("telemetry.reports.writers.styles._watermark", lambda _, words: drawn.append(words))
    make(tmp_path, basis=replace(BASIS, **changes))
    assert drawn
    assert all(words == warnings for words in drawn)


def test_report_has_no_trace_of_a_bill_when_none_is_asked_for(tmp_path):
    statement, paths = make(tmp_path, request=replace(REQUEST, formats=("xlsx", "pdf"), basis="none"))
    assert (statement.bill, statement.signature) == (None, None)
    assert "bill" not in json.loads(paths["reconciliation"].read_text())
    assert openpyxl.load_workbook(paths["xlsx"]).sheetnames == [
        *("Summary", "Rows", "Days", "Meters", "Notes", "Scope 2", "ESRS E1")
    ]

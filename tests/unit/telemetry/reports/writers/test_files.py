"""A report's files: the same bytes from the same input, formulas that give our totals, sums that meet the meters."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import openpyxl
import polars
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.cells import original
from telemetry.report_values.basis import Baseline, Basis
from telemetry.report_values.bill import OPERATOR
from telemetry.report_values.errors import BadReport
from telemetry.report_values.report_request import FORMATS, ReportRequest
from telemetry.report_values.table import COLUMNS
from telemetry.reports.writers.files import make_files
from tests.fakes import reports as fake

REQUEST = ReportRequest("2026-10-05/2026-10-08", by=("site", "tenant"), formats=FORMATS, basis="usage")
LINES = tuple(fake.lines(REQUEST, hours=60))
BASIS = fake.basis(REQUEST, LINES)


def make(folder: Path, found=LINES, basis: Basis = BASIS, request: ReportRequest = REQUEST):
    folder.mkdir(exist_ok=True)
    statement, files = make_files(request, basis, fake.blocks(found), folder)
    return statement, {file.format: folder / file.name for file in files}, files


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """The usual one in every format: for tests that read it."""
    return make(tmp_path_factory.mktemp("report") / "one")


def test_bytes_are_the_same_when_files_are_made_again(report, tmp_path):
    _, one, first = report
    _, _, second = make(tmp_path / "two", basis=Basis.from_json(json.loads(json.dumps(BASIS.as_json()))))
    assert first == second
    for file in first:
        assert hashlib.sha256(one[file.format].read_bytes()).hexdigest() == file.sha256
        assert one[file.format].stat().st_size == file.size_bytes
    assert sorted(path.name for path in one["csv"].parent.iterdir()) == sorted(file.name for file in first)


def test_exports_add_up_to_the_meters_when_they_are_read_back(report):
    _, paths, _ = report
    found = json.loads(paths["reconciliation"].read_text())
    assert found["adds_up"] is True
    assert {export["file"].split(".", 2)[2]: export.get("adds_up") for export in found["exports"]} == {
        **dict.fromkeys(("focus.csv", "focus.parquet", "csv", "xlsx", "bill.csv", "scope2.csv"), True),
        **{f"invoice-{tenant}.pdf": None for tenant in fake.TENANTS},
        "esrs.csv": None,  # has a row for each datapoint; its lines add up to the sites' meters, not to the GPUs'
        "pdf": None,  # shows the same figures, but has no rows to add up
    }
    assert Decimal(found["total"]["meters_j"]) == Decimal(sum(line.energy_uj for line in LINES)) / 10**6


def test_difference_is_shown_when_lines_and_meters_disagree(tmp_path):
    short = replace(BASIS.meters[0], period_uj=BASIS.meters[0].period_uj - 5)
    _, paths, _ = make(tmp_path, basis=replace(BASIS, meters=(short, *BASIS.meters[1:])))
    found = json.loads(paths["reconciliation"].read_text())
    assert found["adds_up"] is False
    assert found["sites"][short.site]["difference_j"] == "0.000005"


def test_table_has_no_total_among_its_rows(report):
    statement, paths, _ = report
    with paths["csv"].open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(statement.rows) == 3 * 6
    assert sum(Decimal(row["energy_j"]) for row in rows) * 10**6 == statement.total.energy_uj
    assert {row["report_version"] for row in rows} == {"R12.1-L345"}


# -- the workbook ----------------------------------------------------------------------------------


class Sheet:
    """Evaluates the few forms of formula that the workbook has, from its other cells alone."""

    def __init__(self, path: Path) -> None:
        self.workbook = openpyxl.load_workbook(path)
        self.known: dict[str, object] = {}

    def value(self, reference: str) -> object:
        if reference not in self.known:
            cell = self.workbook["Summary"][reference].value
            self.known[reference] = self.evaluate(cell) if isinstance(cell, str) and cell.startswith("=") else cell
        return self.known[reference]

    def column(self, area: str) -> list[object]:
        sheet, span = area.split("!")
        return [cell.value for (cell,) in self.workbook[sheet][span.replace("$", "")]]

    def evaluate(self, formula: str) -> object:
        if match := re.fullmatch(r'=IF\(COUNT\((.+?)\)=(\d+),SUM\(\1\),"unknown"\)', formula):
            cells = [cell for cell in self.column(match[1]) if isinstance(cell, int | float)]
            return sum(map(Fraction, cells)) if len(cells) == int(match[2]) else "unknown"
        if match := re.fullmatch(
            r'=IF\(COUNTIFS\((.+?),"(\w+)",(.+?),"<>"\)=COUNTIF\(\1,"\2"\),SUMIFS\(\3,\1,"\2"\),"unknown"\)', formula
        ):
            pairs = zip(self.column(match[1]), self.column(match[3]), strict=True)
            own = [cell for currency, cell in pairs if currency == match[2]]
            return "unknown" if None in own else sum(map(Fraction, own))  # type: ignore[arg-type]
        match = re.fullmatch(
            r'=IF\(AND\(ISNUMBER\((\w+)\),ISNUMBER\((\w+)\),N\(\2\)>0(?:,(\w+)=0)?\),\1/\2(?:\*(\d+))?,"unknown"\)',
            formula,
        )
        assert match, formula
        over, under = self.value(match[1]), self.value(match[2])
        if not isinstance(over, Fraction) or not isinstance(under, Fraction) or under <= 0:
            return "unknown"
        if match[3] and self.value(match[3]) != 0:
            return "unknown"
        return over / under * int(match[4] or 1)


def summary(path: Path) -> dict[tuple[str, str], object]:
    """(figure, column) -> the formula's value."""
    sheet = Sheet(path)
    top = next(row[0].row for row in sheet.workbook["Summary"].iter_rows() if row[0].value == "total")
    heads = {cell.column_letter: cell.value for cell in sheet.workbook["Summary"][top][1:] if cell.value}
    found = {}
    for row in range(top + 1, top + 40):
        name = sheet.workbook["Summary"][f"A{row}"].value
        for letter, head in heads.items():
            cell = sheet.workbook["Summary"][f"{letter}{row}"].value
            if isinstance(cell, str) and cell.startswith("="):
                found[name, head] = sheet.value(f"{letter}{row}")
    return found


def assert_formulas_give(statement, path: Path) -> int:
    found = summary(path)
    words = {column.name.replace("_", " ").lower(): column for column in COLUMNS}
    for (name, head), value in found.items():
        cell = statement.total_cell(words[name.lower()], None if head == "all" else head)
        if cell is None:
            assert value == "unknown", (name, head)
        else:
            assert isinstance(value, Fraction)
            assert abs(value - Fraction(cell)) <= abs(Fraction(cell)) * Fraction(1, 10**9), (name, head)
    return len(found)


def test_formulas_give_our_totals_when_they_are_evaluated(report):
    statement, paths, _ = report
    assert assert_formulas_give(statement, paths["xlsx"]) > 50


def test_formula_says_unknown_when_a_row_is(tmp_path):
    found = [replace(LINES[0], location_missing_uj=3, rental_missing_us=1), *LINES[1:]]
    request = replace(REQUEST, formats=("xlsx",))
    statement, paths, _ = make(tmp_path, found, request=request)
    assert_formulas_give(statement, paths["xlsx"])
    assert summary(paths["xlsx"])["scope2 location kgCO2e", "all"] == "unknown"
    assert summary(paths["xlsx"])["scope2 location known kgCO2e", "all"] != "unknown"


def test_values_are_there_when_a_reader_does_not_calculate(report):
    statement, paths, _ = report
    sheet = openpyxl.load_workbook(paths["xlsx"], data_only=True)["Summary"]
    cells = {row[0].value: row[1].value for row in sheet.iter_rows()}
    assert cells["energy kWh"] == pytest.approx(statement.total.energy_uj / 3.6e12)


# -- names -----------------------------------------------------------------------------------------

ANY_NAME = st.one_of(
    st.sampled_from(['=HYPERLINK("http://x","y")', "+1", "-1", "@x", "\t=1", " =1", "\uff1d1", "'=1", "\ufeff=1"]),
    st.text("'=+-@ \t\r\n\uff1da,\";<&", min_size=1, max_size=8),
)


@given(name=ANY_NAME)
@settings(max_examples=6, deadline=None)
def test_no_format_makes_a_formula_of_a_name_and_each_gives_it_back(tmp_path_factory, name):
    folder = tmp_path_factory.mktemp("names")
    found = [replace(line, tenant=line.tenant and name, service=line.service and name) for line in LINES[:80]]
    basis = replace(fake.basis(REQUEST, found), slo=(), organisation=name)
    formats = ("csv", "bill-csv", "focus-csv", "focus-parquet", "xlsx")  # those that another program reads
    _, paths, _ = make(folder, found, basis, replace(REQUEST, by=("tenant",), formats=formats))
    assert json.loads(paths["reconciliation"].read_text())["adds_up"] is True
    cells = {}
    for kind, column in (("csv", "tenant"), ("bill-csv", "tenant"), ("focus-csv", "x_TenantId")):
        rows = list(csv.DictReader(io.StringIO(paths[kind].read_bytes().decode(), newline="")))
        texts = {text for row in rows for column, text in row.items() if not is_number(text)}
        assert not any(text[:1] in "=+-@\t\r\n\uff1d" for text in texts if text)
        cells[kind] = {original(row[column]) for row in rows} - {"", OPERATOR}
    assert cells == {"csv": {name}, "bill-csv": {name}, "focus-csv": {name}}
    assert set(polars.read_parquet(paths["focus-parquet"])["x_TenantId"].to_list()) - {None} == {name}
    if "\r" not in name:  # XML reads it as a line's end
        workbook = openpyxl.load_workbook(paths["xlsx"])
        assert name in {cell.value for cell in workbook["Rows"]["A"]}
        assert not any(cell.data_type == "f" for sheet in ("Rows", "Notes") for row in workbook[sheet] for cell in row)


def is_number(text: str) -> bool:
    return re.fullmatch(r"-?\d+(\.\d+)?", text) is not None


# -- the document ----------------------------------------------------------------------------------


def test_document_is_made_when_names_have_letters_that_its_fonts_lack(tmp_path):
    sites = {name: replace(site, label="東京 <b>&") for name, site in BASIS.sites.items()}
    basis = replace(BASIS, sites=sites, organisation="Ünïted & Co <i>")
    _, paths, _ = make(tmp_path, basis=basis, request=replace(REQUEST, formats=("pdf",)))
    assert paths["pdf"].read_bytes().startswith(b"%PDF-")


def test_notes_say_what_is_missing_and_what_is_modelled(tmp_path):
    found = [replace(LINES[0], location_missing_uj=LINES[0].energy_uj), *LINES[1:]]
    baseline = Baseline(
        "single_pool", 2 * sum(line.energy_uj for line in LINES), None, 1_000, 3, "Modelled.", 90 * 3600
    )
    unrented = {name: replace(site, rented=name != "berlin") for name, site in BASIS.sites.items()}
    basis = replace(BASIS, baseline=baseline, sites=unrented, settled_until_s=BASIS.settled_until_s - 3_600)
    statement, _, _ = make(tmp_path, found, basis, replace(REQUEST, formats=("csv",)))
    notes = "\n".join(statement.notes)
    for words in (
        "carbon feed had no value",
        "Saved (modelled)",
        "It is of 90 of the ",
        "for Berlin: cost there is electricity",
        "Provisional",
    ):
        assert words in notes
    assert statement.provisional


def test_report_is_refused_when_nothing_is_in_its_period(tmp_path):
    with pytest.raises(BadReport, match="nothing was settled"):
        make(tmp_path, ())

"""Host energy in reports: beside the GPUs' and in no other figure, missing where it was not metered."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from telemetry.report_values.lines import ReportLine
from telemetry.report_values.report_request import ReportRequest
from telemetry.report_values.signature import figures
from telemetry.report_values.statement import Statement
from telemetry.report_values.table import COLUMNS
from telemetry.report_values.totals import Group, Totals
from telemetry.reports.writers.files import empty_totals, make_files
from tests.fakes import reports as fake

NAMES = ("host_kwh", "host_known_kwh", "without_host_kwh")
KWH_UJ = 3_600_000_000_000


def cells(totals: Totals) -> dict[str, str | None]:
    group = Group((), None, totals, True)
    return {column.name: column.cell(group) for column in COLUMNS}


@pytest.mark.parametrize(
    ("totals", "expected"),
    [
        (Totals(energy_uj=4 * KWH_UJ, host_uj=KWH_UJ, host_known_uj=4 * KWH_UJ), ("1", "1", "0")),
        (Totals(energy_uj=4 * KWH_UJ, host_uj=KWH_UJ, host_known_uj=3 * KWH_UJ), (None, "1", "1")),
        (Totals(energy_uj=4 * KWH_UJ), (None, None, "4")),
        (Totals(host_uj=KWH_UJ), ("1", "1", "0")),  # of a host none of whose GPUs was metered
        (Totals(), ("0", "0", "0")),  # requests that were refused used nothing
        (Totals(energy_uj=KWH_UJ, host_uj=KWH_UJ, host_known_uj=KWH_UJ, unmetered=1), (None, None, None)),
    ],
)
def test_host_is_known_as_far_as_it_was_metered(totals: Totals, expected: tuple[str | None, ...]) -> None:
    assert tuple(cells(totals)[name] for name in NAMES) == expected


def test_no_other_figure_has_the_host_in_it() -> None:
    one = Totals(energy_uj=5 * KWH_UJ, facility_uj=6 * KWH_UJ, location_ug=7, electricity_nano=8, output_tokens=9)
    with_host = replace(one, host_uj=KWH_UJ, host_known_uj=5 * KWH_UJ)
    mine, others = cells(one), cells(with_host)
    assert {name for name in mine if mine[name] != others[name]} == set(NAMES)


REQUEST = ReportRequest("2026-10-05", by=("tenant",), formats=("csv", "xlsx", "bill-csv"), basis="usage")
LINES = tuple(fake.lines(REQUEST, hours=3))
HOSTED = tuple(replace(line, host_uj=line.energy_uj // 7, host_known_uj=line.energy_uj) for line in LINES)


def make(folder: Path, lines: Sequence[ReportLine]) -> tuple[Statement, list[dict[str, str]]]:
    statement, files = make_files(REQUEST, fake.basis(REQUEST, lines), fake.blocks(lines), folder)
    (path,) = (folder / file.name for file in files if file.format == "csv")
    with path.open() as file:
        return statement, list(csv.DictReader(file))


def test_rows_of_the_files_add_up_to_the_hosts_when_all_were_metered(tmp_path: Path) -> None:
    statement, rows = make(tmp_path, HOSTED)
    host_uj = sum(line.host_uj for line in HOSTED)
    assert statement.total.host_uj == host_uj
    assert sum(Decimal(row["host_kwh"]) for row in rows) == pytest.approx(
        Decimal(host_uj) / KWH_UJ, abs=Decimal("1e-9")
    )
    assert {Decimal(row["without_host_kwh"]) for row in rows} == {0}
    assert any("is shown beside that of the GPUs" in note for note in statement.notes)
    assert statement.bill is not None
    assert sum(line.totals.host_uj for line in statement.bill.lines) == host_uj


def test_report_says_so_when_no_host_was_metered(tmp_path: Path) -> None:
    statement, rows = make(tmp_path, LINES)
    assert {row["host_kwh"] for row in rows} == {row["host_known_kwh"] for row in rows} == {""}
    assert any("all figures are of the GPUs alone" in note for note in statement.notes)


def test_signed_figures_say_nothing_of_hosts_when_none_was_metered(tmp_path: Path) -> None:
    """So that a report of before there were host meters has the signature that it had then."""
    made = {}
    for name, lines in (("with", HOSTED), ("without", LINES)):
        basis = fake.basis(REQUEST, lines)
        totals = empty_totals(REQUEST, basis, REQUEST.span())
        for block in fake.blocks(lines):
            totals.add(block)
        (tmp_path / name).mkdir()
        bill = make(tmp_path / name, lines)[0].bill
        assert bill is not None
        made[name] = json.dumps(figures(totals, bill))
    assert "host_uj" in made["with"]
    assert "host" not in made["without"]
